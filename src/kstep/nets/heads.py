"""What stands on latents: the policy and the two Q-functions."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden ReLU layers: the body of every actor and critic in this family."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


class SquashedGaussian:
    """a = tanh(u), u ~ N(mean, exp(log_std)), independent per action dimension: SAC's policy
    (Haarnoja et al. 2018, arXiv:1812.05905)."""

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
            # log(1 - tanh(u)^2), stable for any u (no atanh, no 1e-6)
            correction = 2.0 * (math.log(2.0) - unsquashed - F.softplus(-2.0 * unsquashed))
        else:
            correction = torch.log(torch.relu(1.0 - action.square()) + 1e-6)
        return action, (gaussian - correction).sum(-1)


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
