"""Random crops, of CURL (arXiv:2004.04136) and RAD (arXiv:2004.14990)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kstep.data.augment import Augment, cut, draw_offsets
from kstep.data.replay import Stacks
from kstep.types import Array, View
from kstep.values import Count


@dataclass(frozen=True)
class Crop(Augment):
    """Render `pad` pixels more on every side; train on random crops, act on the centre crop."""

    kind: ClassVar[str] = "crop"

    pad: Count = 8
    last_offset: bool = True
    """Whether a crop may lie at the far edge, as in RAD; CURL's code never draws that offset."""

    def render_size(self, size: int) -> int:
        return size + 2 * self.pad

    def seen_shape(self, frame_shape: tuple[int, ...]) -> tuple[int, ...]:
        height, width, channels = frame_shape
        if min(height, width) <= 2 * self.pad:
            raise ValueError(f"cannot cut {self.pad} pixels off every side of {frame_shape}")
        return (height - 2 * self.pad, width - 2 * self.pad, channels)

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> View:
        height, width, _ = self.seen_shape(observation.shape[-3:])
        largest = 2 * self.pad if self.last_offset else max(2 * self.pad - 1, 0)
        return cut(observation, draw_offsets(observation.shape, largest, rng), height, width)

    def act_view(self, observation: Array) -> Array:
        height, width, _ = self.seen_shape(observation.shape[-3:])
        rows, columns = slice(self.pad, self.pad + height), slice(self.pad, self.pad + width)
        return np.ascontiguousarray(observation[..., rows, columns, :])
