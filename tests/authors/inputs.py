"""Inputs that follow from formulas: the same numbers wherever they are computed.

In: seeds and sizes. Out: float64 arrays and uint8 frames. Everything comes from one integer hash,
so that a comparison needs no stored weights, frames or noise. README.md has the formulas in words.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint32]

ROUNDS = ((16, 0x7FEB_352D), (15, 0x846C_A68B))
"""Of the hash: shift, odd multiplier. A last shift by 16 follows."""

ACTIONS, REWARDS, STATES = 11, 12, 13
"""Seeds of what an episode consists of."""
BLOCKS, GRAIN = 1_000_003, 2_000_003
"""Seeds of the two layers of a frame, for episode 0 and time 0."""


def scatter(values: npt.ArrayLike) -> Bits:
    """Hash integers from 0 to 2^32 - 1 to as many; products keep their lower 32 bits."""
    word = np.atleast_1d(values).astype(np.uint32)  # arrays wrap around silently, scalars warn
    for shift, factor in ROUNDS:
        word ^= word >> np.uint32(shift)
        word *= np.uint32(factor)
    word ^= word >> np.uint32(16)
    return word


@cache
def _positions(count: int) -> Bits:
    """Hashes of 0..count-1; the large tensors of an agent come in few sizes."""
    return scatter(np.arange(count))


def numbers(seed: int, shape: tuple[int, ...], centre: float = 0.0, scale: float = 1.0) -> Numbers:
    """Fill `shape`, last index fastest, with numbers from [centre - scale, centre + scale)."""
    hashed = scatter(_positions(math.prod(shape)) ^ scatter(seed))
    # The upper 24 bits as a fraction in [-1, 1): exact, as its denominator is a power of two.
    fraction = (hashed >> np.uint32(8)).astype(np.float64) / 2**23 - 1.0
    return (centre + scale * fraction).reshape(shape)


def frame(episode: int, time: int, size: int) -> npt.NDArray[np.uint8]:
    """Draw blocks of 12 pixels under a quarter of grain: (size, size, 3), [row, column, colour]."""
    row, column, colour = np.ogrid[:size, :size, :3]
    when = 1000 * episode + time

    def layer(place: npt.NDArray[np.int64], seed: int) -> Bits:
        return scatter(scatter(3 * place + colour) ^ scatter(seed + when)) & np.uint32(255)

    blocks = layer(row // 12 * 16 + column // 12, BLOCKS)
    grain = layer(row * 128 + column, GRAIN)
    return ((np.uint32(3) * blocks + grain) // np.uint32(4)).astype(np.uint8)


def actions(episodes: int, decisions: int, action_dim: int) -> Numbers:
    """The action of every decision, (episodes, decisions, action_dim)."""
    return numbers(ACTIONS, (episodes, decisions, action_dim))


def rewards(episodes: int, decisions: int) -> Numbers:
    """The reward of every decision, (episodes, decisions)."""
    return numbers(REWARDS, (episodes, decisions), 1.0, 1.0)


def states(episodes: int, decisions: int, state_dim: int) -> Numbers:
    """State vectors, one more per episode than decisions: (episodes, decisions + 1, state_dim)."""
    return numbers(STATES, (episodes, decisions + 1, state_dim))
