"""What a sweep consists of: experiments as data, runs to do, what each has reached, what it costs.

In: the name of an experiment (a TOML file, ours or the user's), a scale, perhaps fewer tasks,
methods or seeds. Out: one `RunSpec` per run with its folder and digest, and its `Status` as the
folder tells it. Run folders are the only truth: nothing here keeps a record of its own, so a sweep
can be stopped, moved, or carried on by another engine. All of it is linear in the number of runs.

An experiment may have a second stage, `transfer`: runs on the frozen last encoder of every run of
the first, in every other task. The encoder file is part of what such a run is, so until its source
is done its place and cost are known but not its identity: it is not yet `ready`.
"""

from __future__ import annotations

import difflib
import math
import statistics
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kstep import methods
from kstep.config import PRESETS, Experiment, FrozenEncoder, digest, resolve, setting
from kstep.envs import tasks as known_tasks
from kstep.native import Backend
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run, RunFolder
from kstep.types import KstepError

SCALES = ("paper", "cpu", "debug")
State = Literal["missing", "running", "partly", "done", "failed"]
STATES: tuple[State, ...] = ("done", "running", "partly", "failed", "missing")
NO_ENCODERS = "it was trained without saving all its encoders: choose another folder for --runs"


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
    save_encoders_every: int | None = None
    """env_steps between the encoders that its runs keep; None: they keep none."""
    transfer: str = ""
    """The method to train on the frozen last encoder of each run, in every other task."""
    paper: str = ""
    """The comparison of the paper that these runs are for (`kstep.report.comparisons`); empty:
    returns beside those of its tables."""


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
    save_encoders_every: int | None = None
    frozen_encoder: Path | None = None
    """The encoder it takes from another run; the folder where it will be, as long as it is not."""

    @property
    def ready(self) -> bool:
        """Whether all that it begins with is there, so that it has an identity."""
        return bool(self.digest)

    @property
    def kind(self) -> tuple[str, str, str]:
        """What runs of about the same speed share."""
        on = "" if self.frozen_encoder is None else " on a frozen encoder"
        return self.method + on, self.task, self.preset

    @property
    def label(self) -> str:
        return f"{self.task} {self.folder.parent.name} seed {self.seed}"

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    def arguments(self) -> list[str]:
        """What follows `kstep`."""
        words = ["train", self.method, self.task, "--preset", self.preset]
        words += ["--seed", str(self.seed), "--env-steps", str(self.env_steps)]
        for text in self.overrides:
            words += ["--set", text]
        if self.save_encoders_every is not None:
            words += ["--save-encoders-every", str(self.save_encoders_every)]
        if self.frozen_encoder is not None:
            words += ["--frozen-encoder", str(self.frozen_encoder)]
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
    """Return every run of a sweep once, seed by seed, so that each seed completes a table.

    `methods` may also name variants of the sweep's own. Runs of a second stage are among the runs,
    `ready` where the run they begin with is done.
    """
    chosen, only, asked = tuple(tasks) or sweep.tasks, tuple(methods), tuple(seeds)
    sweep = with_variants(sweep) if only else sweep
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
            _Cell.of(method, known_tasks.parse(task).name, sweep, group)
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
    every = [*specs.values(), *_transfers(sweep, [*specs.values()], runs)]
    return sorted(every, key=lambda spec: spec.seed)


def with_variants(sweep: Sweep) -> Sweep:
    """Return the sweep with every variant of its methods: `ksl-results` beside `ksl`,
    `drq-original` beside `drq`, as far as they take the sweep's settings.

    None is added where encoders are carried over: that of another variant may not fit.
    """

    def fits(name: str, group: Group) -> bool:
        try:
            _Cell.of(name, sweep.tasks[0], sweep, group)
        except KstepError:
            return False
        return not sweep.transfer

    groups = []
    for group in sweep.groups:
        own = {methods.VARIANT_OF.get(name) for name in group.methods}
        more = [name for name, of in methods.VARIANT_OF.items() if of in own]
        more = [name for name in more if name not in group.methods and fits(name, group)]
        groups.append(replace(group, methods=(*group.methods, *more)))
    return replace(sweep, groups=tuple(groups))


def status(spec: RunSpec) -> Status:
    """Read what a run has reached. Costs a few small reads, however long the run is."""
    if not spec.ready:
        return Status("missing")
    run = spec.run
    identity = run.identity()
    if identity is None:
        problem = run.last_problem()
        return Status("failed", 0, problem) if problem else Status("missing")
    if identity != spec.digest:
        return Status("failed", 0, "the folder holds another experiment")
    reached = run.reached()
    if run.is_done(spec.env_steps):
        failed = _lacks_encoders(spec)
        return Status("failed", reached, NO_ENCODERS) if failed else Status("done", reached)
    if run.is_locked():
        return Status("running", reached)
    problem = run.last_problem()
    return Status("failed" if problem else "partly", reached, problem)


def last_encoder(spec: RunSpec) -> Path | None:
    """Return the encoder saved when the run reached its budget; it may have gone on since."""
    saved = spec.run.saved_encoders()
    return next((path for path in saved if int(path.stem) >= spec.env_steps), None)


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
    """Return core-seconds per decision by kind of run: the median over attempts."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for spec in specs:
        for row in spec.run.attempts():
            decisions = row.get("decisions", 0)
            if decisions > 0 and row.get("outcome") in ("done", "stopped"):
                cost = row["seconds"] * row["threads"] / decisions
                found.setdefault(spec.kind, []).append(cost)
    return {key: statistics.median(values) for key, values in found.items()}


def estimate(
    specs: Sequence[RunSpec],
    statuses: Sequence[Status],
    speeds: dict[tuple[str, str, str], float] | None = None,
    backend: Backend = "torch",
) -> Estimate:
    """Add up hours, memory and disk, from measured speeds where there are any.

    Other runs take what is assumed of this backend's convolutions.
    """
    speeds = speeds or {}
    total = longest = memory = disk = 0.0
    measured = 0
    for spec, found in zip(specs, statuses, strict=True):
        shape = _shape_of(spec, backend)
        disk += shape.disk_gb + _encoders_gb(spec)
        if found.state == "done":
            continue
        measured += spec.kind in speeds
        left = max(spec.env_steps - found.env_steps, 0) / shape.action_repeat
        hours = left * speeds.get(spec.kind, shape.core_seconds) / 3600
        total, longest = total + hours, max(longest, hours)
        memory = max(memory, shape.memory_gb)
    return Estimate(total, longest, memory, disk, measured)


def memory_gb(spec: RunSpec) -> float:
    """Return the memory that one run needs."""
    return _shape_of(spec).memory_gb


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


def _shape_of(spec: RunSpec, backend: Backend = "torch") -> _Shape:
    frozen = spec.frozen_encoder is not None
    return _shape(
        spec.method, spec.task, spec.preset, spec.overrides, spec.env_steps, frozen, backend
    )


@cache
def _shape(
    method: str,
    task: str,
    preset: str,
    overrides: tuple[str, ...],
    env_steps: int,
    frozen: bool,
    backend: Backend,
) -> _Shape:
    experiment = resolve(method, task, preset=preset, env_steps=env_steps, overrides=overrides)
    learning, env = experiment.method.learning, experiment.env
    repeat = env.action_repeat or known_tasks.parse(task).action_repeat
    assumed = _assumed()
    if experiment.method.observation == "state":
        seconds, frame = float(assumed["state"]["seconds"]), 400
    else:
        passes = assumed["passes"]
        name = next(n for n in (method, experiment.method.base, "ksl") if n in passes)
        forward, backward = passes[name]
        units = assumed["unit"]["native" if backend == "native" else "torch"]
        seconds = (forward + 2 * backward * (not frozen)) * units.get(preset, units["paper"])
        if preset != "debug":
            seconds *= learning.batch_size / 128
            seconds += float(assumed["decision"]["seconds"])
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
    save_encoders_every: int | None

    @classmethod
    def of(cls, method: str, task: str, sweep: Sweep, group: Group) -> _Cell:
        overrides = tuple(text.replace("{half}", str(group.env_steps // 2)) for text in group.set)
        experiment = resolve(
            method, task, preset=sweep.preset, env_steps=group.env_steps, overrides=overrides
        )
        every = sweep.save_encoders_every
        if every is not None and experiment.method.observation != "pixels":
            raise KstepError(f"{sweep.name}: '{method}' sees the state: it has no encoder to save")
        return cls(experiment, overrides, setting(experiment), every)

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
            save_encoders_every=self.save_encoders_every,
        )


_NOT_YET = FrozenEncoder("", "", "", 0, 0)
"""Stands for an encoder that is still being trained."""


def _transfers(sweep: Sweep, sources: Sequence[RunSpec], runs: Path) -> Iterator[RunSpec]:
    """Yield the runs of the second stage: seed and budget are the source's (D35)."""
    if not sweep.transfer:
        return
    tasks = tuple(dict.fromkeys(source.task for source in sources))
    chosen: dict[tuple[str, int], Experiment] = {}
    for source in sources:
        path = last_encoder(source) if status(source).state == "done" else None
        frozen = encoders.frozen(path) if path else None
        for task in tasks:
            if task == source.task:
                continue
            key = (task, source.env_steps)
            if key not in chosen:
                chosen[key] = resolve(
                    sweep.transfer,
                    task,
                    preset=sweep.preset,
                    env_steps=source.env_steps,
                    frozen_encoder=_NOT_YET,
                )
            experiment = replace(chosen[key], seed=source.seed, frozen_encoder=frozen)
            below = Run.default_folder(runs, experiment, False).parents[1]
            trained = source.folder.parent
            name = f"{sweep.transfer}-on-{trained.name}-{trained.parent.name}"
            yield RunSpec(
                method=sweep.transfer,
                task=task,
                preset=sweep.preset,
                seed=source.seed,
                env_steps=source.env_steps,
                overrides=(),
                folder=below / name / source.folder.name,
                digest=digest(experiment) if frozen else "",
                setting=setting(experiment) if frozen else "",
                frozen_encoder=path or source.folder / "encoders",
            )


def _encoders_gb(spec: RunSpec) -> float:
    """Return the disk that a run's saved encoders take, or its copy of a frozen one."""
    saved = int(spec.frozen_encoder is not None)
    if spec.save_encoders_every is not None:
        saved += spec.env_steps // spec.save_encoders_every + 1
    return saved * float(_assumed()["disk"]["encoder_gb"])


def _lacks_encoders(spec: RunSpec) -> bool:
    """Whether a run at its budget was not told, all the way, to save its encoders."""
    every = spec.save_encoders_every
    if every is None:
        return False
    marks = [int(path.stem) for path in spec.run.saved_encoders()]
    before = [mark for mark in marks if mark < spec.env_steps and mark % every == 0]
    # One for each multiple of `every`, as far as decisions are not further apart than that.
    wanted = math.ceil(spec.env_steps / max(every, _shape_of(spec).action_repeat))
    return len(before) < wanted or last_encoder(spec) is None


_KEYS = {
    *("title", "tasks", "marks", "group", "scale", "paper", "alone"),
    *("save_encoders_every", "transfer"),
}
_GROUP_KEYS = {"methods", "seeds", "env_steps", "set"}
_SCALE_KEYS = {"preset", "tasks", "seeds", "env_steps", "save_encoders_every"}


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
    every = changed.get("save_encoders_every", data.get("save_encoders_every"))
    if every is not None and (type(every) is not int or every < 1):
        raise KstepError(f"{name}: save_encoders_every must be at least 1 env step, not {every!r}")
    transfer = data.get("transfer", "")
    if transfer:
        methods.find(transfer)
        if every is None:
            raise KstepError(f"{name}: `transfer` needs `save_encoders_every`")
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
        save_encoders_every=every,
        transfer=transfer,
        paper=data.get("paper", ""),
    )


def _refuse_unknown(where: str, data: dict[str, Any], known: set[str]) -> None:
    for key in data:
        if key not in known:
            raise KstepError(f"{where}: unknown key '{key}'; known: {', '.join(sorted(known))}")
