"""An environment of one's own with discrete actions. Auxiliary tasks see them as one-hot vectors.

python examples/own_discrete.py                 # a minute; learns nothing in so short a time
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro
from gymnasium import spaces

import kstep

MOVES = ((-6, 0), (6, 0), (0, -6), (0, 6))


class Maze(gymnasium.Env[Any, Any]):
    """Walk to the corner. A grey image, (H, W), is an image too."""

    observation_space = spaces.Box(0, 255, (42, 42), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 6 * self.np_random.integers(0, 6, 2)
        return self.image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + MOVES[action], 0, 36)
        reached = bool((self.at == 36).all())
        return self.image(), float(reached), reached, False, {}

    def image(self) -> Any:
        image = np.zeros((42, 42), np.uint8)
        y, x = self.at
        image[y : y + 6, x : x + 6] = 255
        return image


def main(
    env_steps: int = 400, runs: Path = Path("runs"), preset: str = "debug", method: str = "ksl_dqn"
) -> float:
    """Return the mean return after so many env steps. A method that cannot act here is refused, and
    those that can are named."""
    task = kstep.register_env("maze", Maze, time_limit=60)
    run = kstep.train(method, task, preset=preset, env_steps=env_steps, runs=runs)
    return kstep.evaluate(run, episodes=2).mean


if __name__ == "__main__":
    print(f"return {tyro.cli(main):.1f}")
