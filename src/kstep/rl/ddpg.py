"""Deterministic policy gradients as in DrQ-v2 (Yarats, Fergus, Lazaric, Pinto 2021, "Mastering
Visual Continuous Control", arXiv:2107.09645), with the released code's numbers.

    noise  e ~ N(0, sigma), sigma falls linearly with the decisions taken
    a'     = clamp(pi(s_n) + clip(e'))
    y      = R_n + discount^n min Q_slow(s_n, a')      no value where s_n is terminal
    critic = mean over batch of (Q1(s, a) - y)^2 + (Q2(s, a) - y)^2
    actor  = - mean over batch of min Q(s, clamp(pi(s) + clip(e)))

Actor and critic share the convolutions alone: the encoder's head is the critic's, the actor has its
own. Only the head and the Q-functions have slow copies in the target (D55).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from kstep.nets.base import Encoder, EncoderConfig
from kstep.nets.heads import TwinCritic, mlp
from kstep.nets.init import Init, initialize
from kstep.optimizers import Group, slow_copy
from kstep.rl.core import Core, Encoded
from kstep.rl.n_step import Linear, NStepConfig, NStepCore
from kstep.types import Metrics
from kstep.values import Positive, Rate

if TYPE_CHECKING:
    from kstep.methods.base import LearningConfig

INSIDE = 1e-6
"""How far actions stay within their bounds; the released code's."""


@dataclass(frozen=True)
class DDPGConfig(NStepConfig):
    """DrQ-v2's choices."""

    kind: ClassVar[str] = "ddpg"

    actor_every: Positive = 1
    hidden: Positive = 1024
    noise: Linear = field(default_factory=lambda: Linear(1.0, 0.1, 100_000))
    """Standard deviation of what is added to actions."""
    noise_clip: Rate = 0.3
    """Bound of the noise in both losses; there is none when acting."""
    init: Init = "orthogonal"

    @property
    def head_of_critic(self) -> bool:
        return True

    def build(self, encoder: Encoder, head: EncoderConfig, action_dim: int) -> DDPG:
        return DDPG(self, encoder, head, action_dim)

    def shrunk(self) -> DDPGConfig:
        return replace(self, hidden=32)


class Policy(nn.Module):
    """Features (B, F) to actions (B, A), through a head of its own where the encoder has one."""

    def __init__(self, head: nn.Module, latent_dim: int, action_dim: int, hidden: int) -> None:
        super().__init__()
        self.head = head
        self.body = mlp(latent_dim, hidden, action_dim)

    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.body(self.head(features)))


class DDPG(NStepCore):
    """Actor, twin critic and slow critic."""

    critic: TwinCritic
    slow_critic: TwinCritic

    def __init__(
        self, config: DDPGConfig, encoder: Encoder, head: EncoderConfig, action_dim: int
    ) -> None:
        super().__init__()
        self.config: DDPGConfig = config
        own: nn.Module = nn.Identity()  # a state vector is its own latent
        if encoder.stages():
            own = encoder.another_head()
        self.actor = Policy(own, encoder.latent_dim, action_dim, config.hidden)
        self.critic = TwinCritic(encoder.latent_dim, action_dim, config.hidden)
        initialize(self, config.init)
        self.slow_critic = slow_copy(self.critic)

    @property
    def noise(self) -> float:
        """Its standard deviation now."""
        return self.config.noise.at(self.decisions)

    def explored(self, action: Tensor, generator: torch.Generator, clip: float | None) -> Tensor:
        """Add noise to actions (B, A), as if their bounds were not there for the gradient."""
        noise = self.noise * torch.randn(
            action.shape, generator=generator, device=action.device, dtype=action.dtype
        )
        action = action + (noise if clip is None else noise.clamp(-clip, clip))
        inside = action.clamp(-1.0 + INSIDE, 1.0 - INSIDE)
        return action + (inside - action).detach()

    def act(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        action: Tensor = self.actor(encoder.features(observation))
        return action if generator is None else self.explored(action, generator, None)

    def next_value(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        observation: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        features = encoder.features(observation)
        action = self.explored(self.actor(features), generator, self.config.noise_clip)
        return torch.minimum(*self.slow_critic(slow_encoder.latent(features), action))

    def errors(self, latent: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        q1, q2 = self.critic(latent, action)
        return (q1 - target).square() + (q2 - target).square(), q1

    def actor_losses(
        self, encoder: Encoder, observation: Tensor, encoded: Encoded, generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor, Metrics]]:
        """Yield the actor's loss, on the features that the critic's loss saw before its step."""
        with torch.no_grad():
            latent = encoder.latent(encoded.features)
        action = self.actor(encoded.features)
        action = self.explored(action, generator, self.config.noise_clip)
        loss = -torch.minimum(*self.critic(latent, action)).mean()
        noise = loss.new_full((), self.noise)
        yield "actor", loss, {"actor/loss": loss.detach(), "actor/noise": noise}

    def groups(self, learning: LearningConfig) -> dict[str, Group]:
        return {"actor": Group({"actor": self.actor}, learning.learning_rate, learning.betas)}

    def borrowed_layers(self, number: int) -> list[nn.Module]:
        return self.critic.first_layers(number) if number else []

    def keep_policy(self, other: Core) -> None:
        assert isinstance(other, DDPG)
        self.actor.load_state_dict(other.actor.state_dict())
