"""Files that are written completely or not at all, and JSON lines."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kstep.errors import KstepError


def write_atomically(path: Path, data: bytes) -> None:
    """Write aside, flush to disk, rename. Where that fails, nothing of it is left."""
    aside = path.with_name(f"{path.name}.part")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1) + "\n").encode())


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames and deletions inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of a value that JSON can hold, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file: None if there is no file, empty if it is something else."""
    try:
        return _row(path.read_bytes()) or {}
    except FileNotFoundError:
        return None


def json_lines(path: Path, *, strict: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, if it exists.

    A line without an end is still being written, or was when its writer died: it is left out.
    Other lines that hold no JSON object are left out too, or refused if `strict`.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for line in lines:
        row = _row(line)
        if row is None and strict:
            raise KstepError(f"{path} is damaged: a line is not a JSON object")
        if row is not None:
            yield row


def last_json_line(path: Path) -> dict[str, Any] | None:
    """Return the last object of a file of JSON lines, reading only the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for length in (4096, 1 << 20):
                file.seek(max(0, size - length))
                for line in reversed(file.read().splitlines()):
                    if (row := _row(line)) is not None:
                        return row
                if length >= size:
                    break
    except FileNotFoundError:
        pass
    return None


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
