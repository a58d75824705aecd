"""One contract for every environment.

In: actions as vectors (actions.py). Out: one frame `(H, W, C)` uint8 or one state vector `(D,)`
float32 per decision, with the reward summed over the action's repeats. `ControlEnv` does what all
environments share (checking, mapping and repeating actions, deciding when to render); a subclass
implements how to begin an episode, simulate one step, and render or return the current state.

Two guarantees that the rest of the library relies on:

- after `reset(seed=s)` an episode is a pure function of s and the actions, whatever came before;
- rendering changes nothing, so an episode replayed with rendering off ends in the same state.
"""

from __future__ import annotations

import abc
import math
from typing import Any

import gymnasium
import numpy as np

from kstep.envs.actions import Actions
from kstep.envs.sight import Sight
from kstep.types import Array, EnvSpec, KstepError, ObservationKind

LARGEST_REWARD = float(np.finfo(np.float32).max)


class RendererFailed(KstepError):
    """Rendering failed; it may work in a new process."""


class ControlEnv(gymnasium.Env[Array, Any], abc.ABC):
    """An environment seen as single frames or as a state vector."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  (Gymnasium reads it from the class)
    _name: str
    """The task's, in messages; a subclass sets it first."""

    def __init__(
        self,
        *,
        observation: ObservationKind,
        sight: Sight,
        actions: Actions,
        action_repeat: int,
        ends_after: int | None,
        time_limit: int | None,
        camera: int = 0,
    ) -> None:
        """`ends_after`: the task's own limit, in env steps; `time_limit`: one that was asked for,
        which cannot be longer. One of them is needed, and the episode is cut off there."""
        if observation not in ("pixels", "state"):
            raise KstepError(f"observation must be pixels or state, not {observation!r}")
        if action_repeat < 1:
            raise KstepError(f"action repeat must be at least 1, not {action_repeat}")
        limits = [limit for limit in (ends_after, time_limit) if limit is not None]
        if not limits:
            raise KstepError(
                f"{self} has no time limit, so an episode might never end: set one in env steps, "
                "such as --set env.time_limit=1000"
            )
        if time_limit is not None and time_limit > min(limits):
            raise KstepError(
                f"env.time_limit={time_limit} has no effect: {self} ends its episodes after "
                f"{ends_after} env steps"
            )
        self.observation: ObservationKind = observation
        self.sight = sight
        self.camera = camera
        self.action_repeat = action_repeat
        self.episode_decisions = math.ceil(min(limits) / action_repeat)
        self.render_mode = "rgb_array"
        self.actions = actions
        self.action_space = actions.space()
        self.observation_space = (
            gymnasium.spaces.Box(0, 255, sight.shape, np.uint8)
            if observation == "pixels"
            else gymnasium.spaces.Box(-np.inf, np.inf, sight.shape, np.float32)
        )
        self._frame: Array = np.zeros(sight.shape, np.uint8)
        self._rendering = True
        self._running = False
        self._limit, self._env_steps = min(limits), 0

    def __str__(self) -> str:
        return self._name

    # What a subclass implements.

    @abc.abstractmethod
    def _begin(self, seed: int | None) -> None:
        """Start an episode; without a seed, from the environment's own generator."""

    @abc.abstractmethod
    def _simulate(self, action: Any) -> tuple[float, bool, bool]:
        """Take one simulator step with its own action; return reward, terminated, truncated."""

    @abc.abstractmethod
    def _state(self) -> Array:
        """Return the state as a float32 vector (D,), a new array."""

    @abc.abstractmethod
    def _draw(self, height: int, width: int, camera: int) -> Array:
        """Return the state as an image (height, width, 3) uint8, a new array."""

    # What users call.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start an episode and return its first observation."""
        # Gymnasium refuses NumPy's integers, which is what seeds drawn from a generator are.
        seed = None if seed is None else int(seed)
        super().reset(seed=seed)
        self._begin(seed)
        self._running, self._env_steps = True, 0
        return self._observe(), {"env_steps": 0}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Apply one action for `action_repeat` simulator steps, fewer where the episode ends."""
        if not self._running:
            raise RuntimeError("the episode is over or has not begun; call reset() first")
        true = self._true(action)
        total, env_steps = 0.0, 0
        terminated = truncated = False
        while env_steps < self.action_repeat and not (terminated or truncated):
            reward, terminated, truncated = self._simulate(true)
            total += reward
            if not abs(total) <= LARGEST_REWARD:  # so that NaN fails too
                raise KstepError(f"{self} gave a reward of {reward}, not finite in float32")
            env_steps += 1
            self._env_steps += 1
            truncated = truncated or (self._env_steps >= self._limit and not terminated)
        self._running = not (terminated or truncated)
        return self._observe(), total, terminated, truncated, {"env_steps": env_steps}

    def begin_step(self, action: Array) -> None:
        """Start a step whose result `finish_step` returns; learning may happen in between."""
        self._pending = action

    def finish_step(self) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Return what `step` would have returned for the action of `begin_step`."""
        return self.step(self._pending)

    def quantities(self) -> dict[str, float]:
        """Return the quantities of the simulator's state by name, for probing latents."""
        return {f"state {i}": float(value) for i, value in enumerate(self._state())}

    def render(self) -> Array:
        """Return the current state as an image, whatever is observed."""
        return self.film_frame(self.sight.height, self.sight.width)

    def set_rendering(self, enabled: bool) -> None:
        """While off, steps return the last frame instead of rendering: fast replays of episodes."""
        self._rendering = enabled

    def current_frame(self) -> Array:
        """Return the observation of the current state, rendered now."""
        if self.observation == "state":
            return self._state()
        self._frame = self._see()
        return self._frame.copy()

    def draw_with(self, other: ControlEnv) -> None:
        """Share the rendering context of `other`, of the same task; that one is closed last."""

    def decisions_per_second(self) -> float:
        """Return the number of decisions per second of real time, for videos."""
        return 20.0 / self.action_repeat

    def film_frame(self, height: int = 240, width: int = 240, camera: int | None = None) -> Array:
        """Return an image (height, width, 3) of the current state, for videos."""
        return self._draw(height, width, self.camera if camera is None else camera)

    def _see(self) -> Array:
        """Return what the agent sees of the current state, as `sight` says."""
        return self._draw(self.sight.height, self.sight.width, self.camera)

    def _observe(self) -> Array:
        if self.observation == "pixels" and not self._rendering:
            return self._frame.copy()
        return self.current_frame()

    def _true(self, action: Array) -> Any:
        """Return the simulator's own action for a vector or, where discrete, a number."""
        values, kind = np.asarray(action), self.actions.kind
        if values.shape != (self.actions.dim,) and (kind == "box" or values.shape != ()):
            raise KstepError(f"{self} takes actions ({self.actions.dim},), got {values.shape}")
        if not np.isfinite(values).all():
            raise KstepError(f"{self} received an action that is not finite: {values}")
        return self.actions.true(values)


def spec_of(env: gymnasium.Env[Any, Any]) -> EnvSpec:
    """Return the shapes and limits of an environment that `make` made."""
    inner = env.unwrapped
    if not isinstance(inner, ControlEnv):
        raise TypeError(f"{inner} was not made by kstep.envs.make")
    return EnvSpec(
        inner.observation,
        inner.sight.shape,
        inner.actions.dim,
        inner.action_repeat,
        inner.episode_decisions,
        inner.actions.kind,
        inner.sight.vector_dim if inner.sight.pictures else 0,
    )


def try_out(env: ControlEnv, seed: int) -> None:
    """Take the first step of an episode and reset it, to find early what is broken.

    Leaves no trace, since every episode is a function of its own seed, which is checked last.
    """
    first, _ = env.reset(seed=seed)
    second, _, terminated, truncated, _ = env.step(env.actions.example())
    if terminated or truncated:
        raise KstepError(f"{env} ends its episodes with the first decision; nothing can be learned")
    # Of floats one may be sure; whole numbers could be labels, of which there are more later.
    if (dark := env.sight.too_dark((first, second))) is not None and dark[0].floats:
        raise KstepError(f"{env}: {dark[1]}")
    again, _ = env.reset(seed=seed)
    if not np.array_equal(first, again):
        raise KstepError(
            f"{env} does not repeat itself: two resets with seed {seed} gave different "
            "observations, so no run of it could be repeated or continued"
        )
