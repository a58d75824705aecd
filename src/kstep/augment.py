"""Image augmentations that move whole pixels: shift, crop, translate.

In: stacks of frames, put together or not, (..., S, H, W, C) uint8 with any number of leading
dimensions, and a random generator. Out: new stacks of the same type. Each stack is moved as one
(all its frames share an offset, so motion stays visible) and independently of all other stacks.

Each augmentation also says what to render and what the policy sees when acting, because the three
must agree: `RandomCrop` trains on 84 pixels cut from 100, so it renders 100 and acts on the centre.

Crops are exact. Implementations built on image warping resample pixels even at integer offsets.
Sources: DrQ (arXiv:2004.13649) for shift, CURL (arXiv:2004.04136) and RAD (arXiv:2004.14990) for
crop, RAD for translate.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar, get_args

import numpy as np

from kstep.native import Unavailable, load
from kstep.types import Array, KstepError, Stacks, together

Kind: TypeAlias = Literal["none", "shift", "crop", "translate"]
Padding: TypeAlias = Literal["replicate", "zero", "mirror"]
Choice = TypeVar("Choice")

BLOCK = 8
"""Stacks padded at a time; at 3 frames of 84 pixels that is 0.6 MB."""


@dataclass(frozen=True)
class AugmentConfig:
    """How training views are made."""

    kind: Kind = "none"
    pad: int | None = None
    """Pixels an image may move from its centre, in each direction. None is the published value:
    4 for shift, 8 for crop (84 of 100), 4 for translate (100 in 108). Not read by none."""
    padding: Padding = "replicate"
    """What shift brings in from outside: copies of the border pixel, a mirror image, or black. Read
    by shift only."""
    last_offset: bool = True
    """Whether crop may be at the far edge; CURL's code never is. Read by crop only."""


class Augment(abc.ABC):
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

    def train_pair(
        self,
        observation: Array | Stacks,
        next_observation: Array | Stacks,
        rng: np.random.Generator,
    ) -> tuple[Array, Array]:
        """Return views of the two observations of each transition, drawn independently."""
        return self.train_view(observation, rng), self.train_view(next_observation, rng)

    @abc.abstractmethod
    def act_view(self, observation: Array) -> Array:
        """Return the one view used for acting and evaluating."""


class Identity(Augment):
    """No augmentation. The only one that also accepts state vectors."""

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        return together(observation)

    def act_view(self, observation: Array) -> Array:
        return observation


class RandomShift(Augment):
    """Shift by up to `pad` pixels each way, keeping the size."""

    def __init__(self, pad: int = 4, padding: Padding = "replicate") -> None:
        self.pad = _checked_pad(pad)
        self.padding = _checked("padding", padding, get_args(Padding))

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        return shift(observation, _offsets(observation, 2 * self.pad, rng), self.pad, self.padding)

    def act_view(self, observation: Array) -> Array:
        return observation


class RandomCrop(Augment):
    """Render `pad` pixels more on every side; train on random crops, act on the centre crop.

    Offsets are uniform in 0..2 pad inclusive, as in RAD. CURL's code never draws the last one.
    """

    def __init__(self, pad: int = 8, *, last_offset: bool = True) -> None:
        self.pad = _checked_pad(pad)
        self.last = 2 * self.pad if last_offset else 2 * self.pad - 1

    def render_size(self, size: int) -> int:
        return size + 2 * self.pad

    def seen_shape(self, frame_shape: tuple[int, ...]) -> tuple[int, ...]:
        height, width, channels = frame_shape
        return (height - 2 * self.pad, width - 2 * self.pad, channels)

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        height, width, _ = self.seen_shape(_frame_shape(observation, self.pad))
        return crop(observation, _offsets(observation, self.last, rng), height, width)

    def act_view(self, observation: Array) -> Array:
        return np.ascontiguousarray(_without_border(observation, self.pad))


class RandomTranslate(Augment):
    """Cut `pad` pixels off every side and paste the rest anywhere into a black canvas.

    The canvas has the rendered size. The two observations of a transition get the same placement,
    as in RAD. Its code acts on the uncut render while collecting data and on the centred paste when
    evaluating; here both act on the centred paste.
    """

    def __init__(self, pad: int = 4) -> None:
        self.pad = _checked_pad(pad)

    def train_pair(
        self,
        observation: Array | Stacks,
        next_observation: Array | Stacks,
        rng: np.random.Generator,
    ) -> tuple[Array, Array]:
        offsets = _offsets(observation, 2 * self.pad, rng)
        return self._paste(observation, offsets), self._paste(next_observation, offsets)

    def train_view(self, observation: Array | Stacks, rng: np.random.Generator) -> Array:
        offsets = _offsets(observation, 2 * self.pad, rng)
        return self._paste(observation, offsets)

    def act_view(self, observation: Array) -> Array:
        return self._paste(observation, np.full((*observation.shape[:-4], 2), self.pad))

    def _paste(self, observation: Array | Stacks, offsets: Array) -> Array:
        inner = _without_border(together(observation), self.pad)
        height, width = observation.shape[-3:-1]
        # Black twice as wide as what was cut: then every crop is one placement on the canvas.
        return _pad_and_crop(inner, offsets, 2 * self.pad, "zero", height, width)


def build(config: AugmentConfig) -> Augment:
    """Return the augmentation that `config` describes."""
    kind = _checked("kind", config.kind, get_args(Kind))
    _checked("padding", config.padding, get_args(Padding))
    if config.pad is not None:
        _checked_pad(config.pad)
    if kind == "shift":
        return RandomShift(4 if config.pad is None else config.pad, config.padding)
    if kind == "crop":
        return RandomCrop(8 if config.pad is None else config.pad, last_offset=config.last_offset)
    if kind == "translate":
        return RandomTranslate(4 if config.pad is None else config.pad)
    return Identity()


def shift(
    observation: Array | Stacks, offsets: Array, pad: int, padding: Padding = "replicate"
) -> Array:
    """Pad every frame by `pad`, then cut the original size at each stack's (top, left) offset.

    `offsets` is (..., 2) integers in 0..2 pad; `pad` itself gives back the stack unchanged.
    """
    height, width = observation.shape[-3:-1]
    if padding != "mirror":
        black = padding == "zero"
        found = _in_one_pass(observation, offsets, height, width, pad=pad, black=black)
        if found is not None:
            return found
    return _pad_and_crop(together(observation), offsets, pad, padding, height, width)


def crop(observation: Array | Stacks, offsets: Array, height: int, width: int) -> Array:
    """Cut (height, width) out of each stack at its own (top, left); `offsets` is (..., 2)."""
    found = _in_one_pass(observation, offsets, height, width)
    if found is not None:
        return found
    observation = together(observation)
    *lead, stacked, full_height, full_width, channels = observation.shape
    top, left = _checked_offsets(offsets, lead, full_height - height, full_width - width)
    stacks = np.ascontiguousarray(observation).reshape(-1, *observation.shape[-4:])
    cut = _all_crops(stacks, height, width)[np.arange(len(stacks)), top, left]
    return cut.reshape(*lead, stacked, height, width, channels)


def _in_one_pass(
    observation: Array | Stacks,
    offsets: Array,
    height: int,
    width: int,
    *,
    pad: int = 0,
    black: bool = False,
) -> Array | None:
    """Return the same bytes as `_pad_and_crop` or `crop` in a third of the time, or None.

    For stacks that are still frames of a replay, where the native library was built.
    """
    if not isinstance(observation, Stacks) or observation.ring.dtype != np.uint8:
        return None
    try:
        library = load()
    except Unavailable:
        return None
    *lead, stacked, full_height, full_width, channels = observation.shape
    last = full_height + 2 * pad - height, full_width + 2 * pad - width
    _checked_offsets(offsets, lead, *last)
    # Sequences (B, T, ...) lie in memory in order of time, all first observations side by side:
    # that is how they are encoded, and no further copy is needed for it.
    order = list(reversed(range(len(lead))))
    views = library.stacks(
        observation.ring,
        _flat(observation.slots.transpose(*order, -1)),
        _flat(offsets.transpose(*order, -1)),
        (height, width),
        pad=pad,
        black=black,
    )
    views = views.reshape(*reversed(lead), stacked, height, width, channels)
    return views.transpose(*order, *range(len(lead), len(lead) + 4))


def _flat(numbers: Array) -> Array:
    return np.ascontiguousarray(numbers.reshape(-1, numbers.shape[-1]), np.int64)


def _pad_and_crop(
    observation: Array, offsets: Array, pad: int, padding: Padding, height: int, width: int
) -> Array:
    """Put `pad` pixels around every frame and cut (height, width) at each stack's (top, left)."""
    *lead, stacked, inner_height, inner_width, channels = observation.shape
    full_height, full_width = inner_height + 2 * pad, inner_width + 2 * pad
    top, left = _checked_offsets(offsets, lead, full_height - height, full_width - width)
    stacks = observation.reshape(-1, *observation.shape[-4:])
    cut = np.empty((len(stacks), stacked, height, width * channels), observation.dtype)

    # A few stacks at a time through one buffer that stays in the processor's cache: up to twice
    # the speed of padding the whole batch. A black border needs to be written only once.
    size = min(BLOCK, len(stacks))
    padded = np.zeros((size, stacked, full_height, full_width, channels), observation.dtype)
    crops = _all_crops(padded, height, width)
    for begin in range(0, len(stacks), BLOCK):
        block = stacks[begin : begin + BLOCK]
        here = slice(begin, begin + len(block))
        _surround(padded[: len(block)], block, pad, padding)
        cut[here] = crops[np.arange(len(block)), top[here], left[here]]
    return cut.reshape(*lead, stacked, height, width, channels)


def _surround(padded: Array, frames: Array, pad: int, padding: Padding) -> None:
    """Write frames into the middle of larger black ones, and continue them outside if asked."""
    height, width = frames.shape[-3:-1]
    rows, columns = slice(pad, pad + height), slice(pad, pad + width)
    padded[..., rows, columns, :] = frames
    if padding == "replicate":
        # Written out because np.pad takes a third longer.
        padded[..., rows, :pad, :] = frames[..., :1, :]
        padded[..., rows, pad + width :, :] = frames[..., -1:, :]
        padded[..., :pad, :, :] = padded[..., pad : pad + 1, :, :]
        padded[..., pad + height :, :, :] = padded[..., pad + height - 1 : pad + height, :, :]
    elif padding == "mirror":
        # The border pixel itself is repeated, as in PI-SAC.
        mirrored_rows = np.pad(np.arange(height), pad, mode="symmetric")
        mirrored_columns = np.pad(np.arange(width), pad, mode="symmetric")
        padded[:] = frames.take(mirrored_rows, axis=-3).take(mirrored_columns, axis=-2)


def _all_crops(stacks: Array, height: int, width: int) -> Array:
    """Return every crop of every contiguous stack as one view (stack, top, left, S, row, W*C).

    Picking one crop per stack from it copies runs of W*C bytes instead of single pixels.
    """
    count, stacked, full_height, full_width, channels = stacks.shape
    per_stack, per_frame, per_row, per_pixel, per_channel = stacks.strides
    return np.lib.stride_tricks.as_strided(
        stacks,
        (
            count,
            full_height - height + 1,
            full_width - width + 1,
            stacked,
            height,
            width * channels,
        ),
        (per_stack, per_row, per_pixel, per_frame, per_row, per_channel),
        writeable=False,
    )


def _checked_offsets(
    offsets: Array, lead: list[int], last_top: int, last_left: int
) -> tuple[Array, Array]:
    """Return flat top and left offsets that are sure to lie inside the frames."""
    if offsets.shape != (*lead, 2):
        raise ValueError(f"need offsets of shape {(*lead, 2)}, one per stack; got {offsets.shape}")
    if last_top < 0 or last_left < 0:
        raise ValueError(
            f"the crop is larger than the frames by {max(-last_top, -last_left)} pixels"
        )
    top, left = offsets.reshape(-1, 2).T
    # Negative offsets would count from the other side instead of failing.
    if offsets.size and (offsets.min() < 0 or top.max() > last_top or left.max() > last_left):
        raise ValueError(f"offsets must lie in 0..{last_top} (top) and 0..{last_left} (left)")
    return top, left


def _offsets(observation: Array | Stacks, largest: int, rng: np.random.Generator) -> Array:
    """Draw one (top, left) per stack, uniform in 0..largest inclusive."""
    if len(observation.shape) < 4:
        raise ValueError(f"need image stacks (..., S, H, W, C), got shape {observation.shape}")
    return rng.integers(0, largest, size=(*observation.shape[:-4], 2), endpoint=True)


def _frame_shape(observation: Array | Stacks, pad: int) -> tuple[int, ...]:
    """Return (H, W, C), which `pad` pixels can be cut off on every side of."""
    shape = observation.shape
    if len(shape) < 4 or min(shape[-3:-1]) <= 2 * pad:
        raise ValueError(f"cannot cut {pad} pixels off every side of shape {shape}")
    return shape[-3:]


def _without_border(observation: Array, pad: int) -> Array:
    """Return a view of the frames without `pad` pixels on every side."""
    height, width, _ = _frame_shape(observation, pad)
    return observation[..., pad : height - pad, pad : width - pad, :]


def _checked_pad(pad: int) -> int:
    if pad < 0:
        raise KstepError(f"augment pad = {pad}: need 0 or more pixels")
    return pad


def _checked(name: str, value: Choice, allowed: tuple[Choice, ...]) -> Choice:
    if value not in allowed:
        raise KstepError(f"augment {name} = {value!r}: allowed are {', '.join(map(str, allowed))}")
    return value
