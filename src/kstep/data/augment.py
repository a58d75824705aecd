"""Image augmentations that move whole pixels: shift and crop.

In: stacks of frames, (..., S, H, W, C) uint8 with any number of leading dimensions, and a random
generator. Out: new stacks of the same type. Each stack is moved as one (all its frames share an
offset, so motion stays visible) and independently of all other stacks.

An augmentation is a value. It also says what to render and what the policy sees when acting,
because the three must agree: `Crop` trains on 84 pixels cut from 100, so it renders 100 and acts on
the centre. Cuts are exact; image warping would resample pixels even at integer offsets.
Sources: DrQ (arXiv:2004.13649) for shift, CURL (arXiv:2004.04136) and RAD (arXiv:2004.14990) for
crop.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from kstep.native import Unavailable, load
from kstep.types import Array, Stacks
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
        offsets = _draw_offsets(observation, 2 * self.pad, rng)
        height, width = observation.shape[-3:-1]
        return cut(observation, offsets, height, width, pad=self.pad, padding=self.padding)


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

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        height, width, _ = self.seen_shape(observation.shape[-3:])
        largest = 2 * self.pad if self.last_offset else max(2 * self.pad - 1, 0)
        return cut(observation, _draw_offsets(observation, largest, rng), height, width)

    def act_view(self, observation: Array) -> Array:
        height, width, _ = self.seen_shape(observation.shape[-3:])
        rows, columns = slice(self.pad, self.pad + height), slice(self.pad, self.pad + width)
        return np.ascontiguousarray(observation[..., rows, columns, :])


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
    *lead, _, full_height, full_width, _ = observation.shape
    _check_offsets(offsets, lead, full_height + 2 * pad - height, full_width + 2 * pad - width)
    if isinstance(observation, Stacks):
        if (
            padding != "mirror"
            and (
                views := _cut_natively(
                    observation, offsets, height, width, pad=pad, black=padding == "zero"
                )
            )
            is not None
        ):
            return views
        observation = observation.together()
    return _cut_in_blocks(observation, offsets, height, width, pad, padding)


def _cut_natively(
    observation: Stacks, offsets: Array, height: int, width: int, *, pad: int, black: bool
) -> Array | None:
    try:
        library = load()
    except Unavailable:
        return None
    *lead, stacked, _, _, channels = observation.shape
    # Sequences (B, T, ...) lie in memory in order of time, all first observations side by side:
    # that is how they are encoded, and no further copy is needed for it.
    order = list(reversed(range(len(lead))))
    views = library.stacks(
        observation.ring,
        _rows(observation.slots.transpose(*order, -1)),
        _rows(offsets.transpose(*order, -1)),
        (height, width),
        pad=pad,
        black=black,
    )
    views = views.reshape(*reversed(lead), stacked, height, width, channels)
    return views.transpose(*order, *range(len(lead), len(lead) + 4))


def _rows(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers.reshape(-1, numbers.shape[-1]), np.int64)


def _cut_in_blocks(
    observation: Array, offsets: Array, height: int, width: int, pad: int, padding: Padding
) -> Array:
    """A few stacks at a time through one buffer that stays in the processor's cache: up to twice
    the speed of padding the whole batch."""
    *lead, stacked, inner_height, inner_width, channels = observation.shape
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


def _draw_offsets(observation: Array | Stacks, largest: int, rng: np.random.Generator) -> Array:
    """Draw one (top, left) per stack, uniform in 0..largest inclusive."""
    if len(observation.shape) < 4:
        raise ValueError(f"need image stacks (..., S, H, W, C), got shape {observation.shape}")
    return rng.integers(0, largest, size=(*observation.shape[:-4], 2), endpoint=True)
