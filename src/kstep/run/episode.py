"""One episode under way: an environment, the frames an observation stacks, and how it got there.

An episode is a pure function of its seed and its actions. That is how a run continues in the middle
of one without asking any simulator for its internal state: it is replayed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kstep.types import LEARNED_REWARD, LIFE_LOST, Array, KstepError
from kstep.values import Count

if TYPE_CHECKING:
    from kstep.envs import ControlEnv


@dataclass(frozen=True)
class Step:
    """What one decision led to."""

    frame: Array
    reward: float
    terminated: bool
    truncated: bool
    env_steps: int
    learned_reward: float
    """What is learned from; the reward itself, unless the environment gives another."""
    life_lost: bool
    """Whether what follows has no value although the episode continues."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


@dataclass(frozen=True)
class EpisodeSoFar:
    """What an episode under way can be replayed from."""

    seed: Count
    length: Count
    """Decisions taken."""
    actions: str
    """Exact: float32 as hexadecimal."""

    def decoded(self, width: int) -> Array:
        """Return the actions (length, width), refusing what no episode of an environment with so
        many dimensions can have."""
        try:
            numbers = np.frombuffer(bytes.fromhex(self.actions), dtype=np.float32)
            actions = numbers.reshape(self.length, width)
        except ValueError as error:
            raise KstepError(
                f"the open episode does not have {self.length:,} actions of {width} numbers"
            ) from error
        if not (np.abs(actions) <= 1.0).all():  # so that NaN fails too
            raise KstepError("an action of the open episode is not within [-1, 1]")
        return actions


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
        learned = float(info.get(LEARNED_REWARD, reward))
        lost, env_steps = bool(info.get(LIFE_LOST)), int(info["env_steps"])
        return Step(frame, float(reward), terminated, truncated, env_steps, learned, lost)

    def step(self, action: Array) -> Step:
        self.begin(action)
        return self.finish()

    def state(self) -> EpisodeSoFar:
        """Return the seed and the actions so far."""
        actions = np.asarray(self.actions, dtype=np.float32)
        return EpisodeSoFar(self.seed, len(self.actions), actions.tobytes().hex())

    @property
    def width(self) -> int:
        """Numbers per action."""
        return self.env.actions.dim

    def repeat(self, seed: int, actions: Array, frames: Array, *, strictly: bool = True) -> None:
        """Replay an episode and check that it leads to the same place.

        `frames` are the last stacked frames as the replay remembers them, oldest first.
        Not `strictly`: whatever place it leads to.
        """
        self.env.set_rendering(False)
        try:
            self.start(seed)
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
