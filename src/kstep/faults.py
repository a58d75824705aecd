"""What goes wrong around a run, said so that whoever reads it can put it right.

A full disk, a read-only folder or missing memory is nobody's bug. It ends in one sentence about the
cause and one about what is left of the run, never in a traceback through code that did its part.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kstep.errors import KstepError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
# torch raises plain RuntimeErrors for the memory of the processor.
_ALLOCATION = ("can't allocate memory", "not enough memory", "out of memory", "Cannot allocate")


class Fault(KstepError):
    """A run that was right to begin with could not go on."""


def explain(error: BaseException) -> str | None:
    """Say what happened and what to do; None where this is no fault of the surroundings."""
    if isinstance(error, Fault):
        return str(error)
    if isinstance(error, OSError):
        if error.errno in _FULL:
            return f"the disk is full ({error}). Make room and repeat the command"
        if error.errno in _CLOSED:
            return f"no permission to write ({error}). Repeat the command once that is mended"
        return str(error)
    allocating = isinstance(error, RuntimeError) and any(part in str(error) for part in _ALLOCATION)
    if isinstance(error, MemoryError) or allocating:
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no more is given"
        return (
            f"out of memory ({first}). Free some, or use --replay disk, a smaller "
            "method.learning.replay_capacity or a smaller method.learning.batch_size"
        )
    return None


@contextmanager
def told(standing: Callable[[], str]) -> Iterator[None]:
    """Turn faults inside the block into one `Fault` that also says how the run stands."""
    try:
        yield
    except Exception as error:
        cause = explain(error)
        if cause is None:
            raise
        raise Fault(f"{cause}. {standing()}") from error
