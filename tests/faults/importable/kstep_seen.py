"""Environments that show their images in different forms: `Seen/<form>-v0`.

Importable in any process that has this folder on its path, as a user's own package would be.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BYTES: dict[str, Any] = {"low": 0, "high": 255, "dtype": np.uint8}


class Seen(gymnasium.Env[Any, Any]):
    """Shows a square on one side, and on the other in what it renders."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, form: str, render_mode: str | None = None) -> None:
        self.form, self.render_mode = form, render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.observation_space = self.spaces()[form]

    @staticmethod
    def spaces() -> dict[str, Any]:
        return {
            "chw": spaces.Box(shape=(3, 48, 48), **BYTES),
            "float": spaces.Box(0.0, 1.0, (48, 48, 3), np.float32),
            "hw": spaces.Box(shape=(48, 48), **BYTES),
            "stack": spaces.Box(shape=(4, 48, 48), **BYTES),
            "wide": spaces.Box(shape=(48, 72, 3), **BYTES),
            "dict": spaces.Dict({"rgb": spaces.Box(shape=(48, 48, 3), **BYTES)}),
            "robot": spaces.Dict(
                {
                    "rgb": spaces.Box(shape=(48, 48, 3), **BYTES),
                    "hand": spaces.Box(shape=(1, 24, 24), **BYTES),
                    "arm": spaces.Box(-9.0, 9.0, (2,)),
                }
            ),
            "odd": spaces.Box(-1.0, 1.0, (48, 48, 3)),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock, self.at = 0, int(self.np_random.integers(4, 20))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.clock += 1
        return self.observe(), float(action[0]), False, False, {}

    def observe(self) -> Any:
        image = np.zeros((48, 72 if self.form == "wide" else 48, 3), np.uint8)
        image[self.at : self.at + 8, : self.clock + 4] = 200
        return {
            "chw": image.transpose(2, 0, 1),
            "float": (image / 255).astype(np.float32),
            "hw": image[..., 0],
            "stack": np.repeat(image.transpose(2, 0, 1)[:1], 4, axis=0),
            "dict": {"rgb": image},
            "robot": {
                "rgb": image,
                "hand": image[None, ::2, ::2, 0],
                "arm": np.array([self.clock, -self.at], np.float32),
            },
        }.get(self.form, image)

    def render(self) -> Any:
        return np.full((60, 60, 3), 77, np.uint8)


for form in Seen.spaces():
    gymnasium.register(
        f"Seen/{form}-v0", "kstep_seen:Seen", max_episode_steps=9, kwargs={"form": form}
    )
