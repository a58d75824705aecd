"""The angle between the critic's and the auxiliary task's updates of the encoder.

The paper's appendix on optimizers: the cosine between the two Adam update directions m_hat /
(sqrt(v_hat) + eps) of the encoder's parameters; below 0 they conflict. Each direction is computed
from its own optimizer's moments, its own number of updates and Adam's own epsilon. The notebook
released with the paper mixes the auxiliary moments into both (D29).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kstep.optimizers import Optimizers

EPSILON = 1e-8

Moments = Mapping[str, Tensor]
"""Adam's `exp_avg`, `exp_avg_sq` and `step` of one parameter."""


@dataclass(frozen=True)
class Angle:
    """Two update directions of one parameter tensor, reduced to what their cosine needs."""

    inner: float
    norms: tuple[float, float]
    normalization: bool
    """Whether it belongs to a normalization layer, which the released notebook leaves out."""

    @property
    def cosine(self) -> float:
        product = self.norms[0] * self.norms[1]
        return self.inner / product if product > 0.0 else float("nan")


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
    compared = {}
    for name in [name for name in one if name in other]:
        left, right = direction(one[name], betas), direction(other[name], betas)
        norms = float(left.norm()), float(right.norm())
        compared[name] = Angle(float((left * right).sum()), norms, name in normalizations)
    return compared


def live_angles(optimizers: Optimizers, encoder: nn.Module) -> dict[str, Angle]:
    """Compare the critic's and the auxiliary optimizer on the encoder parameters that both step.

    Empty without any: no auxiliary task, one optimizer for both losses, no update yet.
    """
    if not {"critic", "auxiliary"} <= set(optimizers.groups):
        return {}
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
            optimizers.groups["critic"].betas,
            normalizations,
        )


def _moments(optimizers: Optimizers, name: str, encoder: nn.Module) -> dict[str, Moments]:
    """Return one optimizer's moments of the encoder's parameters, by the encoder's own names."""
    # A task that sees features owns the convolutions under another name: compare by identity.
    known = {id(parameter): path for path, parameter in encoder.named_parameters()}
    state = optimizers.state()
    moments: dict[str, Moments] = {}
    for key, parameter in optimizers.groups[name].named_parameters():
        prefix = f"{name}/{key}/"
        if id(parameter) in known and f"{prefix}step" in state:
            moments[known[id(parameter)]] = {
                quantity: state[prefix + quantity] for quantity in ("exp_avg", "exp_avg_sq", "step")
            }
    return moments
