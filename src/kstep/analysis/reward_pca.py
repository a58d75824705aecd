"""Are states of high and low reward separate in the latents' first principal components?

The paper's PCA plots, and a number for what they show: the balanced accuracy of a linear classifier
of high against low reward on held-out episodes, in two components, in three and in the complete
latent. 0.5 is chance, 1 means that a line separates them.

High is above the middle of the reward's range, low is below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kstep.analysis import fit
from kstep.analysis.curves import Figure, canvas
from kstep.analysis.distances import centred
from kstep.analysis.tables import Row, grouped
from kstep.types import Array

COMPONENTS = 3


@dataclass(frozen=True)
class RewardPCA:
    """The projection, and how separable the rewards are in it."""

    components: Array
    """(N, 3), by decreasing variance; zeros where the latent has fewer dimensions."""
    variance: tuple[float, float, float]
    """Share of the latents' variance along each component."""
    separability_2: float
    """Balanced accuracy in two components; nan unless there are both high and low rewards."""
    separability_3: float
    separability_all: float
    """In the complete latent."""


def reward_pca(latents: Array, reward: Array, episode: Array) -> RewardPCA:
    """Project latents (N, D) and measure how separable high and low rewards (N,) are."""
    components, variance = principal_components(latents)
    high = reward > (reward.min() + reward.max()) / 2
    return RewardPCA(
        components=components,
        variance=(float(variance[0]), float(variance[1]), float(variance[2])),
        separability_2=separability(components[:, :2], high, episode),
        separability_3=separability(components, high, episode),
        separability_all=separability(latents, high, episode),
    )


def principal_components(latents: Array) -> tuple[Array, Array]:
    """Return the first three components (N, 3) and their shares of the variance (3,)."""
    moved = centred(latents)
    states, dimensions = moved.shape
    few = dimensions <= states  # otherwise the Gram matrix of the states is smaller
    values, vectors = np.linalg.eigh(moved.T @ moved if few else moved @ moved.T)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    count = min(COMPONENTS, len(values))
    first = vectors[:, :count]
    # The sign of a direction is arbitrary; a positive largest entry makes it reproducible.
    first = first * np.sign(first[np.abs(first).argmax(axis=0), np.arange(count)])
    components = np.zeros((states, COMPONENTS))
    components[:, :count] = moved @ first if few else first * np.sqrt(values[:count])
    shares = np.zeros(COMPONENTS)
    total = values.sum()
    shares[:count] = values[:count] / total if total > 0.0 else 0.0
    return components, shares


def separability(latents: Array, high: Array, episode: Array) -> float:
    """Return the balanced accuracy of linear classifiers, each state judged by one that was fitted
    without its episode."""
    guess = np.zeros(len(high), bool)
    judged = np.zeros(len(high), bool)
    for out in fit.held_out_states(episode):
        if high[~out].all() or not high[~out].any():
            continue  # one class only: nothing to fit
        weights, intercept = fit.classifier(latents[~out], high[~out])
        guess[out] = latents[out] @ weights + intercept > 0
        judged |= out
    right = (guess == high) & judged
    if not (high & judged).any() or not (~high & judged).any():
        return float("nan")
    of_high = right[high].sum() / (high & judged).sum()
    of_low = right[~high].sum() / (~high & judged).sum()
    return float((of_high + of_low) / 2)


def figure(rows: Sequence[Row], points: Sequence[Row]) -> Figure:
    """Draw the first two components, a row per method and task, a column per mark; colour is the
    reward. Only the first seed is shown: projections of different seeds are not comparable."""
    whose = list(grouped(rows, "label", "task"))
    marks = sorted({int(row["env_steps"]) for row in rows})
    shown = canvas(3.2 * len(marks) + 0.8, 3.0 * len(whose))
    grid = shown.subplots(len(whose), len(marks), squeeze=False)
    rewards = [float(point["reward"]) for point in points]
    encoders = grouped(rows, "label", "task", "env_steps")
    clouds = grouped(points, "label", "task", "env_steps", "seed")
    for (label, task), line in zip(whose, grid, strict=True):
        for mark, axes in zip(marks, line, strict=True):
            axes.set(xticks=[], yticks=[])
            if (label, task, mark) not in encoders:
                axes.set_axis_off()
                continue
            first = encoders[label, task, mark][0]
            own = clouds[label, task, mark, first["seed"]]
            dots = axes.scatter(
                [float(point["pc1"]) for point in own],
                [float(point["pc2"]) for point in own],
                c=[float(point["reward"]) for point in own],
                s=3,
                vmin=min(rewards),
                vmax=max(rewards),
            )
            explained = float(first["variance_1"]) + float(first["variance_2"])
            name = f"{label}, {task}" if len({task for _, task in whose}) > 1 else label
            axes.set_title(
                f"{name}, seed {first['seed']}, {mark:,} env_steps\n"
                f"separability {float(first['separability_2']):.2f}, "
                f"{explained:.0%} of variance, {len(own):,} states",
                fontsize=8,
            )
    shown.colorbar(dots, ax=grid.ravel().tolist(), label="reward", shrink=0.6)
    return shown
