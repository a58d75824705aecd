"""What a sweep consists of: experiments as data, runs to do, what each has reached, what it costs.

In: the name of an experiment (a TOML file, ours or the user's), a scale, perhaps fewer tasks,
methods or seeds. Out: one `RunSpec` per run with its folder and digest, and its `Status` as the
folder tells it. Run folders are the only truth: nothing here keeps a record of its own, so a sweep
can be stopped, moved, or carried on by another engine. All of it is linear in the number of runs.
"""

from __future__ import annotations

import difflib
import fcntl
import json
import math
import os
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kstep import methods
from kstep.config import PRESETS, Experiment, digest, resolve
from kstep.envs import tasks as known_tasks
from kstep.run import Run
from kstep.types import KstepError

SCALES = ("paper", "cpu", "debug")
State = Literal["missing", "running", "partly", "done", "failed"]
STATES: tuple[State, ...] = ("done", "running", "partly", "failed", "missing")


@dataclass(frozen=True)
class Group:
    """Methods that share seeds and budget."""

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    env_steps: int
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
    groups: tuple[Group, ...]
    alone: bool = False
    """Whether runs must not share a machine because their time is the result."""
    needs: str = ""
    """What the paper's experiment has beyond these runs."""
    paper: str = ""
    """The table of the paper's results that these runs stand beside; see kstep.data."""


@dataclass(frozen=True)
class RunSpec:
    """One run to carry out: what `kstep train` is told, and where it writes."""

    method: str
    task: str
    preset: str
    seed: int
    env_steps: int
    overrides: tuple[str, ...]
    folder: Path
    digest: str
    setting: str
    """The digest without the seed: what the runs of one curve share."""

    @property
    def label(self) -> str:
        return f"{self.task} {self.folder.parent.name} seed {self.seed}"

    @property
    def attempts(self) -> Path:
        """Beside the folder, which must be empty until the run itself begins."""
        return self.folder.with_name(f"{self.folder.name}.attempts.jsonl")

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def arguments(self) -> list[str]:
        """What follows `kstep`."""
        words = ["train", self.method, self.task, "--preset", self.preset]
        words += ["--seed", str(self.seed), "--env-steps", str(self.env_steps)]
        for text in self.overrides:
            words += ["--set", text]
        return [*words, "--folder", str(self.folder)]


@dataclass(frozen=True)
class Status:
    """What a run folder says."""

    state: State
    env_steps: int = 0
    """Of the newest evaluation or checkpoint, whichever is further."""
    problem: str = ""
    """The last line of what went wrong."""


def shipped() -> tuple[str, ...]:
    """Return the names of the experiments that come with the package."""
    folder = files("kstep").joinpath("sweep/experiments")
    return tuple(sorted(f.name.removesuffix(".toml") for f in folder.iterdir()))


def read(experiment: str, scale: str = "paper") -> Sweep:
    """Read an experiment by its name or from a TOML file, at a scale."""
    if scale not in SCALES:
        raise KstepError(f"unknown scale '{scale}'. Scales: {', '.join(SCALES)}")
    path = Path(experiment)
    if experiment in shipped():
        text = files("kstep").joinpath(f"sweep/experiments/{experiment}.toml").read_text()
    elif path.suffix == ".toml" and path.is_file():
        text = path.read_text()
    else:
        near = difflib.get_close_matches(experiment, shipped(), n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise KstepError(
            f"unknown experiment '{experiment}'.{hint} There are: {', '.join(shipped())}; "
            "or give a .toml file"
        )
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise KstepError(f"{experiment}: {error}") from error
    return _sweep(path.stem if path.suffix == ".toml" else experiment, scale, data)


def plan(
    sweep: Sweep,
    runs: Path = Path("runs"),
    *,
    tasks: Iterable[str] = (),
    methods: Iterable[str] = (),
    seeds: Iterable[int] = (),
) -> list[RunSpec]:
    """Return every run of a sweep once, seed by seed, so that each seed completes a table."""
    chosen, only, asked = tuple(tasks) or sweep.tasks, tuple(methods), tuple(seeds)
    declared = {name for group in sweep.groups for name in group.methods}
    for name in only:
        if name not in declared:
            raise KstepError(
                f"experiment '{sweep.name}' has no method '{name}'; it has: "
                f"{', '.join(sorted(declared))}"
            )
    specs: dict[Path, RunSpec] = {}
    for group in sweep.groups:
        cells = [
            _Cell.of(method, known_tasks.parse(task).name, sweep.preset, group)
            for task in chosen
            for method in group.methods
            if not only or method in only
        ]
        for seed in asked or group.seeds:
            for cell in cells:
                spec = cell.spec(seed, runs)
                # Two groups may meet at a smaller scale; the longer budget includes the other.
                other = specs.get(spec.folder)
                if other is None or other.env_steps < spec.env_steps:
                    specs[spec.folder] = spec
    return sorted(specs.values(), key=lambda spec: spec.seed)


def status(spec: RunSpec) -> Status:
    """Read what a run has reached. Costs a few small reads, however long the run is."""
    config = _read_json(spec.folder / "config.json")
    if config is None:
        problem = last_problem(spec)
        return Status("failed", 0, problem) if problem else Status("missing")
    if config.get("digest") != spec.digest:
        return Status("failed", 0, "the folder holds another experiment")
    row = _last_row(spec.folder / "evaluations.jsonl") or {}
    reached, decisions = int(row.get("env_steps", 0)), int(row.get("decisions", -1))
    saved = _newest_checkpoint(spec.folder)
    # The run ends with an evaluation and a checkpoint of the same moment.
    if reached >= spec.env_steps and saved == decisions:
        return Status("done", reached)
    logged = _last_row(spec.folder / "metrics.jsonl") or {}
    reached = max(reached, int(logged.get("env_steps", 0)))
    if is_locked(spec.folder):
        return Status("running", reached)
    problem = last_problem(spec)
    return Status("failed" if problem else "partly", reached, problem)


def is_locked(folder: Path) -> bool:
    """Whether a process is writing this run, on this machine or on another sharing the disk."""
    try:
        with (folder / "lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def checkpointed(spec: RunSpec) -> int:
    """Return the decisions of the newest checkpoint; 0 without one."""
    return max(_newest_checkpoint(spec.folder), 0)


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint that is whole."""
    found = (folder / "checkpoints").glob("[0-9]*/state.json")
    return max((path.parent for path in found if _age(path.parent.name)), default=None, key=_by_age)


def last_problem(spec: RunSpec) -> str:
    """Return the last line of the newest attempt's error; empty if it was stopped or went well."""
    row = _last_row(spec.attempts) or {}
    if row.get("outcome") != "failed":
        return ""
    lines = [line for line in str(row.get("error", "")).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {row.get('code')}"


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
    """How many of the unfinished runs are estimated from measured ones."""

    def hours(self, cores: int, threads: int = 1) -> float:
        """Return the wall time on that many cores, at best."""
        return max(self.core_hours / max(cores, 1), self.longest_core_hours / max(threads, 1))


def measured_speeds(specs: Iterable[RunSpec]) -> dict[tuple[str, str, str], float]:
    """Return core-seconds per decision by (method, task, preset): the median over attempts."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for spec in specs:
        for row in _rows(spec.attempts):
            decisions = row.get("decisions", 0)
            if decisions > 0 and row.get("outcome") in ("done", "stopped"):
                cost = row["seconds"] * row["threads"] / decisions
                found.setdefault((spec.method, spec.task, spec.preset), []).append(cost)
    return {key: statistics.median(values) for key, values in found.items()}


def estimate(
    specs: Sequence[RunSpec],
    statuses: Sequence[Status],
    speeds: dict[tuple[str, str, str], float] | None = None,
) -> Estimate:
    """Add up hours, memory and disk, from measured speeds where there are any."""
    speeds = speeds or {}
    total = longest = memory = disk = 0.0
    measured = 0
    for spec, found in zip(specs, statuses, strict=True):
        shape = _shape(spec.method, spec.task, spec.preset, spec.overrides, spec.env_steps)
        disk += shape.disk_gb
        if found.state == "done":
            continue
        key = (spec.method, spec.task, spec.preset)
        measured += key in speeds
        left = max(spec.env_steps - found.env_steps, 0) / shape.action_repeat
        hours = left * speeds.get(key, shape.core_seconds) / 3600
        total, longest = total + hours, max(longest, hours)
        memory = max(memory, shape.memory_gb)
    return Estimate(total, longest, memory, disk, measured)


def memory_gb(spec: RunSpec) -> float:
    """Return the memory that one run needs."""
    shape = _shape(spec.method, spec.task, spec.preset, spec.overrides, spec.env_steps)
    return shape.memory_gb


def count(statuses: Iterable[Status]) -> dict[State, int]:
    """Return how many runs are in each state."""
    counted = Counter(found.state for found in statuses)
    return {state: counted[state] for state in STATES}


def numbers(text: str) -> tuple[int, ...]:
    """Read `1-3,7` as 1, 2, 3, 7."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise KstepError(f"'{text}' is not a list of seeds such as 1-10 or 1,2,5")
        upto = int(last) if dash else int(first)
        if upto < int(first):
            raise KstepError(f"'{part.strip()}' counts down; write the smaller seed first")
        found += range(int(first), upto + 1)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class _Shape:
    """What the cost of a run follows from, the same for every seed."""

    action_repeat: int
    core_seconds: float
    memory_gb: float
    disk_gb: float


@cache
def _assumed() -> dict[str, Any]:
    return tomllib.loads(files("kstep").joinpath("sweep/speeds.toml").read_text())


@cache
def _shape(
    method: str, task: str, preset: str, overrides: tuple[str, ...], env_steps: int
) -> _Shape:
    experiment = resolve(method, task, preset=preset, env_steps=env_steps, overrides=overrides)
    learning, env = experiment.method.learning, experiment.env
    repeat = env.action_repeat or known_tasks.parse(task).action_repeat
    assumed = _assumed()
    if experiment.method.observation == "state":
        seconds, frame = float(assumed["state"]["seconds"]), 400
    else:
        passes = assumed["passes"]
        name = next(n for n in (method, method.partition("-")[0], "ksl") if n in passes)
        forward, backward = passes[name]
        unit = assumed["unit"].get(preset, assumed["unit"]["paper"])
        seconds = (forward + 2 * backward) * unit
        if preset != "debug":
            seconds *= learning.batch_size / 128
        frame = 3 * env.size**2
    # The array is as large as the budget could fill; what the run can touch is less.
    kept = min(learning.replay_capacity, math.ceil(env_steps / repeat))
    replay = kept * frame * 1.02 / 1e9
    process = float(assumed["memory"]["process_gb"])
    return _Shape(repeat, seconds, process + replay, float(assumed["disk"]["run_gb"]) + replay)


@dataclass(frozen=True)
class _Cell:
    """What the runs of one method and task share, whatever their seed."""

    experiment: Experiment
    overrides: tuple[str, ...]
    setting: str

    @classmethod
    def of(cls, method: str, task: str, preset: str, group: Group) -> _Cell:
        overrides = tuple(text.replace("{half}", str(group.env_steps // 2)) for text in group.set)
        experiment = resolve(
            method, task, preset=preset, env_steps=group.env_steps, overrides=overrides
        )
        return cls(experiment, overrides, setting(experiment))

    def spec(self, seed: int, runs: Path) -> RunSpec:
        experiment = replace(self.experiment, seed=seed)
        return RunSpec(
            method=experiment.method.name,
            task=experiment.env.task,
            preset=experiment.preset,
            seed=seed,
            env_steps=experiment.env_steps,
            overrides=self.overrides,
            folder=Run.default_folder(runs, experiment, bool(self.overrides)),
            digest=digest(experiment),
            setting=self.setting,
        )


def setting(experiment: Experiment) -> str:
    """Return the digest of all settings but the seed."""
    return digest(replace(experiment, seed=0))


_KEYS = {"title", "tasks", "marks", "group", "scale", "paper", "alone", "needs"}
_GROUP_KEYS = {"methods", "seeds", "env_steps", "set"}
_SCALE_KEYS = {"preset", "tasks", "seeds", "env_steps"}


def _sweep(name: str, scale: str, data: dict[str, Any]) -> Sweep:
    _refuse_unknown(name, data, _KEYS)
    for key in ("tasks", "group"):
        if not data.get(key):
            raise KstepError(f"experiment '{name}' needs `{key}`")
    scales = data.get("scale", {})
    _refuse_unknown(f"{name}: scale", scales, set(SCALES))
    for key, values in scales.items():
        _refuse_unknown(f"{name}: scale.{key}", values, _SCALE_KEYS)
    changed = scales.get(scale, {})
    preset = changed.get("preset", scale)
    if preset not in PRESETS:
        raise KstepError(f"{name}: unknown preset '{preset}'")
    groups = []
    for entry in data["group"]:
        _refuse_unknown(f"{name}: group", entry, _GROUP_KEYS)
        for key in ("methods", "seeds", "env_steps"):
            if key not in entry:
                raise KstepError(f"{name}: every group needs `{key}`")
        for method in entry["methods"]:
            methods.find(method)
        groups.append(
            Group(
                tuple(entry["methods"]),
                numbers(str(changed.get("seeds", entry["seeds"]))),
                int(changed.get("env_steps", entry["env_steps"])),
                tuple(entry.get("set", ())),
            )
        )
    budget = max(group.env_steps for group in groups)
    marks = tuple(mark for mark in data.get("marks", ()) if mark <= budget) or (budget,)
    return Sweep(
        name=name,
        scale=scale,
        title=data.get("title", name),
        preset=preset,
        tasks=tuple(changed.get("tasks", data["tasks"])),
        marks=marks,
        groups=tuple(groups),
        alone=bool(data.get("alone", False)),
        needs=data.get("needs", ""),
        paper=data.get("paper", ""),
    )


def _refuse_unknown(where: str, data: dict[str, Any], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise KstepError(f"{where}: unknown key '{key}'; known: {', '.join(sorted(known))}")


def _newest_checkpoint(folder: Path) -> int:
    """Return how many decisions the newest checkpoint holds; -1 if there is none."""
    try:
        names = os.listdir(folder / "checkpoints")
    except (FileNotFoundError, NotADirectoryError):
        return -1
    return max((_age(name)[0] for name in names if _age(name)), default=-1)


def _age(name: str) -> tuple[int, ...]:
    """Decisions, and a number where two checkpoints hold as many; nothing for other names."""
    parts = name.split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def _by_age(folder: Path) -> tuple[int, ...]:
    return _age(folder.name)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, UnicodeDecodeError):
        return {}
    return data if isinstance(data, dict) else {}


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """Yield the complete lines of a file of JSON lines, if it exists."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue  # being written at this moment
        if isinstance(row, dict):
            yield row


def _last_row(path: Path) -> dict[str, Any] | None:
    """Return the last complete line, reading only the end of the file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for length in (4096, 1 << 20):
                file.seek(max(0, size - length))
                for line in reversed(file.read().splitlines()):
                    try:
                        row = json.loads(line)
                    except (json.JSONDecodeError, UnicodeDecodeError):
                        continue  # half a line: at the start of the piece, or being written
                    if isinstance(row, dict):
                        return row
                if length >= size:
                    break
    except FileNotFoundError:
        pass
    return None
