"""`kstep analyze`: paths in, files and a few printed lines out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from kstep import system
from kstep.analysis.comparisons import COMPARISONS
from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.perturbation import STATES
from kstep.analysis.questions import GROUPS, QUESTIONS, analyze_all, find, subjects
from kstep.types import KstepError


def run(
    question: str,
    encoders: Sequence[Path],
    *,
    on: Path | None,
    output: Path,
    at: Sequence[int] = (),
    episodes: int | None = None,
    perturbed: int = STATES,
    threads: int | None = None,
) -> None:
    """Ask a question or a group of them, or make a comparison, and write what comes out."""
    system.keep_freed_memory()
    console = Console(soft_wrap=True)
    if question in COMPARISONS:
        for path in COMPARISONS[question].write(encoders, output, at):
            console.print(str(path), highlight=False)
        return
    if question not in QUESTIONS and question not in GROUPS:
        known = ", ".join((*QUESTIONS, *GROUPS, *COMPARISONS))
        raise KstepError(f"unknown question '{question}'; there are {known}")
    asked = [find(name) for name in GROUPS.get(question, (question,))]
    states = None if on is None else EvaluationSet.load(on)
    if episodes is not None and states is not None:
        if episodes < 1:
            raise KstepError(f"--episodes must be at least 1, not {episodes}")
        states = states.first(episodes)
    if threads is not None:
        torch.set_num_threads(threads)
    whole = asked[0].whole_runs
    answers = analyze_all(
        [each.name for each in asked], subjects(encoders, at, whole_runs=whole), states, perturbed
    )
    for answer in answers:
        for path in answer.write(output):
            console.print(str(path), highlight=False)
