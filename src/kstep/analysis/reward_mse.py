"""How well does a linear function of the latents predict the reward?

The paper's figure of linear regressions (section 4, "Organization Around Reward"). It fits and
measures on the same states; with 50 latent dimensions and states that resemble their neighbours
that flatters every encoder, so the fit is also measured on held-out episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kstep.analysis import fit
from kstep.analysis.curves import Figure, panels
from kstep.analysis.tables import Row
from kstep.types import Array


@dataclass(frozen=True)
class RewardMSE:
    """Mean squared errors of linear predictions of the reward."""

    in_sample: float
    """As in the paper: fitted and measured on all states."""
    held_out: float
    """Fitted without the episodes it is measured on."""
    variance: float
    """Of the reward: the error of a constant prediction."""


def reward_mse(latents: Array, reward: Array, episode: Array) -> RewardMSE:
    """Measure latents (N, D) against rewards (N,); `episode` (N,) numbers their episodes."""
    reward = np.asarray(reward, np.float64)
    weights, intercept = fit.linear(latents, reward)
    residual = np.asarray(latents, np.float64) @ weights + intercept - reward
    unseen = fit.held_out(latents, reward, episode) - reward
    return RewardMSE(
        in_sample=float(np.mean(residual**2)),
        held_out=float(np.mean(unseen**2)),
        variance=float(reward.var()),
    )


def figure(rows: Sequence[Row]) -> Figure:
    """Draw both errors over training, one line per method."""
    titles = {"in_sample": "MSE, in-sample (paper)", "held_out": "MSE, held-out episodes"}
    return panels(rows, titles, level="variance", log=True)
