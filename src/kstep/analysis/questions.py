"""Ask any encoder any of the questions: from runs, files or functions to tables and figures.

    kstep analyze reward-mse runs/walker_walk/*/seed* --on sets/walker_walk

or, for a function of your own,

    on = EvaluationSet.load("sets/walker_walk")
    answer = analyze("reward-mse", [Subject("mine", encode)], on)
    answer.write(Path("results"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from kstep import names, reading
from kstep.analysis import (
    collapse,
    gradients,
    horizon,
    perturbation,
    reward_mse,
    reward_pca,
    saliency,
    state_probe,
    temporal,
)
from kstep.analysis.curves import Figure, save
from kstep.analysis.evaluation_set import EncodeImages, EvaluationSet, checked
from kstep.analysis.tables import Row, write_table
from kstep.analysis.video import video
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run, RunFolder
from kstep.run.load import opened
from kstep.run.saved_encoders import SavedEncoder
from kstep.types import Array, KstepError

Tables: TypeAlias = dict[str, list[Row]]
"""Rows by table; the main table has the question's name."""

AHEAD = 15
"""Decisions that `horizon` predicts ahead: five times the paper's k."""
FILMED = 200
"""States in a saliency video."""


@dataclass(frozen=True)
class Subject:
    """An encoder to ask about; a plain function needs only a label."""

    label: str
    encode: EncodeImages
    task: str = ""
    seed: int = 0
    env_steps: int = 0
    size: int | None = None
    """Pixels per side of its frames; None: as the evaluation set's own agent."""
    stack: int | None = None
    """Frames per stack; None: as the evaluation set's own agent."""
    run: Path | None = None
    """Its run, for questions about more than the encoder."""

    @classmethod
    def of(cls, saved: SavedEncoder, run: Path | None = None) -> Subject:
        identity = (saved.task, saved.seed, saved.env_steps)
        return cls(saved.label, saved, *identity, saved.size, saved.stack, run)

    @property
    def identity(self) -> dict[str, str | int]:
        return {name: getattr(self, name) for name in ("label", "task", "seed", "env_steps")}

    def saved(self, question: str) -> SavedEncoder:
        if not isinstance(self.encode, SavedEncoder):
            raise KstepError(f"{question} needs an encoder saved by kstep, {self.label} is not one")
        return self.encode


@dataclass(frozen=True)
class Findings:
    """The answer to one question about one encoder."""

    rows: list[Row]
    """Of the main table."""
    tables: Tables = field(default_factory=dict)
    """Further tables."""
    video: Array | None = None
    """(N, H, W, 3) frames"""


@dataclass(frozen=True)
class Case:
    """One encoder and the states, which are encoded once for all questions."""

    subject: Subject
    states: EvaluationSet | None
    perturbed: int
    """How many states to perturb."""

    @property
    def on(self) -> EvaluationSet:
        if self.states is None:
            raise KstepError("this question needs an evaluation set: --on FOLDER")
        return self.states

    @cached_property
    def latents(self) -> Array:
        return self.on.latents(self.subject.encode, self.subject.size, self.subject.stack)

    def row(self, **values: Any) -> Row:
        return {**self.subject.identity, **values}

    def measured(self, values: Any) -> Findings:
        """Return one row with the fields of a dataclass."""
        return Findings([self.row(**asdict(values))])


@dataclass(frozen=True)
class Question:
    """A question: how to answer it for one encoder, and how to draw all answers."""

    name: str
    ask: Callable[[Case], Findings]
    draw: Callable[[Tables, dict[str, Array]], Figure]
    summarize: Callable[[Tables], Tables] = lambda tables: {}
    """Tables made of the whole main table."""
    whole_runs: bool = False
    """Whether it is about a run's newest checkpoint instead of each saved encoder."""


@dataclass(frozen=True)
class Answer:
    """Tables and videos of one question."""

    question: Question
    tables: Tables
    videos: dict[str, Array]

    @property
    def rows(self) -> list[Row]:
        """The main table: one or more rows per encoder."""
        return self.tables[self.question.name]

    def figure(self) -> Figure:
        return self.question.draw(self.tables, self.videos)

    def write(self, folder: Path) -> list[Path]:
        """Write tables as CSV, figures as PNG, videos as mp4; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, rows in self.tables.items():
            written.append(write_table(folder / f"{name}.csv", rows))
        written.append(save(self.figure(), folder / f"{self.question.name}.png"))
        for name, frames in self.videos.items():
            path = folder / f"{self.question.name}-{name}.mp4"
            with video(path, fps=20) as add:
                for frame in frames:
                    add(frame)
            written.append(path)
        return written


def analyze(
    question: str,
    subjects: Iterable[Subject],
    on: EvaluationSet | None,
    perturbed: int = perturbation.STATES,
) -> Answer:
    """Ask one question of every encoder."""
    (answer,) = analyze_all([question], subjects, on, perturbed)
    return answer


def analyze_all(
    questions: Sequence[str],
    subjects: Iterable[Subject],
    on: EvaluationSet | None,
    perturbed: int = perturbation.STATES,
) -> list[Answer]:
    """Ask several questions of every encoder, encoding the states only once.

    `on` may be None if `gradients` is the only question. `perturbed`: how many of the states
    `perturbation` changes.
    """
    if perturbed < 1:
        raise KstepError(f"--perturbed must be at least 1, not {perturbed}")
    for name in questions:
        names.require(name, QUESTIONS, "question")
    chosen = [QUESTIONS[name] for name in questions]
    tables: dict[str, Tables] = {question.name: {} for question in chosen}
    videos: dict[str, dict[str, Array]] = {question.name: {} for question in chosen}
    known: set[tuple[str | int, ...]] = set()
    for subject in subjects:
        identity = tuple(subject.identity.values())
        if identity in known:
            raise KstepError(
                f"{subject.label}{subject.task and f' on {subject.task}'} with seed {subject.seed} "
                f"at {subject.env_steps:,} env_steps is named twice; it would count twice"
            )
        known.add(identity)
        case = Case(subject, on, perturbed)
        for question in chosen:
            findings = question.ask(case)
            for name, rows in ((question.name, findings.rows), *findings.tables.items()):
                tables[question.name].setdefault(name, []).extend(rows)
            if findings.video is not None:
                parts = (subject.label, subject.task, f"seed{subject.seed}", subject.env_steps)
                name = "-".join(str(part) for part in parts if part != "").replace("/", "-")
                videos[question.name][name] = findings.video
    if not known:
        raise KstepError("no encoder was named")
    answers = []
    for question in chosen:
        own = tables[question.name]
        if not own.get(question.name):
            raise KstepError(f"{question.name}: none of the {len(known)} encoders has an answer")
        answers.append(Answer(question, {**own, **question.summarize(own)}, videos[question.name]))
    return answers


def subjects(
    paths: Iterable[Path],
    at: Sequence[int] = (),
    *,
    whole_runs: bool = False,
    left_out: Callable[[str], None] | None = None,
) -> Iterator[Subject]:
    """Yield, one at a time, the encoders of run folders and encoder files.

    A run stands for all encoders it saved, or for its newest checkpoint if it saved none. `at`
    selects those saved for these marks, and every run must have all of them. What cannot be read is
    refused, or left out where `left_out` is to be told of it.
    """
    if at and whole_runs:
        raise KstepError("this question is about a run's newest checkpoint; it takes no --at")

    def look(path: Path) -> tuple[Path, list[Path]]:
        return path, _files(path, at, whole_runs, left_out)

    # All files are looked up before anything is computed.
    for path, files in list(reading.each(paths, look, left_out)):
        run = path if path not in files else None

        def load(file: Path, run: Path | None = run) -> Subject:
            return Subject.of(encoders.load(file, quick=True), run)

        yield from reading.each(files, load, left_out)
        if not files:
            yield from reading.each([path], _newest, left_out)


def _newest(path: Path) -> Subject:
    """Return the encoder of a run's newest checkpoint."""
    with opened(path) as (agent, _, counts):
        return Subject.of(encoders.of_agent(Run.open(path), agent, counts), path)


def _files(
    path: Path, at: Sequence[int], whole_runs: bool, left_out: Callable[[str], None] | None
) -> list[Path]:
    """Resolve a path to encoder files; empty: use the run's newest checkpoint."""
    if path.is_file():
        if at and (mark := encoders.describe(path).mark) not in at:
            raise KstepError(f"{path} is of {mark:,} env_steps, which --at omits")
        return [path]
    saved = [] if whole_runs else RunFolder(path).saved_encoders()
    marks_of = reading.each(saved, lambda file: (encoders.describe(file).mark, file), left_out)
    by_mark = dict(marks_of)
    missing = [mark for mark in at if mark not in by_mark]
    if saved and not by_mark:
        raise KstepError(f"{path} has no encoder that can be read")
    if missing and not saved:
        raise KstepError(f"{path} saved no encoders for --at: kstep train --save-encoders-every N")
    if missing:
        marks = ", ".join(f"{mark:,}" for mark in by_mark)
        raise KstepError(f"{path} has no encoder for {missing[0]:,} env_steps, but for {marks}")
    return [by_mark[mark] for mark in by_mark if not at or mark in at]


def _reward_pca(case: Case) -> Findings:
    on = case.on
    found = reward_pca.reward_pca(case.latents, on.reward, on.episode)
    numbers = {f"variance_{i}": share for i, share in enumerate(found.variance, start=1)}
    numbers |= {name: v for name, v in vars(found).items() if name.startswith("separability")}
    main = case.row(states=len(on), **numbers)
    points = [
        case.row(state=i, reward=float(reward), pc1=float(x), pc2=float(y), pc3=float(z))
        for i, (reward, (x, y, z)) in enumerate(zip(on.reward, found.components, strict=True))
    ]
    return Findings([main], {"reward-pca-points": points})


def _perturbation(case: Case) -> Findings:
    subject, on, rows = case.subject, case.on, []
    chosen = on.spaced(case.perturbed)
    for index, (kind, perturb) in enumerate(perturbation.PERTURBATIONS.items()):
        rng = np.random.default_rng([2021, index])  # the same for encoders of equal size
        original = kind == perturbation.AGAINST_ORIGINAL
        versions = [case.latents[chosen]] if original else []
        for _ in range(1 if original else perturbation.VERSIONS):
            parts = [
                checked(subject.encode(perturb(stacks, rng)), len(stacks))
                for stacks in on.batches(subject.size, subject.stack, chosen)
            ]
            versions.append(np.concatenate(parts))
        found = perturbation.perturbation(np.stack(versions), case.latents)
        rows.append(case.row(perturbation=kind, **asdict(found)))
    return Findings(rows)


def _changes(tables: Tables) -> Tables:
    """The appendix table."""
    changes = perturbation.changes_in_sensitivity(tables["perturbation"])
    # A single encoder has nothing to change from.
    known: list[Row] = [change for change in changes if not np.isnan(float(change["distance"]))]
    return {"perturbation-changes": known} if known else {}


def _gradients(case: Case) -> Findings:
    found = case.subject.saved("gradients").angles
    if not found:
        return Findings([])  # one optimizer only, or no update yet
    layers = [case.row(tensor=name, cosine=angle.cosine) for name, angle in found.items()]
    return replace(case.measured(gradients.gradients(found)), tables={"gradients-layers": layers})


def _state_probe(case: Case) -> Findings:
    on = case.on
    found = state_probe.state_probe(case.latents, on.state, on.episode)
    pairs = zip(on.quantities, found, strict=True)
    return Findings([case.row(quantity=name, r2=float(value)) for name, value in pairs])


def _horizon(case: Case) -> Findings:
    if case.subject.run is None:
        raise KstepError("horizon needs run folders: encoder files have no transition model")
    with opened(case.subject.run) as (agent, _, _):
        found = horizon.horizon(*horizon.predictions(agent, case.on, AHEAD))
    return Findings(
        [
            case.row(horizon=found.steps, ahead=j + 1, model=float(model), still=float(still))
            for j, (model, still) in enumerate(zip(found.model, found.still, strict=True))
        ]
    )


def _saliency(case: Case) -> Findings:
    saved = case.subject.saved("saliency")
    chosen = np.arange(min(FILMED, len(case.on)))
    views = saved.view(case.on.stacks(chosen, saved.size, saved.stack))
    encoder, generator = saved.encoder, torch.Generator().manual_seed(0)
    looks, moves = [], []
    for begin in range(0, len(views), 50):
        part = views[begin : begin + 50]
        strides = saved.config.strides  # type: ignore[attr-defined]
        looks.append(saliency.attention_of(encoder, strides, part))
        moves.append(saliency.sensitivity(encoder, part, generator))
    attention, sensitivity = np.concatenate(looks), np.concatenate(moves)
    row = case.row(
        attention_focus=saliency.focus(attention), sensitivity_focus=saliency.focus(sensitivity)
    )
    video = saliency.side_by_side(views[:, -1], (attention, sensitivity), scale=2)
    return Findings([row], video=video)


QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        Question(
            "reward-pca",
            _reward_pca,
            lambda t, v: reward_pca.figure(t["reward-pca"], t["reward-pca-points"]),
        ),
        Question(
            "reward-mse",
            lambda c: c.measured(reward_mse.reward_mse(c.latents, c.on.reward, c.on.episode)),
            lambda t, v: reward_mse.figure(t["reward-mse"]),
        ),
        Question(
            "perturbation",
            _perturbation,
            lambda t, v: perturbation.figure(t["perturbation"]),
            _changes,
        ),
        Question(
            "temporal",
            lambda c: c.measured(temporal.temporal(c.latents, c.on.episode)),
            lambda t, v: temporal.figure(t["temporal"]),
        ),
        Question(
            "gradients",
            _gradients,
            lambda t, v: gradients.figure(t["gradients"], t["gradients-layers"]),
            lambda t: {"gradients-tasks": gradients.per_task(t["gradients"])},
        ),
        Question(
            "collapse",
            lambda c: c.measured(collapse.collapse(c.latents)),
            lambda t, v: collapse.figure(t["collapse"]),
        ),
        Question("state-probe", _state_probe, lambda t, v: state_probe.figure(t["state-probe"])),
        Question("horizon", _horizon, lambda t, v: horizon.figure(t["horizon"]), whole_runs=True),
        Question("saliency", _saliency, lambda t, v: saliency.figure(list(v.items()))),
    )
}
GROUPS: dict[str, tuple[str, ...]] = {
    "latents": ("reward-pca", "reward-mse", "temporal", "collapse", "state-probe")
}
"""Several questions by one name; the states are encoded once for all of them."""
GROUPS["survey"] = (*GROUPS["latents"], "perturbation")
