"""A trained policy on a machine that has PyTorch, but no simulator and no Gymnasium.

python examples/act_without_simulator.py runs/cartpole_swingup/ksl-cpu/seed1
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import kstep


def camera(number: int) -> Any:
    """Return what a camera sees: here some image, larger than the agent's."""
    return np.random.default_rng(number).integers(0, 256, (240, 240, 3), dtype=np.uint8)


def main(run: Path, decisions: int = 20) -> list[Any]:
    """Return the actions that a run's policy takes."""
    policy = kstep.load(run)
    policy.reset()  # at the start of every episode
    return [policy.act(camera(number)) for number in range(decisions)]


if __name__ == "__main__":
    for action in main(Path(sys.argv[1])):
        print(action)
