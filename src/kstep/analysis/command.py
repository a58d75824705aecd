"""`kstep analyze`: paths in, files and a few printed lines out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from kstep.analysis import transfer
from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.questions import OF_LATENTS, analyze_all, find, subjects
from kstep.types import KstepError


def run(
    question: str,
    encoders: Sequence[Path],
    *,
    on: Path | None,
    output: Path,
    at: Sequence[int] = (),
    episodes: int | None = None,
    threads: int | None = None,
) -> None:
    """Ask a question, or `latents` for all that one encoding answers, and write what it finds."""
    console = Console(soft_wrap=True)
    if question == "transfer":
        for path in transfer.write(encoders, output):
            console.print(str(path), highlight=False)
        return
    asked = [find(name) for name in (OF_LATENTS if question == "latents" else [question])]
    if on is None:
        raise KstepError(f"{question} needs an evaluation set: --on FOLDER")
    states = EvaluationSet.load(on)
    if episodes is not None:
        if episodes < 1:
            raise KstepError(f"--episodes must be at least 1, not {episodes}")
        states = states.first(episodes)
    if threads is not None:
        torch.set_num_threads(threads)
    whole = asked[0].whole_runs
    answers = analyze_all(
        [each.name for each in asked], subjects(encoders, at, whole_runs=whole), states
    )
    for answer in answers:
        for path in answer.write(output):
            console.print(str(path), highlight=False)
