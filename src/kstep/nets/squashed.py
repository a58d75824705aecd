"""The tanh-squashed Gaussian policy of SAC (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class SquashedGaussian:
    """a = tanh(u), u ~ N(mean, exp(log_std)), independent per action dimension."""

    def __init__(self, mean: Tensor, log_std: Tensor, *, exact: bool = True) -> None:
        """`exact`: the stable log-probability; otherwise the one with 1e-6 of older code."""
        self.mean = mean
        self.log_std = log_std
        self.exact = exact

    @property
    def mode(self) -> Tensor:
        """The action of evaluation, tanh(mean)."""
        return torch.tanh(self.mean)

    def sample(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return a reparameterized action (B, A) and its log-probability (B,)."""
        noise = torch.randn(
            self.mean.shape,
            generator=generator,
            device=self.mean.device,
            dtype=self.mean.dtype,
        )
        unsquashed = self.mean + self.log_std.exp() * noise
        gaussian = -0.5 * noise.square() - self.log_std - _HALF_LOG_2PI
        action = torch.tanh(unsquashed)
        if self.exact:
            correction = log_tanh_derivative(unsquashed)
        else:
            correction = torch.log(torch.relu(1.0 - action.square()) + 1e-6)
        return action, (gaussian - correction).sum(-1)


def log_tanh_derivative(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2), exact and stable for any u (no atanh, no 1e-6)."""
    return 2.0 * (math.log(2.0) - u - F.softplus(-2.0 * u))
