"""Numbers that travel beside an image, in rows below it.

An observation with an image and a vector is one array of bytes, (..., H + R, W, C): the vector's
float32 numbers lie in the last R rows. So whatever stores, stacks, draws, saves or replays frames
need not know that there is more than an image; only what makes views of images (data/beside.py) and
what encodes them (nets/beside.py) takes the two apart.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

SIZE = 4
"""Bytes of a number."""


def rows(numbers: int, width: int, channels: int) -> int:
    """Return how many rows of an image so many numbers take."""
    return math.ceil(SIZE * numbers / (width * channels))


def pack(image: npt.NDArray[np.uint8], vector: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Put vectors (..., V) below images (..., H, W, C)."""
    *lead, height, width, channels = image.shape
    below = rows(vector.shape[-1], width, channels)
    packed = np.zeros((*lead, height + below, width, channels), np.uint8)
    packed[..., :height, :, :] = image
    data = np.ascontiguousarray(vector, np.float32).view(np.uint8)
    flat = np.zeros((*lead, below * width * channels), np.uint8)
    flat[..., : data.shape[-1]] = data
    packed[..., height:, :, :] = flat.reshape(*lead, below, width, channels)
    return packed


def unpack(
    packed: npt.NDArray[np.uint8], numbers: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return images and vectors again."""
    *lead, height, width, channels = packed.shape
    image = height - rows(numbers, width, channels)
    flat = packed[..., image:, :, :].reshape(*lead, -1)[..., : SIZE * numbers]
    return packed[..., :image, :, :], np.ascontiguousarray(flat).view(np.float32)
