"""Latents and actions to two independent Q-values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kstep.nets.blocks import mlp


class TwinCritic(nn.Module):
    """Two Q-functions on one latent (clipped double Q-learning, arXiv:1802.09477)."""

    def __init__(self, latent_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.q1 = mlp(latent_dim + action_dim, hidden, 1)
        self.q2 = mlp(latent_dim + action_dim, hidden, 1)

    def first_layers(self, number: int) -> list[nn.Module]:
        """The first linear layers of both Q-functions with the ReLUs between and, from the second
        on, after them: what knowledge sharing borrows (D20)."""
        modules = 1 if number == 1 else 2 * number
        return [self.q1[:modules], self.q2[:modules]]

    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return both Q-values, each (B,)."""
        inputs = torch.cat((latent, action), dim=-1)
        return self.q1(inputs).squeeze(-1), self.q2(inputs).squeeze(-1)
