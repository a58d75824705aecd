"""`kstep analyze`: paths in, files and a few printed lines out.

Runs may be named; otherwise they are those of the experiment that a figure of the paper is made
of, as far as they are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.perturbation import STATES
from kstep.analysis.questions import GROUPS, QUESTIONS, Answer, analyze_all, find, subjects
from kstep.analysis.tables import Row
from kstep.report import environments, paper, wall_clock
from kstep.report.comparisons import COMPARISONS
from kstep.run import system
from kstep.run.folder import RunFolder
from kstep.sweep import plan
from kstep.types import KstepError


@dataclass(frozen=True)
class Where:
    """Whose runs, where no folder is named."""

    experiment: str = ""
    """Empty: the one that the paper's figure or table is of."""
    scale: str = "paper"
    runs: Path = Path("runs")

    def folders(self, default: str, *, variants: bool = False, carried: bool = False) -> list[Path]:
        """Return the experiment's runs that were evaluated: those of its first stage, or those on
        encoders that were `carried` over."""
        sweep = plan.read(self.experiment or default, self.scale)
        specs = plan.plan(plan.with_variants(sweep) if variants else sweep, self.runs)
        specs = [spec for spec in specs if (spec.frozen_encoder is not None) == carried]
        files = [spec.folder / "evaluations.jsonl" for spec in specs]
        found = [file.parent for file in files if file.is_file() and file.stat().st_size]
        if not found:
            raise KstepError(
                f"none of the {len(specs)} runs of {sweep.name}, scale {self.scale}, is below "
                f"{self.runs}: kstep sweep {sweep.name} --scale {self.scale}, or name run folders"
            )
        return found


def run(
    question: str,
    named: Sequence[Path],
    *,
    where: Where,
    on: Path | None,
    output: Path,
    at: Sequence[int] = (),
    episodes: int | None = None,
    perturbed: int = STATES,
    threads: int | None = None,
) -> None:
    """Ask a question or a group of them, or make a comparison, and write what comes out."""
    system.keep_freed_memory()
    if question in COMPARISONS:
        comparison = COMPARISONS[question]
        folders = named or where.folders(
            question, variants=comparison.variants, carried=question == "generalization"
        )
        written = comparison.write(folders, output, at)
    elif question == "wall-clock":
        folders = named or where.folders(question, variants=True)
        # A run that is under way has no time yet.
        ended = [folder for folder in folders if named or RunFolder(folder).attempts()]
        written = wall_clock.write(ended or folders, output)
    elif question == "environments":
        written = environments.write(output)
    elif question in QUESTIONS or question in GROUPS:
        experiment = "gradient-angles" if question == "gradients" else "representations"
        asked = [find(name) for name in GROUPS.get(question, (question,))]
        states = None if on is None else EvaluationSet.load(on)
        if episodes is not None and states is not None:
            if episodes < 1:
                raise KstepError(f"--episodes must be at least 1, not {episodes}")
            states = states.first(episodes)
        if threads is not None:
            torch.set_num_threads(threads)
        found = subjects(named or where.folders(experiment), at, whole_runs=asked[0].whole_runs)
        answers = analyze_all([each.name for each in asked], found, states, perturbed)
        written = [path for answer in answers for path in beside_paper(answer).write(output)]
    else:
        known = (*QUESTIONS, *GROUPS, *COMPARISONS, "wall-clock", "environments")
        raise KstepError(f"unknown question '{question}'; there are {', '.join(known)}")
    console = Console(soft_wrap=True)
    for path in written:
        console.print(str(path), highlight=False)


def beside_paper(answer: Answer) -> Answer:
    """Put the paper's numbers into the one table about encoders that it has: changes in
    sensitivity, on walker_walk."""
    changes = answer.tables.get("perturbation-changes")
    if changes is None:
        return answer
    column = {"noise": "flipping"}  # one column of its table, which may be of either (D21)
    theirs = [
        paper.table("sensitivity_change").get(paper.name_of(str(row["label"])), {})
        if row["task"] == "walker_walk"
        else {}
        for row in changes
    ]
    filled: list[Row] = [
        {**row, "paper": own.get(column.get(kind := str(row["perturbation"]), kind), float("nan"))}
        for row, own in zip(changes, theirs, strict=True)
    ]
    return replace(answer, tables={**answer.tables, "perturbation-changes": filled})
