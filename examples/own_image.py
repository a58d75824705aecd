"""An environment of one's own that shows an image, checked and trained.

python examples/own_image.py                    # a minute; learns nothing in so short a time
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro
from gymnasium import spaces

import kstep


class Lamp(gymnasium.Env[Any, Any]):
    """Move the light into the middle. The image is what `reset` and `step` return."""

    observation_space = spaces.Box(0, 255, (48, 64, 3), np.uint8)
    action_space = spaces.Box(-4.0, 4.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform((4, 4), (43, 59))
        return self.image(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at = np.clip(self.at + action, (4, 4), (43, 59))
        away = float(np.abs(self.at - (24, 32)).max())
        return self.image(), 1.0 - away / 32, False, False, {}

    def image(self) -> Any:
        image = np.zeros((48, 64, 3), np.uint8)
        y, x = self.at.astype(int)
        image[y - 3 : y + 4, x - 3 : x + 4] = (255, 220, 120)
        return image


def main(env_steps: int = 400, runs: Path = Path("runs"), preset: str = "debug") -> float:
    """Return the mean return after so many env steps; preset="cpu" and 100_000 of them learn."""
    limit = {"env.time_limit": 50}
    kstep.check_env(env=Lamp, settings=limit, output=runs / "lamp.png", decisions=60)
    run = kstep.train(
        "ksl", env=Lamp, settings=limit, preset=preset, env_steps=env_steps, runs=runs
    )
    return kstep.evaluate(run, episodes=2).mean


if __name__ == "__main__":
    print(f"return {tyro.cli(main):.1f}")
