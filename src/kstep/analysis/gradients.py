"""Do the critic's and the auxiliary task's updates of the encoder pull the same way?

The paper's appendix on optimizers, from the angles that every saved encoder records
(`run.update_angles`); a negative cosine is a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kstep import style
from kstep.analysis.curves import Figure, canvas, lines
from kstep.analysis.tables import Row, grouped
from kstep.run.update_angles import Angle


@dataclass(frozen=True)
class Gradients:
    """The angle between two optimizers on one encoder."""

    pooled: float
    """Cosine over all parameters at once."""
    mean: float
    """Mean of the cosines per parameter tensor."""
    mean_without_norms: float
    """The same without normalization layers, as in the released notebook."""
    conflicts: int
    """Parameter tensors whose cosine is negative."""
    tensors: int


def gradients(angles: Mapping[str, Angle]) -> Gradients:
    """Summarize the angles of one encoder."""
    each = [angle.cosine for angle in angles.values()]
    plain = [angle.cosine for angle in angles.values() if not angle.normalization]
    norms = np.array([angle.norms for angle in angles.values()])
    product = float(np.prod(np.sqrt((norms**2).sum(axis=0))))
    inner = sum(angle.inner for angle in angles.values())
    return Gradients(
        pooled=inner / product if product > 0.0 else float("nan"),
        mean=_mean(each),
        mean_without_norms=_mean(plain),
        conflicts=sum(cosine < 0.0 for cosine in each),
        tensors=len(each),
    )


def per_task(rows: Sequence[Row]) -> list[Row]:
    """Return the mean angles per label and task over all encoders of all runs: the paper's "on
    average, conflicting for all tasks" is a `pooled` below 0 in every row."""
    table: list[Row] = []
    for (label, task), own in grouped(rows, "label", "task").items():
        means = {
            name: _mean([float(row[name]) for row in own])
            for name in ("pooled", "mean", "mean_without_norms")
        }
        runs = len({row["seed"] for row in own})
        table.append({"label": label, "task": task, "runs": runs, "encoders": len(own), **means})
    return table


def _mean(cosines: Sequence[float]) -> float:
    """Return the mean of the defined ones: a parameter that does not move has no cosine."""
    defined = [cosine for cosine in cosines if not np.isnan(cosine)]
    return float(np.mean(defined)) if defined else float("nan")


def figure(rows: Sequence[Row], layers: Sequence[Row]) -> Figure:
    """Draw the cosine over training: pooled and mean per method, and per parameter tensor."""
    shown = canvas(13.0, 3.8)
    left, middle, right = shown.subplots(1, 3)
    lines(left, rows, "pooled")
    left.set(title="all encoder parameters at once")
    lines(middle, rows, "mean_without_norms")
    middle.set(title="mean per tensor, no LayerNorm (notebook)")
    means: list[Row] = [
        {
            "label": f"{label} {tensor}",
            "task": "",
            "env_steps": mark,
            "cosine": _mean([float(row["cosine"]) for row in own]),
        }
        for (label, tensor, mark), own in grouped(layers, "label", "tensor", "env_steps").items()
    ]
    lines(right, means, "cosine")
    right.set(title="per tensor, over tasks and runs")
    for axes in (left, middle, right):
        axes.axhline(0.0, **style.level())
        axes.set(xlabel="env_steps", ylabel="cosine")
    for axes in (left, middle):
        axes.legend()
    right.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return shown
