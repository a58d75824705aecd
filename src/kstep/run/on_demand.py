"""A checkpoint of a run that another process is training, when somebody wants one.

That process writes one upon SIGUSR1. It is found by the lock that it holds: what the lock file says
could be anybody's number, and the signal ends a process that does not expect it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
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
            os.kill(process, signal.SIGUSR1)
        time.sleep(0.2)
