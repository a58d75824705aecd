"""What runs cost: hours, memory and disk, from measured speeds where there are any.

Other runs take the learning steps of `speeds.toml`, measured for every method, preset and backend.
Variants of a method follow by how often they pass images through the encoder.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kstep import reading
from kstep.envs.tasks import OF_SUITE, parse
from kstep.sweep.plan import Kind, RunSpec, Status
from kstep.types import Backend


@dataclass(frozen=True)
class Estimate:
    """What is left to do."""

    core_hours: float
    longest_core_hours: float
    """Of the longest single run: no number of machines makes a sweep quicker than that."""
    memory_gb: float
    """Of the largest single run."""
    disk_gb: float
    """Of all runs when they are complete."""
    measured: int
    """How many of the unfinished runs are estimated from measured speeds."""

    def hours(self, cores: int, threads: int = 1) -> float:
        """Return the wall time on that many cores, at best."""
        return max(self.core_hours / max(cores, 1), self.longest_core_hours / max(threads, 1))


@dataclass(frozen=True)
class Cost:
    """Of one run, the same for every seed."""

    core_seconds: float
    """Per decision."""
    memory_gb: float
    disk_gb: float


def measured_speeds(
    specs: Iterable[RunSpec], tabled: Mapping[str, float] | None = None
) -> dict[Kind, float]:
    """Return core-seconds per decision by kind of run: the median over attempts.

    `tabled` are those that a table of results has of settings. They may be of another machine, so
    they count for kinds of which no attempt was made here.
    """
    here: dict[Kind, list[float]] = {}
    elsewhere: dict[Kind, float] = {}
    for spec in specs:
        for row in spec.run.attempts():
            if row.decisions > 0 and row.outcome in ("done", "stopped"):
                cost = row.seconds * row.threads / row.decisions
                here.setdefault(spec.kind, []).append(cost)
        if tabled and spec.setting in tabled:
            elsewhere[spec.kind] = tabled[spec.setting]
    return elsewhere | {kind: statistics.median(values) for kind, values in here.items()}


def estimate(
    specs: Sequence[RunSpec],
    statuses: Sequence[Status],
    speeds: Mapping[Kind, float] | None = None,
    backend: Backend = "torch",
) -> Estimate:
    """Add up hours, memory and disk; `backend` decides the assumed speeds.

    What was assumed of a task of the suite is corrected by what was measured on the others, with
    the same method, preset and settings.
    """
    speeds = speeds or {}
    corrections = _corrections(specs, speeds, backend)
    total = longest = memory = disk = 0.0
    measured = 0
    for spec, status in zip(specs, statuses, strict=True):
        cost = cost_of(spec, backend)
        disk += cost.disk_gb + _encoders_gb(spec)
        if status.state == "done":
            continue
        measured += spec.kind in speeds
        left = max(spec.env_steps - status.env_steps, 0) / spec.action_repeat
        correction = corrections.get(spec.kind.learner, 1.0) if _of_suite(spec) else 1.0
        assumed = cost.core_seconds * correction
        hours = left * speeds.get(spec.kind, assumed) / 3600
        total, longest = total + hours, max(longest, hours)
        memory = max(memory, cost.memory_gb)
    return Estimate(total, longest, memory, disk, measured)


def _corrections(
    specs: Iterable[RunSpec], speeds: Mapping[Kind, float], backend: Backend
) -> dict[tuple[str, ...], float]:
    """Return how many times as long as assumed a decision took, on tasks of the suite."""
    found: dict[tuple[str, ...], dict[Kind, float]] = {}
    for spec in specs:
        if _of_suite(spec) and spec.kind in speeds:
            assumed = cost_of(spec, backend).core_seconds
            found.setdefault(spec.kind.learner, {})[spec.kind] = speeds[spec.kind] / assumed
    return {learner: statistics.median(own.values()) for learner, own in found.items()}


def _of_suite(spec: RunSpec) -> bool:
    return spec.task in OF_SUITE


@cache
def assumptions() -> dict[str, Any]:
    """Return the table of assumed speeds and sizes."""
    path = Path(str(files("kstep").joinpath("sweep/speeds.toml")))
    return reading.toml(path, dict[str, Any])


def cost_of(spec: RunSpec, backend: Backend = "torch") -> Cost:
    """Return what one run costs in all; its time is that of one decision."""
    any_encoder = None if spec.frozen_encoder is None else Path()
    any_seed = replace(spec, seed=0, folder=Path(), digest="", frozen_encoder=any_encoder)
    return _cost(any_seed, backend)


@cache
def _cost(spec: RunSpec, backend: Backend) -> Cost:
    experiment = spec.experiment()
    learning, assumed = experiment.method.learning, assumptions()
    kind = parse(spec.task).kind
    if experiment.method.observation == "state":
        step, others, frame = float(assumed["state"]["seconds"]), 0.0, 400
    elif kind == "minatar" and spec.preset != "debug":
        small = assumed["minatar"]
        step, others, frame = float(small.get(spec.method, small["ksl_dqn"])), 0.0, 1_000
    else:
        names = (spec.method, experiment.method.base, "ksl")
        trained = spec.frozen_encoder is None
        step = _step(names, spec.preset, backend, trained=trained, batch=learning.batch_size)
        others = 0.0 if spec.preset == "debug" else float(assumed["decision"]["seconds"])
        frame = (1 if kind == "atari" else 3) * experiment.env.size**2
    seconds = step / learning.update_every + others
    # The array is as large as the budget could fill; what the run can touch is less.
    kept = min(learning.replay_capacity, math.ceil(spec.env_steps / spec.action_repeat))
    replay = kept * frame * 1.02 / 1e9
    process = float(assumed["memory"]["process_gb"])
    return Cost(seconds, process + replay, float(assumed["disk"]["run_gb"]) + replay)


def _step(
    names: Sequence[str], preset: str, backend: Backend, *, trained: bool, batch: int
) -> float:
    """Core-seconds per learning step of the first of these methods that is known, from images."""
    assumed = assumptions()
    steps = assumed["step"]
    if preset == "debug":
        return float(steps["debug"]["seconds"])
    of_backend = steps["native" if backend == "native" else "torch"]
    measured = of_backend.get(preset, of_backend["paper"])
    passes = assumed["passes"]
    known = next(name for name in names if name in measured or name in passes)
    like = known if known in measured else "ksl"
    forward, backward = passes[known]
    units = forward + 2 * backward * trained
    all_units = passes[like][0] + 2 * passes[like][1]
    share = float(units / all_units) * batch / 128
    return float(measured[like]) * share


def _encoders_gb(spec: RunSpec) -> float:
    """Return the disk that a run's saved encoders take, or its copy of a frozen one."""
    saved = int(spec.frozen_encoder is not None)
    if spec.save_encoders_every is not None:
        saved += spec.env_steps // spec.save_encoders_every + 1
    return saved * float(assumptions()["disk"]["encoder_gb"])
