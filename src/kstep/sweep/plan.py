"""The runs of a sweep, and what each has reached.

In: a `Sweep`, perhaps fewer tasks, methods or seeds. Out: one `RunSpec` per run with its folder and
digest, and its `Status` as its folder shows it. Run folders are the only record: nothing here keeps
another, so a sweep can be stopped, moved, or resumed by another engine. All of it is linear in the
number of runs.

An experiment may have a second stage, `transfer`: runs on the frozen last encoder of every run of
the first, in every other task. The encoder file is part of such a run's identity, so until its
source is done its folder and cost are known but not its digest: it is not yet `ready`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kstep.config import Experiment, FrozenEncoder, digest, resolve, setting
from kstep.envs import tasks as known_tasks
from kstep.methods import VARIANT_OF
from kstep.run import saved_encoders
from kstep.run.folder import Run, RunFolder
from kstep.sweep.experiments import MethodGroup, Sweep
from kstep.types import KstepError

State = Literal["done", "running", "partly", "failed", "missing"]
NO_ENCODERS = "it was trained without saving all its encoders: choose another folder for --runs"


class Kind(NamedTuple):
    """What decides how long a decision of a run takes."""

    task: str
    learner: tuple[str, ...]
    """Method, preset and changed settings."""


@dataclass(frozen=True)
class RunSpec:
    """One run: the arguments of its `kstep train`, and where it writes."""

    method: str
    task: str
    preset: str
    seed: int
    env_steps: int
    action_repeat: int
    folder: Path
    digest: str
    setting: str
    """The digest without the seed: what the runs of one curve share."""
    overrides: tuple[str, ...] = ()
    save_encoders_every: int | None = None
    frozen_encoder: Path | None = None
    """The encoder file that it uses; until that exists, the folder it will be saved in."""
    imports: tuple[str, ...] = ()
    """Modules that register its environment."""
    recorded: int = 0
    """env_steps of its newest evaluation in a table of results, wherever that run was computed."""

    @property
    def ready(self) -> bool:
        """Whether everything it starts from exists, so that its identity is known."""
        return bool(self.digest)

    @property
    def kind(self) -> Kind:
        """What runs of about the same speed share."""
        on = "" if self.frozen_encoder is None else " on a frozen encoder"
        return Kind(self.task, (self.method + on, self.preset, *self.overrides))

    @property
    def label(self) -> str:
        return f"{self.task} {self.folder.parent.name} seed {self.seed}"

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder)

    def experiment(self) -> Experiment:
        """Return what it computes, but for the seed and a frozen encoder."""
        preset, env_steps, overrides = self.preset, self.env_steps, self.overrides
        return resolve(
            self.method, self.task, preset=preset, env_steps=env_steps, overrides=overrides
        )

    def arguments(self) -> list[str]:
        """Return what follows `kstep`."""
        words = ["train", self.method, self.task, "--preset", self.preset]
        words += ["--seed", str(self.seed), "--env-steps", str(self.env_steps)]
        for text in self.overrides:
            words += ["--set", text]
        for module in self.imports:
            words += ["--import", module]
        if self.save_encoders_every is not None:
            words += ["--save-encoders-every", str(self.save_encoders_every)]
        if self.frozen_encoder is not None:
            words += ["--frozen-encoder", str(self.frozen_encoder)]
        return [*words, "--folder", str(self.folder)]


@dataclass(frozen=True)
class Status:
    """What a run folder shows."""

    state: State
    env_steps: int = 0
    """Of the newest evaluation or logged update, whichever is further."""
    problem: str = ""
    """The last line of what went wrong."""


def plan(
    sweep: Sweep,
    runs: Path = Path("runs"),
    *,
    tasks: Iterable[str] = (),
    methods: Iterable[str] = (),
    seeds: Iterable[int] = (),
    recorded: Mapping[str, int] | None = None,
    imports: tuple[str, ...] = (),
) -> list[RunSpec]:
    """Return every run of a sweep once, in the order in which they are to be started.

    `methods` may also name variants of the sweep's own. Runs of a second stage are included,
    `ready` where the run that they start from is done. `recorded` are the env_steps that a table of
    results has of runs, by digest. `imports` are modules that register environments.
    """
    chosen_tasks, chosen_seeds, only = tuple(tasks), tuple(seeds), tuple(methods)
    sweep = with_variants(sweep) if only else sweep
    declared = {name for group in sweep.group for name in group.methods}
    for name in only:
        if name not in declared:
            raise KstepError(
                f"experiment '{sweep.name}' has no method '{name}'; it has: "
                f"{', '.join(sorted(declared))}"
            )
    specs: dict[Path, RunSpec] = {}
    for group in sweep.group:
        shared = [
            _resolved(method, known_tasks.parse(task).name, sweep, group)
            for task in _tasks(sweep, group, chosen_tasks)
            for method in group.methods
            if not only or method in only
        ]
        cells = [(experiment, setting(experiment)) for experiment in shared]
        for seed in chosen_seeds or group.seeds:
            for cell, setting_of_cell in cells:
                experiment = replace(cell, seed=seed)
                identity = digest(experiment)
                spec = _spec(
                    experiment,
                    Run.default_folder(runs, experiment, bool(group.set)),
                    overrides=group.overrides,
                    digest=identity,
                    setting=setting_of_cell,
                    save_encoders_every=sweep.save_encoders_every,
                    recorded=(recorded or {}).get(identity, 0),
                )
                # Two groups may coincide at a smaller scale; the longer budget includes the other.
                other = specs.get(spec.folder)
                if other is None or other.env_steps < spec.env_steps:
                    specs[spec.folder] = spec
    every = [*specs.values(), *_transfers(sweep, [*specs.values()], runs)]
    every = [replace(spec, imports=imports) for spec in every]
    return sorted(every, key=lambda spec: spec.seed) if sweep.order == "seeds" else every


def _tasks(sweep: Sweep, group: MethodGroup, chosen: Sequence[str]) -> Sequence[str]:
    """Return the tasks of a group: of the chosen ones those it has, if it has its own."""
    if not chosen or group.tasks == sweep.tasks:
        return chosen or group.tasks
    return [task for task in group.tasks if task in chosen]


def with_variants(sweep: Sweep) -> Sweep:
    """Return the sweep with every variant of its methods: `ksl-results` beside `ksl`,
    `drq-original` beside `drq`, where they accept the sweep's settings.

    None is added to a sweep with a second stage: the encoder of another variant may not fit.
    """

    def fits(name: str, group: MethodGroup) -> bool:
        try:
            _resolved(name, group.tasks[0], sweep, group)
        except KstepError:
            return False
        return not sweep.transfer

    groups = []
    for group in sweep.group:
        own = {VARIANT_OF.get(name) for name in group.methods}
        more = [name for name, of in VARIANT_OF.items() if of in own]
        more = [name for name in more if name not in group.methods and fits(name, group)]
        groups.append(replace(group, methods=(*group.methods, *more)))
    return replace(sweep, group=tuple(groups))


def status(spec: RunSpec) -> Status:
    """Read what a run has reached: a few small reads, however long the run is."""
    if spec.recorded >= spec.env_steps:
        return Status("done", spec.recorded)
    if not spec.ready:
        return Status("missing")
    run = spec.run
    identity = run.identity()
    if identity is None:
        problem = run.last_problem()
        return Status("failed" if problem else "missing", 0, problem)
    if identity != spec.digest:
        return Status("failed", 0, "the folder holds another experiment")
    found = status_of(run, spec.env_steps)
    problem = _encoder_problem(spec) if found.state == "done" else ""
    return Status("failed", found.env_steps, problem) if problem else found


def status_of(run: RunFolder, env_steps: int) -> Status:
    """Read what a run that has begun has reached of a budget."""
    reached = run.reached()
    if run.is_done(env_steps):
        return Status("done", reached)
    if run.is_locked():
        return Status("running", reached)
    problem = run.last_problem()
    return Status("failed" if problem else "partly", reached, problem)


def last_encoder(spec: RunSpec) -> Path | None:
    """Return the encoder saved when the run reached its budget; it may have continued since."""
    saved = spec.run.saved_encoders()
    return next((path for path in saved if int(path.stem) >= spec.env_steps), None)


def _resolved(method: str, task: str, sweep: Sweep, group: MethodGroup) -> Experiment:
    """Return what the runs of one method and task compute, whatever their seed."""
    preset, env_steps, overrides = group.preset, group.env_steps, group.overrides
    experiment = resolve(method, task, preset=preset, env_steps=env_steps, overrides=overrides)
    if sweep.save_encoders_every is not None and experiment.method.observation != "pixels":
        raise KstepError(f"{sweep.name}: '{method}' sees the state: it has no encoder to save")
    return experiment


_NOT_YET = FrozenEncoder("", "", "", 0, 0)
"""Stands for an encoder that is still being trained."""


def _transfers(sweep: Sweep, sources: Sequence[RunSpec], runs: Path) -> Iterator[RunSpec]:
    """Yield the runs of the second stage: seed and budget are the source's (D35)."""
    if not sweep.transfer:
        return

    @cache
    def resolved(task: str, preset: str, env_steps: int) -> Experiment:
        name = sweep.transfer
        return resolve(name, task, preset=preset, env_steps=env_steps, frozen_encoder=_NOT_YET)

    tasks = tuple(dict.fromkeys(source.task for source in sources))
    for source in sources:
        path = last_encoder(source) if status(source).state == "done" else None
        frozen = saved_encoders.frozen(path) if path else None
        for task in tasks:
            if task == source.task:
                continue
            experiment = resolved(task, source.preset, source.env_steps)
            experiment = replace(experiment, seed=source.seed, frozen_encoder=frozen)
            below = Run.default_folder(runs, experiment, False).parents[1]
            trained = source.folder.parent
            name = f"{sweep.transfer}-on-{trained.name}-{trained.parent.name}"
            yield _spec(
                experiment,
                below / name / source.folder.name,
                digest=digest(experiment) if frozen else "",
                setting=setting(experiment) if frozen else "",
                frozen_encoder=path or source.run.encoders,
            )


def _spec(experiment: Experiment, folder: Path, **more: Any) -> RunSpec:
    env = experiment.env
    return RunSpec(
        method=experiment.method.name,
        task=env.task,
        preset=experiment.preset,
        seed=experiment.seed,
        env_steps=experiment.env_steps,
        action_repeat=env.action_repeat or known_tasks.parse(env.task).action_repeat,
        folder=folder,
        **more,
    )


def _encoder_problem(spec: RunSpec) -> str:
    """Return what is wrong with the encoders of a run at its budget, such as that it was trained,
    at least in part, without saving them; empty if nothing is."""
    every = spec.save_encoders_every
    if every is None:
        return ""
    marks = [int(path.stem) for path in spec.run.saved_encoders()]
    before = [mark for mark in marks if mark < spec.env_steps and mark % every == 0]
    # One for each multiple of `every`, unless decisions are further apart than that.
    expected = math.ceil(spec.env_steps / max(every, spec.action_repeat))
    last = last_encoder(spec)
    if len(before) < expected or last is None:
        return NO_ENCODERS
    try:
        saved_encoders.describe(last)
    except KstepError as error:
        return str(error)
    return ""
