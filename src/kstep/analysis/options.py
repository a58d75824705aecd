"""Which question about which encoders or runs. The fields are flags of `kstep analyze`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from kstep.style import ThemeName
from kstep.values import Count, Positive, Threads

KNOWN = (
    *("reward-pca", "reward-mse", "perturbation", "temporal", "gradients", "collapse"),
    *("state-probe", "horizon", "saliency", "latents", "survey"),
    *("main", "tangential", "k-l-grid", "conv-transition", "optimizers", "generalization"),
    *("wall-clock", "environments"),
)
"""Every question, so that a wrong name is refused before anything is imported."""


@dataclass(frozen=True)
class Request:
    """A question, and what it is about."""

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
    theme: ThemeName = "light"
    """The background of figures: light or dark."""
    threads: Threads | None = None
