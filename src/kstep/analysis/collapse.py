"""How much of the latent space is in use?

A representation has collapsed when many directions carry nothing. Beyond the paper, which shows
that latents can be stable but not that they remain informative.

Effective rank: exp of the entropy of the normalized singular values (Roy & Vetterli 2007).
Uniformity: log mean exp(-2 |x - y|^2) over pairs of unit latents (Wang & Isola 2020,
arXiv:2005.10242): 0 if all point the same way, about -4 if uniform on the sphere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist

from kstep.analysis.curves import Figure, panels
from kstep.analysis.distances import ROUNDING, centred
from kstep.analysis.tables import Row
from kstep.types import Array

PAIRS_AMONG = 1_000
"""States compared with each other for the uniformity, evenly spaced: half a million pairs."""


@dataclass(frozen=True)
class Collapse:
    """How much of the latent space is in use."""

    effective_rank: float
    """Between 1 and the latent's dimension; 1 also for a constant encoder."""
    dimensions: int
    spread_smallest: float
    """Smallest standard deviation of a dimension."""
    spread_median: float
    spread_largest: float
    silent: float
    """Share of dimensions with at most a hundredth of the largest standard deviation."""
    uniformity: float


def collapse(latents: Array) -> Collapse:
    """Measure latents (N, D)."""
    latents = np.asarray(latents, np.float64)
    each = centred(latents).std(axis=0)
    return Collapse(
        effective_rank=effective_rank(latents),
        dimensions=latents.shape[1],
        spread_smallest=float(each.min()),
        spread_median=float(np.median(each)),
        spread_largest=float(each.max()),
        silent=float(np.mean(each <= 0.01 * each.max())),
        uniformity=uniformity(latents),
    )


def effective_rank(latents: Array) -> float:
    """Return exp of the entropy of the centred latents' normalized singular values."""
    values = np.linalg.svd(centred(latents), compute_uv=False)
    values = values[values > ROUNDING * np.linalg.norm(latents)]
    if len(values) == 0:
        return 1.0
    shares = values / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def uniformity(latents: Array) -> float:
    """Return log mean exp(-2 |x - y|^2) over pairs of unit latents."""
    chosen = latents[np.linspace(0, len(latents) - 1, min(PAIRS_AMONG, len(latents))).astype(int)]
    length = np.linalg.norm(chosen, axis=1, keepdims=True)
    unit = chosen / np.where(length > 0.0, length, 1.0)
    return float(np.log(np.mean(np.exp(-2.0 * pdist(unit, "sqeuclidean")))))


def figure(rows: Sequence[Row]) -> Figure:
    """Draw rank, standard deviation and uniformity over training, one line per method."""
    titles = {
        "effective_rank": "effective rank",
        "spread_median": "median standard deviation",
        "uniformity": "uniformity",
    }
    return panels(rows, titles)
