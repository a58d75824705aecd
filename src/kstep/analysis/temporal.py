"""How far do latents move from one decision to the next?

The paper's figure of temporal coherence: mean l2 distance between consecutive latents, never across
an episode's end; also as a share of the typical distance, since small latents look slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kstep.analysis.curves import Figure, panels
from kstep.analysis.distances import share
from kstep.analysis.tables import Row
from kstep.types import Array


@dataclass(frozen=True)
class Temporal:
    """Mean distance between consecutive latents."""

    distance: float
    normalized: float
    """As a share of the typical distance between two random states."""


def temporal(latents: Array, episode: Array) -> Temporal:
    """Measure latents (N, D) in order of time; `episode` (N,) numbers their episodes."""
    latents = np.asarray(latents, np.float64)
    together = episode[1:] == episode[:-1]
    steps = np.linalg.norm(np.diff(latents, axis=0)[together], axis=1)
    distance = float(steps.mean()) if len(steps) else float("nan")
    return Temporal(distance, share(distance, latents))


def figure(rows: Sequence[Row]) -> Figure:
    """Draw both distances over training, one line per method."""
    return panels(
        rows, {"distance": "l2 distance (paper)", "normalized": "share of the typical distance"}
    )
