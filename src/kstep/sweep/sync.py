"""Runs on machines that share no disk: folders travel to where a run is carried out, and back.

A `Keeper` sits where the runs belong. Whoever carries out a run takes it (`Keeper.take`), copies it
to a folder of its own, trains there, and hands back every checkpoint as soon as it is written:
exactly the files the checkpoint consists of, with logs cut where it says, so that what the keeper
holds can always be gone on from. Taking a run ends every earlier claim to it: a machine that was
cut off and comes back is refused, so a run never has two writers. The keeper holds the run's lock
meanwhile, so nobody at home writes it either.

Nothing here knows of Ray. `call(name, *arguments)` calls a method of the keeper, wherever it is.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

from kstep import encoders
from kstep.sweep import plan
from kstep.sweep.plan import RunSpec
from kstep.types import KstepError

Call: TypeAlias = Callable[..., Any]
Listing: TypeAlias = dict[str, int]
"""Path relative to the folder above the run's, to the number of bytes that count."""

_Mark: TypeAlias = tuple[int, int]
"""What tells whether a file changed: bytes that count, and when it was written."""

PIECE = 32 << 20
"""Bytes sent at once."""
LOOK_SECONDS = 1.0
"""Between looks for a new checkpoint."""
LOGS = {"metrics.jsonl": "metrics", "evaluations.jsonl": "evaluations"}
"""Logs, and what a checkpoint calls their positions."""
ALWAYS = ("config.json", "system.json", "frozen_encoder.safetensors")
"""What belongs to a run with or without a checkpoint; saved encoders do as well."""


class Superseded(KstepError):
    """Somebody else has taken the run since."""


class Busy(KstepError):
    """A process that knows nothing of the keeper is writing the run."""


@dataclass
class _Claim:
    """One run, taken by one machine."""

    number: int
    folder: Path
    lock: IO[str]
    incoming: Path = field(init=False)

    def __post_init__(self) -> None:
        self.incoming = self.folder.with_name(f"{self.folder.name}.incoming")


class Keeper:
    """Hands out run folders and takes them back, one machine at a time per run."""

    def __init__(self) -> None:
        self._claims: dict[str, _Claim] = {}
        self._number = 0

    def take(self, folder: str) -> tuple[int, Listing]:
        """Claim a run; return the claim's number and the files it consists of so far."""
        self._number += 1
        claim = self._claims.get(folder)
        if claim is None:
            claim = _Claim(self._number, Path(folder), _lock(Path(folder)))
        claim.number = self._number
        self._claims[folder] = claim
        shutil.rmtree(claim.incoming, ignore_errors=True)
        return claim.number, consistent(claim.folder)

    def read(self, folder: str, number: int, path: str, start: int) -> bytes:
        """Return a piece of a file of the run, or of one elsewhere by its absolute path."""
        claim = self._claim(folder, number)
        with (claim.folder.parent / path).open("rb") as file:
            file.seek(start)
            return file.read(PIECE)

    def write(self, folder: str, number: int, path: str, start: int, piece: bytes) -> None:
        """Take a piece of a file; nothing is visible before `keep`."""
        target = self._claim(folder, number).incoming / _inside(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.write(piece)

    def keep(self, folder: str, number: int, listing: Listing) -> None:
        """Put what was written in place and remove what the run no longer consists of."""
        claim = self._claim(folder, number)
        home = claim.folder.parent
        for name, size in listing.items():
            new = claim.incoming / name
            there = new if new.is_file() else home / name
            found = there.stat().st_size if there.is_file() else 0
            if found < size:
                raise KstepError(f"{name} has {found:,} of {size:,} bytes: something was lost")
        # Frames and logs first, checkpoints last and their state at the very end: whatever happens
        # in between, the newest checkpoint that is in place has all it needs.
        arrived = [p.relative_to(claim.incoming) for p in claim.incoming.rglob("*") if p.is_file()]
        for path in sorted(arrived, key=lambda p: ("checkpoints" in p.parts, p.name, p)):
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(claim.incoming / path, home / path)
        for kind in ("checkpoints", "replay"):
            for old in sorted((claim.folder / kind).rglob("*"), reverse=True):
                if old.is_dir():
                    if not any(old.iterdir()):
                        old.rmdir()
                elif old.relative_to(home).as_posix() not in listing:
                    old.unlink()
        shutil.rmtree(claim.incoming, ignore_errors=True)

    def release(self, folder: str, number: int) -> None:
        """Give the run back; an older claim releases nothing."""
        claim = self._claims.get(folder)
        if claim is None or claim.number != number:
            return
        del self._claims[folder]
        shutil.rmtree(claim.incoming, ignore_errors=True)
        if {path.name for path in claim.folder.iterdir()} == {"lock"}:
            shutil.rmtree(claim.folder)  # it never began: a later attempt wants the folder free
        claim.lock.close()

    def _claim(self, folder: str, number: int) -> _Claim:
        claim = self._claims.get(folder)
        if claim is None or claim.number != number:
            raise Superseded(f"{folder} was taken by another machine")
        return claim


def consistent(folder: Path) -> Listing:
    """Return what a run can be gone on from: its newest checkpoint and all that belongs to it.

    Raises FileNotFoundError if training replaces the checkpoint at this very moment.
    """
    home = folder.parent
    found: Listing = {}

    def add(path: Path, size: int | None = None) -> None:
        found[path.relative_to(home).as_posix()] = path.stat().st_size if size is None else size

    beside = [folder.with_name(f"{folder.name}{end}") for end in (".log", ".attempts.jsonl")]
    for path in [*(folder / name for name in ALWAYS), *encoders.saved_in(folder), *beside]:
        if path.exists():
            add(path)
    newest = plan.newest_checkpoint(folder)
    if newest is None:
        for name in LOGS:
            if (folder / name).exists():
                add(folder / name)
        return found
    state = json.loads((newest / "state.json").read_text())
    for name in state["replay"]["segments"]:
        add(folder / "replay" / name)
    for name, position in LOGS.items():
        if (folder / name).exists():
            add(folder / name, state["positions"][position]["bytes"])
    for path in sorted(newest.iterdir()):
        add(path)
    return found


@contextmanager
def borrowed(spec: RunSpec, call: Call, stopping: threading.Event) -> Iterator[RunSpec]:
    """Have a run here, in a folder of its own, and hand back every checkpoint it writes.

    Sets `stopping` as soon as the run can no longer be handed back.
    """
    folder = str(spec.folder)
    number, listing = call("take", folder)
    with tempfile.TemporaryDirectory(prefix="kstep-") as home:
        here = replace(spec, folder=Path(home) / spec.folder.name)
        sent: dict[str, _Mark] = {}
        for path, size in listing.items():
            _fetch(call, folder, number, path, Path(home) / path, size)
            sent[path] = _mark(Path(home) / path, size)
        if spec.frozen_encoder is not None:
            encoder = Path(home) / spec.frozen_encoder.name
            _fetch(call, folder, number, str(spec.frozen_encoder), encoder)
            here = replace(here, frozen_encoder=encoder)
        if here.folder.exists():
            for kind in ("checkpoints", "replay"):
                (here.folder / kind).mkdir(parents=True, exist_ok=True)
        ended = threading.Event()
        problems: list[BaseException] = []

        def hand_back() -> None:
            seen = plan.newest_checkpoint(here.folder)
            while not ended.wait(LOOK_SECONDS):
                newest = plan.newest_checkpoint(here.folder)
                if newest == seen:
                    continue
                try:
                    _send(call, folder, number, here.folder, sent)
                except FileNotFoundError:
                    continue  # training was a moment quicker: it wrote a newer one
                except BaseException as error:
                    problems.append(error)
                    stopping.set()
                    return
                seen = newest

        thread = threading.Thread(target=hand_back, daemon=True)
        thread.start()
        try:
            yield here
        finally:
            ended.set()
            thread.join()
            if not problems:
                _send(call, folder, number, here.folder, sent)
                call("release", folder, number)
        if problems:
            raise problems[0]


def _send(
    call: Call, folder: str, number: int, here: Path, sent: dict[str, tuple[int, int]]
) -> None:
    """Hand back what changed. Files that a checkpoint shares with the one before stay home."""
    listing = consistent(here)
    for path, size in listing.items():
        source = here.parent / path
        mark = _mark(source, size)
        if sent.get(path) == mark:
            continue
        with source.open("rb") as file:
            for start in range(0, max(size, 1), PIECE):
                piece = file.read(min(PIECE, size - start))
                call("write", folder, number, path, start, piece)
        sent[path] = mark
    call("keep", folder, number, listing)


def _fetch(
    call: Call, folder: str, number: int, path: str, target: Path, size: int | None = None
) -> None:
    """Copy the first `size` bytes of a file, or all of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while size is None or file.tell() < size:
            piece = call("read", folder, number, path, file.tell())
            if not piece:
                if size is None:
                    return
                raise KstepError(f"{path} ended before {size:,} bytes")
            file.write(piece if size is None else piece[: size - file.tell()])


def _mark(path: Path, size: int) -> _Mark:
    return size, path.stat().st_mtime_ns


def _lock(folder: Path) -> IO[str]:
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise Busy(f"{folder} is being written by another process") from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _inside(path: str) -> Path:
    """Refuse a path that would leave the folder it is meant for."""
    relative = Path(path)
    if relative.is_absolute() or ".." in relative.parts:
        raise KstepError(f"{path} leaves the folder of its run")
    return relative
