"""The few shapes of data that cross module boundaries.

Letters in shapes: B batch, T time, S stacked frames, H W C image, A action, D latent.
An observation is either a stack of frames ``(S, H, W, C)`` uint8, oldest first, or a state
vector ``(S, D)`` float32 with S = 1. Batches put B in front, sequences B and T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from kstep import packing
from kstep.errors import KstepError as KstepError
from kstep.values import Count

if TYPE_CHECKING:  # the command line lists names and refuses wrong ones without PyTorch
    from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
View: TypeAlias = "Array | Tensor"
"""Observations as they are learned from: on the host, or on the learning device already."""
Metrics: TypeAlias = "dict[str, Tensor]"
"""Detached scalars by path, such as ``critic/loss``; the logger decides when to read them."""

Encode: TypeAlias = "Callable[[Tensor], Tensor]"
"""Observations (B, S, ...) to latents (B, D)."""

ObservationKind: TypeAlias = Literal["pixels", "state"]
ActionKind: TypeAlias = Literal["box", "discrete"]
"""Real numbers in [-1, 1], or one of several choices as a one-hot vector."""
Renderer: TypeAlias = Literal["exact", "quick", "raytraced"]
Backend: TypeAlias = Literal["torch", "native", "compiled"]
"""What computes the encoder's convolutions."""
BackendRequest: TypeAlias = Literal["auto", "torch", "native", "compiled"]
Overlap: TypeAlias = Literal["on", "off", "here"]
"""When and where an environment steps: in a process of its own while the agent learns or after it;
in this process."""
OverlapRequest: TypeAlias = Literal["auto", "on", "off", "here"]

LEARNED_REWARD, LIFE_LOST = "learned_reward", "life_lost"
"""What an environment's `step` may give in its `info` beside what happened: another reward to learn
from, and whether what follows has no value for the agent although the episode continues."""


@dataclass(frozen=True)
class EnvSpec:
    """What an environment turned out to be; found by looking at it, never configured."""

    observation: ObservationKind
    frame_shape: tuple[int, ...]
    """One unstacked observation: (H, W, C) for pixels, (D,) for a state vector."""
    action_dim: int
    """Size A of an action as a vector; one-hot where it is discrete."""
    action_repeat: int
    episode_decisions: int
    """Decisions after which the time limit ends an episode."""
    actions: ActionKind = "box"
    vector_dim: int = 0
    """Numbers beside the image; `frame_shape` then has rows for them below it (packing.py)."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """`frame_shape` without those rows."""
        if not self.vector_dim:
            return self.frame_shape
        height, width, channels = self.frame_shape
        return (height - packing.rows(self.vector_dim, width, channels), width, channels)

    @property
    def frame_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8 if self.observation == "pixels" else np.float32)


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
    """Views of B sequences on the learning device. Fields as in `data.replay.Sequences`."""

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

    env_steps: Count = 0
    """Simulator transitions, action repeats counted: what papers call steps."""
    decisions: Count = 0
    """Actions chosen."""
    updates: Count = 0
    """Learning steps."""
    episodes: Count = 0
    """Training episodes finished."""
