"""`kstep analyze`: a question and run folders in, tables and figures out.

Without run folders, the existing ones of the experiment behind the paper's figure are used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from kstep import names, style
from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.options import KNOWN, Request
from kstep.analysis.questions import GROUPS, QUESTIONS, Answer, analyze_all, subjects
from kstep.analysis.tables import Row
from kstep.report import environments, paper, wall_clock
from kstep.report.comparisons import COMPARISONS
from kstep.run import system
from kstep.run.folder import RunFolder
from kstep.sweep import experiments
from kstep.sweep.plan import plan, with_variants
from kstep.types import KstepError


def run(request: Request, say: Callable[[str], None]) -> list[Path]:
    """Answer a question or a group of them, or make a comparison; return the files written.

    What was named and cannot be read is refused. What was found by looking is left out, and `say`
    is told which and why.
    """
    question, named, output = request.question, request.encoders, request.output
    left_out = None if named else say
    style.THEME.set(style.THEMES[request.theme])
    system.keep_freed_memory()
    if question in COMPARISONS:
        comparison = COMPARISONS[question]
        second, variants = question == "generalization", comparison.variants
        folders = named or _folders(request, question, variants=variants, second_stage=second)
        return comparison.write(folders, output, request.at, left_out)
    if question == "wall-clock":
        folders = named or _folders(request, question, variants=True)
        # A run that has not ended has no time yet.
        ended = [folder for folder in folders if named or RunFolder(folder).attempts()]
        return wall_clock.write(ended or folders, output, left_out)
    if question == "environments":
        return environments.write(output)
    names.require(question, KNOWN, "question")
    experiment = "gradient-angles" if question == "gradients" else "representations"
    questions = GROUPS.get(question, (question,))
    states = None if request.on is None else EvaluationSet.load(request.on)
    if request.episodes is not None and states is not None:
        states = states.first(request.episodes)
    if request.threads is not None:
        torch.set_num_threads(request.threads)
    whole_runs = QUESTIONS[questions[0]].whole_runs
    folders = named or _folders(request, experiment)
    encoders = subjects(folders, request.at, whole_runs=whole_runs, left_out=left_out)
    answers = analyze_all(questions, encoders, states, request.perturbed)
    return [path for answer in answers for path in beside_paper(answer).write(output)]


def _folders(
    request: Request, experiment: str, *, variants: bool = False, second_stage: bool = False
) -> Sequence[Path]:
    """Return an experiment's runs that were evaluated: of its first stage, or of its second."""
    sweep = experiments.read(request.experiment or experiment, request.scale)
    specs = plan(with_variants(sweep) if variants else sweep, request.runs)
    specs = [spec for spec in specs if (spec.frozen_encoder is not None) == second_stage]
    files = [spec.run.evaluations_file for spec in specs]
    folders = [file.parent for file in files if file.is_file() and file.stat().st_size]
    if not folders:
        raise KstepError(
            f"none of the {len(specs)} runs of {sweep.name}, scale {request.scale}, is below "
            f"{request.runs}: kstep sweep {sweep.name} --scale {request.scale}, or name run folders"
        )
    return folders


def beside_paper(answer: Answer) -> Answer:
    """Add the paper's numbers to the one table about encoders that it has: changes in
    sensitivity, on walker_walk."""
    changes = answer.tables.get("perturbation-changes")
    if changes is None:
        return answer
    column = {"noise": "flipping"}  # one column of its table, which can mean either (D21)
    filled: list[Row] = []
    for row in changes:
        theirs = paper.table("sensitivity_change").get(paper.name_of(str(row["label"])), {})
        kind = str(row["perturbation"])
        known = theirs.get(column.get(kind, kind)) if row["task"] == "walker_walk" else None
        filled.append({**row, "paper": float("nan") if known is None else known})
    return replace(answer, tables={**answer.tables, "perturbation-changes": filled})
