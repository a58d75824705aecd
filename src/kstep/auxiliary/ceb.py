"""The predictive information of PI-SAC: keep of the past only what tells of the future.

Lee, Fischer, Liu, Guo, Lee, Canny, Guadarrama 2020, "Predictive Information Accelerates Learning in
RL", arXiv:2007.12401, with the released code's numbers; its bottleneck is the conditional entropy
bottleneck of Fischer 2020, arXiv:2002.05379.

    x  = s_0 and a_0 .. a_{f-1}                         the past, and what will be done
    y0 = s_f and r_0 .. r_{f-1}                         the future; y1 likewise, one decision later
    e(z|x) = N(F(encode(s_0), actions), I)              gradients flow into encoder and head
    b(z|y) = N(G(encode_slow(s), rewards), I)           gradients flow into the head only
    z ~ e(z|x)
    I  = log softmax over the batch's y of b(z|y), at its own y, + log B
    R0 = log e(z|x) - log b(z|y0),  R1 = log e(z|x) - log b(z|y1)
    loss = mean over batch of beta R0 - I + second_weight beta R1

I bounds from below what z tells of the future, R from above what it tells beyond that. The scales
being fixed, log e(z|x) has no gradient: the pressure comes from -log b alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Draws, Shapes
from kstep.nets.init import Init, initialize
from kstep.types import Encode, Metrics, SequenceBatch
from kstep.values import Fraction, Positive, Rate


@dataclass(frozen=True)
class CEBConfig(AuxiliaryConfig):
    """PI-SAC's choices; the defaults are the released code's."""

    kind: ClassVar[str] = "ceb"
    shares_windows: ClassVar[bool] = True

    future: Positive = 3
    """Decisions from x to y. As many as stacked frames, so that the two have no frame in common."""
    beta: Rate = 0.01
    """Price of what z knows beyond the future; constant."""
    second_weight: Rate = 0.6
    """Share of beta for the same price at y1, which makes z vary smoothly in time."""
    z_dim: Positive = 50
    hidden: Positive = 128
    backward_rate: Fraction = 0.05
    """EMA rate of the backward encoder, a slow copy of the encoder for this task alone."""
    init: Init = "glorot"
    """Of the heads' hidden layers."""

    @property
    def horizon(self) -> int:
        return self.future + 1

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return CEB(self, shapes.latent_dim, shapes.action_dim)

    def shrunk(self) -> CEBConfig:
        return replace(self, hidden=16)


class GaussianHead(nn.Sequential):
    """A latent and what goes with it to the mean of a Gaussian whose covariance is I.

    The released head has twice as many outputs, the second half for a scale that its configuration
    then fixes at 1. That half is left out here, and so is the last layer's bias, which the batch
    normalization would subtract again: neither has any effect on the mean or its gradients.
    """

    def __init__(self, config: CEBConfig, inputs: int) -> None:
        last = nn.Linear(config.hidden, config.z_dim, bias=False)
        super().__init__(
            nn.Linear(inputs, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(),
            last,
            # Keras' defaults, whose momentum of 0.99 is 0.01 in PyTorch's convention.
            nn.BatchNorm1d(config.z_dim, eps=1e-3, momentum=0.01),
        )
        initialize(self, config.init)
        # TensorFlow's variance scaling by 1e-4: a normal distribution cut off at two standard
        # deviations, widened by 1/0.8796 to have the intended variance nevertheless.
        std = math.sqrt(1e-4 / config.hidden) / 0.87962566103423978
        nn.init.trunc_normal_(last.weight, std=std, a=-2 * std, b=2 * std)

    def forward(self, *inputs: Tensor) -> Tensor:
        return super().forward(torch.cat(inputs, dim=1))  # type: ignore[no-any-return, no-untyped-call]


class CEB(AuxiliaryTask):
    """The task with its heads: forward F, backward G."""

    def __init__(self, config: CEBConfig, latent_dim: int, action_dim: int) -> None:
        super().__init__()
        self.config = config
        self.slow_encoder_rate = config.backward_rate
        self.forward_head = GaussianHead(config, latent_dim + config.future * action_dim)
        self.backward_head = GaussianHead(config, latent_dim + config.future)
        self.draws = Draws()

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        return {"forward_head": self.forward_head, "backward_head": self.backward_head}

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """The loss over `batch.observation` (B, f + 2, S, ...), of which it uses the first and the
        last two, and over `batch.action` and `batch.reward` (B, f + 1, ...)."""
        config, future = self.config, self.config.future
        latent0, latent1 = self.future_latents(encode_slow, batch.observation)
        mean = self.forward_head(
            encode(batch.observation[:, 0]), batch.action[:, :future].flatten(1)
        )
        # One after the other, as released: each future is normalized by its own batch.
        mean0 = self.backward_head(latent0, batch.reward[:, :future])
        mean1 = self.backward_head(latent1, batch.reward[:, 1 : future + 1])

        z = mean + self.noise(mean)
        forward = log_density(z, mean)
        # (B, B): log b(z_i | y_j), up to what depends on z_i alone and cancels in the softmax.
        scores = z @ mean0.T - 0.5 * mean0.square().sum(1)
        information = scores.log_softmax(1).diagonal() + math.log(len(z))
        residual0 = forward - log_density(z, mean0)
        residual1 = forward - log_density(z, mean1)
        price = config.beta * (residual0 + config.second_weight * residual1)
        loss = (price - information).mean()
        return loss, {
            "auxiliary/loss": loss.detach(),
            "auxiliary/ceb_information": information.detach().mean(),
            "auxiliary/ceb_residual0": residual0.detach().mean(),
            "auxiliary/ceb_residual1": residual1.detach().mean(),
        }

    @torch.no_grad()
    def future_latents(self, encode_slow: Encode, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Encode the last two observations of (B, f + 2, S, ...) as one batch: (B, D) each."""
        future = self.config.future
        latents = encode_slow(observation[:, future : future + 2].transpose(0, 1).flatten(0, 1))
        first, second = latents.chunk(2)
        return first, second

    def noise(self, like: Tensor) -> Tensor:
        """Draw standard normal noise; never the same twice."""
        generator = self.draws.next()
        return torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)


def log_density(z: Tensor, mean: Tensor) -> Tensor:
    """Log density of N(mean, I) at z, both (B, D): (B,)."""
    return -0.5 * ((z - mean).square().sum(-1) + z.shape[-1] * math.log(2 * math.pi))
