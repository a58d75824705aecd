"""Which C++ sources a library was built from. setup.py runs this file by itself, so it imports only
the standard library."""

from __future__ import annotations

import hashlib
from pathlib import Path


def digest(folder: Path) -> str | None:
    """Return a digest of the C++ sources in a folder; None where there are none."""
    files = sorted(file for file in folder.iterdir() if file.suffix in (".cpp", ".h"))
    if not files:
        return None
    together = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        together.update(f"{file.name} {len(content)}\n".encode() + content)
    return together.hexdigest()[:16]
