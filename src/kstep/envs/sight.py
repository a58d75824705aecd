"""What an agent sees of an environment: where its picture comes from, and how it becomes a frame.

`look` reads an observation space once and returns a `Sight`, or refuses what it cannot be sure of;
nothing is guessed later. A `Sight` is a small value, stored with a run as JSON: it turns an
observation into a frame (H, W, C) uint8 without simulator, Gymnasium or PyTorch, so that a trained
policy sees what its agent saw. Vectors in a dictionary with images are seen beside them: a frame
then has rows for them below its image (packing.py). Printed, it is the line at the start of a run:

    sees: observation["rgb"], 120x160 -> 84x112, area resize

An image is a Box of at least 8x8 pixels and at most 16 channels, first or last, or none (grey),
perhaps with a stack of frames in front; its values are 0 to 255, or 0 to 1. Stacked frames become
channels: nothing is lost, and nothing has to be known about their order.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from PIL import Image

from kstep import packing
from kstep.types import Array, KstepError, ObservationKind
from kstep.values import Count, Positive

LEAST_SIDE = 8
MOST_CHANNELS = 16
MOST_NUMBERS = 4096
"""In one part of a vector; what is larger is no vector."""
Source: TypeAlias = Literal["observation", "render"]
RENDER = "render"
"""As a choice of `env.image`: what render() draws, whatever is observed."""


class Unseen(KstepError):
    """Something that cannot be seen; whoever knows whose it is puts a name in front."""


@dataclass(frozen=True)
class Picture:
    """One image of an observation."""

    key: str
    """Of a dictionary; empty: the observation itself, or what was rendered."""
    shape: tuple[Positive, ...]
    """As the environment gives it."""
    axes: tuple[Count, ...]
    """Its axes in the order height, width, and all that becomes channels."""
    white: Positive = 255
    """Its largest value: 255 or 1."""
    floats: bool = False

    @property
    def size(self) -> tuple[int, int]:
        height, width = (self.shape[axis] for axis in self.axes[:2])
        return height, width

    def read(self, image: Any, called: str) -> Array:
        """Return an image as new bytes (H, W, C), exactly, refusing what is not as described."""
        found = _array(image, called)
        kinds, values = ("f", "floats") if self.floats else ("biu", "whole numbers")
        if found.shape != self.shape or found.dtype.kind not in kinds:
            raise Unseen(
                f"{called} {found.shape} {found.dtype}; needed is {self.shape} of {values}"
            )
        if found.dtype != np.uint8 or self.white != 255:
            if not (found.min() >= 0 and found.max() <= self.white * 1.001):  # so that NaN fails
                raise Unseen(
                    f"{called} with values from {found.min():g} to {found.max():g}; needed are "
                    f"{values} from 0 to {self.white}"
                )
            found = np.rint(np.minimum(found * (255 / self.white), 255))
        ordered = found.transpose(self.axes).reshape(*self.size, -1)
        return np.array(ordered, np.uint8, order="C")

    def __str__(self) -> str:
        notes = ["channels first"] if self.axes in ((1, 2, 0), (2, 3, 0, 1)) else []
        notes += [f"{self.shape[0]} stacked frames"] if len(self.shape) == 4 else []
        notes += [f"floats from 0 to {self.white}"] if self.floats else []
        return f" ({', '.join(notes)})" if notes else ""


@dataclass(frozen=True)
class Sight:
    """Observations to frames."""

    source: Source
    pictures: tuple[Picture, ...]
    """Side by side as channels; none: the agent sees a state vector."""
    height: Positive
    width: Positive
    numbers: Mapping[str, tuple[Positive, ...]] = field(default_factory=dict)
    """The parts of the vector that is seen, beside pictures or alone: keys, as in a `Picture`, and
    shapes."""
    note: str = field(default="", compare=False)
    """What is not seen, and why."""

    @property
    def vector_dim(self) -> int:
        """How many numbers that vector has."""
        return sum(math.prod(shape) for shape in self.numbers.values())

    @property
    def channels(self) -> int:
        return sum(math.prod(p.shape) // math.prod(p.size) for p in self.pictures)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a frame: (H, W, C), with rows for numbers beside it; (D,) for a state vector."""
        if not self.pictures:
            return (self.vector_dim,)
        below = packing.rows(self.vector_dim, self.width, self.channels)
        return (self.height + below, self.width, self.channels)

    def frame(self, seen: Any) -> Array:
        """Turn an observation, or a rendered image, into a new frame, refusing what is wrong."""
        if not self.pictures:
            return self.state(seen)
        images = [
            resized(picture.read(*self._part(seen, picture.key)), self.height, self.width)
            for picture in self.pictures
        ]
        image = images[0] if len(images) == 1 else np.concatenate(images, axis=2)
        return packing.pack(image, self.state(seen)) if self.numbers else image

    def state(self, seen: Any) -> Array:
        """Return the numbers of an observation as one new vector (D,) float32."""
        parts: list[Array] = []
        for key, shape in self.numbers.items():
            part, called = self._part(seen, key)
            found = _array(part, called)
            if found.shape != shape or found.dtype.kind not in "biuf":
                raise Unseen(f"{called} {found.shape} {found.dtype}; needed is {shape}")
            with np.errstate(over="ignore"):
                parts.append(found.ravel().astype(np.float32))
            if not np.isfinite(parts[-1]).all():
                raise Unseen(f"{called} that is not finite")
        return np.concatenate(parts)

    def too_dark(self, frames: Sequence[Array]) -> tuple[Picture, str] | None:
        """Return an image whose values end at 1 in all frames although its space says 255, and a
        sentence about it; None if there is none."""
        first = 0
        for picture in self.pictures if self.source == "observation" else ():
            last = first + math.prod(picture.shape) // math.prod(picture.size)
            brightest = max(frame[: self.height, :, first:last].max() for frame in frames)
            if picture.white == 255 and brightest == 1:
                return picture, (
                    f"{self._name(picture)} has no value above 1, where its space says 255: the "
                    "agent would see black. Multiply it by 255, or let its space end at 1"
                )
            first = last
        return None

    def _part(self, seen: Any, key: str) -> tuple[Any, str]:
        """Return one part of what is seen, and what to call it."""
        if not key:
            return seen, "a rendered image" if self.source == RENDER else "an observation"
        if not isinstance(seen, Mapping) or key not in seen:
            raise Unseen(f"an observation without {key!r}; needed is a dictionary with it")
        return seen[key], f"an observation[{key!r}]"

    def __str__(self) -> str:
        if not self.pictures:
            what = f"the state, {self.shape[0]} numbers"
        else:
            what = " and ".join(f"{self._name(picture)}{picture}" for picture in self.pictures)
            sizes, own = {picture.size for picture in self.pictures}, (self.height, self.width)
            what += f", {' and '.join('x'.join(map(str, size)) for size in sorted(sizes))}"
            if sizes != {own}:
                what += f" -> {self.height}x{self.width}, area resize"
            if self.channels != 3:
                what += ", grey" if self.channels == 1 else f", {self.channels} channels"
            if self.numbers:
                keys = ", ".join(self.numbers)
                what += f", and beside it {keys}: {self.vector_dim} numbers"
        return f"sees: {what}{self.note and f'; {self.note}'}"

    def _name(self, picture: Picture) -> str:
        if self.source == RENDER:
            return "render()"
        return f'observation["{picture.key}"]' if picture.key else "observation"


def drawn(observation: ObservationKind, size: int, resize: str | None, numbers: int) -> Sight:
    """What is seen of an environment that draws at any size, and whose state has `numbers`."""
    height, width = side_lengths((size, size), size, resize)
    picture = Picture("", (height, width, 3), (0, 1, 2))
    return either(observation, picture, (numbers,), height, width, source="render")


def either(
    observation: ObservationKind,
    picture: Picture,
    state: tuple[int, ...],
    height: int,
    width: int,
    *,
    source: Source = "observation",
    note: str = "",
) -> Sight:
    """What is seen of an environment with one picture and one state of this shape."""
    if observation == "state":
        return Sight("observation", (), height, width, {"": state})
    return Sight(source, (picture,), height, width, note=note)


def look(
    space: Any,
    observation: ObservationKind,
    *,
    size: int,
    image: str | None = None,
    vector: str | None = None,
    resize: str | None = None,
    render: Callable[[], Any] | None = None,
) -> Sight:
    """Decide what an agent sees of an observation space, or refuse with what to choose.

    `image`: where the picture is: a key, several with commas, or `render`. `vector`: the keys of
    numbers to see beside it, or `none`. `size`: pixels of the shorter side, unless `resize` says
    otherwise. `render` draws an example; None: it cannot.
    """
    parts = _parts(space)
    if observation == "state":
        return _state(space, parts, size)
    pictures = _pictures(parts, image)
    source: Source = "observation" if pictures else "render"
    if not pictures:
        if render is None:
            raise Unseen(
                "shows no image: needs an observation with one, such as a Box (H, W, 3) of uint8, "
                'or to be made with render_mode="rgb_array"'
            )
        pictures = [_rendered(render())]
        note = "" if image == RENDER else f"no image in the observation, {_short(space)}"
    numbers = _beside(parts, vector, rendered=source == RENDER)
    if source != RENDER:
        note = _unseen(parts, [*numbers, *(picture.key for picture in pictures)])
    height, width = side_lengths(pictures[0].size, size, resize)
    return Sight(source, tuple(pictures), height, width, numbers, note)


def _parts(space: Any) -> dict[str, Any]:
    """Return a space by keys; whatever is no dictionary has the empty key."""
    import gymnasium

    if not isinstance(space, gymnasium.spaces.Dict):
        return {"": space}
    if odd := [key for key in space.spaces if not isinstance(key, str) or not key]:
        raise Unseen(f"has a dictionary observation with the key {odd[0]!r}; needed are texts")
    return dict(space.spaces)


def _state(space: Any, parts: Mapping[str, Any], size: int) -> Sight:
    import gymnasium

    boxes = {k: box for k, box in parts.items() if isinstance(box, gymnasium.spaces.Box)}
    numbers = {k: tuple(box.shape) for k, box in boxes.items() if not k or not _as_picture(k, box)}
    if not numbers:
        raise Unseen(
            f"observes {_short(space)}; as a state a Box is needed, or a dictionary with one"
        )
    return Sight("observation", (), size, size, numbers, _unseen(parts, numbers))


def _beside(
    parts: Mapping[str, Any], vector: str | None, *, rendered: bool
) -> dict[str, tuple[int, ...]]:
    """Return the chosen numbers of an observation, or all that are beside an image in it."""
    import gymnasium

    found = {
        key: tuple(space.shape)
        for key, space in parts.items()
        if isinstance(space, gymnasium.spaces.Box) and _is_numbers(space)
    }
    if vector == "none" or (vector is None and rendered):
        return {}
    if rendered:
        raise Unseen(f"is seen as render(), without the numbers of env.vector={vector}")
    if vector is None:
        return {key: shape for key, shape in found.items() if key}
    if "" in found:
        raise Unseen(
            f"has no keys for env.vector={vector}: its observation, {_short(parts[''])}, is not a "
            "dictionary"
        )
    chosen = [key.strip() for key in vector.split(",")]
    if missing := [key for key in chosen if key not in found]:
        raise Unseen(
            f"has no numbers in {missing[0]!r} for env.vector={vector}; its observation has them "
            f"in {', '.join(map(repr, found)) or 'no key'}"
        )
    return {key: found[key] for key in chosen}


def _is_numbers(box: Any) -> bool:
    """Whether a Box is a vector or a small table, and not an image."""
    numbers = math.prod(box.shape)
    return 0 < numbers <= MOST_NUMBERS and (len(box.shape) < 2 or not _axes(box.shape))


def _unseen(parts: Mapping[str, Any], seen: Collection[str]) -> str:
    missing = [key for key in parts if key not in seen]
    return f"not seen: {', '.join(missing)}" if missing else ""


def _pictures(parts: Mapping[str, Any], image: str | None) -> list[Picture]:
    """Return the chosen images of an observation, or all; none: it is to be rendered."""
    if image == RENDER:
        return []
    if image is None:
        found = [_as_picture(key, space) for key, space in parts.items()]
        return [picture for picture in found if picture is not None]
    chosen = [key.strip() for key in image.split(",")]
    for key in chosen:
        if key not in parts:
            there = [repr(key) for key in parts if key] or ["no keys: it is one observation"]
            raise Unseen(
                f"has no {key!r} for env.image={image}; its observation has {', '.join(there)}, "
                f"and env.image={RENDER} takes what render() draws"
            )
    pictures = [_as_picture(key, parts[key]) for key in chosen]
    if None in pictures:
        key = chosen[pictures.index(None)]
        raise Unseen(f"has no image in {key!r}, but {_short(parts[key])}")
    return [picture for picture in pictures if picture is not None]


def _as_picture(key: str, space: Any) -> Picture | None:
    """Read a part of an observation as an image; None if it is none. What looks like an image but
    cannot be read with certainty is refused."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Tuple | gymnasium.spaces.Dict):
        raise _unclear(key, space, "what is nested in it is not looked at")
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) < 2:
        return None
    axes = _axes(space.shape)
    low, high = float(space.low.min()), float(space.high.max())
    in_range = low >= 0 and high <= 255
    if not axes:
        if space.dtype != np.uint8:
            return None
        raise _unclear(key, space, "images have at least 8x8 pixels and at most 16 channels")
    if len(axes) > 1:
        raise _unclear(key, space, "its channels could be the first axis or the last")
    if not in_range:
        if len(space.shape) == 2:  # a table of numbers
            return None
        raise _unclear(key, space, "values of an image lie between 0 and 1, or 0 and 255")
    floats = bool(np.issubdtype(space.dtype, np.floating))
    return Picture(key, tuple(space.shape), axes[0], 1 if high <= 1 else 255, floats)


def _axes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every order of axes, height and width first, in which a shape is that of an image."""
    if len(shape) == 4 and shape[0] <= MOST_CHANNELS:
        return [(h + 1, w + 1, 0, c + 1) for h, w, c in _axes(shape[1:])]
    if len(shape) == 2:
        return [(0, 1)] if min(shape) >= LEAST_SIDE else []
    orders = [(0, 1, 2), (1, 2, 0)] if len(shape) == 3 else []
    return [
        (height, width, channel)
        for height, width, channel in orders
        if min(shape[height], shape[width]) >= LEAST_SIDE and shape[channel] <= MOST_CHANNELS
    ]


def _unclear(key: str, space: Any, why: str) -> Unseen:
    name = f"observation[{key!r}]" if key else "observation"
    return Unseen(
        f"has an {name} that cannot be read as an image with certainty, {_short(space)}: {why}. "
        f"Choose what is seen: --set env.image={RENDER}, or a key of a dictionary"
    )


def _rendered(image: Any) -> Picture:
    found = _array(image, "gave a rendered image")
    if found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] not in (1, 3):
        raise Unseen(
            f"gave a rendered image {found.shape} {found.dtype}; needed is (H, W, 3) uint8"
        )
    return Picture("", found.shape, (0, 1, 2))


def _array(value: Any, called: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:  # a ragged list
        raise Unseen(f"{called} that is no array") from error


def _short(space: Any) -> str:
    text = " ".join(str(space).split())
    return text if len(text) <= 120 else f"{text[:117]}..."


def side_lengths(own: tuple[int, int], size: int, resize: str | None) -> tuple[int, int]:
    """Return height and width of a frame for an image of `own` size."""
    if resize is not None:
        height, width = parse_resize(resize, size) or own
    elif own[0] == own[1]:
        height = width = size
    else:
        height, width = (round(side * size / min(own)) for side in own)
    if min(height, width) < 1:
        raise KstepError(f"frames must be at least 1 pixel wide, not {height}x{width}")
    return height, width


def parse_resize(text: str, size: int) -> tuple[int, int] | None:
    """Read `env.resize`: HEIGHTxWIDTH, `square`, or `none` for images as they are."""
    if text == "none":
        return None
    if text == "square":
        return size, size
    sides = re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", text)
    if sides is None:
        raise KstepError(
            f"env.resize must be square, none or a height and width such as 84x112, not {text!r}"
        )
    return int(sides[1]), int(sides[2])


def resized(image: Array, height: int, width: int) -> Array:
    """Return an image (H, W, C) uint8 at another size, averaged over areas when it shrinks."""
    if image.shape[:2] == (height, width):
        return image
    if image.shape[2] != 3:  # other numbers of channels go through one by one, to the same bytes
        planes = [_scaled(image[..., c], height, width) for c in range(image.shape[2])]
        return np.stack(planes, axis=2)
    return _scaled(image, height, width)


def _scaled(image: Array, height: int, width: int) -> Array:
    # Width first, then height: which of them Pillow takes first, and so the last bit of some bytes,
    # depends on its version. Exported policies (interop/deployed.py) compute the same bytes.
    box = Image.Resampling.BOX
    across = Image.fromarray(image).resize((width, image.shape[0]), box)
    return np.array(across.resize((width, height), box))


def as_colours(image: Array) -> Array:
    """Return something of an image (H, W, C) that can be looked at, (H, W, 3): its last colours,
    or its last channel."""
    channels = image.shape[2]
    return image[..., -3:] if channels % 3 == 0 else np.repeat(image[..., -1:], 3, axis=2)
