"""What encoders learned, and the paper's tables and figures: evaluation-set, analyze."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from kstep import names, zoo
from kstep.analysis.options import KNOWN, Request
from kstep.run.runtime import Importing
from kstep.terminal import say, terminal
from kstep.values import Count, Positive


@dataclass(frozen=True)
class EvaluationSet(Importing):
    """Collect the states that analyses ask about: greedy episodes of a trained agent.

    Example: kstep evaluation-set runs/walker_walk/ksl/seed1 --output sets/walker_walk
    """

    run: Positional[Path]
    """A run folder, or zoo:NAME (kstep list zoo)."""
    output: Path
    """The folder to make."""
    episodes: Positive = 10
    seed: Count = 0
    """Which episodes: the same seed repeats the same starts."""
    sizes: tuple[Positive, ...] = ()
    """Further frame sizes to render, for encoders that see others (100 for crops of 84)."""

    def __call__(self) -> None:
        zoo.check(self.run)
        from kstep.analysis import evaluation_set

        say(terminal(), evaluation_set.make(**self.rest()))


@dataclass(frozen=True)
class Analyze(Request, Importing):
    """Ask what encoders learned: tables as CSV, figures as PNG.

    Example: kstep analyze reward-mse runs/walker_walk/*/seed* --on sets/walker_walk
    """

    def __call__(self) -> None:
        names.require(self.question, KNOWN, "question")
        from kstep.report import analyze

        console = terminal()
        for path in analyze.run(self, lambda problem: say(console, f"left out: {problem}")):
            say(console, str(path))
