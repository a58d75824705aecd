"""How many decisions ahead does KSL's transition model predict better than "nothing changes"?

Beyond the paper. The model predicts many more steps than the k it was trained on. Its predictions
are compared, as in its loss, with the slow encoder's latents of the states actually reached:
|y/|y| - t/|t||^2. The baseline is standing still: the slow encoder's latent of the first state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kstep import style
from kstep.agent import Agent
from kstep.analysis.curves import Figure, canvas
from kstep.analysis.evaluation_set import EvaluationSet
from kstep.analysis.tables import Row, grouped
from kstep.auxiliary.ksl import KSL
from kstep.data.batches import to_device
from kstep.run.saved_encoders import side_of
from kstep.types import Array, KstepError


@dataclass(frozen=True)
class Horizon:
    """How far ahead predictions are useful."""

    steps: int
    """Steps, from the first on, in which the model is closer than standing still."""
    model: Array
    """(J,) mean squared distance of unit vectors, 1 to J decisions ahead."""
    still: Array
    """(J,) the same for standing still."""


def horizon(predicted: Array, reached: Array, start: Array) -> Horizon:
    """Measure predictions (N, J, D) against targets reached (N, J, D) from starts (N, D)."""
    goal = _unit(reached)
    model = np.mean(np.sum((_unit(predicted) - goal) ** 2, axis=-1), axis=0)
    still = np.mean(np.sum((_unit(start)[:, None] - goal) ** 2, axis=-1), axis=0)
    worse = np.flatnonzero(model >= still)
    return Horizon(int(worse[0]) if len(worse) else len(model), model, still)


@torch.no_grad()
def predictions(agent: Agent, on: EvaluationSet, ahead: int) -> tuple[Array, Array, Array]:
    """Predict with an agent's KSL task from every state that is followed by `ahead` more.

    Returns what `horizon` takes: predicted (N, J, D), reached (N, J, D), start (N, D).
    """
    ksl = agent.auxiliary
    if not isinstance(ksl, KSL):
        raise KstepError(f"'{agent.method.name}' does not have KSL's transition model")
    if on.action.shape[1] != agent.spec.action_dim:
        raise KstepError(
            f"the evaluation set's actions have {on.action.shape[1]} numbers, the agent's "
            f"{agent.spec.action_dim}: collect one on the agent's own task"
        )
    starts = np.flatnonzero(on.episode[:-ahead] == on.episode[ahead:])
    if len(starts) == 0:
        raise KstepError(f"no episode of the evaluation set is longer than {ahead} decisions")
    encode = agent.encoder.features if ksl.sees == "features" else agent.encoder
    layers = agent.core.borrowed_layers(ksl.borrowed_layers)
    predicted, targets = [], []
    first = 0
    for stacks in on.batches(side_of(agent.spec.frame_shape), agent.method.stack):
        (view,) = to_device(agent.device, agent.method.augment.act_view(stacks))
        targets.append(ksl.targets(agent.auxiliary_slow_encoder, view[:, None])[:, 0])
        # Batch by batch to the last step: the feature maps of all states would take gigabytes.
        own = starts[(starts >= first) & (starts < first + len(view))]
        latent = encode(view)[own - first]
        steps = []
        for j in range(ahead):
            (action,) = to_device(agent.device, on.action[own + j])
            latent = ksl.transition(latent, action, layers)
            steps.append(ksl.predictor(ksl.projector(latent)))
        predicted.append(torch.stack(steps, dim=1))
        first += len(view)
    target = torch.cat(targets)
    reached = target[starts[:, None] + np.arange(1, ahead + 1)]
    return (torch.cat(predicted).cpu().numpy(), reached.cpu().numpy(), target[starts].cpu().numpy())


def _unit(vectors: Array) -> Array:
    vectors = np.asarray(vectors, np.float64)
    unit: Array = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return unit


def figure(rows: Sequence[Row]) -> Figure:
    """Draw both distances over decisions ahead, one pair of lines per run."""
    shown = canvas(6.0, 3.8)
    axes = shown.subplots()
    runs = grouped(rows, "label", "task", "seed", "env_steps")
    named = {f"{run[0]} {run[1]} seed {run[2]} at {run[3]:,}": own for run, own in runs.items()}
    for name, look in style.looks(named).items():
        ahead = [int(row["ahead"]) for row in named[name]]
        axes.plot(ahead, [float(row["model"]) for row in named[name]], label=name, **look.line())
        still = [float(row["still"]) for row in named[name]]
        axes.plot(ahead, still, **{**style.level(), "color": look.colour})
    axes.plot([], [], **style.level(), label="standing still")
    axes.set(xlabel="decisions ahead", ylabel="squared distance of unit vectors")
    axes.legend()
    return shown
