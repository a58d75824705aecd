"""Linear fits from latents, and held-out states.

Neighbouring states of an episode resemble each other, so complete episodes are held out; where
there is only one, contiguous parts of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import minimize

from kstep.analysis.distances import centred
from kstep.types import Array

CUTOFF = 1e-6
"""Directions with singular values below this share of the largest are left out of a fit."""


def linear(latents: Array, wanted: Array) -> tuple[Array, Array]:
    """Return weights (D, ...) and intercept (...) of least squares from latents (N, D)."""
    latents, wanted = np.asarray(latents, np.float64), np.asarray(wanted, np.float64)
    middle, height = latents.mean(0), wanted.mean(0)
    weights = np.linalg.lstsq(centred(latents), wanted - height, rcond=CUTOFF)[0]
    return weights, height - middle @ weights


def held_out(latents: Array, wanted: Array, episode: Array, folds: int = 5) -> Array:
    """Return for every state the linear prediction of a fit without the states of its fold."""
    predicted = np.full(np.shape(wanted), np.nan)
    for out in held_out_states(episode, folds):
        weights, intercept = linear(latents[~out], wanted[~out])
        predicted[out] = np.asarray(latents[out], np.float64) @ weights + intercept
    return predicted


def held_out_states(episode: Array, folds: int = 5) -> Iterator[Array]:
    """Yield masks (N,) of the states to hold out; together they cover every state once.

    `episode` (N,) numbers the episode each state is from.
    """
    names, index = np.unique(episode, return_inverse=True)
    if len(names) > 1:
        group = index * min(folds, len(names)) // len(names)
    else:
        group = np.arange(len(index)) * folds // len(index)
    for fold in np.unique(group):
        yield group == fold


def classifier(latents: Array, high: Array, ridge: float = 1e-4) -> tuple[Array, float]:
    """Return weights (D,) and intercept of a logistic regression with balanced classes.

    The latents are scaled by one common factor, so that a rotation changes nothing.
    """
    latents = np.asarray(latents, np.float64)
    middle = latents.mean(0)
    scale = float(np.sqrt(centred(latents).var(0).mean())) or 1.0
    inputs = np.column_stack((centred(latents) / scale, np.ones(len(latents))))
    sign = np.where(high, 1.0, -1.0)
    share = np.where(high, 0.5 / high.sum(), 0.5 / (~high).sum())

    def loss(weights: Array) -> tuple[float, Array]:
        margin = sign * (inputs @ weights)
        slope = -share * sign / (1.0 + np.exp(np.minimum(margin, 500.0)))
        penalty = ridge * weights
        penalty[-1] = 0.0
        value = share @ np.logaddexp(0.0, -margin) + 0.5 * ridge * weights[:-1] @ weights[:-1]
        return float(value), inputs.T @ slope + penalty

    found = minimize(loss, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B").x
    weights = found[:-1] / scale
    return weights, float(found[-1] - middle @ weights)
