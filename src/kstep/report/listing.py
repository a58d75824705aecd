"""`kstep list`: names and a line about each. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from kstep import names
from kstep.envs import tasks
from kstep.sweep import experiments

Listing: TypeAlias = Literal["methods", "tasks", "presets", "experiments"]


def lines(what: Listing) -> Iterator[str]:
    """Yield a line per name."""
    if what == "tasks":
        for name in tasks.names():
            yield f"{name:28} action repeat {tasks.parse(name).action_repeat}"
        yield f"{'gym:<id>':28} any Gymnasium environment with Box or Discrete actions"
    elif what == "experiments":
        for name in experiments.shipped():
            yield f"{name:16} {experiments.read(name).title}"
    else:
        known = names.METHOD_SUMMARIES if what == "methods" else names.PRESET_SUMMARIES
        for name, summary in known.items():
            yield f"{name:20} {summary}"
