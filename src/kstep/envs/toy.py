"""A small pixel world in NumPy: steer a dot onto a target.

Thousands of frames a second, no MuJoCo and no OpenGL, so that a whole training run fits in a test.
The arena is [-1, 1] x [-1, 1]; dot and target start at random, `NEAREST` to `FARTHEST` apart.

- `toy_reach`: the action moves the dot by up to `SPEED` along each axis. One frame shows the
  whole state.
- `toy_glide`: the action accelerates the dot, which keeps most of its velocity; no single frame
  shows that. Frame stacking matters here.
- `toy_arrows`: as `toy_reach`, with four actions to choose from: right, up, left, down.

Reaching the target and leaving the arena are terminal. `LIMIT` steps truncate an episode.

Reward per step: `PROGRESS` x (distance before - distance after) - `TIME`, plus `REACHED` or minus
`LEFT` at the end. Progress is potential-based shaping, so hovering near the target earns nothing.
Return of one episode: about +9 for steering straight at the target (in 11 decisions), -4 for
random actions, -9 for leaving the arena; above +6 the task is learned.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kstep.envs.actions import BoxActions, DiscreteActions
from kstep.envs.base import ControlEnv
from kstep.envs.sight import drawn
from kstep.types import Array, ObservationKind

LIMIT = 60
SPEED = 0.07
GLIDE_PUSH = 0.02
GLIDE_KEEP = 0.8
"""Velocity kept per step; with `GLIDE_PUSH` the top speed is a little above `SPEED`."""
DOT_RADIUS = 0.12
TARGET_RADIUS = 0.2
"""The target counts as reached while the dot's centre is inside it: wider than two steps."""
NEAREST, FARTHEST = 0.7, 1.5
MARGIN = 0.75
"""Dot and target start at most this far from the centre, so no single step leaves the arena."""

BOX = BoxActions((-1.0, -1.0), (1.0, 1.0), (2,))
ARROWS = ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))

PROGRESS, TIME, REACHED, LEFT = 5.0, 0.05, 5.0, 5.0

GROUND = (32, 36, 48)
BORDER = (92, 100, 120)
TARGET = (64, 190, 110)
DOT = (245, 160, 60)


class ToyEnv(ControlEnv):
    """One of the three. States: dot (2), target (2) and, for glide, velocity (2)."""

    def __init__(
        self,
        name: str,
        *,
        observation: ObservationKind,
        size: int,
        resize: str | None,
        action_repeat: int,
        time_limit: int | None,
        seed: int,
    ) -> None:
        self._name = name
        self._glides, self._arrows = name == "toy_glide", name == "toy_arrows"
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._grounds: dict[int, Array] = {}
        self._dot = self._velocity = self._target = np.zeros(2)
        super().__init__(
            observation=observation,
            sight=drawn(observation, size, resize, numbers=6 if self._glides else 4),
            actions=DiscreteActions(len(ARROWS)) if self._arrows else BOX,
            action_repeat=action_repeat,
            ends_after=LIMIT,
            time_limit=time_limit,
        )

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed))
        apart = -1.0
        while not NEAREST <= apart <= FARTHEST:
            self._dot, self._target = self._generator.uniform(-MARGIN, MARGIN, (2, 2))
            apart = self._distance()
        self._velocity = np.zeros(2)

    def _simulate(self, action: Any) -> tuple[float, bool, bool]:
        before = self._distance()
        if self._arrows:
            action = np.array(ARROWS[action])
        if self._glides:
            self._velocity = GLIDE_KEEP * self._velocity + GLIDE_PUSH * action
        else:
            self._velocity = SPEED * action
        self._dot = self._dot + self._velocity
        distance = self._distance()
        reached = distance < TARGET_RADIUS
        left = float(np.abs(self._dot).max()) > 1.0
        reward = PROGRESS * (before - distance) - TIME
        if reached:
            reward += REACHED
        elif left:
            reward -= LEFT
        return reward, reached or left, False

    def _distance(self) -> float:
        return math.hypot(*(self._dot - self._target))

    def _state(self) -> Array:
        parts = [self._dot, self._target, *([self._velocity] if self._glides else [])]
        return np.concatenate(parts, dtype=np.float32, casting="unsafe")

    def quantities(self) -> dict[str, float]:
        names = ["dot x", "dot y", "target x", "target y", "velocity x", "velocity y"]
        return dict(zip(names, map(float, self._state()), strict=False))

    def _draw(self, height: int, width: int, camera: int) -> Array:
        side = min(height, width)
        square = self._ground(side).copy()
        _disc(square, self._target, TARGET_RADIUS, TARGET)
        _disc(square, self._dot, DOT_RADIUS, DOT)
        if height == width:
            return square
        image = np.zeros((height, width, 3), np.uint8)
        top, left = (height - side) // 2, (width - side) // 2
        image[top : top + side, left : left + side] = square
        return image

    def _ground(self, side: int) -> Array:
        """Return the empty arena, painted once per size."""
        if side not in self._grounds:
            image = np.full((side, side, 3), GROUND, np.uint8)
            edge = max(1, side // 42)
            image[:edge] = image[-edge:] = image[:, :edge] = image[:, -edge:] = BORDER
            self._grounds[side] = image
        return self._grounds[side]


def _disc(image: Array, centre: Array, radius: float, colour: tuple[int, int, int]) -> None:
    """Paint a disc with blended edges into a square image, so that moves below a pixel show."""
    side = image.shape[0]
    scale = side / 2
    x, y = (float(centre[0]) + 1) * scale, (1 - float(centre[1])) * scale
    pixels = radius * scale
    left, right = max(0, int(x - pixels - 1)), min(side, int(x + pixels + 2))
    top, bottom = max(0, int(y - pixels - 1)), min(side, int(y + pixels + 2))
    if left >= right or top >= bottom:
        return
    across = np.arange(left, right) + (0.5 - x)
    down = np.arange(top, bottom) + (0.5 - y)
    distance = np.sqrt((down * down)[:, None] + across * across)
    cover = np.clip(pixels + 0.5 - distance, 0.0, 1.0)[..., None]
    patch = image[top:bottom, left:right]
    patch += np.rint(cover * (np.array(colour) - patch)).astype(np.int16).astype(np.uint8)
