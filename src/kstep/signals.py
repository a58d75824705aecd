"""SIGTERM and Ctrl-C outside the training loop: one sentence and a code, at any moment.

Nothing here imports more than the standard library: the command answers signals before it imports
what takes seconds.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME = 1.0
"""Seconds in which another SIGTERM is still the same request: the kernel sends one for each thread
of a parent that dies, and what the first one ends must have time to clean up."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came where no checkpoint can be written first. Ends what Ctrl-C would end."""


class _Terminate:
    """What to do upon SIGTERM."""

    def __init__(self) -> None:
        self._last = -SAME

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before >= SAME:
            raise Terminated


def signal_of(interrupt: KeyboardInterrupt) -> signal.Signals:
    """Return which signal has ended something."""
    return signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT


@contextmanager
def answered() -> Iterator[None]:
    """End the process with a sentence when a signal interrupts the block."""
    try:
        before = signal.signal(signal.SIGTERM, _Terminate())
    except ValueError:  # not the main thread: whoever owns it handles signals
        before = None
    try:
        yield
    except KeyboardInterrupt as interrupt:
        number = signal_of(interrupt)
        what = "terminated" if number == signal.SIGTERM else "interrupted"
        print(f"kstep: {what}", file=sys.stderr)
        sys.exit(128 + number)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
