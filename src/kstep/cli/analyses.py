"""What encoders learned, and the paper's tables and figures: evaluation-set, analyze."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from kstep.values import Count, Positive


@dataclass(frozen=True)
class EvaluationSet:
    """Collect the states that analyses ask about: greedy episodes of a trained agent.

    Example: kstep evaluation-set runs/walker_walk/ksl/seed1 --output sets/walker_walk
    """

    run: Positional[Path]
    """A run folder."""
    output: Path
    """The folder to make."""
    episodes: Positive = 10
    seed: Count = 0
    """Which episodes: the same seed repeats the same starts."""
    sizes: tuple[Positive, ...] = ()
    """Further frame sizes to render, for encoders that see others (100 for crops of 84)."""

    def __call__(self) -> None:
        from kstep.analysis import evaluation_set

        options = {"episodes": self.episodes, "seed": self.seed}
        print(evaluation_set.make(self.run, self.output, sizes=self.sizes, **options))


@dataclass(frozen=True)
class Analyze:
    """Ask what encoders learned: tables as CSV, figures as PNG.

    Example: kstep analyze reward-mse runs/walker_walk/*/seed* --on sets/walker_walk
    """

    question: Positional[str]
    """About encoders: reward-pca, reward-mse, perturbation, temporal, gradients, collapse,
    state-probe, horizon or saliency; latents: the five that need only one encoding of the states;
    survey: those and perturbation. About returns, beside the paper's: main, tangential, k-l-grid,
    conv-transition, optimizers or generalization. Also: wall-clock, environments."""
    encoders: Positional[tuple[Path, ...]] = ()
    """Run folders (all encoders they saved, or the newest checkpoint) or saved encoders; none: all
    existing runs of the experiment behind the paper's figure."""
    experiment: str = ""
    """Whose runs, instead of those."""
    scale: str = "paper"
    """The scale of that experiment."""
    runs: Path = Path("runs")
    """Where its run folders are."""
    on: Path | None = None
    """An evaluation set (kstep evaluation-set), for all questions about encoders but gradients."""
    output: Path = Path("analysis")
    """Where tables and figures go; those of the same question are replaced."""
    at: tuple[Count, ...] = ()
    """Only encoders saved, or returns tabulated, at these env steps (the paper's PCA: 5000 10000
    15000)."""
    episodes: Positive | None = None
    """Use only the set's first few episodes, to save time."""
    perturbed: Positive = 250
    """How many states perturbation changes, evenly spaced over the set; the paper: all of them."""
    threads: Positive | None = None

    def __call__(self) -> None:
        from kstep.report import analyze

        written = analyze.run(
            self.question,
            self.encoders,
            where=analyze.Where(self.experiment, self.scale, self.runs),
            on=self.on,
            output=self.output,
            at=self.at,
            episodes=self.episodes,
            perturbed=self.perturbed,
            threads=self.threads,
        )
        print(*written, sep="\n")
