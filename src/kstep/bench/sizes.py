"""How large the measured work is."""

from __future__ import annotations

from dataclasses import dataclass

from kstep import native
from kstep.config import Experiment, resolve
from kstep.methods import find
from kstep.nets.backends import native_shape

TASK = "cartpole_swingup"
"""The task of the paper's wall-clock table."""
ACTIONS, REPEAT, EPISODE, STATE = 1, 8, 125, 5
"""Of that task: action dimensions, action repeat, decisions per episode, state dimensions."""


@dataclass(frozen=True)
class Size:
    """What decides how long the benchmark takes."""

    preset: str
    overrides: tuple[str, ...]
    """Of methods that see pixels."""
    rounds: int
    decisions: int
    """In the replay that learning steps sample from: more than a processor's caches hold."""
    matrix: int
    """Rows and columns of the matrices whose product is the reference for arithmetic speed."""
    ks: tuple[int, ...]
    batches: tuple[int, ...]
    memory_decisions: int
    frames: int
    """Rendered per round and renderer."""

    def experiment(self, method: str, overrides: tuple[str, ...] = ()) -> Experiment:
        if find(method).observation == "pixels":
            overrides = (*self.overrides, *overrides)
        return resolve(method, TASK, preset=self.preset, overrides=overrides)

    def encoder_shape(self) -> native.Shape:
        """Return the shape of the encoder of `ksl`; our kernels support it at every size."""
        method = self.experiment("ksl").method
        frame = (method.encoder.image_size, method.encoder.image_size, 3)
        shape = native_shape(method.encoder, frame, method.stack)
        assert shape is not None
        return shape


PAPER = Size(
    preset="paper",
    overrides=(),
    rounds=7,
    decisions=4_000,
    matrix=2048,
    ks=(1, 3, 5, 10),
    batches=(32, 64, 128, 256),
    memory_decisions=100_000,
    frames=10,
)

QUICK = Size(
    preset="debug",
    # Our kernels support 32 channels only; the strides are the paper's.
    overrides=("method.encoder.channels=32", "method.encoder.strides=[2,1,1,1]"),
    rounds=2,
    decisions=4 * EPISODE,
    matrix=128,
    ks=(1, 2, 3),
    batches=(4, 8, 16),
    memory_decisions=1_000,
    frames=2,
)
