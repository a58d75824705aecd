"""How far latents lie apart: the yardstick for every distance between them.

Distances between latents mean nothing by themselves: halve all latents and every distance halves,
though nothing was learned or forgotten. So each is also given as a share of `spread`, the distance
between two states drawn at random: 1 means "as far as any other state".
"""

from __future__ import annotations

import numpy as np

from kstep.types import Array

ROUNDING = 10 * float(np.finfo(np.float32).eps)
"""Differences below this share of the latents' own size are rounding, not an encoder's answer."""


def spread(latents: Array) -> float:
    """Return the root mean square distance between two latents (N, D) drawn at random; 0 where
    they differ by rounding only."""
    found = float(np.sqrt(2.0 * centred(latents).var(axis=0).sum()))
    size = float(np.sqrt(np.mean(np.sum(np.square(latents, dtype=np.float64), axis=1))))
    return found if found > ROUNDING * size else 0.0


def centred(latents: Array) -> Array:
    """Return latents without their mean, in double precision; exactly 0 if they are all equal."""
    # The mean of equal numbers is rounded, the difference of two of them is not.
    moved: Array = np.asarray(latents, np.float64) - np.asarray(latents[0], np.float64)
    moved -= moved.mean(axis=0)
    return moved


def share(distance: float, latents: Array) -> float:
    """Return a distance as a share of the latents' spread; nan where an encoder is constant."""
    whole = spread(latents)
    return distance / whole if whole > 0.0 else float("nan")
