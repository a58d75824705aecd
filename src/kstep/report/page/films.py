"""Films of policies on a page: inside it where they fit, or served beside it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

from kstep import reading
from kstep.report.page.data import Film, Section
from kstep.report.page.records import Record
from kstep.types import KstepError

ROOM = 8_000_000
"""Bytes of films that a page has room for."""
KINDS = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".webp": "image/webp"}


def section(runs: Sequence[Record], show: Callable[[Record, Path], str] | None) -> Section:
    """Return all films, those of one run from its first checkpoint to its last."""
    address = show or Embedded()
    found, lost = [], 0
    for run in runs:
        for env_steps, path in run.films:
            where = address(run, path)
            lost += not where
            if where:
                still = path.suffix in (".gif", ".webp")
                name = title(env_steps, path)
                film = Film(run.label, run.task, run.seed, name, env_steps, where, still)
                found.append(film)
    remark = f"{lost} more films are in the run folders; this page has no room for them."
    return Section(
        "films", "Films", films=tuple(found), remarks=(remark,) if found and lost else ()
    )


def title(env_steps: int, path: Path) -> str:
    """Return what a film shows."""
    return f"{env_steps:,} env steps" if env_steps else path.stem


class Embedded:
    """Films as part of the page, the first ones while there is room."""

    def __init__(self) -> None:
        self._left = ROOM

    def __call__(self, run: Record, path: Path) -> str:
        try:
            data = reading.contents(path, self._left * 3 // 4)
        except KstepError:
            return ""
        text = base64.b64encode(data).decode()
        self._left -= len(text)
        return f"data:{KINDS[path.suffix]};base64,{text}"
