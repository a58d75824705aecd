"""One episode under way: an environment, the frames an observation stacks, and how it got there.

An episode is a pure function of its seed and its actions. That is how a run continues in the middle
of one without asking any simulator for its internal state: it is replayed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from kstep.envs import ControlEnv
from kstep.types import Array, KstepError


@dataclass(frozen=True)
class Step:
    """What one decision led to."""

    frame: Array
    reward: float
    terminated: bool
    truncated: bool
    env_steps: int

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Episode:
    """Steps an environment and stacks its frames, oldest first."""

    def __init__(self, env: ControlEnv, stack: int) -> None:
        self.env = env
        self._frames: deque[Array] = deque(maxlen=stack)
        self.seed = -1
        self.actions: list[Array] = []
        self.total_reward = 0.0

    @property
    def observation(self) -> Array:
        """The current stack (S, ...)."""
        return np.stack(self._frames)

    def start(self, seed: int) -> Array:
        """Start an episode from scratch and return its first frame."""
        frame, _ = self.env.reset(seed=seed)
        self._frames.extend([frame] * (self._frames.maxlen or 1))
        self.seed, self.actions, self.total_reward = seed, [], 0.0
        return frame

    def begin(self, action: Array) -> None:
        """Set the environment going; `finish` returns where it got."""
        self.env.begin_step(action)
        self.actions.append(action)

    def finish(self) -> Step:
        frame, reward, terminated, truncated, info = self.env.finish_step()
        self._frames.append(frame)
        self.total_reward += float(reward)
        return Step(frame, float(reward), terminated, truncated, int(info["env_steps"]))

    def step(self, action: Array) -> Step:
        self.begin(action)
        return self.finish()

    def state(self) -> dict[str, Any]:
        """Return the seed and the actions so far, exact (float32 as hexadecimal)."""
        actions = np.asarray(self.actions, dtype=np.float32)
        return {"seed": self.seed, "length": len(self.actions), "actions": actions.tobytes().hex()}

    def repeat(self, state: dict[str, Any], frames: Array, *, strictly: bool = True) -> None:
        """Replay the episode up to `state` and check that it leads to the same place.

        `frames` are the last stacked frames as the replay remembers them, oldest first.
        Not `strictly`: whatever place it leads to.
        """
        actions = np.frombuffer(bytes.fromhex(state["actions"]), dtype=np.float32)
        width = int(np.prod(self.env.action_space.shape or ()))
        actions = actions.reshape(state["length"], width)
        self.env.set_rendering(False)
        try:
            self.start(state["seed"])
            for action in actions:
                self.step(action.copy())
        finally:
            self.env.set_rendering(True)
        self._frames.extend(frames)
        same = np.array_equal(self.env.current_frame(), frames[-1])
        if strictly and not same:
            raise KstepError(
                f"{self.env} did not repeat itself: the same seed and "
                f"{len(actions)} actions led to another frame than before the interruption. Either "
                "it is not deterministic, or the renderer or simulator changed since"
            )
