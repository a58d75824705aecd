"""Which of the simulator's quantities can be read from the latent?

Beyond the paper, which supposes that good latents encode what moves smoothly, such as joint angles.
For each quantity: R^2 of a linear fit on held-out episodes; 1 is perfect, 0 no better than the
mean, below 0 worse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kstep import style
from kstep.analysis import fit
from kstep.analysis.curves import Figure, canvas
from kstep.analysis.tables import Row, grouped
from kstep.types import Array


def state_probe(latents: Array, state: Array, episode: Array) -> Array:
    """Return R^2 (Q,) of each column of `state` (N, Q); nan where a quantity never changes."""
    state = np.asarray(state, np.float64)
    error = np.mean((fit.held_out(latents, state, episode) - state) ** 2, axis=0)
    variance = state.var(axis=0)
    moves = variance > 1e-12 * np.maximum(1.0, np.mean(state**2, axis=0))
    return np.where(moves, 1.0 - error / np.where(moves, variance, 1.0), np.nan)


def figure(rows: Sequence[Row]) -> Figure:
    """Draw a bar per quantity and method (and task): its newest encoder, mean over seeds."""
    encoders = grouped(rows, "label", "task")
    tasks = {task for _, task in encoders}
    quantities = list(dict.fromkeys(str(row["quantity"]) for row in rows))
    shown = canvas(7.0, 1.2 + 0.28 * len(quantities))
    axes = shown.subplots()
    height = 0.8 / len(encoders)
    looks = style.looks(f"{label} {task}" for label, task in encoders)
    for index, ((label, task), own) in enumerate(encoders.items()):
        at = max(int(row["env_steps"]) for row in own)
        newest = grouped((row for row in own if row["env_steps"] == at), "quantity")
        means = [np.mean([float(row["r2"]) for row in newest[q,]]) for q in quantities]
        name = f"{label}, {task}" if len(tasks) > 1 else label
        positions = np.arange(len(quantities)) + index * height
        colour = looks[f"{label} {task}"].colour
        axes.barh(
            positions, np.maximum(means, -1.0), height, label=f"{name} at {at:,}", color=colour
        )
    axes.set_yticks(np.arange(len(quantities)) + 0.4 - height / 2, quantities)
    axes.set(xlabel="R², held-out episodes (cut off at -1)", xlim=(-1.05, 1.05))
    axes.invert_yaxis()
    axes.legend()
    return shown
