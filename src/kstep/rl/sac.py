"""Soft Actor-Critic on latents (Haarnoja et al. 2018, arXiv:1812.05905)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import annotated_types as at
import torch
from torch import Tensor, nn

from kstep.nets.base import Encoder, EncoderConfig
from kstep.nets.heads import Actor, SquashedGaussian, TwinCritic
from kstep.nets.init import Init, initialize
from kstep.optimizers import Ema, Group, slow_copy
from kstep.rl.core import Core, CoreConfig, Encoded
from kstep.types import KstepError, Metrics, TransitionBatch
from kstep.values import BelowOne, Fraction, Positive, Rate

if TYPE_CHECKING:
    from kstep.methods.base import LearningConfig, Method


@dataclass(frozen=True)
class SACConfig(CoreConfig):
    """SAC as the KSL paper configures it (its table of hyperparameters)."""

    kind: ClassVar[str] = "sac"

    actor_every: Positive = 2
    hidden: Positive = 1024
    discount: Fraction = 0.99
    """Per decision."""
    log_std_bounds: tuple[float, float] | None = (-10.0, 2.0)
    """None: unbounded."""
    actor_encoder: Literal["share_all", "share_convolutions"] = "share_all"
    """What the actor takes from the critic's encoder: its latent, or only convolutions (D12)."""
    actor_latent: Literal["fresh", "reused"] = "fresh"
    """Whether the actor's step encodes again, or reuses what the critic's step encoded before it
    moved the encoder (PI-SAC). Only with `share_all`."""
    log_prob: Literal["exact", "epsilon"] = "exact"
    """The tanh correction: exact, or log(1 - a^2 + 1e-6) as in RAD, CURL and SAC-AE."""
    critic_scale: Rate = 1.0
    """Of the critic's loss; PI-SAC has 0.5."""
    initial_temperature: Annotated[float, at.Gt(0.0)] = 0.1
    target_entropy: float = -1.0
    """Per action dimension; PI-SAC has -0.5."""
    temperature_loss: Literal["exp", "log"] = "exp"
    """Whether the gradient reaches log-temperature through exp (this family) or not (PI-SAC)."""
    temperature_sample: Literal["shared", "fresh"] = "shared"
    """Which actions the temperature's step looks at: those of the actor's loss, or new ones of the
    actor that its step has just moved (PI-SAC, D52)."""
    temperature_learning_rate: Rate | None = None
    """None: the agent's."""
    temperature_betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    init: Init = "delta_orthogonal"

    @property
    def largest_horizon(self) -> float:
        return 1.0 / max(1.0 - self.discount, 1e-3)

    def build(self, encoder: Encoder, head: EncoderConfig, action_dim: int) -> SAC:
        return SAC(self, encoder, head, action_dim)

    def shrunk(self) -> SACConfig:
        return replace(self, hidden=32)

    def check(self, method: Method) -> None:
        if self.log_std_bounds is not None and self.log_std_bounds[0] >= self.log_std_bounds[1]:
            raise KstepError(
                f"method.core.log_std_bounds must rise, not {list(self.log_std_bounds)}"
            )
        if self.actor_latent == "reused" and self.actor_encoder != "share_all":
            raise KstepError(
                "method.core.actor_latent=reused needs method.core.actor_encoder=share_all"
            )
        shares = (self.actor_encoder, self.actor_latent)
        if method.observation != "pixels" and shares != ("share_all", "fresh"):
            raise KstepError(
                "a state vector is its own latent, without convolutions to share and moved by "
                "nothing: method.core.actor_encoder=share_all and actor_latent=fresh"
            )


class SAC(Core):
    """Actor, twin critic, slow critic and temperature."""

    critic: TwinCritic

    def __init__(
        self, config: SACConfig, encoder: Encoder, head: EncoderConfig, action_dim: int
    ) -> None:
        super().__init__()
        self.config = config
        self.target_entropy = config.target_entropy * action_dim
        own_head = None
        if config.actor_encoder == "share_convolutions":
            own_head = encoder.another_head()
        self.actor = Actor(
            encoder.latent_dim,
            action_dim,
            config.hidden,
            config.log_std_bounds,
            own_head,
            exact_log_prob=config.log_prob == "exact",
        )
        self.critic = TwinCritic(encoder.latent_dim, action_dim, config.hidden)
        initialize(self, config.init)
        self.slow_critic = slow_copy(self.critic)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.initial_temperature)))

    def policy(self, encoder: Encoder, observation: Tensor) -> SquashedGaussian:
        """Return the policy at `observation` (B, S, ...); no gradient reaches the encoder."""
        # Policy gradients degrade the encoder (arXiv:1910.01741).
        with torch.no_grad():
            inputs = encoder.features(observation)
            if self.actor.head is None:
                inputs = encoder.latent(inputs)
        return self.actor(inputs)  # type: ignore[no-any-return]

    def act(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        policy = self.policy(encoder, observation)
        return policy.mode if generator is None else policy.sample(generator)[0]

    @torch.no_grad()
    def value_target(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> Tensor:
        """y = r + bootstrap * discount * (min Q'(s', a') - temperature * log pi(a'|s')), (B,)."""
        action, log_prob = self.policy(encoder, batch.next_observation).sample(generator)
        slow_latent = slow_encoder(batch.next_observation)
        next_value = torch.minimum(*self.slow_critic(slow_latent, action))
        next_value = next_value - self.log_temperature.exp() * log_prob
        return batch.reward + batch.bootstrap * self.config.discount * next_value

    def critic_loss(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Encoded, Metrics]:
        """Squared Bellman error of both critics, summed over critics and over views.

        With several views the batch holds them one after the other, each of the same transitions;
        each view samples its own next action, and all regress onto the mean of their targets.
        """
        views = self.config.critic_views
        target = self.value_target(encoder, slow_encoder, batch, generator)
        target = target.view(views, -1).mean(0).repeat(views)
        features = encoder.features(batch.observation)
        latent = encoder.latent(features)
        q1, q2 = self.critic(latent, batch.action)
        errors = (q1 - target).square() + (q2 - target).square()
        loss = self.config.critic_scale * errors.view(views, -1).mean(1).sum()
        metrics = {
            "critic/loss": loss.detach(),
            "critic/q": q1.detach().mean(),
            "critic/target": target.mean(),
        }
        return loss, Encoded(features.detach(), latent.detach()), metrics

    def actor_losses(
        self, encoder: Encoder, observation: Tensor, encoded: Encoded, generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor, Metrics]]:
        """Yield the loss of the actor, then that of the temperature."""
        inputs = latent = encoded.latent
        if self.config.actor_latent == "fresh":
            with torch.no_grad():
                features = encoder.features(observation)
                latent = encoder.latent(features)
            inputs = latent if self.actor.head is None else features
        action, log_prob = self.actor(inputs).sample(generator)
        value = torch.minimum(*self.critic(latent, action))
        temperature = self.log_temperature.exp()
        loss = (temperature.detach() * log_prob - value).mean()
        entropy = -log_prob.detach()
        yield "actor", loss, {"actor/loss": loss.detach(), "actor/entropy": entropy.mean()}

        if self.config.temperature_sample == "fresh":
            with torch.no_grad():
                entropy = -self.actor(inputs).sample(generator)[1]
        through_exp = self.config.temperature_loss == "exp"
        weight = temperature if through_exp else self.log_temperature
        loss = (weight * (entropy - self.target_entropy)).mean()
        metrics = {"temperature/value": temperature.detach(), "temperature/loss": loss.detach()}
        yield "temperature", loss, metrics

    def groups(self, learning: LearningConfig) -> dict[str, Group]:
        config, rate = self.config, self.config.temperature_learning_rate
        return {
            "actor": Group({"actor": self.actor}, learning.learning_rate, learning.betas),
            "temperature": Group(
                {"temperature": self.log_temperature},
                learning.learning_rate if rate is None else rate,
                config.temperature_betas,
            ),
        }

    def slow_copies(self) -> list[Ema]:
        return [Ema("critic", self.slow_critic, self.critic, self.config.ema_rate)]

    def borrowed_layers(self, number: int) -> list[nn.Module]:
        return self.critic.first_layers(number) if number else []

    def keep_policy(self, other: Core) -> None:
        assert isinstance(other, SAC)
        self.actor.load_state_dict(other.actor.state_dict())
