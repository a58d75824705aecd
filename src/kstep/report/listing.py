"""`kstep list`: names and a line about each. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from kstep import names, plugins, zoo
from kstep.envs import tasks
from kstep.sweep import experiments

Listing: TypeAlias = Literal["methods", "encoders", "tasks", "presets", "experiments", "zoo"]


def lines(what: Listing) -> Iterator[str]:
    """Yield a line per name."""
    if what == "tasks":
        for name in tasks.names():
            yield f"{name:28} action repeat {tasks.parse(name).action_repeat}"
        yield f"{'gym:<id>':28} any Gymnasium environment with Box or Discrete actions"
    elif what == "zoo":
        for name in zoo.agents():
            yield f"{zoo.PREFIX + name:28} {zoo.card(zoo.HOME / name).line()}"
        if not zoo.agents():
            yield "this installation comes without trained agents"
    elif what == "experiments":
        for name in experiments.shipped():
            yield f"{name:16} {experiments.read(name).title}"
    else:
        for name, summary in _summaries(what).items():
            yield f"{name:20} {summary}"
        yield from plugins.problems.values()


def _summaries(what: Listing) -> dict[str, str]:
    if what == "presets":
        return names.PRESET_SUMMARIES
    if what == "methods":
        plugins.load_modules()  # the others say by their names what they are
        return names.methods()
    plugins.load()
    return names.encoders()
