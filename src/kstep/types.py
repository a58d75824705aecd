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
class Transitions:
    """B independent steps, as the replay stores them (not augmented, not scaled)."""

    observation: Array
    """(B, S, ...)"""
    action: Array
    """(B, A) in [-1, 1]"""
    reward: Array
    """(B,) summed over action repeats"""
    next_observation: Array
    """(B, S, ...)"""
    bootstrap: Array
    """(B,) 1.0 unless the next state is terminal; a time limit is not terminal"""


@dataclass(frozen=True)
class Sequences:
    """B stretches of T consecutive steps, none across an episode's end."""

    observation: Array
    """(B, T + 1, S, ...)"""
    action: Array
    """(B, T, A)"""
    reward: Array
    """(B, T)"""
    bootstrap: Array
    """(B, T)"""


@dataclass(frozen=True)
class TransitionBatch:
    """One view of B transitions on the learning device. Fields as in `Transitions`."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    bootstrap: Tensor
    second_view: Tensor | None = None
    """(B, S, ...) another view of `observation`, where the auxiliary task asked for one"""


@dataclass(frozen=True)
class SequenceBatch:
    """Views of B sequences on the learning device. Fields as in `Sequences`."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    bootstrap: Tensor
    second_view: Tensor | None = None
    """(B, S, ...) another view of the first observation, where the task asked for one"""


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


def to_device(array: Array, device: torch.device) -> Tensor:
    """Return the array as a tensor on `device`, without a copy where none is needed."""
    return torch.from_numpy(array).to(device, non_blocking=True)
