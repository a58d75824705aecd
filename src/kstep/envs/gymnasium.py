"""Any Gymnasium environment with continuous actions and an image, behind our contract.

In: the id of a registered environment. Out: a `GymnasiumEnv`. The frame is the observation itself
where that is an image, (H, W, 3) or (H, W, 1) uint8, and the render of `render_mode="rgb_array"`
otherwise; either is resized to the requested size. An environment that does not fit is refused with
a sentence about what is needed, at the start or at the step where it shows.
"""

from __future__ import annotations

import contextlib
import math
import traceback
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from kstep.envs import gl
from kstep.envs.base import ControlEnv, resized
from kstep.types import Array, KstepError, ObservationKind


class GymnasiumEnv(ControlEnv):
    """A registered Gymnasium environment. Its own time limit truncates; cameras are ignored."""

    def __init__(
        self, gym_id: str, *, observation: ObservationKind, size: int, action_repeat: int, seed: int
    ) -> None:
        self._name = f"gym:{gym_id}"
        self._env, self._renders = _open(gym_id, observation)
        self._first_seed: int | None = seed
        self._last: Any = None
        space, actions = self._env.observation_space, self._env.action_space
        self._shows_image = _is_image(space)
        if observation == "pixels" and not (self._shows_image or self._renders):
            raise KstepError(
                f"{self} shows no image: needs an observation Box (H, W, 3) or (H, W, 1) of uint8, "
                'or render_mode="rgb_array"'
            )
        if observation == "state" and not isinstance(space, gymnasium.spaces.Box):
            raise KstepError(f"{self} observes a {space}; as a state a Box is needed")
        self._true_actions = _continuous(actions, self)
        limit = self._env.spec.max_episode_steps if self._env.spec is not None else None
        super().__init__(
            observation=observation,
            size=size,
            state_dim=math.prod(space.shape or ()),
            action_low=np.ravel(self._true_actions.low),
            action_high=np.ravel(self._true_actions.high),
            action_repeat=action_repeat,
            episode_env_steps=limit,
            camera=0,
        )

    def _begin(self, seed: int | None) -> None:
        if seed is None:
            # Gymnasium seeds its generator at the first reset only.
            seed = self._first_seed
        self._first_seed = None
        with self._blamed("reset"):
            self._last, _ = self._env.reset(seed=seed)

    def _simulate(self, action: Array) -> tuple[float, bool, bool]:
        true = action.reshape(self._true_actions.shape).astype(self._true_actions.dtype)
        with self._blamed("step"):
            self._last, reward, terminated, truncated, _ = self._env.step(true)
        try:
            value = float(reward)
        except (TypeError, ValueError) as error:
            raise KstepError(f"{self} gave the reward {reward!r}; a number is needed") from error
        return value, bool(terminated), bool(truncated)

    @contextlib.contextmanager
    def _blamed(self, doing: str) -> Iterator[None]:
        """Turn an exception of the environment's code into an error that names it and the line."""
        try:
            yield
        except (KstepError, MemoryError, OSError, gymnasium.error.DependencyNotInstalled):
            raise
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise KstepError(
                f"{self} raised {type(error).__name__} in {doing}() at {at.filename}:{at.lineno}: "
                f"{error}"
            ) from error

    def _state(self) -> Array:
        with self._blamed("step"):
            state = np.ravel(np.asarray(self._last)).astype(np.float32)
        if state.shape != self.observation_space.shape:
            raise KstepError(
                f"{self} gave an observation of {state.size} numbers; its space says "
                f"{self.observation_space.shape}"
            )
        if not np.isfinite(state).all():
            raise KstepError(f"{self} gave an observation that is not finite")
        return state

    def _draw(self, height: int, width: int, camera: int) -> Array:
        # Films prefer the render, which is usually larger than what the agent sees.
        filming = (height, width) != (self.size, self.size)
        if self._shows_image and not (filming and self._renders):
            image, source = np.asarray(self._last), "an observation"
        elif self._renders:
            image, source = self._rendered(), "a rendered image"
        else:
            raise KstepError(f'{self} cannot be rendered: it has no render_mode="rgb_array"')
        is_colour = image.ndim == 3 and image.shape[2] in (1, 3)
        if image.dtype != np.uint8 or not is_colour:
            raise KstepError(
                f"{self} gave {source} {image.shape} {image.dtype}; needed is (H, W, 3) uint8"
            )
        if image.shape[2] == 1:
            image = np.repeat(image, 3, axis=2)
        return resized(np.array(image), height, width)

    def _rendered(self) -> Array:
        try:
            with self._blamed("render"):
                return np.asarray(self._env.render())
        except gymnasium.error.Error as error:  # packages for rendering may be missing
            raise KstepError(f"{self} cannot be rendered: {error}") from error

    def close(self) -> None:
        """Close the wrapped environment."""
        self._running = False
        self._env.close()
        super().close()


def _open(gym_id: str, observation: ObservationKind) -> tuple[gymnasium.Env[Any, Any], bool]:
    """Make the environment, with rendering where it supports that; return whether it does."""
    try:
        spec = gymnasium.spec(gym_id)
        if "mujoco" in str(spec.entry_point):
            gl.prepare(required=observation == "pixels")
        env = gymnasium.make(gym_id, disable_env_checker=True)
        if "rgb_array" not in (env.metadata.get("render_modes") or ()):
            return env, False
        env.close()
        return gymnasium.make(gym_id, disable_env_checker=True, render_mode="rgb_array"), True
    except gymnasium.error.Error as error:
        raise KstepError(f"gym:{gym_id} cannot be made: {error}") from error
    except ImportError as error:
        raise KstepError(f"gym:{gym_id} needs a package that is missing: {error}") from error


def _is_image(space: gymnasium.Space[Any]) -> bool:
    shape = space.shape or ()
    return (
        isinstance(space, gymnasium.spaces.Box)
        and space.dtype == np.uint8
        and len(shape) == 3
        and shape[2] in (1, 3)
    )


def _continuous(space: gymnasium.Space[Any], env: GymnasiumEnv) -> gymnasium.spaces.Box:
    """Return the action space where it is continuous and bounded."""
    if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise KstepError(f"{env} takes {space} actions; continuous ones (a float Box) are needed")
    if not space.is_bounded("both"):
        raise KstepError(f"{env} takes actions without bounds; [-1, 1] cannot be mapped onto them")
    if not (space.low < space.high).all():
        raise KstepError(f"{env} takes actions whose bounds leave no room: {space}")
    return space
