"""The C++ library from Python: find it, check every argument, call it with valid pointers."""

from __future__ import annotations

import ctypes
import functools
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kstep.errors import KstepError
from kstep.native import sources

INTERFACE = 4
"""What `kstep_native_interface` must return: the version of every call below."""
CHANNELS = 32
MOST_INPUTS = 16
MOST_LAYERS = 8
MOST_SIDE = 4096
LIMIT = "KSTEP_NATIVE_INSTRUCTIONS"
"""Environment variable that selects an instruction set instead of the best one: avx2, avx512."""
_threads: int | None = None
"""Of our pool; None: as many as PyTorch uses."""


def threads() -> int:
    """How many threads compute what the library computes."""
    return _threads or torch.get_num_threads()


def use_threads(number: int | None) -> int | None:
    """Let the library use this many threads, None: as many as PyTorch; return what was set."""
    global _threads
    before, _threads = _threads, number
    return before


class Unavailable(KstepError):
    """The native kernels cannot be used; the message says why."""


class _Encoder(ctypes.Structure):
    """The structure `Encoder` of encoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("batch", "frames", "height", "width", "colours")),
        ("layers", ctypes.c_int32),
        ("strides", ctypes.c_int32 * MOST_LAYERS),
    )


class _Decoder(ctypes.Structure):
    """The structure `Decoder` of decoder.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("batch", "height", "width", "layers", "channels")),
        *((name, ctypes.c_int32 * MOST_LAYERS) for name in ("strides", "heights", "widths")),
    )


class _Pixels(ctypes.Structure):
    """The structure `Pixels` of reconstruction.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("batch", "frames", "rows", "height", "width")),
        *((name, ctypes.c_int32) for name in ("colours", "bits")),
    )


class _Product(ctypes.Structure):
    """The structure `Product` of linear.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "rows",
            "columns",
            "inner",
            "left_row",
            "left_step",
            "right_row",
            "right_column",
        )
    )


class AdamStep(ctypes.Structure):
    """The structure `Adam` of kernels.h: one parameter, its moments, the coefficients of a step."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parameter", "gradient", "average", "square")),
        ("count", ctypes.c_int64),
        *((name, ctypes.c_float) for name in ("first", "second", "keep", "size", "root")),
        *((name, ctypes.c_float) for name in ("epsilon", "weight_decay")),
    )


class AverageStep(ctypes.Structure):
    """The structure `Average` of kernels.h: a slow copy of one parameter."""

    _fields_ = (
        ("slow", ctypes.c_void_p),
        ("online", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("rate", ctypes.c_float),
    )


class _View(ctypes.Structure):
    """The structure `View` of stacks.cpp."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("count", "frames")),
        *((name, ctypes.c_int32) for name in ("height", "width", "colours")),
        *((name, ctypes.c_int32) for name in ("out_height", "out_width", "pad", "black")),
    )


@dataclass(frozen=True)
class Shape:
    """Stacks of frames and the layers over them: what decides whether the kernels apply."""

    frames: int
    height: int
    width: int
    colours: int
    strides: tuple[int, ...]
    channels: int = CHANNELS

    def require(self) -> None:
        """Raise `Unavailable` if there are no kernels for this shape."""
        if self.channels != CHANNELS:
            raise Unavailable(f"the native encoder has {CHANNELS} channels, not {self.channels}")
        if self.frames * self.colours > MOST_INPUTS:
            raise Unavailable(
                f"the native encoder takes at most {MOST_INPUTS} input channels, not "
                f"{self.frames} frames of {self.colours}"
            )
        if not 1 <= len(self.strides) <= MOST_LAYERS or set(self.strides) - {1, 2}:
            raise Unavailable(
                f"the native encoder has 1 to {MOST_LAYERS} layers with strides 1 or 2, not "
                f"{self.strides}"
            )
        if max(self.height, self.width) > MOST_SIDE:
            raise Unavailable(
                f"the native encoder takes frames of up to {MOST_SIDE}x{MOST_SIDE}, not "
                f"{self.height}x{self.width}"
            )
        if min(self.maps()[-1][:2]) < 1:
            raise Unavailable(
                f"frames of {self.height}x{self.width} are too small for strides {self.strides}"
            )

    def maps(self) -> list[tuple[int, int, int]]:
        """(H, W, C) after each layer."""
        height, width, found = self.height, self.width, []
        for stride in self.strides:
            height, width = (height - 3) // stride + 1, (width - 3) // stride + 1
            found.append((height, width, self.channels))
        return found

    def match(self, observation: Tensor, weights: Sequence[Tensor]) -> None:
        """Raise if tensors do not have this shape: the library would read beyond them."""
        frames = (self.frames, self.height, self.width, self.colours)
        inputs = [self.frames * self.colours, *[CHANNELS] * (len(self.strides) - 1)]
        _same(tuple(observation.shape[1:]), frames, "frames")
        _same(_shapes(weights), [(CHANNELS, n, 3, 3) for n in inputs], "weights of shape")

    def structure(self, batch: int) -> _Encoder:
        sizes = (batch, self.frames, self.height, self.width, self.colours, len(self.strides))
        return _Encoder(*sizes, (ctypes.c_int32 * MOST_LAYERS)(*self.strides))


@dataclass(frozen=True)
class Decoding:
    """Features and the transposed convolutions behind them: strides, (H, W, C) of each output."""

    features: tuple[int, ...]
    strides: tuple[int, ...]
    maps: tuple[tuple[int, ...], ...]

    @property
    def usable(self) -> bool:
        """Whether there are kernels for this shape."""
        before = (self.features, *(map_[:2] for map_ in self.maps))
        return (
            1 <= len(self.strides) <= MOST_LAYERS
            and not set(self.strides) - {1, 2}
            and all(channels == CHANNELS for *_, channels in self.maps[:-1])
            and self.maps[-1][2] <= CHANNELS
            and max(max(sides) for sides in before) <= MOST_SIDE
            and all(
                after >= (side - 1) * stride + 3
                for sides, stride, map_ in zip(before, self.strides, self.maps, strict=False)
                for side, after in zip(sides, map_[:2], strict=True)
            )
        )

    def match(self, features: Tensor, weights: Sequence[Tensor]) -> None:
        """Raise if tensors do not have this shape: the library would read beyond them."""
        _same(self.usable, True, "a decoder that it can compute:")
        _same(tuple(features.shape[1:]), (*self.features, CHANNELS), "features")
        shapes = [(CHANNELS, channels, 3, 3) for *_, channels in self.maps]
        _same(_shapes(weights), shapes, "weights of shape")

    def structure(self, batch: int) -> _Decoder:
        each = ctypes.c_int32 * MOST_LAYERS
        heights, widths, channels = zip(*self.maps, strict=True)
        sizes = (batch, *self.features, len(self.strides), channels[-1])
        return _Decoder(*sizes, each(*self.strides), each(*heights), each(*widths))


class Library:
    """The C interface of encoder.cpp, with tensors instead of pointers."""

    def __init__(self, path: Path) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
            interface = self._c.kstep_native_interface()
        except (OSError, AttributeError) as error:
            raise Unavailable(f"{path.name} cannot be loaded: {error}") from error
        if interface != INTERFACE:
            raise Unavailable(
                f"{path.name} is from another version of kstep: reinstall the package"
            )
        layers: tuple[str, ...] = ("encoder_forward", "encoder_backward")
        layers += ("layer_forward", "layer_backward")
        layers += ("decoder_forward", "decoder_backward")
        passes = ("product", "adam", "average", "stacks", "reconstruction", "uniform")
        for name in ("native_sources", "native_instructions", *layers, *passes):
            getattr(self._c, f"kstep_{name}").restype = ctypes.c_char_p
        beside = sources.digest(path.parent)
        if beside not in (None, self._c.kstep_native_sources().decode()):
            raise Unavailable(
                f"{path.name} was built from other sources than those beside it: rebuild it with "
                "`make test` or `pip install -e .`"
            )

    @property
    def instructions(self) -> str:
        """The instruction set in use; empty if the processor has none that is supported."""
        return str(self._c.kstep_native_instructions().decode())

    def use(self, instructions: str | None) -> bool:
        """Switch to another instruction set; return whether the processor has it.

        None: the best one, or the one that KSTEP_NATIVE_INSTRUCTIONS names.
        """
        name = instructions or os.environ.get(LIMIT)
        return bool(self._c.kstep_native_use(name and name.encode()))

    def forward(
        self,
        shape: Shape,
        observation: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        *,
        keep: bool,
    ) -> list[Tensor]:
        """Return the maps (B, H, W, 32) after each layer; only the last unless `keep`."""
        shape.require()
        shape.match(observation, weights)
        _same(_shapes(biases), [(CHANNELS,)] * len(weights), "biases of shape")
        batch, sizes = len(observation), shape.maps()
        last = len(sizes) - 1
        maps = [_floats(batch, *s) if keep or i == last else None for i, s in enumerate(sizes)]
        self._call(
            "encoder_forward",
            ctypes.byref(shape.structure(batch)),
            _pointer(observation, torch.uint8),
            *map(_pointers, (weights, biases, maps)),
            int(keep),
            threads(),
        )
        return [tensor for tensor in maps if tensor is not None]

    def backward(
        self,
        shape: Shape,
        gradient: Tensor,
        observation: Tensor,
        weights: Sequence[Tensor],
        maps: Sequence[Tensor],
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the gradients of weights and biases, given that of the last map."""
        shape.require()
        shape.match(observation, weights)
        sizes = [(len(observation), *size) for size in shape.maps()]
        _same(_shapes(maps), sizes, "maps of shape")
        _same(tuple(gradient.shape), sizes[-1], "a gradient of shape")
        weight_gradients = [torch.empty_like(weight) for weight in weights]
        bias_gradients = [_floats(CHANNELS) for _ in weights]
        self._call(
            "encoder_backward",
            ctypes.byref(shape.structure(len(observation))),
            _pointer(gradient),
            _pointer(observation, torch.uint8),
            *map(_pointers, (weights, maps, weight_gradients, bias_gradients)),
            threads(),
        )
        return weight_gradients, bias_gradients

    def decode(
        self, shape: Decoding, features: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the maps (B, H, W, C) after each layer, from features before their ReLU."""
        shape.match(features, weights)
        _same(_shapes(biases), [(channels,) for *_, channels in shape.maps], "biases of shape")
        maps = [_floats(len(features), *size) for size in shape.maps]
        self._call(
            "decoder_forward",
            ctypes.byref(shape.structure(len(features))),
            _pointer(features),
            *map(_pointers, (weights, biases, maps)),
            threads(),
        )
        return maps

    def decode_backward(
        self,
        shape: Decoding,
        gradient: Tensor,
        features: Tensor,
        weights: Sequence[Tensor],
        maps: Sequence[Tensor],
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the gradients of features, weights and biases, given that of the last map."""
        shape.match(features, weights)
        sizes = [(len(features), *size) for size in shape.maps]
        _same(_shapes(maps), sizes[:-1], "maps of shape")
        _same(tuple(gradient.shape), sizes[-1], "a gradient of shape")
        weight_gradients = [torch.empty_like(weight) for weight in weights]
        bias_gradients = [_floats(channels) for *_, channels in shape.maps]
        features_gradient = torch.empty_like(features)
        self._call(
            "decoder_backward",
            ctypes.byref(shape.structure(len(features))),
            _pointer(gradient),
            _pointer(features),
            *map(_pointers, (weights, maps)),
            _pointer(features_gradient),
            *map(_pointers, (weight_gradients, bias_gradients)),
            threads(),
        )
        return features_gradient, weight_gradients, bias_gradients

    def reconstruction(self, prediction: Tensor, stacks: Tensor, noise: Tensor, bits: int) -> float:
        """Return the mean squared error of pixels (B, H, W, S * C); noise becomes its gradient."""
        batch, frames, rows, width, colours = stacks.shape
        height = prediction.shape[1]
        _same(height <= rows, True, "stacks at least as high as the prediction:")
        for tensor in (prediction, noise):
            _same(tuple(tensor.shape), (batch, height, width, frames * colours), "pixels of shape")
        found = ctypes.c_double()
        self._call(
            "reconstruction",
            ctypes.byref(_Pixels(batch, frames, rows, height, width, colours, bits)),
            _pointer(prediction),
            _pointer(stacks, torch.uint8),
            _pointer(noise),
            ctypes.byref(found),
            threads(),
        )
        return found.value

    def uniform(self, seed: int, *size: int) -> Tensor:
        """Return what torch.rand draws from a generator with this seed, in a sixth of the time."""
        out = _floats(*size)
        seed32 = ctypes.c_uint32(seed & 0xFFFFFFFF)
        self._call("uniform", seed32, ctypes.c_int64(out.numel()), _pointer(out))
        return out

    def product(self, left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return left (n, p) x right (p, m), plus a bias (m); either may be a transposed matrix."""
        (rows, inner), (below, columns) = left.shape, right.shape
        _same(below, inner, "matrices that fit")
        if bias is not None:
            _same(tuple(bias.shape), (columns,), "a bias of shape")
        strides = (*left.stride(), *right.stride())
        out = _floats(rows, columns)
        self._call(
            "product",
            ctypes.byref(_Product(rows, columns, inner, *strides)),
            *(_pointer(m if m.is_contiguous() else m.t()) for m in (left, right)),
            *map(_pointer, (bias, out)),
            threads(),
        )
        return out

    def adam(self, steps: Sequence[AdamStep]) -> None:
        """Take a step of Adam for every parameter; optimizers.py has checked their memory."""
        self._call("adam", (AdamStep * len(steps))(*steps), len(steps), threads())

    def average(self, steps: Sequence[AverageStep]) -> None:
        """Let slow copies follow; optimizers.py has checked their memory."""
        self._call("average", (AverageStep * len(steps))(*steps), len(steps), threads())

    def stacks(
        self,
        ring: npt.NDArray[np.uint8],
        slots: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        size: tuple[int, int],
        *,
        pad: int,
        black: bool,
    ) -> npt.NDArray[np.uint8]:
        """Return views (n, S, *size, C) of the frames (n, S) of a ring, see stacks.cpp."""
        count, frames = slots.shape
        _, height, width, colours = ring.shape
        _same(offsets.shape, (count, 2), "offsets of shape")
        for array, kind in ((ring, np.uint8), (slots, np.int64), (offsets, np.int64)):
            _same((array.dtype, array.flags.c_contiguous), (np.dtype(kind), True), "arrays of type")
        last = (height + 2 * pad - size[0], width + 2 * pad - size[1])
        for array, most in (
            (slots, len(ring) - 1),
            (offsets[:, 0], last[0]),
            (offsets[:, 1], last[1]),
        ):
            # The library would read beyond the ring.
            if array.size and not 0 <= array.min() <= array.max() <= most:
                raise KstepError(f"the native stacks need offsets within 0..{most}")
        out = np.empty((count, frames, *size, colours), np.uint8)
        view = _View(count, frames, height, width, colours, *size, pad, black)
        arrays = (ctypes.c_void_p(array.ctypes.data) for array in (ring, slots, offsets, out))
        self._call("stacks", ctypes.byref(view), *arrays, threads())
        return out

    def _call(self, name: str, *arguments: object) -> None:
        needs = getattr(self._c, f"kstep_{name}")(*arguments)
        if needs is not None:
            raise KstepError(f"the native library needs {needs.decode()}")


def _same(actual: object, expected: object, what: str) -> None:
    if actual != expected:
        raise KstepError(f"the native encoder expected {what} {expected}, not {actual}")


def _shapes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


def plain(weight: Tensor) -> Tensor:
    """Weights in the library's order, channels last: (output, row, column, input)."""
    return weight.detach().contiguous(memory_format=torch.channels_last)


def path() -> Path:
    """Where installing the package puts the library."""
    return Path(__file__).with_name(f"_encoder{sysconfig.get_config_var('EXT_SUFFIX')}")


@functools.cache
def _load(where: Path) -> Library:
    library = Library(where)
    if not library.use(None) and (limit := os.environ.get(LIMIT)):
        raise Unavailable(f"{LIMIT}={limit}: this processor has no such kernels (avx2, avx512)")
    _require_right_views(library)
    return library


def _require_right_views(library: Library) -> None:
    """Compare a few small views with NumPy's. Convolutions are checked by a trial in choice.py."""
    ring = np.arange(3 * 4 * 5 * 2, dtype=np.uint8).reshape(3, 4, 5, 2)
    slots = np.array([[2, 0], [1, 1], [0, 2]])
    offsets = np.array([[0, 0], [1, 3], [2, 1]])
    for black in (False, True):
        margins = ((0, 0), (1, 1), (1, 1), (0, 0))
        padded = np.pad(ring, margins, mode="constant" if black else "edge")
        expected = [
            padded[stack, top : top + 4, left : left + 4]
            for stack, (top, left) in zip(slots, offsets, strict=True)
        ]
        if not np.array_equal(
            library.stacks(ring, slots, offsets, (4, 4), pad=1, black=black), expected
        ):
            raise Unavailable("the native library's views are wrong on this machine")


def library_is_there() -> bool:
    """Whether the library exists and can be loaded."""
    try:
        load()
    except Unavailable:
        return False
    return True


def load() -> Library:
    """Return the library, or raise `Unavailable`."""
    where = path()
    if not where.exists():
        raise Unavailable(
            "the native encoder was not built: install GCC (g++), then reinstall the package"
        )
    return _load(where)


def kernels() -> Library:
    """Return the library where it has convolutions for this processor, or raise `Unavailable`."""
    library = load()
    if not library.instructions:
        raise Unavailable("the native encoder needs a processor with AVX2 or AVX-512")
    return library


def _floats(*size: int) -> Tensor:
    # Independent of PyTorch's defaults: the library writes float32 into this memory.
    return torch.empty(size, dtype=torch.float32, device="cpu")


def _pointer(tensor: Tensor | None, dtype: torch.dtype = torch.float32) -> ctypes.c_void_p:
    if tensor is None:
        return ctypes.c_void_p(None)
    if tensor.device.type != "cpu":
        raise KstepError(f"the native encoder needs tensors on the CPU, not on {tensor.device}")
    if tensor.dtype != dtype:
        raise KstepError(f"the native encoder needs {dtype}, not {tensor.dtype}")
    # Every kernel relies on the memory order of the dimensions; weights have channels last.
    weight = tensor.dim() == 4 and (tensor.shape[0], *tensor.shape[2:]) == (CHANNELS, 3, 3)
    order = torch.channels_last if weight else torch.contiguous_format
    if not tensor.is_contiguous(memory_format=order):
        raise KstepError(f"the native encoder needs contiguous memory, not {tensor.stride()}")
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*map(_pointer, tensors))
