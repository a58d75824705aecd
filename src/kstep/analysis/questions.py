"""Asking any encoder any of the questions: from runs, files or functions to tables and figures.

    kstep analyze reward-mse runs/walker_walk/*/seed* --on sets/walker_walk

or, for a function of your own,

    on = EvaluationSet.load("sets/walker_walk")
    answer = analyze("reward-mse", [Subject("mine", encode)], on)
    answer.write(Path("results"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import imageio.v2 as imageio
import numpy as np
import torch

from kstep.analysis import (
    collapse,
    gradients,
    horizon,
    interactive,
    perturbation,
    reward_mse,
    reward_pca,
    saliency,
    state_probe,
    temporal,
)
from kstep.analysis.curves import Figure
from kstep.analysis.evaluation_set import EncodeImages, EvaluationSet, checked
from kstep.analysis.tables import Row, write_table
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run, RunFolder
from kstep.run.load import opened
from kstep.run.saved_encoders import SavedEncoder
from kstep.types import Array, KstepError

Tables: TypeAlias = dict[str, list[Row]]
"""Rows by the table they belong to; the main one is called as the question."""

AHEAD = 15
"""Decisions that `horizon` looks ahead: five times the paper's k."""
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
    """Pixels per side it takes; None: as the evaluation set's own agent."""
    stack: int | None = None
    """Frames it takes; None likewise."""
    run: Path | None = None
    """The run it is from, for questions about more than the encoder."""

    @classmethod
    def of(cls, saved: SavedEncoder, run: Path | None = None) -> Subject:
        return cls(
            saved.label,
            saved,
            saved.task,
            saved.seed,
            saved.env_steps,
            saved.size,
            saved.stack,
            run,
        )

    @property
    def identity(self) -> dict[str, str | int]:
        return {
            "label": self.label,
            "task": self.task,
            "seed": self.seed,
            "env_steps": self.env_steps,
        }

    def saved(self, question: str) -> SavedEncoder:
        if not isinstance(self.encode, SavedEncoder):
            raise KstepError(f"{question} needs an encoder of kstep's own, {self.label} is not one")
        return self.encode


@dataclass(frozen=True)
class Asked:
    """One encoder and the states; encoded once, when first needed, for all questions."""

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


@dataclass(frozen=True)
class Found:
    """What one question found out about one encoder."""

    tables: Tables = field(default_factory=dict)
    video: Array | None = None
    """(N, H, W, 3) frames"""


@dataclass(frozen=True)
class Question:
    """A question, how to ask it of one encoder, and how to draw all answers."""

    name: str
    summary: str
    ask: Callable[[Asked], Found]
    draw: Callable[[Tables, dict[str, Array]], Figure]
    summarize: Callable[[Tables], Tables] = lambda tables: {}
    """Tables made of the whole main table."""
    pages: Callable[[Tables], dict[str, str]] = lambda tables: {}
    """Figures to move, as HTML by name."""
    whole_runs: bool = False
    """Whether it is asked of a run's newest checkpoint instead of each saved encoder."""


@dataclass(frozen=True)
class Answer:
    """Tables and pictures of one question."""

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
        """Write tables as CSV, figures as PNG and HTML, videos as mp4; return the files."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name, rows in self.tables.items():
            written.append(write_table(folder / f"{name}.csv", rows))
        path = folder / f"{self.question.name}.png"
        self.figure().savefig(path, dpi=120)
        written.append(path)
        for name, text in self.question.pages(self.tables).items():
            path = folder / f"{name}.html"
            path.write_text(text)
            written.append(path)
        for name, frames in self.videos.items():
            path = folder / f"{self.question.name}-{name}.mp4"
            imageio.mimwrite(path, list(frames), fps=20, macro_block_size=2)
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

    `on` may be None where only `gradients` is asked. `perturbed`: how many of the states
    `perturbation` is asked about.
    """
    if perturbed < 1:
        raise KstepError(f"at least one state must be perturbed, not {perturbed}")
    asked = [find(name) for name in questions]
    tables: dict[str, Tables] = {question.name: {} for question in asked}
    videos: dict[str, dict[str, Array]] = {question.name: {} for question in asked}
    known: set[tuple[str | int, ...]] = set()
    for subject in subjects:
        identity = tuple(subject.identity.values())
        if identity in known:
            raise KstepError(
                f"{subject.label}{subject.task and f' on {subject.task}'} with seed {subject.seed} "
                f"at {subject.env_steps:,} env_steps is there twice; it would count twice"
            )
        known.add(identity)
        about = Asked(subject, on, perturbed)
        for question in asked:
            found = question.ask(about)
            for name, rows in found.tables.items():
                tables[question.name].setdefault(name, []).extend(rows)
            if found.video is not None:
                parts = (subject.label, subject.task, f"seed{subject.seed}", subject.env_steps)
                name = "-".join(str(part) for part in parts if part != "").replace("/", "-")
                videos[question.name][name] = found.video
    if not known:
        raise KstepError("there is no encoder to ask about")
    answers = []
    for question in asked:
        own = tables[question.name]
        if not own.get(question.name):
            raise KstepError(f"{question.name}: none of the {len(known)} encoders has an answer")
        answers.append(Answer(question, {**own, **question.summarize(own)}, videos[question.name]))
    return answers


def subjects(
    paths: Iterable[Path], at: Sequence[int] = (), *, whole_runs: bool = False
) -> Iterator[Subject]:
    """Yield, one at a time, every encoder that is meant by run folders and encoder files.

    A run stands for all encoders it saved, or for its newest checkpoint where it saved none. `at`
    keeps only those saved for these marks, and every run must have all of them.
    """
    if at and whole_runs:
        raise KstepError("this question is asked of a run's newest checkpoint; it takes no --at")
    # Everything is looked for before anything is computed.
    for path, files in [(path, _files(path, at, whole_runs)) for path in paths]:
        for file in files:
            yield Subject.of(encoders.load(file, quick=True), None if file == path else path)
        if not files:
            with opened(path) as (agent, _, counts):
                yield Subject.of(encoders.of_agent(Run.open(path), agent, counts), path)


def _files(path: Path, at: Sequence[int], whole_runs: bool) -> list[Path]:
    """Return the encoder files that are meant; none: the run's newest checkpoint is."""
    if path.is_file():
        if at and encoders.mark_of(path) not in at:
            raise KstepError(f"{path} is of {encoders.mark_of(path):,} env_steps, which --at omits")
        return [path]
    saved = [] if whole_runs else RunFolder(path).saved_encoders()
    there = {encoders.mark_of(file): file for file in saved}
    missing = [mark for mark in at if mark not in there]
    if missing and not saved:
        raise KstepError(f"{path} saved no encoders for --at: kstep train --save-encoders-every N")
    if missing:
        marks = ", ".join(f"{mark:,}" for mark in there)
        raise KstepError(f"{path} has no encoder for {missing[0]:,} env_steps, but for {marks}")
    return [there[mark] for mark in there if not at or mark in at]


def find(name: str) -> Question:
    if name not in QUESTIONS:
        known = ", ".join((*QUESTIONS, *GROUPS))
        raise KstepError(f"unknown question '{name}'; questions about encoders: {known}")
    return QUESTIONS[name]


def _reward_pca(asked: Asked) -> Found:
    on = asked.on
    found = reward_pca.reward_pca(asked.latents, on.reward, on.episode)
    main = asked.row(
        states=len(on),
        variance_1=found.variance[0],
        variance_2=found.variance[1],
        variance_3=found.variance[2],
        separability_2=found.separability_2,
        separability_3=found.separability_3,
        separability_all=found.separability_all,
    )
    points = [
        asked.row(state=i, reward=float(reward), pc1=float(x), pc2=float(y), pc3=float(z))
        for i, (reward, (x, y, z)) in enumerate(zip(on.reward, found.components, strict=True))
    ]
    return Found({"reward-pca": [main], "reward-pca-points": points})


def _reward_mse(asked: Asked) -> Found:
    on = asked.on
    found = reward_mse.reward_mse(asked.latents, on.reward, on.episode)
    return Found({"reward-mse": [asked.row(**asdict(found))]})


def _perturbation(asked: Asked) -> Found:
    subject, on, rows = asked.subject, asked.on, []
    chosen = on.spaced(asked.perturbed)
    for index, (kind, perturb) in enumerate(perturbation.PERTURBATIONS.items()):
        rng = np.random.default_rng([2021, index])  # encoders of equal size see the same
        original = kind == perturbation.AGAINST_ORIGINAL
        versions = [asked.latents[chosen]] if original else []
        for _ in range(1 if original else perturbation.VERSIONS):
            parts = [
                checked(subject.encode(perturb(stacks, rng)), len(stacks))
                for stacks in on.batches(subject.size, subject.stack, chosen)
            ]
            versions.append(np.concatenate(parts))
        found = perturbation.perturbation(np.stack(versions), asked.latents)
        rows.append(asked.row(perturbation=kind, **asdict(found)))
    return Found({"perturbation": rows})


def _changes(tables: Tables) -> Tables:
    """The appendix table."""
    changes = perturbation.changes_in_sensitivity(tables["perturbation"])
    # A single encoder has nothing to change from.
    known: list[Row] = [change for change in changes if not np.isnan(float(change["distance"]))]
    return {"perturbation-changes": known} if known else {}


def _temporal(asked: Asked) -> Found:
    found = temporal.temporal(asked.latents, asked.on.episode)
    return Found({"temporal": [asked.row(**asdict(found))]})


def _gradients(asked: Asked) -> Found:
    found = asked.subject.saved("gradients").angles
    if not found:
        return Found()  # one optimizer only, or no update yet
    layers = [asked.row(tensor=name, cosine=angle.cosine) for name, angle in found.items()]
    return Found(
        {
            "gradients": [asked.row(**asdict(gradients.gradients(found)))],
            "gradients-layers": layers,
        }
    )


def _collapse(asked: Asked) -> Found:
    return Found({"collapse": [asked.row(**asdict(collapse.collapse(asked.latents)))]})


def _state_probe(asked: Asked) -> Found:
    on = asked.on
    found = state_probe.state_probe(asked.latents, on.state, on.episode)
    return Found(
        {
            "state-probe": [
                asked.row(quantity=name, r2=float(value))
                for name, value in zip(on.quantities, found, strict=True)
            ]
        }
    )


def _horizon(asked: Asked) -> Found:
    if asked.subject.run is None:
        raise KstepError("horizon needs whole runs: the transition model is not in an encoder file")
    with opened(asked.subject.run) as (agent, _, _):
        found = horizon.horizon(*horizon.predictions(agent, asked.on, AHEAD))
    return Found(
        {
            "horizon": [
                asked.row(horizon=found.steps, ahead=j + 1, model=float(model), still=float(still))
                for j, (model, still) in enumerate(zip(found.model, found.still, strict=True))
            ]
        }
    )


def _saliency(asked: Asked) -> Found:
    saved = asked.subject.saved("saliency")
    chosen = np.arange(min(FILMED, len(asked.on)))
    views = saved.view(asked.on.stacks(chosen, saved.size, saved.stack))
    height, width = views.shape[2:4]
    encoder, generator = saved.encoder, torch.Generator().manual_seed(0)
    looks, moves = [], []
    for begin in range(0, len(views), 50):
        part = views[begin : begin + 50]
        with torch.no_grad():
            active = encoder.features(torch.from_numpy(part))
        looks.append(
            saliency.attention(
                active.view(-1, *encoder.feature_shape).numpy(),
                saved.config.strides,  # type: ignore[attr-defined]
                height,
                width,
            )
        )
        moves.append(saliency.sensitivity(encoder, part, generator))
    maps = saliency.Saliency(np.concatenate(looks), np.concatenate(moves))
    focus = dict(zip(("attention_focus", "sensitivity_focus"), maps.focus, strict=True))
    video = saliency.side_by_side(views[:, -1], maps, scale=2)
    return Found({"saliency": [asked.row(**focus)]}, video)


QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        Question(
            "reward-pca",
            "principal components coloured by reward, and how separable it is",
            _reward_pca,
            lambda t, v: reward_pca.figure(t["reward-pca"], t["reward-pca-points"]),
            pages=lambda t: {"reward-pca": interactive.page(t["reward-pca-points"])},
        ),
        Question(
            "reward-mse",
            "error of a linear prediction of the reward, in-sample and held-out",
            _reward_mse,
            lambda t, v: reward_mse.figure(t["reward-mse"]),
        ),
        Question(
            "perturbation",
            "how far latents move under translation, erasing, noise, flipping",
            _perturbation,
            lambda t, v: perturbation.figure(t["perturbation"]),
            _changes,
        ),
        Question(
            "temporal",
            "how far latents move from one decision to the next",
            _temporal,
            lambda t, v: temporal.figure(t["temporal"]),
        ),
        Question(
            "gradients",
            "cosine between the critic's and the auxiliary task's update directions",
            _gradients,
            lambda t, v: gradients.figure(t["gradients"], t["gradients-layers"]),
            lambda t: {"gradients-tasks": gradients.per_task(t["gradients"])},
        ),
        Question(
            "collapse",
            "effective rank, spread per dimension, uniformity",
            _collapse,
            lambda t, v: collapse.figure(t["collapse"]),
        ),
        Question(
            "state-probe",
            "how well joint positions and velocities can be read",
            _state_probe,
            lambda t, v: state_probe.figure(t["state-probe"]),
        ),
        Question(
            "horizon",
            "how far ahead KSL's transition model beats standing still",
            _horizon,
            lambda t, v: horizon.figure(t["horizon"]),
            whole_runs=True,
        ),
        Question(
            "saliency",
            "where the encoder looks, as a video",
            _saliency,
            lambda t, v: saliency.figure(list(v.items())),
        ),
    )
}
GROUPS: dict[str, tuple[str, ...]] = {
    "latents": ("reward-pca", "reward-mse", "temporal", "collapse", "state-probe")
}
"""Questions by a common name; one encoding of the states serves all of a group."""
GROUPS["survey"] = (*GROUPS["latents"], "perturbation")
