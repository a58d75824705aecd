"""Experiments as data: TOML files that list methods, tasks, seeds and budgets.

In: the name of an experiment that comes with the package, or a user's file of the same form, and a
scale. Out: a `Sweep`. Nothing here needs PyTorch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kstep import names, reading
from kstep.types import KstepError
from kstep.values import DERIVED, Count, Positive, near

SCALES = ("paper", "cpu", "debug")
MOST_SEEDS = 10_000


@dataclass(frozen=True)
class MethodGroup:
    """Methods that share seeds and budget."""

    methods: tuple[str, ...]
    seeds: tuple[Count, ...]
    env_steps: Positive
    set: tuple[str, ...] = ()
    """Overrides; `{half}` stands for half of the budget."""
    tasks: tuple[str, ...] = ()
    """Empty: the experiment's."""
    preset: str = ""
    """Empty: the scale's."""

    @property
    def overrides(self) -> tuple[str, ...]:
        return tuple(text.replace("{half}", str(self.env_steps // 2)) for text in self.set)


@dataclass(frozen=True)
class _Scale:
    """What an experiment changes at one scale."""

    preset: str | None = None
    tasks: tuple[str, ...] | None = None
    seeds: tuple[Count, ...] | None = None
    env_steps: Positive | None = None
    save_encoders_every: Positive | None = None


@dataclass(frozen=True)
class _Scales:
    paper: _Scale = _Scale()
    cpu: _Scale = _Scale()
    debug: _Scale = _Scale()


@dataclass(frozen=True)
class Sweep:
    """One of the paper's experiments, or a user's, at one scale.

    Its fields are the keys of an experiment's file, except for the last two.
    """

    tasks: tuple[str, ...]
    group: tuple[MethodGroup, ...]
    title: str = ""
    marks: tuple[Count, ...] = ()
    """env_steps at which results are compared."""
    scale: _Scales = field(default_factory=_Scales)
    order: Literal["seeds", "groups"] = "seeds"
    """In which runs are started: a seed of every cell, then the next seed; or group by group."""
    alone: bool = False
    """Whether runs must not share a machine because their time is the result."""
    save_encoders_every: Positive | None = None
    """env_steps between the encoders that its runs save; None: they save none."""
    transfer: str = ""
    """The method to train on the frozen last encoder of each run, in every other task."""
    paper: str = ""
    """The comparison of the paper that these runs are for (`kstep.report.comparisons`); empty:
    returns beside those of its tables."""
    name: str = field(default="", metadata=DERIVED)
    scale_name: str = field(default="", metadata=DERIVED)

    @property
    def presets(self) -> tuple[str, ...]:
        """The presets of its runs, each once."""
        return tuple(dict.fromkeys(group.preset for group in self.group))


def shipped() -> tuple[str, ...]:
    """Return the names of the experiments that come with the package."""
    folder = files("kstep").joinpath("sweep/experiments")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def read(experiment: str, scale: str = "paper") -> Sweep:
    """Read an experiment by its name or from a TOML file, at a scale."""
    names.require(scale, SCALES, "scale")
    path = Path(experiment)
    if experiment in shipped():
        path = Path(str(files("kstep").joinpath(f"sweep/experiments/{experiment}.toml")))
    elif path.suffix != ".toml":
        raise KstepError(
            f"unknown experiment '{experiment}'.{near(experiment, shipped())} Experiments: "
            f"{', '.join(shipped())}; or give a .toml file"
        )
    sweep = reading.toml(path, Sweep, _readable)
    with reading.naming(path):
        return _at_scale(replace(sweep, name=path.stem), scale)


def _readable(data: Any) -> Any:
    """Return TOML values with seeds such as "1-10" as numbers and budgets such as 1e5 as whole."""
    if isinstance(data, list):
        return [_readable(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    read = {key: _readable(value) for key, value in data.items()}
    if isinstance(read.get("seeds"), str | int):
        read["seeds"] = seeds(str(read["seeds"]))
    steps = read.get("env_steps")
    if isinstance(steps, float) and steps.is_integer():
        read["env_steps"] = int(steps)
    return read


def _at_scale(sweep: Sweep, scale: str) -> Sweep:
    """Return the experiment with what it changes at this scale."""
    changes: _Scale = getattr(sweep.scale, scale)
    groups = tuple(
        replace(
            group,
            seeds=changes.seeds or group.seeds,
            env_steps=changes.env_steps or group.env_steps,
            tasks=changes.tasks or group.tasks or sweep.tasks,
            preset=changes.preset or group.preset or scale,
        )
        for group in sweep.group
    )
    sweep = replace(
        sweep,
        scale_name=scale,
        title=sweep.title or sweep.name,
        tasks=changes.tasks or sweep.tasks,
        group=groups,
        save_encoders_every=changes.save_encoders_every or sweep.save_encoders_every,
    )
    if not sweep.tasks or not groups:
        raise KstepError("it needs at least one task and one [[group]] of methods")
    for preset in sweep.presets:
        names.require(preset, names.PRESET_SUMMARIES, "preset")
    methods = [method for group in groups for method in group.methods]
    for method in methods + [sweep.transfer] * bool(sweep.transfer):
        names.check_method(method)
    if sweep.transfer and sweep.save_encoders_every is None:
        raise KstepError("`transfer` needs `save_encoders_every`")
    budget = max(group.env_steps for group in groups)
    return replace(sweep, marks=tuple(m for m in sweep.marks if m <= budget) or (budget,))


def seeds(text: str) -> tuple[int, ...]:
    """Read `1-3,7` as 1, 2, 3, 7."""
    numbers: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18})(?:-([0-9]{1,18}))?\s*", part)
        if match is None:
            raise KstepError(f"'{text}' is not a list of seeds such as 1-10 or 1,2,5")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise KstepError(f"seeds '{part.strip()}' count down; write the smaller one first")
        if last - first < MOST_SEEDS:
            numbers.update(dict.fromkeys(range(first, last + 1)))
        if last - first >= MOST_SEEDS or len(numbers) > MOST_SEEDS:
            raise KstepError(f"'{text}' is more than {MOST_SEEDS:,} seeds")
    return tuple(numbers)
