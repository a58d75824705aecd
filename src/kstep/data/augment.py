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
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from kstep import native
from kstep.data.replay import Stacks
from kstep.types import Array
from kstep.values import Count, Family

Padding: TypeAlias = Literal["replicate", "zero", "mirror"]

BLOCK = 8
"""Stacks padded at a time; at 3 frames of 84 pixels that is 0.6 MB."""


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
    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        """Return a random view of each stack; `observation` is left unchanged."""

    def act_view(self, observation: Array) -> Array:
        """Return the one view used for acting and evaluating."""
        return observation


@dataclass(frozen=True)
class NoAugment(Augment):
    """Observations as they are, state vectors too."""

    kind: ClassVar[str] = "none"

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        return observation.together() if isinstance(observation, Stacks) else observation


@dataclass(frozen=True)
class Shift(Augment):
    """Shift by up to `pad` pixels each way, keeping the size."""

    kind: ClassVar[str] = "shift"

    pad: Count = 4
    padding: Padding = "replicate"
    """What comes in from outside: copies of the border pixel, black, or a mirror image in which the
    border pixel is repeated."""

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
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
) -> Array:
    """Put `pad` pixels around every frame and cut (height, width) at each stack's (top, left).

    `offsets` is (..., 2) integers. Stacks that are still frames of a replay go through one native
    pass where the library was built; it returns the same bytes in a third of the time.
    """
    if isinstance(observation, Stacks):
        if padding != "mirror" and native.library_is_there():
            return _cut_natively(observation, offsets, height, width, pad, padding == "zero")
        observation = observation.together()
    return _cut_in_blocks(observation, offsets, height, width, pad, padding)


def _cut_natively(
    observation: Stacks, offsets: Array, height: int, width: int, pad: int, black: bool
) -> Array:
    slots = observation.slots
    # Sequences (B, T, ...) lie in memory in order of time, all first observations side by side:
    # that is how they are encoded, and no further copy is needed for it.
    order = list(reversed(range(slots.ndim - 1)))
    rows, places = (
        np.ascontiguousarray(numbers.transpose(*order, -1).reshape(-1, numbers.shape[-1]), np.int64)
        for numbers in (slots, offsets)
    )
    size = (height, width)
    views = native.load().stacks(observation.ring, rows, places, size, pad=pad, black=black)
    views = views.reshape(*(slots.shape[axis] for axis in order), *views.shape[1:])
    return views.transpose(*order, *range(len(order), len(order) + 4))


def _cut_in_blocks(
    observation: Array, offsets: Array, height: int, width: int, pad: int, padding: Padding
) -> Array:
    """A few stacks at a time through one buffer that stays in the processor's cache: up to twice
    the speed of padding the whole batch."""
    *lead, stacked, inner_height, inner_width, channels = observation.shape
    last = inner_height + 2 * pad - height, inner_width + 2 * pad - width
    _check_offsets(offsets, lead, *last)
    stacks = observation.reshape(-1, *observation.shape[-4:])
    top, left = offsets.reshape(-1, 2).T
    views = np.empty((len(stacks), stacked, height, width * channels), observation.dtype)
    size = (stacked, inner_height + 2 * pad, inner_width + 2 * pad, channels)
    # Black at first; a black border need not be written again.
    padded = np.zeros((min(BLOCK, len(stacks)), *size), observation.dtype)
    crops = _all_crops(padded, height, width)
    for begin in range(0, len(stacks), BLOCK):
        block = stacks[begin : begin + BLOCK]
        here = slice(begin, begin + len(block))
        _surround(padded[: len(block)], block, pad, padding)
        views[here] = crops[np.arange(len(block)), top[here], left[here]]
    return views.reshape(*lead, stacked, height, width, channels)


def _surround(padded: Array, frames: Array, pad: int, padding: Padding) -> None:
    """Write frames into the middle of larger black ones, and continue them outside if asked."""
    height, width = frames.shape[-3:-1]
    if padding == "mirror":
        mirrored_rows = np.pad(np.arange(height), pad, mode="symmetric")
        mirrored_columns = np.pad(np.arange(width), pad, mode="symmetric")
        padded[:] = frames.take(mirrored_rows, axis=-3).take(mirrored_columns, axis=-2)
        return
    rows, columns = slice(pad, pad + height), slice(pad, pad + width)
    padded[..., rows, columns, :] = frames
    if padding == "replicate" and pad:
        # Written out because np.pad takes a third longer.
        padded[..., rows, :pad, :] = frames[..., :1, :]
        padded[..., rows, pad + width :, :] = frames[..., -1:, :]
        padded[..., :pad, :, :] = padded[..., pad : pad + 1, :, :]
        padded[..., pad + height :, :, :] = padded[..., pad + height - 1 : pad + height, :, :]


def _all_crops(stacks: Array, height: int, width: int) -> Array:
    """Return every crop of every contiguous stack as one view (stack, top, left, S, row, W*C).

    Picking one crop per stack from it copies runs of W*C bytes instead of single pixels.
    """
    count, stacked, full_height, full_width, channels = stacks.shape
    per_stack, per_frame, per_row, per_pixel, per_channel = stacks.strides
    tops, lefts = full_height - height + 1, full_width - width + 1
    return np.lib.stride_tricks.as_strided(
        stacks,
        (count, tops, lefts, stacked, height, width * channels),
        (per_stack, per_row, per_pixel, per_frame, per_row, per_channel),
        writeable=False,
    )


def _check_offsets(offsets: Array, lead: list[int], last_top: int, last_left: int) -> None:
    """Refuse offsets outside of the frames; negative ones would count from the other side."""
    if offsets.shape != (*lead, 2):
        raise ValueError(f"need offsets of shape {(*lead, 2)}, one per stack; got {offsets.shape}")
    if last_top < 0 or last_left < 0:
        larger = max(-last_top, -last_left)
        raise ValueError(f"the crop is larger than the frames by {larger} pixels")
    top, left = offsets.reshape(-1, 2).T
    if offsets.size and (offsets.min() < 0 or top.max() > last_top or left.max() > last_left):
        raise ValueError(f"offsets must lie in 0..{last_top} (top) and 0..{last_left} (left)")


def draw_offsets(shape: tuple[int, ...], largest: int, rng: np.random.Generator) -> Array:
    """Draw one (top, left) per stack of the shape (..., S, H, W, C), uniform in 0..largest."""
    if len(shape) < 4:
        raise ValueError(f"need image stacks (..., S, H, W, C), got shape {shape}")
    return rng.integers(0, largest, size=(*shape[:-4], 2), endpoint=True)
