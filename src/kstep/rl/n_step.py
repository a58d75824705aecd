"""What the cores after SAC share: n-step returns, a Bellman loss, linear schedules."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from kstep.data.n_step import NStepBatches
from kstep.errors import KstepError
from kstep.nets.base import Encoder
from kstep.optimizers import Ema
from kstep.rl.core import Core, CoreConfig, Encoded
from kstep.rng import Streams
from kstep.types import Metrics, TransitionBatch
from kstep.values import Fraction, Positive, Rate

if TYPE_CHECKING:
    from kstep.methods.base import Method


@dataclass(frozen=True)
class Linear:
    """A number that moves linearly with the decisions taken, and then stays."""

    start: Rate
    end: Rate
    decisions: Positive
    """How many the way from start to end takes."""

    def at(self, decisions: int) -> float:
        part = min(max(decisions, 0) / self.decisions, 1.0)
        return (1.0 - part) * self.start + part * self.end


@dataclass(frozen=True)
class NStepConfig(CoreConfig):
    """Settings of a core that learns from n-step returns."""

    n_step: Positive = 3
    """Decisions whose rewards a return adds up, fewer where the episode ends before."""
    discount: Fraction = 0.99
    """Per decision."""

    @property
    def largest_horizon(self) -> float:
        return 1.0 / max(1.0 - self.discount, 1e-3)

    def batches(self, method: Method, streams: Streams, device: torch.device) -> NStepBatches:
        return NStepBatches(method, streams, device, self.n_step, self.discount)

    def check(self, method: Method) -> None:
        if method.exploration is not None and self.n_step > 1:
            raise KstepError(
                "method.exploration rewards single decisions: with it method.core.n_step must be "
                f"1, not {self.n_step}"
            )


class NStepCore(Core):
    """Regresses Q-functions onto n-step returns."""

    config: NStepConfig
    slow_critic: nn.Module

    @abc.abstractmethod
    def next_value(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        observation: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """Return the value (B,) of the last observations (B, S, ...) of the returns."""

    @abc.abstractmethod
    def errors(self, latent: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far Q is from the target, and Q itself, each (B,)."""

    def critic_loss(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Encoded, Metrics]:
        """The error summed over views, which all regress onto the mean of their targets, and
        averaged over the batch."""
        views = self.config.critic_views
        with torch.no_grad():
            value = self.next_value(encoder, slow_encoder, batch.next_observation, generator)
            target = batch.reward + batch.bootstrap * self.config.discount * value
            target = target.view(views, -1).mean(0).repeat(views)
        features = encoder.features(batch.observation)
        latent = encoder.latent(features)
        errors, q = self.errors(latent, batch.action, target)
        loss = errors.view(views, -1).mean(1).sum()
        metrics = {
            "critic/loss": loss.detach(),
            "critic/q": q.detach().mean(),
            "critic/target": target.mean(),
        }
        return loss, Encoded(features.detach(), latent.detach()), metrics

    def slow_copies(self) -> list[Ema]:
        return [Ema("critic", self.slow_critic, self.critic, self.config.ema_rate)]
