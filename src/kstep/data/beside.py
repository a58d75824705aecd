"""Views of observations that have numbers beside their image (packing.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kstep import packing
from kstep.data.augment import Augment
from kstep.data.replay import Stacks
from kstep.types import Array


@dataclass(frozen=True)
class ImageOnly(Augment):
    """An augmentation of the image; the numbers stay as they are."""

    inner: Augment
    numbers: int

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        stacks = observation.together() if isinstance(observation, Stacks) else observation
        return self._apart(stacks, lambda image: self.inner.train_view(image, rng))

    def act_view(self, observation: Array) -> Array:
        return self._apart(observation, self.inner.act_view)

    def _apart(self, observation: Array, view: Callable[[Array], Array]) -> Array:
        image, vector = packing.unpack(observation, self.numbers)
        return packing.pack(view(image), vector)
