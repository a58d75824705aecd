"""Views of observations that have numbers beside their image (packing.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kstep import packing
from kstep.data.augment import Augment
from kstep.data.batches import to_device
from kstep.data.on_device import DeviceFrames, pack
from kstep.data.replay import Stacks
from kstep.types import Array, View


@dataclass(frozen=True)
class ImageOnly(Augment):
    """An augmentation of the image; the numbers stay as they are."""

    inner: Augment
    numbers: int

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> View:
        if isinstance(observation, Stacks):
            ring, slots = observation.ring, observation.slots
            if isinstance(ring, DeviceFrames):
                return self._on_device(ring, slots, rng)
            observation = ring.take(slots, axis=0)
        return self._apart(observation, lambda image: np.asarray(self.inner.train_view(image, rng)))

    def _on_device(self, ring: DeviceFrames, slots: Array, rng: np.random.Generator) -> Tensor:
        height, width, channels = ring.shape[1:]
        height -= packing.rows(self.numbers, width, channels)
        view = self.inner.train_view(Stacks(ring.rows(0, height), slots), rng)
        (image,) = to_device(ring.tensor.device, view)
        return pack(image, ring.rows(height).take(slots), self.numbers)

    def act_view(self, observation: Array) -> Array:
        return self._apart(observation, self.inner.act_view)

    def _apart(self, observation: Array, view: Callable[[Array], Array]) -> Array:
        image, vector = packing.unpack(observation, self.numbers)
        return packing.pack(view(image), vector)
