"""Latents to a distribution over actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kstep.nets.blocks import mlp
from kstep.nets.squashed import SquashedGaussian


class Actor(nn.Module):
    """A policy with state-dependent standard deviation, its logarithm bounded smoothly."""

    def __init__(
        self,
        latent_dim: int,
        action_dim: int,
        hidden: int,
        log_std_bounds: tuple[float, float] | None,
        head: nn.Module | None = None,
        *,
        exact_log_prob: bool = True,
    ) -> None:
        """`head`: the actor's own second stage of the encoder, if it has one."""
        super().__init__()
        self.head = head
        self.body = mlp(latent_dim, hidden, 2 * action_dim)
        self.log_std_bounds = log_std_bounds
        self.exact_log_prob = exact_log_prob

    def forward(self, inputs: Tensor) -> SquashedGaussian:
        """`inputs` are latents (B, D), or features (B, F) where the actor has its own head."""
        latent = inputs if self.head is None else self.head(inputs)
        mean, raw = self.body(latent).chunk(2, dim=-1)
        if self.log_std_bounds is not None:
            low, high = self.log_std_bounds
            raw = low + 0.5 * (high - low) * (torch.tanh(raw) + 1.0)
        return SquashedGaussian(mean, raw, exact=self.exact_log_prob)
