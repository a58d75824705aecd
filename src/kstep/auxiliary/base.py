"""What an auxiliary task is to an agent."""

from __future__ import annotations

import abc
from collections.abc import Sequence

from torch import Tensor, nn

from kstep.nets.ema import Ema
from kstep.types import Encode, Metrics, SequenceBatch


class AuxiliaryTask(nn.Module, abc.ABC):
    """A loss that shapes an encoder. Knows latents, actions, rewards; not actors or critics.

    The encoder is an argument, so `parameters()` holds only the task's own heads, and any callable
    from observations to latents will do.
    """

    horizon: int
    """Consecutive decisions one sample must span."""

    @abc.abstractmethod
    def loss(
        self, encode: Encode, encode_slow: Encode, batch: SequenceBatch
    ) -> tuple[Tensor, Metrics]:
        """Return the scalar to minimize and detached scalars to log."""

    @abc.abstractmethod
    def learned(self) -> dict[str, nn.Module]:
        """The heads that the task's optimizer steps, by name."""

    def slow_copies(self) -> Sequence[Ema]:
        """The task's own slow copies, stepped together with the agent's."""
        return ()
