"""The few shapes of data that cross module boundaries.

Letters in shapes: B batch, T time, S stacked frames, H W C image, A action, D latent.
An observation is either a stack of frames ``(S, H, W, C)`` uint8, oldest first, or a state
vector ``(S, D)`` float32 with S = 1. Batches put B in front, sequences B and T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kstep.errors import KstepError as KstepError

Array: TypeAlias = npt.NDArray[Any]
Metrics: TypeAlias = dict[str, Tensor]
"""Detached scalars by path, such as ``critic/loss``; the logger decides when to read them."""

Encode: TypeAlias = Callable[[Tensor], Tensor]
"""Observations (B, S, ...) to latents (B, D)."""

ObservationKind: TypeAlias = Literal["pixels", "state"]
Renderer: TypeAlias = Literal["exact", "quick", "raytraced"]


@dataclass(frozen=True)
class EnvSpec:
    """What an environment turned out to be; found by looking at it, never configured."""

    observation: ObservationKind
    frame_shape: tuple[int, ...]
    """One unstacked observation: (H, W, C) for pixels, (D,) for a state vector."""
    action_dim: int
    action_repeat: int
    episode_decisions: int | None
    """Decisions after which the time limit ends an episode; None where there is none."""

    @property
    def frame_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.observation == "pixels" else np.float32)


@dataclass(frozen=True)
class Stacks:
    """Observations not put together yet: a ring of frames, and which of them each one stacks.

    Whoever makes a view of them, shifted or cut, can do so in one pass over the frames.
    """

    ring: Array
    """(slots, *frame_shape), borrowed: later frames may overwrite it"""
    slots: Array
    """(..., S) integers"""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the observations, (..., S, *frame_shape)."""
        return (*self.slots.shape, *self.ring.shape[1:])

    def at(self, t: int) -> Stacks:
        """Return the t-th observation of every sequence (B, T, S): (B, S)."""
        return Stacks(self.ring, self.slots[:, t])

    def together(self) -> Array:
        """Return the observations as one new array."""
        stacks: Array = self.ring.take(self.slots, axis=0)
        return stacks


@dataclass(frozen=True)
class Sequences:
    """B stretches of T consecutive steps, as the replay stores them; none crosses an episode's end.

    Neither augmented nor scaled. A transition is a sequence of one step.
    """

    observation: Stacks
    """(B, T + 1, S, ...)"""
    action: Array
    """(B, T, A) in [-1, 1]"""
    reward: Array
    """(B, T) summed over action repeats"""
    bootstrap: Array
    """(B, T) 1.0 unless the next state is terminal; a time limit is not terminal"""


@dataclass(frozen=True)
class TransitionBatch:
    """Views of B transitions on the learning device, several views of each one after the other."""

    observation: Tensor
    """(B, S, ...)"""
    action: Tensor
    """(B, A)"""
    reward: Tensor
    """(B,)"""
    next_observation: Tensor
    """(B, S, ...)"""
    bootstrap: Tensor
    """(B,)"""


@dataclass(frozen=True)
class SequenceBatch:
    """Views of B sequences on the learning device. Fields as in `Sequences`."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    bootstrap: Tensor
    second_view: Tensor
    """(B, S, ...) another random view of the first observation where the auxiliary task asks for
    one; otherwise that observation as it is."""


@dataclass
class Counts:
    """How far a run is, in the three units that are easily confused."""

    env_steps: int = 0
    """Simulator transitions, action repeats counted: what papers call steps."""
    decisions: int = 0
    """Actions chosen."""
    updates: int = 0
    """Learning steps."""
    episodes: int = 0
    """Training episodes finished."""


def to_device(device: torch.device, *arrays: Array) -> list[Tensor]:
    """Return the arrays as tensors on `device`, without a copy where none is needed."""
    tensors = [torch.from_numpy(array) for array in arrays]
    if device.type == "cuda":  # only from pinned memory does the transfer leave the processor free
        tensors = [tensor.pin_memory() for tensor in tensors]
    return [tensor.to(device, non_blocking=True) for tensor in tensors]
