"""What users are meant to read: invalid requests, and what goes wrong around a run.

A full disk, a read-only folder or missing memory is nobody's bug. It ends in one sentence about the
cause and one about the state of the run, never in a traceback through code that did its part.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# torch raises plain RuntimeErrors for the memory of the processor.
_ALLOCATION = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate")


class KstepError(Exception):
    """Something a user can fix; the message says what and how. Shown without a traceback."""

    exit_code = 2


class Fault(KstepError):
    """A valid run could not continue."""

    exit_code = 1


class Busy(KstepError):
    """Another process is writing the run."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: trying again later may succeed


class Stopped(KstepError):
    """A signal asked a run, or a sweep, to stop."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal


def explain(error: BaseException) -> str | None:
    """Return what happened and what to do; None for errors that are not the environment's."""
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return f"the disk is full ({error}). Free some space and rerun the command"
        if error.errno in _CLOSED:
            return f"no permission to write ({error}). Fix the permissions and rerun the command"
        return str(error)
    allocating = isinstance(error, RuntimeError) and any(part in str(error) for part in _ALLOCATION)
    if isinstance(error, MemoryError) or allocating:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no details"
        return (
            f"out of memory ({first}). Free some, or use --replay disk, a smaller "
            "method.learning.replay_capacity or a smaller method.learning.batch_size"
        )
    return None


@contextmanager
def as_faults(describe: Callable[[], str]) -> Iterator[None]:
    """Turn what goes wrong around the block into a `Fault` that also describes the run's state."""
    try:
        yield
    except Exception as error:
        cause = explain(error)
        if cause is None:
            raise
        raise Fault(f"{cause}. {describe()}") from error
