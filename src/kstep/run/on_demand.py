"""What may be asked of the process that trains a run: a checkpoint now (SIGUSR1), or to stop with
one (SIGINT, as Ctrl-C).

That process is found by the lock that it holds: what the lock file says could be anybody's number,
and either signal ends a process that does not expect it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kstep.errors import KstepError
from kstep.run.folder import RunFolder

AGAIN = 10.0
"""Seconds after which it is asked again: while it starts, it does not listen yet."""


def trainer(run: RunFolder) -> int | None:
    """Return the process that holds a run's lock, if the system tells."""
    try:
        inode = str(run.lock_file.lstat().st_ino)
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        holders = {int(w[4]) for w in held if w[1] == "FLOCK" and w[5].split(":")[-1] == inode}
        written = int(run.lock_note()[0])
    except (OSError, ValueError, IndexError):
        return None
    return written if written in holders and run.is_locked() else None


def first_checkpoint(run: RunFolder) -> str:
    """Return when a run without a checkpoint will have one, and how to have it earlier."""
    if not run.is_locked():
        return "none was written yet. Train it for longer: the same kstep train command resumes it"
    process, minutes = trainer(run), run.lock_note()[1:2]
    when = "soon"
    if minutes:
        age = (time.time() - run.lock_file.stat().st_mtime) / 60
        left = max(0.0, float(minutes[0]) - age)
        when = f"in about {max(1, round(left))} min" if left > 0.5 else "within a minute"
    who = f"process {process}" if process else "another process"
    how = f"kill -USR1 {process}, or " if process else ""
    return (
        f"none was written yet. It is being trained by {who}, which writes the first one {when}. "
        f"To have one now: {how}its kstep train command with --checkpoint-now"
    )


def request(run: RunFolder, report: Callable[[str], None]) -> Path:
    """Ask the process that trains a run for a checkpoint, wait for it and return its folder."""
    before, asked = set(run.checkpoint_folders()), -AGAIN
    process = trainer(run)
    if process is None:
        raise KstepError(
            f"no process on this machine is training {run.folder}: --checkpoint-now is for runs "
            "that are being trained"
        )
    report(f"asking process {process} for a checkpoint")
    while True:
        new = [folder for folder in run.checkpoint_folders() if folder not in before]
        if new:
            return new[-1]
        if trainer(run) != process:
            raise KstepError(f"process {process} has ended without a further checkpoint")
        if time.monotonic() - asked >= AGAIN:
            asked = time.monotonic()
            _send(run, process, signal.SIGUSR1)
        time.sleep(0.2)


def interrupt(run: RunFolder) -> int:
    """Ask the process that trains a run to stop as upon Ctrl-C, and return it: it writes a
    checkpoint and ends. A second time ends it at once, without one."""
    process = trainer(run)
    if process is None:
        raise KstepError(f"no process on this machine is training {run.folder}")
    _send(run, process, signal.SIGINT)
    return process


def _send(run: RunFolder, process: int, number: signal.Signals) -> None:
    """Send a signal to the process that holds a run's lock, if it still does."""
    ended = KstepError(f"process {process} no longer trains {run.folder}")
    with ExitStack() as stack:
        try:
            # A number may pass to another process at any moment; this leads to the same one always.
            descriptor = os.pidfd_open(process)
            stack.callback(os.close, descriptor)
            if trainer(run) != process or not _has_open(process, run.lock_file):
                raise ended
            signal.pidfd_send_signal(descriptor, number)
        except (ProcessLookupError, FileNotFoundError) as error:
            raise ended from error
        except PermissionError as error:
            raise KstepError(
                f"process {process}, which trains {run.folder}, belongs to another user"
            ) from error


def _has_open(process: int, path: Path) -> bool:
    """Whether a process has a file open. The list of locks has the number of a file, but not the
    disk that it is on, so another file may have the same."""
    wanted = path.lstat()
    for entry in os.scandir(f"/proc/{process}/fd"):
        try:
            if os.path.samestat(entry.stat(), wanted):
                return True
        except FileNotFoundError:  # closed meanwhile, or something that is no file
            continue
    return False
