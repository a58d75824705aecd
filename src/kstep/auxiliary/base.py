"""What an auxiliary task is to an agent, and how its settings become one."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from kstep.data.augment import Augment, NoAugment
from kstep.optimizers import Ema
from kstep.rng import generator
from kstep.types import Encode, EnvSpec, KstepError, Metrics, SequenceBatch
from kstep.values import Count, Family, Positive, Rate

if TYPE_CHECKING:
    from kstep.methods.base import Method
    from kstep.nets.base import Encoder


@dataclass(frozen=True)
class Shapes:
    """What a task may need to know of the agent it joins; sizes only."""

    latent_dim: int
    feature_shape: tuple[int, ...]
    """The encoder's features before flattening, (H, W, C); (D,) for a state vector."""
    action_dim: int
    observation_shape: tuple[int, ...]
    """(S, H, W, C) or (S, D), as the encoder sees it. Observations may have rows below the image,
    for numbers beside it (packing.py)."""
    ema_rate: float
    """Of the agent's slow encoder; slow copies of a task's heads follow the paper in sharing it."""
    map_shapes: tuple[tuple[int, ...], ...] = ()
    """(H, W, C) after each of the encoder's convolutions, the last one `feature_shape`."""

    @classmethod
    def of(cls, method: Method, spec: EnvSpec, encoder: Encoder) -> Shapes:
        """The sizes of an agent with this encoder in such an environment."""
        return cls(
            latent_dim=encoder.latent_dim,
            feature_shape=encoder.feature_shape,
            action_dim=spec.action_dim,
            observation_shape=(method.stack, *method.augment.seen_shape(spec.image_shape)),
            ema_rate=method.encoder.ema_rate,
            map_shapes=encoder.map_shapes,
        )


@dataclass(frozen=True)
class AuxiliaryConfig(Family):
    """Settings of every auxiliary task. A subclass names its `kind` and builds its task."""

    turn: Literal["first", "after critic", "last"] = "after critic"
    """When an update takes the task's step: before the critic's, after it, or after the slow copies
    (D06)."""
    every: Positive = 1
    """Updates from one of its steps to the next."""
    pretraining: Count = 0
    """Steps of the task alone when learning starts."""
    learning_rate: Rate | None = None
    """Of the task's heads. None: the agent's (D04)."""
    encoder_learning_rate: Rate | None = None
    """Of the encoder in the task's step. None: as the heads'."""
    double_step: bool = False
    """Whether the task's gradient steps the encoder twice, as the released code does with two Adams
    that see the same gradient: exactly one Adam with the sum of both rates (D05)."""
    one_optimizer: bool = False
    """One Adam, with one set of moments, for the critic's and the task's loss: the paper's
    ablation. Otherwise each loss has its own."""

    rewards: ClassVar[bool] = False
    """Whether the task is a `RewardSource`, as exploration needs it."""
    second_view: ClassVar[bool] = False
    """Whether the batch must hold another random view of its first observation."""
    shares_windows: ClassVar[bool] = False
    """Whether the critic's transition is the first of the task's window, under the same view."""

    @property
    def horizon(self) -> int:
        """Consecutive decisions that one sample spans; 0: the critic's transition."""
        return 0

    @property
    def own_sequences(self) -> OwnSequences | None:
        """How to draw the task's own sequences; None: it learns from the critic's transitions."""
        return None

    @abc.abstractmethod
    def build(self, shapes: Shapes) -> AuxiliaryTask:
        """Return the task, its weights initialized from torch's current generator."""

    @abc.abstractmethod
    def shrunk(self) -> AuxiliaryConfig:
        """Return the same task at the size of the `debug` preset."""

    def check(self, method: Method) -> None:
        """Refuse other parts of the method that this task cannot be combined with."""
        if self.one_optimizer and (self.double_step or self.encoder_learning_rate is not None):
            raise KstepError(
                "with method.auxiliary.one_optimizer the encoder has one learning rate: "
                "double_step and encoder_learning_rate have no meaning"
            )
        if self.one_optimizer and method.learning.critic_trains != "all":
            raise KstepError(
                "method.auxiliary.one_optimizer steps what the critic's loss trains: it needs "
                "method.learning.critic_trains=all"
            )
        if self.shares_windows and method.core.critic_views > 1:
            raise KstepError(
                f"the critic and the auxiliary task of '{method.name}' see the same views: "
                "method.core.critic_views must be 1"
            )

    def check_episodes(self, method: Method, spec: EnvSpec) -> None:
        """Refuse an environment whose episodes are too short for the task."""
        length = spec.episode_decisions
        if self.horizon > length:
            raise KstepError(
                f"'{method.name}' learns from sequences of {self.horizon} decisions, but episodes "
                f"have {length}"
            )


@dataclass(frozen=True)
class OwnSequences(AuxiliaryConfig):
    """Settings of a task that draws sequences of its own, apart from the critic's transitions."""

    augment: Augment = field(default_factory=NoAugment)
    """Of the observations in a sequence, each by itself (D13)."""
    sampling: Literal["any", "released"] = "any"
    """Which sequences may be drawn: any, or those that the released code can reach (D15)."""

    @property
    def own_sequences(self) -> OwnSequences:
        return self

    def check(self, method: Method) -> None:
        super().check(method)
        size, seen = method.encoder.image_size, method.augment
        if self.augment.render_size(size) != seen.render_size(size):
            raise KstepError(
                f"method.augment ({seen.kind}) needs frames of {seen.render_size(size)} pixels, "
                f"method.auxiliary.augment ({self.augment.kind}) of "
                f"{self.augment.render_size(size)}: set both"
            )

    def check_episodes(self, method: Method, spec: EnvSpec) -> None:
        length, initial = spec.episode_decisions, method.learning.initial_decisions
        if self.sampling == "any":
            return super().check_episodes(method, spec)
        # The released sampler leaves out the last two starts of each episode and the running one.
        if self.horizon + 2 > length:
            raise KstepError(
                f"'{method.name}' learns from sequences of {self.horizon} decisions that end two "
                f"before an episode's end (method.auxiliary.sampling=released), but episodes have "
                f"{length} decisions"
            )
        if initial < length:
            raise KstepError(
                f"'{method.name}' learns from completed episodes only (method.auxiliary.sampling="
                f"released), but episodes take {length} decisions and learning starts after "
                f"{initial}. Set method.learning.initial_decisions to {length} or more, or "
                "method.auxiliary.sampling=any"
            )


class AuxiliaryTask(nn.Module, abc.ABC):
    """A loss that shapes an encoder. Knows latents, actions, rewards; not actors or critics.

    The encoder is an argument, so `parameters()` holds only the task's own heads, and any callable
    from observations to latents will do.
    """

    sees: Literal["latent", "features"] = "latent"
    """Which stage of the encoder `encode` is."""
    sees_slow: Literal["latent", "features"] = "latent"
    """Likewise for `encode_slow`."""
    slow_encoder_rate: float | None = None
    """Rate of a slow encoder of the task's own, stepped after each of its updates; None: it uses
    the agent's, which is also the slow critic's."""
    borrowed_layers: int = 0
    """How many first layers of each Q-function the task uses as its own (knowledge sharing)."""

    @abc.abstractmethod
    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """Return the scalar to minimize and detached scalars to log.

        `layers` are the borrowed layers, one stack per Q-function; empty unless asked for.
        """

    @abc.abstractmethod
    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        """The heads that the task's optimizer steps, by name."""

    def weight_decays(self) -> dict[str, float]:
        """Adam's L2 penalty for some of the learned heads, by name."""
        return {}

    constrained: bool = False
    """Whether something must hold of the learned heads that an optimizer does not keep."""

    def constrain(self) -> None:
        """Restore it in place; called after each of their steps where `constrained`.

        The only place where a task writes its own weights: neither a loss nor a reward may.
        """

    def slow_copies(self) -> Sequence[Ema]:
        """Slow copies of the task's own heads, stepped together with the agent's."""
        return ()


class Draws(nn.Module):
    """A random stream for tasks that draw inside their loss, saved with their weights.

    Each draw is seeded by a counter that is part of the state, so that a resumed run draws bit for
    bit what it would have drawn. The counter starts at random, from the generator of the first
    weights, to differ between runs.
    """

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.randint(2**31, ()))
        self.device = self.count.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Draws:
        """Take notice of the task's device, but leave the counter on the host: it is a seed, which
        is read there, and reading it elsewhere would stall."""
        self.device = fn(self.count).device
        return self

    def next(self) -> torch.Generator:
        """Return a generator for one draw, on the device of the task."""
        self.count.add_(1)
        return generator(int(self.count), self.device)


class RewardSource(abc.ABC):
    """Mixin for a task that also rewards: a bonus for where a transition leads."""

    @abc.abstractmethod
    def reward(self, encoded: Tensor) -> Tensor:
        """Return the bonus (B,) for what the next observations encode to.

        It may remember them, but changes no weights.
        """
