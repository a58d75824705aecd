"""What a run logs: JSON lines.

Writers know how many bytes they have written, so that a run resumed from a checkpoint can drop what
it had logged beyond it, and the file ends up as if the run had never stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstep import reading
from kstep.files import Tree
from kstep.types import KstepError
from kstep.values import Count


@dataclass(frozen=True)
class Written:
    """How much of a log belongs to a checkpoint, and what it said."""

    bytes: Count = 0
    sha256: str | None = None
    """None: not known, or nothing yet."""


class JsonLines:
    """Append-only JSON lines with a known position and a running checksum."""

    def __init__(self, tree: Tree, path: Path, written: Written) -> None:
        """Continue after `written`; with nothing where the file is gone."""
        kept = before(path, written)
        self.path = path
        self.lost = written.bytes - len(kept)
        """Bytes that should be there and are not."""
        # A file of its own, whatever has its name: perhaps a backup shares it.
        tree.write(path, kept)
        self._file = tree.open(path)
        self._sum = hashlib.sha256(kept)
        self._bytes = len(kept)

    def write(self, row: dict[str, Any]) -> None:
        line = (json.dumps(row) + "\n").encode()
        self._file.write(line)
        self._file.flush()  # for whoever is watching the file
        self._sum.update(line)
        self._bytes += len(line)

    def sync(self) -> Written:
        """Make everything written so far survive a crash of the machine; return what that is."""
        os.fsync(self._file.fileno())
        return Written(self._bytes, self._sum.hexdigest())

    def close(self) -> None:
        self._file.close()


def before(path: Path, written: Written) -> bytes:
    """Return what of a log belongs to a checkpoint: nothing if it is gone.

    Raises if it was changed since or is too short, when what is left can no longer be checked.
    """
    try:
        kept = reading.contents(path, reading.LARGEST_LOG)[: written.bytes]
    except reading.Missing:
        return b""
    same = written.sha256 in (None, hashlib.sha256(kept).hexdigest())
    if len(kept) != written.bytes or not same:
        raise KstepError(
            f"{path} was changed since it was written. Restore it from a copy, or move it away to "
            "resume without what it held"
        )
    return kept
