"""Frames on the learning device, and their views: gathered, stacked, shifted and cut there.

Which frames and which offsets is drawn on the host, by the streams that draw them for any replay,
and is sent as one array of integers per view; nothing is read back. The bytes are those of NumPy
and of the native pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kstep import packing
from kstep.data.batches import to_device
from kstep.data.blocks import Padding, check_offsets
from kstep.types import Array


class DeviceFrames:
    """A ring of frames (slots, *frame_shape).

    The host writes and reads it like an array; `take`, `rows` and `cut` stay on the device.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def zeros(
        cls, shape: tuple[int, ...], dtype: np.dtype[Any], device: torch.device | str
    ) -> DeviceFrames:
        """Return black frames."""
        return cls(
            torch.zeros(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, device=device)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's name of it."""
        return torch.empty(0, dtype=self.tensor.dtype).numpy().dtype

    def __setitem__(self, slots: int | Array, frames: Array) -> None:
        # A copy, because PyTorch takes neither read-only arrays nor those that run backwards.
        sent = torch.from_numpy(np.array(frames, order="C"))
        where = slots if isinstance(slots, int) else torch.from_numpy(slots).to(self.tensor.device)
        self.tensor[where] = sent.to(self.tensor.device, non_blocking=True)

    def __getitem__(self, slots: Array) -> Array:
        """Return frames on the host, which waits for the device."""
        return self.take(slots).cpu().numpy()

    def take(self, slots: Array, axis: int = 0) -> Tensor:
        """Return the frames of these slots (...): (..., *frame_shape)."""
        assert axis == 0, axis  # as in NumPy, where it has to be said
        (where,) = to_device(self.tensor.device, slots)
        return self.tensor[where]

    def rows(self, begin: int, end: int | None = None) -> DeviceFrames:
        """Return some rows of every frame, without a copy."""
        return DeviceFrames(self.tensor[:, begin:end])

    def cut(
        self, slots: Array, offsets: Array, height: int, width: int, pad: int, padding: Padding
    ) -> Tensor:
        """Put `pad` pixels around every frame of stacks (..., S) and cut (height, width) at each
        stack's (top, left), in one gather: (..., S, height, width, C)."""
        full_height, full_width = self.shape[1:3]
        last = full_height + 2 * pad - height, full_width + 2 * pad - width
        check_offsets(offsets, slots.shape[:-1], *last)
        # Sequences lie in memory in order of time, as after the native pass (augment.py).
        order = list(reversed(range(slots.ndim - 1)))
        numbers = np.concatenate((slots, offsets), axis=-1).transpose(*order, -1)
        (sent,) = to_device(self.tensor.device, np.ascontiguousarray(numbers, np.int64))
        stacks, top, left = sent.tensor_split([-2, -1], dim=-1)
        rows = top - pad + torch.arange(height, device=sent.device)
        columns = left - pad + torch.arange(width, device=sent.device)
        views = self.tensor[
            stacks[..., :, None, None],
            _inside(rows, full_height, padding)[..., None, :, None],
            _inside(columns, full_width, padding)[..., None, None, :],
        ]
        if padding == "zero":
            seen = (
                _is_inside(rows, full_height)[..., :, None]
                & _is_inside(columns, full_width)[..., None, :]
            )
            views.masked_fill_(~seen[..., None, :, :, None], 0)
        return views.permute(*order, *range(len(order), len(order) + 4))


def _is_inside(places: Tensor, size: int) -> Tensor:
    return (places >= 0) & (places < size)


def _inside(places: Tensor, size: int, padding: Padding) -> Tensor:
    """Return which row or column of 0 .. size - 1 continues a frame at these places."""
    if padding == "mirror":  # the border pixel twice, then back, and so on
        places = places % (2 * size)
        return torch.minimum(places, 2 * size - 1 - places)
    return places.clamp(0, size - 1)


def pack(image: Tensor, below: Tensor, numbers: int) -> Tensor:
    """Put the numbers in rows (..., R, W, C) below images (..., H, W', C), as `packing.pack`."""
    width, channels = image.shape[-2:]
    used = packing.SIZE * numbers
    rows = packing.rows(numbers, width, channels)
    flat = F.pad(below.flatten(-3)[..., :used], (0, rows * width * channels - used))
    return torch.cat((image, flat.view(*flat.shape[:-1], rows, width, channels)), dim=-3)
