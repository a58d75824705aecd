"""Image augmentations that move whole pixels: what they are, shift, and the cut behind all of them.

In: stacks of frames, (..., S, H, W, C) uint8 with any number of leading dimensions, and a random
generator. Out: new stacks of the same type. Each stack is moved as one (all its frames share an
offset, so motion stays visible) and independently of all other stacks.

An augmentation is a value. It also says what to render and what the policy sees when acting,
because the three must agree: a crop (crop.py) trains on 84 pixels cut from 100, so it renders 100
and acts on the centre. Cuts are exact; image warping would resample pixels even at integer offsets.
Shift is from DrQ (arXiv:2004.13649).
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kstep import native
from kstep.data.blocks import Padding as Padding
from kstep.data.blocks import cut_in_blocks
from kstep.data.on_device import DeviceFrames
from kstep.data.replay import Stacks
from kstep.types import Array, View
from kstep.values import Count, Family


@dataclass(frozen=True)
class Augment(Family):
    """What to render, what to train on and what to act on."""

    def render_size(self, size: int) -> int:
        """Return the pixels to render per side so that the networks see `size` per side."""
        return size

    def seen_shape(self, frame_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a frame as the networks see it."""
        return frame_shape

    @abc.abstractmethod
    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> View:
        """Return a random view of each stack; `observation` is left unchanged."""

    def act_view(self, observation: Array) -> Array:
        """Return the one view used for acting and evaluating."""
        return observation


@dataclass(frozen=True)
class NoAugment(Augment):
    """Observations as they are, state vectors too."""

    kind: ClassVar[str] = "none"

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> View:
        return observation.together() if isinstance(observation, Stacks) else observation


@dataclass(frozen=True)
class Shift(Augment):
    """Shift by up to `pad` pixels each way, keeping the size."""

    kind: ClassVar[str] = "shift"

    pad: Count = 4
    padding: Padding = "replicate"
    """What comes in from outside: copies of the border pixel, black, or a mirror image in which the
    border pixel is repeated."""

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> View:
        shape = observation.shape
        offsets, (height, width) = draw_offsets(shape, 2 * self.pad, rng), shape[-3:-1]
        return cut(observation, offsets, height, width, pad=self.pad, padding=self.padding)


def cut(
    observation: Array | Stacks,
    offsets: Array,
    height: int,
    width: int,
    *,
    pad: int = 0,
    padding: Padding = "replicate",
) -> View:
    """Put `pad` pixels around every frame and cut (height, width) at each stack's (top, left).

    `offsets` is (..., 2) integers. Stacks that are still frames of a replay go through one native
    pass where the library was built; it returns the same bytes in a third of the time. Frames on
    the learning device are cut there.
    """
    if isinstance(observation, Stacks):
        ring, slots = observation.ring, observation.slots
        if isinstance(ring, DeviceFrames):
            return ring.cut(slots, offsets, height, width, pad, padding)
        if padding != "mirror" and native.library_is_there():
            return _cut_natively(ring, slots, offsets, (height, width), pad, padding == "zero")
        observation = ring.take(slots, axis=0)
    return cut_in_blocks(observation, offsets, height, width, pad, padding)


def _cut_natively(
    ring: Array, slots: Array, offsets: Array, size: tuple[int, int], pad: int, black: bool
) -> Array:
    # Sequences (B, T, ...) lie in memory in order of time, all first observations side by side:
    # that is how they are encoded, and no further copy is needed for it.
    order = list(reversed(range(slots.ndim - 1)))
    rows, places = (
        np.ascontiguousarray(numbers.transpose(*order, -1).reshape(-1, numbers.shape[-1]), np.int64)
        for numbers in (slots, offsets)
    )
    views = native.load().stacks(ring, rows, places, size, pad=pad, black=black)
    views = views.reshape(*(slots.shape[axis] for axis in order), *views.shape[1:])
    return views.transpose(*order, *range(len(order), len(order) + 4))


def draw_offsets(shape: tuple[int, ...], largest: int, rng: np.random.Generator) -> Array:
    """Draw one (top, left) per stack of the shape (..., S, H, W, C), uniform in 0..largest."""
    if len(shape) < 4:
        raise ValueError(f"need image stacks (..., S, H, W, C), got shape {shape}")
    return rng.integers(0, largest, size=(*shape[:-4], 2), endpoint=True)
