"""Soft Actor-Critic on latents (Haarnoja et al. 2018, arXiv:1812.05905).

In: an encoder, its slow copy and a batch of transitions. Out: losses. The encoder is an argument,
never an attribute: whoever composes the agent decides who else shapes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from kstep.nets.actor import Actor
from kstep.nets.critic import TwinCritic
from kstep.nets.ema import slow_copy
from kstep.nets.encoder import Encoder, EncoderConfig, LatentHead
from kstep.nets.init import Init, initialize
from kstep.nets.squashed import SquashedGaussian
from kstep.types import Metrics, TransitionBatch


@dataclass(frozen=True)
class SACConfig:
    """SAC as the KSL paper configures it (its table of hyperparameters)."""

    hidden: int = 1024
    log_std_bounds: tuple[float, float] | None = (-10.0, 2.0)
    """None: unbounded."""
    initial_temperature: float = 0.1
    discount: float = 0.99
    """Per decision."""
    critic_views: int = 1
    """Augmented views of each transition in the critic's loss; 2 is DrQ's [K=2, M=2] (D01)."""
    actor_encoder: Literal["share_all", "share_convolutions"] = "share_all"
    """What the actor takes from the critic's encoder: its latent, or only convolutions (D12)."""
    actor_latent: Literal["fresh", "reused"] = "fresh"
    """Whether the actor's step encodes again, or reuses what the critic's step encoded before it
    moved the encoder (PI-SAC). Only with `share_all`."""
    log_prob: Literal["exact", "epsilon"] = "exact"
    """The tanh correction: exact, or log(1 - a^2 + 1e-6) as in RAD, CURL and SAC-AE."""
    critic_scale: float = 1.0
    """Of the critic's loss; PI-SAC has 0.5."""
    target_entropy: float = -1.0
    """Per action dimension; PI-SAC has -0.5."""
    temperature_loss: Literal["exp", "log"] = "exp"
    """Whether the gradient reaches log-temperature through exp (this family) or not (PI-SAC)."""
    temperature_sample: Literal["shared", "fresh"] = "shared"
    """Which actions the temperature's step looks at: those of the actor's loss, or new ones of the
    actor that its step has just moved (PI-SAC, D52)."""
    init: Init = "delta_orthogonal"


class SAC(nn.Module):
    """Actor, twin critic, slow critic and temperature."""

    def __init__(
        self,
        config: SACConfig,
        encoder: Encoder,
        action_dim: int,
        own_head: EncoderConfig | None = None,
    ) -> None:
        """`encoder` is looked at for its sizes; `own_head` shapes the actor's, if it has one."""
        super().__init__()
        self.config = config
        self.target_entropy = config.target_entropy * action_dim
        self.actor = Actor(
            encoder.latent_dim,
            action_dim,
            config.hidden,
            config.log_std_bounds,
            None if own_head is None else LatentHead(own_head, encoder.feature_shape),
            exact_log_prob=config.log_prob == "exact",
        )
        self.critic = TwinCritic(encoder.latent_dim, action_dim, config.hidden)
        initialize(self, config.init)
        self.slow_critic = slow_copy(self.critic)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    def policy(self, encoder: Encoder, features: Tensor) -> SquashedGaussian:
        """Return the policy at `features` (B, F); no gradient reaches the encoder.

        Policy gradients degrade the encoder (arXiv:1910.01741).
        """
        if self.actor.head is not None:
            return self.actor(features.detach())  # type: ignore[no-any-return]
        return self.actor(encoder.latent(features).detach())  # type: ignore[no-any-return]

    @torch.no_grad()
    def value_target(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> Tensor:
        """y = r + bootstrap * discount * (min Q'(s', a') - temperature * log pi(a'|s')), (B,)."""
        policy = self.policy(encoder, encoder.features(batch.next_observation))
        action, log_prob = policy.sample(generator)
        slow_latent = batch.slow_next_latent
        if slow_latent is None:
            slow_latent = slow_encoder(batch.next_observation)
        next_value = torch.minimum(*self.slow_critic(slow_latent, action))
        next_value = next_value - self.temperature * log_prob
        return batch.reward + batch.bootstrap * self.config.discount * next_value

    def critic_loss(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Metrics]:
        """Squared Bellman error of both critics, summed over critics and over views.

        With several views the batch holds them one after the other, each of the same transitions;
        each view samples its own next action, and all regress onto the mean of their targets.
        """
        views = self.config.critic_views
        target = self.value_target(encoder, slow_encoder, batch, generator)
        target = target.view(views, -1).mean(0).repeat(views)
        latent = encoder(batch.observation) if batch.latent is None else batch.latent
        self.latent = latent.detach()
        q1, q2 = self.critic(latent, batch.action)
        errors = (q1 - target).square() + (q2 - target).square()
        loss = self.config.critic_scale * errors.view(views, -1).mean(1).sum()
        return loss, {
            "critic/loss": loss.detach(),
            "critic/q": q1.detach().mean(),
            "critic/target": target.mean(),
        }

    def actor_loss(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Metrics]:
        """Return the losses of actor and temperature, from one action sample."""
        policy, latent = self._policy_and_latent(encoder, observation)
        action, log_prob = policy.sample(generator)
        value = torch.minimum(*self.critic(latent, action))
        loss = (self.temperature.detach() * log_prob - value).mean()
        temperature_loss = self._temperature_loss(log_prob)
        return (
            loss,
            temperature_loss,
            {
                "actor/loss": loss.detach(),
                "actor/entropy": -log_prob.detach().mean(),
                "temperature/value": self.temperature.detach(),
                "temperature/loss": temperature_loss.detach(),
            },
        )

    def fresh_temperature_loss(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Metrics]:
        """Return the temperature's loss, from an action sample of its own."""
        with torch.no_grad():
            policy, _ = self._policy_and_latent(encoder, observation)
            _, log_prob = policy.sample(generator)
        loss = self._temperature_loss(log_prob)
        return loss, {"temperature/loss": loss.detach()}

    def _policy_and_latent(
        self, encoder: Encoder, observation: Tensor
    ) -> tuple[SquashedGaussian, Tensor]:
        """Return the policy at observations and the latents (B, D) that the critic takes there."""
        if self.config.actor_latent == "reused":
            latent = self.latent[: len(observation)]
            return self.actor(latent), latent
        with torch.no_grad():
            features = encoder.features(observation)
            latent = encoder.latent(features)
        return self.actor(latent if self.actor.head is None else features), latent

    def _temperature_loss(self, log_prob: Tensor) -> Tensor:
        excess_entropy = (-log_prob - self.target_entropy).detach()
        through_exp = self.config.temperature_loss == "exp"
        weight = self.temperature if through_exp else self.log_temperature
        return (weight * excess_entropy).mean()
