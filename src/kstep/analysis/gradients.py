"""Do the critic's and the auxiliary task's updates of the encoder pull the same way?

The paper's appendix on optimizers: the cosine between the two Adam update directions m_hat /
(sqrt(v_hat) + eps) of the encoder's parameters; below 0 they conflict. Each direction is made of
its own optimizer's moments, its own count of updates and Adam's own epsilon. The notebook that was
released with the paper mixes the auxiliary moments into both (D29).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from kstep.analysis.curves import Figure, canvas, lines
from kstep.analysis.tables import Row
from kstep.optimizers import Optimizers

EPSILON = 1e-8

Moments = Mapping[str, Tensor]
"""Adam's `exp_avg`, `exp_avg_sq` and `step` of one parameter."""


@dataclass(frozen=True)
class Angle:
    """Two update directions of one layer's parameter, reduced to what cosines are made of."""

    inner: float
    norms: tuple[float, float]
    normalization: bool
    """Whether it belongs to a normalization layer, which the released notebook leaves out."""

    @property
    def cosine(self) -> float:
        product = self.norms[0] * self.norms[1]
        return self.inner / product if product > 0.0 else float("nan")


@dataclass(frozen=True)
class Gradients:
    """The angle between two optimizers on one encoder; negative cosines are conflicts."""

    pooled: float
    """Cosine over all parameters at once."""
    mean: float
    """Mean of the cosines per parameter tensor."""
    mean_without_norms: float
    """Likewise without normalization layers, as in the released notebook."""
    conflicts: int
    """Parameter tensors whose cosine is negative."""
    tensors: int


def direction(moments: Moments, betas: tuple[float, float]) -> Tensor:
    """Return Adam's update direction, before the learning rate."""
    step = float(moments["step"])
    first: Tensor = moments["exp_avg"].double() / (1.0 - betas[0] ** step)
    second: Tensor = moments["exp_avg_sq"].double() / (1.0 - betas[1] ** step)
    return first / (second.sqrt() + EPSILON)


def angles(
    one: Mapping[str, Moments],
    other: Mapping[str, Moments],
    betas: tuple[float, float] = (0.9, 0.999),
    normalizations: Sequence[str] = (),
) -> dict[str, Angle]:
    """Compare the directions of the parameters that both optimizers step, by parameter name."""
    found = {}
    for name in one:
        if name in other:
            left, right = direction(one[name], betas), direction(other[name], betas)
            found[name] = Angle(
                inner=float((left * right).sum()),
                norms=(float(left.norm()), float(right.norm())),
                normalization=name in normalizations,
            )
    return found


def gradients(found: Mapping[str, Angle]) -> Gradients:
    """Summarize the angles of one encoder."""
    each = [angle.cosine for angle in found.values()]
    plain = [angle.cosine for angle in found.values() if not angle.normalization]
    norms = np.array([angle.norms for angle in found.values()])
    product = float(np.prod(np.sqrt((norms**2).sum(axis=0))))
    inner = sum(angle.inner for angle in found.values())
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
    found: list[Row] = []
    for label, task in dict.fromkeys((str(row["label"]), str(row["task"])) for row in rows):
        own = [row for row in rows if (row["label"], row["task"]) == (label, task)]
        means = {
            name: _mean([float(row[name]) for row in own])
            for name in ("pooled", "mean", "mean_without_norms")
        }
        runs = len({row["seed"] for row in own})
        found.append({"label": label, "task": task, "runs": runs, "encoders": len(own), **means})
    return found


def _mean(cosines: Sequence[float]) -> float:
    """Return the mean of those there are: a parameter that does not move has none."""
    known = [cosine for cosine in cosines if not np.isnan(cosine)]
    return float(np.mean(known)) if known else float("nan")


def live_angles(optimizers: Optimizers, encoder: nn.Module) -> dict[str, Angle]:
    """Compare the critic's and the auxiliary optimizer on whatever of the encoder both step.

    Empty where there is no such thing: no auxiliary task, one optimizer for both, no update yet.
    """
    if not {"critic", "auxiliary"} <= set(optimizers.groups):
        return {}
    groups = optimizers.groups
    normalizations = [
        f"{path}.{name}"
        for path, module in encoder.named_modules()
        if isinstance(module, nn.LayerNorm)
        for name, _ in module.named_parameters()
    ]
    with torch.no_grad():
        return angles(
            _moments(optimizers, "critic", encoder),
            _moments(optimizers, "auxiliary", encoder),
            groups["critic"].betas,
            normalizations,
        )


def _moments(optimizers: Optimizers, name: str, encoder: nn.Module) -> dict[str, Moments]:
    """Return one optimizer's moments of the encoder's parameters, by the encoder's own names."""
    # A task that sees features owns the convolutions under another name: the parameter decides.
    known = {id(parameter): path for path, parameter in encoder.named_parameters()}
    state = optimizers.state()
    found: dict[str, Moments] = {}
    for key, parameter in optimizers.groups[name].named_parameters():
        prefix = f"{name}/{key}/"
        if id(parameter) in known and f"{prefix}step" in state:
            found[known[id(parameter)]] = {
                quantity: state[prefix + quantity] for quantity in ("exp_avg", "exp_avg_sq", "step")
            }
    return found


def figure(rows: Sequence[Row], layers: Sequence[Row]) -> Figure:
    """Draw the cosine over training: pooled and mean per method, and per parameter tensor."""
    shown = canvas(13.0, 3.8)
    left, middle, right = shown.subplots(1, 3)
    lines(left, rows, "pooled")
    left.set(title="all encoder parameters at once")
    lines(middle, rows, "mean_without_norms")
    middle.set(title="mean per tensor, no LayerNorm (notebook)")
    each: dict[tuple[str, int], list[float]] = {}
    for row in layers:
        key = (f"{row['label']} {row['tensor']}", int(row["env_steps"]))
        each.setdefault(key, []).append(float(row["cosine"]))
    means: list[Row] = [
        {"label": name, "task": "", "env_steps": mark, "cosine": _mean(own)}
        for (name, mark), own in each.items()
    ]
    lines(right, means, "cosine")
    right.set(title="per tensor, over tasks and runs")
    for axes in (left, middle, right):
        axes.axhline(0.0, color="grey", linestyle="--")
        axes.set(xlabel="env_steps", ylabel="cosine")
    for axes in (left, middle):
        axes.legend(fontsize="small")
    right.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return shown
