"""An environment of one's own with a dictionary observation: two cameras and joint angles.

Images are encoded and augmented; numbers are normalized and put beside the latent. `env.image` and
`env.vector` choose some of the keys; without them all images and all numbers are seen.

    python examples/own_dictionary.py               # a minute; learns nothing in so short a time
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import tyro
from gymnasium import spaces

import kstep

CAMERA = spaces.Box(0.0, 1.0, (3, 48, 48), np.float32)
"""Channels first, floats: converted to bytes, exactly."""


class Arm(gymnasium.Env[Any, Any]):
    """Turn two joints so that the hand is where the target is."""

    observation_space = spaces.Dict(
        {"front": CAMERA, "wrist": CAMERA, "joints": spaces.Box(-4.0, 4.0, (2,), np.float32)}
    )
    action_space = spaces.Box(-0.3, 0.3, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.joints, self.target = self.np_random.uniform(-1, 1, (2, 2))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.joints = np.clip(self.joints + action, -1, 1)
        away = float(np.abs(self.joints - self.target).max())
        return self.observe(), 1.0 - away, away < 0.05, False, {}

    def observe(self) -> dict[str, Any]:
        front, wrist = np.zeros((2, 3, 48, 48), np.float32)
        for channel, place in enumerate((self.joints, self.target)):
            y, x = (20 + 20 * place).astype(int)
            front[channel, y : y + 8, x : x + 8] = 1.0
        wrist[:, : int(24 + 24 * self.joints[0])] = 0.5
        return {"front": front, "wrist": wrist, "joints": self.joints.astype(np.float32)}


def main(env_steps: int = 400, runs: Path = Path("runs"), preset: str = "debug") -> float:
    """Return the mean return after so many env steps; preset="cpu" and 100_000 of them learn."""
    task = kstep.register_env("arm", Arm, time_limit=40)
    run = kstep.train("ksl", task, preset=preset, env_steps=env_steps, runs=runs)
    policy = kstep.load(run)
    action = policy.act(Arm().reset(seed=3)[0])  # the dictionary in, an action within bounds out
    assert Arm.action_space.contains(action)
    return kstep.evaluate(run, episodes=2).mean


if __name__ == "__main__":
    print(f"return {tyro.cli(main):.1f}")
