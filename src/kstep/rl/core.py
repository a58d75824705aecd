"""What a reinforcement-learning algorithm is to an agent: modules, losses, actions, slow copies.

A core and an auxiliary task are the same kind of thing: modules with heads of their own that turn
latents into losses. The encoder is an argument, never an attribute: whoever composes the agent
decides who else shapes it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from kstep.data.batches import Batches
from kstep.nets.base import Encoder, EncoderConfig
from kstep.optimizers import Ema, Group
from kstep.rng import Streams
from kstep.types import ActionKind, Metrics, TransitionBatch
from kstep.values import Family, Fraction, Positive

if TYPE_CHECKING:
    from kstep.methods.base import LearningConfig, Method


@dataclass(frozen=True)
class CoreConfig(Family):
    """Settings of every core. A subclass names its `kind` and builds its core."""

    acts_in: ClassVar[tuple[ActionKind, ...]] = ("box",)
    """The kinds of action spaces that its policies can choose from."""

    critic_views: Positive = 1
    """Augmented views of each transition in the critic's loss; 2 is DrQ's [K=2, M=2] (D01)."""
    ema_rate: Fraction = 0.01
    """Of the slow critic."""

    @property
    @abc.abstractmethod
    def largest_horizon(self) -> float:
        """Decisions that a value can look ahead: the sum of the discounts."""

    @property
    def actor_every(self) -> int:
        """Updates from one step of the actor to the next."""
        return 1

    @property
    def head_of_critic(self) -> bool:
        """Whether the slow copy of the encoder's head moves at the critic's rate."""
        return False

    @abc.abstractmethod
    def build(self, encoder: Encoder, head: EncoderConfig, action_dim: int) -> Core:
        """Return the core; `encoder` is looked at for its sizes, `head` for the shape of a second
        stage of its own."""

    def batches(self, method: Method, streams: Streams, device: torch.device) -> Batches:
        """Return what draws the batches that this core learns from."""
        return Batches(method, streams, device)

    @abc.abstractmethod
    def shrunk(self) -> CoreConfig:
        """Return the same core at the size of the `debug` preset."""

    def check(self, method: Method) -> None:
        """Refuse other parts of the method that this core cannot be combined with."""


@dataclass(frozen=True)
class Encoded:
    """What the critic's loss made of the observations, detached."""

    features: Tensor
    """(B, F)"""
    latent: Tensor
    """(B, D)"""


class Core(nn.Module, abc.ABC):
    """A reinforcement-learning algorithm on latents."""

    decisions: int = 0
    """Taken so far in the run; the training loop sets it, schedules read it."""
    target_entropy: float | None = None
    """Of the policy, for the health watch; None where the policy has no entropy."""
    critic: nn.Module
    """What is stepped on the critic's loss, together with the encoder."""

    @abc.abstractmethod
    def act(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Return actions (B, A), one-hot if discrete; greedy ones without a generator."""

    @abc.abstractmethod
    def critic_loss(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Encoded, Metrics]:
        """Return the loss, what it made of the observations, and what to log."""

    @abc.abstractmethod
    def actor_losses(
        self, encoder: Encoder, observation: Tensor, encoded: Encoded, generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor, Metrics]]:
        """Yield an optimizer's name, its loss and what to log, each to be minimized before the next
        is asked for. `encoded` is what the critic's loss made of the same observations."""

    @abc.abstractmethod
    def groups(self, learning: LearningConfig) -> dict[str, Group]:
        """What the core's other optimizers step, beside that of the critic."""

    @abc.abstractmethod
    def slow_copies(self) -> list[Ema]:
        """The slow copies of the core's own networks."""

    @abc.abstractmethod
    def borrowed_layers(self, number: int) -> list[nn.Module]:
        """The first layers of each Q-function, for an auxiliary task that shares them."""

    @abc.abstractmethod
    def keep_policy(self, other: Core) -> None:
        """Take over the policy of another core of the same kind."""
