"""Experiments as data: TOML files that list methods, tasks, seeds and budgets.

In: the name of an experiment that comes with the package, or a user's file of the same form, and a
scale. Out: a `Sweep`. Nothing here needs PyTorch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from kstep import names
from kstep.types import KstepError
from kstep.values import Count, Positive, decode, near

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


@dataclass(frozen=True)
class Sweep:
    """One of the paper's experiments, or a user's, at one scale."""

    name: str
    scale: str
    title: str
    preset: str
    tasks: tuple[str, ...]
    marks: tuple[int, ...]
    """env_steps at which results are compared."""
    groups: tuple[MethodGroup, ...]
    alone: bool = False
    """Whether runs must not share a machine because their time is the result."""
    save_encoders_every: int | None = None
    """env_steps between the encoders that its runs save; None: they save none."""
    transfer: str = ""
    """The method to train on the frozen last encoder of each run, in every other task."""
    paper: str = ""
    """The comparison of the paper that these runs are for (`kstep.report.comparisons`); empty:
    returns beside those of its tables."""


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
class ExperimentFile:
    """What a file says; what a scale does not change holds at every scale."""

    tasks: tuple[str, ...]
    group: tuple[MethodGroup, ...]
    title: str = ""
    marks: tuple[Count, ...] = ()
    scale: _Scales = field(default_factory=_Scales)
    paper: str = ""
    alone: bool = False
    save_encoders_every: Positive | None = None
    transfer: str = ""


def shipped() -> tuple[str, ...]:
    """Return the names of the experiments that come with the package."""
    folder = files("kstep").joinpath("sweep/experiments")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def read(experiment: str, scale: str = "paper") -> Sweep:
    """Read an experiment by its name or from a TOML file, at a scale."""
    names.require(scale, SCALES, "scale")
    path = Path(experiment)
    if experiment in shipped():
        text = files("kstep").joinpath(f"sweep/experiments/{experiment}.toml").read_text()
    elif path.suffix == ".toml" and path.is_file():
        text = path.read_text()
    else:
        raise KstepError(
            f"unknown experiment '{experiment}'.{near(experiment, shipped())} Experiments: "
            f"{', '.join(shipped())}; or give a .toml file"
        )
    name = path.stem if path.suffix == ".toml" else experiment
    try:
        file: ExperimentFile = decode(ExperimentFile, _readable(tomllib.loads(text)))
        return _at_scale(name, scale, file)
    except (tomllib.TOMLDecodeError, KstepError) as error:
        raise KstepError(f"experiment '{name}': {error}") from error


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


def _at_scale(name: str, scale: str, file: ExperimentFile) -> Sweep:
    changes: _Scale = getattr(file.scale, scale)
    tasks = file.tasks if changes.tasks is None else changes.tasks
    if not tasks or not file.group:
        raise KstepError("it needs at least one task and one [[group]] of methods")
    preset = scale if changes.preset is None else changes.preset
    names.require(preset, names.PRESET_SUMMARIES, "preset")
    methods = [method for group in file.group for method in group.methods]
    for method in methods + [file.transfer] * bool(file.transfer):
        names.check_method(method)
    every = changes.save_encoders_every or file.save_encoders_every
    if file.transfer and every is None:
        raise KstepError("`transfer` needs `save_encoders_every`")
    groups = tuple(
        MethodGroup(
            group.methods,
            group.seeds if changes.seeds is None else changes.seeds,
            changes.env_steps or group.env_steps,
            group.set,
        )
        for group in file.group
    )
    budget = max(group.env_steps for group in groups)
    return Sweep(
        name=name,
        scale=scale,
        title=file.title or name,
        preset=preset,
        tasks=tasks,
        marks=tuple(mark for mark in file.marks if mark <= budget) or (budget,),
        groups=groups,
        alone=file.alone,
        save_encoders_every=every,
        transfer=file.transfer,
        paper=file.paper,
    )


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
        if last - first + len(numbers) >= MOST_SEEDS:
            raise KstepError(f"'{text}' is more than {MOST_SEEDS:,} seeds")
        numbers.update(dict.fromkeys(range(first, last + 1)))
    return tuple(numbers)
