"""The typical distance between latents: the unit for every other distance between them.

Distances between latents mean nothing by themselves: halve all latents and every distance halves,
though nothing was learned or forgotten. So each is also reported as a share of the typical distance
between two random states: 1 means "as far as any other state".
"""

from __future__ import annotations

import numpy as np

from kstep.types import Array

ROUNDING = 10 * float(np.finfo(np.float32).eps)
"""Differences below this share of the latents' norm are rounding errors."""


def typical_distance(latents: Array) -> float:
    """Return the root mean square distance between two random latents (N, D); 0 where they differ
    by rounding only."""
    distance = float(np.sqrt(2.0 * centred(latents).var(axis=0).sum()))
    size = float(np.sqrt(np.mean(np.sum(np.square(latents, dtype=np.float64), axis=1))))
    return distance if distance > ROUNDING * size else 0.0


def centred(latents: Array) -> Array:
    """Return latents without their mean, in double precision; exactly 0 if they are all equal."""
    # The mean of equal numbers is rounded; the difference of two of them is not.
    moved: Array = np.asarray(latents, np.float64) - np.asarray(latents[0], np.float64)
    moved -= moved.mean(axis=0)
    return moved


def share(distance: float, latents: Array) -> float:
    """Return a distance as a share of the typical one; nan where an encoder is constant."""
    typical = typical_distance(latents)
    return distance / typical if typical > 0.0 else float("nan")
