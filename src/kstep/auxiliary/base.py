"""What an auxiliary task is to an agent, and how a configuration becomes one."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from kstep.nets.ema import Ema
from kstep.types import Encode, Metrics, SequenceBatch


@dataclass(frozen=True)
class Shapes:
    """What a task may need to know of the agent it joins; sizes only."""

    latent_dim: int
    feature_shape: tuple[int, ...]
    """The encoder's features before flattening, (H, W, C); (D,) for a state vector."""
    action_dim: int
    observation_shape: tuple[int, ...]
    """(S, H, W, C) or (S, D), as the encoder sees it."""
    ema_rate: float
    """Of the agent's slow encoder; slow copies of a task's heads follow the paper in sharing it."""
    map_shapes: tuple[tuple[int, ...], ...] = ()
    """(H, W, C) after each of the encoder's convolutions, the last one `feature_shape`."""


@dataclass(frozen=True)
class AuxiliaryConfig(abc.ABC):
    """Base of every task's configuration. A subclass names its `kind` and builds its task."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[AuxiliaryConfig]]] = {}

    rewards: ClassVar[bool] = False
    """Whether the task is a `RewardSource`, as exploration needs it."""

    def __init_subclass__(cls) -> None:
        present = cls.kinds.setdefault(cls.kind, cls)
        if present.__qualname__ != cls.__qualname__:
            raise TypeError(f"the kind '{cls.kind}' is taken by {present.__qualname__}")
        cls.kinds[cls.kind] = cls

    @property
    def horizon(self) -> int:
        """Consecutive decisions one sample must span; see `AuxiliaryTask.horizon`."""
        return 0

    @property
    def encodes_first_and_rest(self) -> bool:
        """Whether the loss asks for the latents of the first observations, for the slow latents of
        all later ones in order of time, (T * B, D), and for nothing else: then an agent may answer
        with what it has."""
        return False

    @abc.abstractmethod
    def build(self, shapes: Shapes) -> AuxiliaryTask:
        """Return the task, its weights initialized from torch's current generator."""

    @abc.abstractmethod
    def shrunk(self) -> AuxiliaryConfig:
        """Return the same task at the size of the `debug` preset."""


class AuxiliaryTask(nn.Module, abc.ABC):
    """A loss that shapes an encoder. Knows latents, actions, rewards; not actors or critics.

    The encoder is an argument, so `parameters()` holds only the task's own heads, and any callable
    from observations to latents will do.
    """

    horizon: int = 0
    """Consecutive decisions one sample must span. 0: the very views that the reinforcement-learning
    loss is using, as a sequence of one transition."""
    sees: Literal["latent", "features"] = "latent"
    """Which stage of the encoder `encode` is."""
    sees_slow: Literal["latent", "features"] | None = None
    """Likewise for `encode_slow`; None: as `sees`."""
    second_view: bool = False
    """Whether the batch must hold another random view of its first observation."""
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

    def constrain(self) -> None:
        """Restore in place what must hold of the learned heads; called after each of their steps.

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

    def next(self) -> torch.Generator:
        """Return a generator for one draw, on the device of the task."""
        self.count.add_(1)
        return torch.Generator(self.count.device).manual_seed(int(self.count))


class RewardSource(abc.ABC):
    """Mixin for a task that also rewards: a bonus for where a transition leads."""

    @abc.abstractmethod
    def reward(self, encoded: Tensor) -> Tensor:
        """Return the bonus (B,) for what the next observations encode to.

        It may remember them, but changes no weights.
        """
