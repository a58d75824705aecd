"""How large and how often; which sections there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from kstep.config import Experiment, resolve
from kstep.methods import find

Section: TypeAlias = Literal["methods", "split", "encoder", "plain", "memory", "renderers", "cost"]
SECTIONS: tuple[Section, ...] = get_args(Section)

TASK = "cartpole_swingup"
"""The task of the paper's wall-clock table."""
ACTIONS, REPEAT, EPISODE, STATE = 1, 8, 125, 5
"""Of that task: action dimensions, action repeat, decisions per episode, state dimensions."""


@dataclass(frozen=True)
class Size:
    """What decides how long a run takes."""

    name: str
    preset: str
    encoder: tuple[str, ...]
    """Overrides of methods that see pixels."""
    rounds: int
    decisions: int
    """In the replay that learning steps draw from: more than a processor's caches hold."""
    matrix: int
    """Rows and columns of the matrices whose product is the machine's line to reach."""
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    memory_decisions: int
    frames: int
    """Drawn per round and renderer."""

    def experiment(self, method: str, overrides: tuple[str, ...] = ()) -> Experiment:
        if find(method).observation == "pixels":
            overrides = (*self.encoder, *overrides)
        return resolve(method, TASK, preset=self.preset, overrides=overrides)


PAPER = Size(
    name="paper",
    preset="paper",
    encoder=(),
    rounds=7,
    decisions=4_000,
    matrix=2048,
    ks=(1, 3, 5, 10),
    batches=(32, 64, 128, 256),
    memory_decisions=100_000,
    frames=10,
)

QUICK = Size(
    name="debug",
    preset="debug",
    # Our kernels know 32 channels only; the strides are the paper's.
    encoder=("method.encoder.channels=32", "method.encoder.strides=[2,1,1,1]"),
    rounds=2,
    decisions=4 * EPISODE,
    matrix=128,
    ks=(1, 2, 3),
    batches=(4, 8, 16),
    memory_decisions=1_000,
    frames=2,
)
