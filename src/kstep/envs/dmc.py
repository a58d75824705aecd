"""DeepMind Control Suite tasks (Tassa et al., arXiv:1801.00690) under our contract.

In: a `Task` of the suite. Out: a `SuiteEnv`. Importing this module imports MuJoCo; for pixels,
`kstep.envs.gl.choose()` must have run before (`kstep.envs.make` sees to it).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from dm_control import suite
from dm_control.rl.control import PhysicsError

from kstep.envs import gl
from kstep.envs.base import ControlEnv, RendererFailed
from kstep.envs.tasks import Task
from kstep.types import Array, KstepError, ObservationKind

DRAWING_TRIES = 3


class SuiteEnv(ControlEnv):
    """One task of the suite; states are its observations flattened in their own order."""

    def __init__(
        self,
        task: Task,
        *,
        observation: ObservationKind,
        size: int,
        action_repeat: int,
        camera: int,
        seed: int,
    ) -> None:
        self._name = task.name
        with _without_deprecations():
            self._env: Any = suite.load(
                task.domain, task.task, task_kwargs={"random": _generator(seed)}
            )
        self._physics = self._env.physics
        self._closed = False
        self._set_visuals()
        self._check_camera(camera)
        actions = self._env.action_spec()
        shapes = [spec.shape for spec in self._env.observation_spec().values()]
        limit = self._env._step_limit  # dm_control keeps the time limit nowhere else.
        super().__init__(
            observation=observation,
            size=size,
            state_dim=sum(math.prod(shape) for shape in shapes),
            action_low=np.broadcast_to(actions.minimum, actions.shape),
            action_high=np.broadcast_to(actions.maximum, actions.shape),
            action_repeat=action_repeat,
            # Quotients of decimal time steps come out as 999.9999 or 1000.0001.
            episode_env_steps=None if math.isinf(limit) else math.ceil(limit - 1e-6),
            camera=camera,
        )
        self._time_step: Any = None

    def __str__(self) -> str:
        return self._name

    def decisions_per_second(self) -> float:
        return 1.0 / (float(self._env.control_timestep()) * self.action_repeat)

    def _set_visuals(self) -> None:
        """Set the quality of drawing: all of dm_control's defaults.

        The one place where `self._physics.model.vis` may be changed, since the drawing context
        reads it when the first frame makes it.
        """

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            # Every suite task draws its start, and nothing later, from this generator.
            self._env.task._random = _generator(seed)
        try:
            self._time_step = self._env.reset()
        except RuntimeError as error:
            if "rendering backend" not in str(error):
                raise
            # quadruped_escape hands its terrain to OpenGL, watched or not.
            raise KstepError(f"{self} needs rendering even for states: {error}") from error

    def _simulate(self, action: Array) -> tuple[float, bool, bool]:
        try:
            self._time_step = self._env.step(action)
        except PhysicsError as error:
            raise KstepError(f"the simulation of {self} diverged: {error}") from error
        last = bool(self._time_step.last())
        # The suite says discount 0 where nothing follows, and 1 where only its time is up.
        terminated = last and self._time_step.discount == 0.0
        return float(self._time_step.reward), terminated, last and not terminated

    def _state(self) -> Array:
        parts = [np.ravel(value) for value in self._time_step.observation.values()]
        return np.concatenate(parts, dtype=np.float32, casting="unsafe")

    def _check_camera(self, camera: int) -> None:
        cameras = int(self._physics.model.ncam)
        # -1 is MuJoCo's free camera.
        if not -1 <= camera < cameras:
            raise KstepError(
                f"{self} has cameras 0 to {cameras - 1} and the free camera -1, not {camera}"
            )

    def _draw(self, height: int, width: int, camera: int) -> Array:
        self._check_camera(camera)
        self._make_room(height, width)
        for _ in range(DRAWING_TRIES):
            try:
                return np.array(self._physics.render(height, width, camera_id=camera), np.uint8)
            except RuntimeError as error:
                failure = error
                # Drawing changes no state, so a new context draws the very frame that was missed.
                with contextlib.suppress(RuntimeError):
                    self._free_contexts()
        gl.forget()
        raise RendererFailed(
            f"{self} cannot be drawn ({failure}); `python -m kstep.envs.gl --check` says why"
        ) from failure

    def _make_room(self, height: int, width: int) -> None:
        """Enlarge the drawing buffer where a frame would not fit; MuJoCo's is 640 x 480."""
        buffer = self._physics.model.vis.global_
        if height <= buffer.offheight and width <= buffer.offwidth:
            return
        buffer.offheight = max(buffer.offheight, height)
        buffer.offwidth = max(buffer.offwidth, width)
        self._free_contexts()  # The next frame makes them anew at this size.

    def _free_contexts(self) -> None:
        with self._physics._contexts_lock:
            if self._physics._contexts:
                self._physics._free_rendering_contexts()

    def close(self) -> None:
        """Free the simulator and its OpenGL context; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._running = False
            self._physics.free()
        super().close()


def _generator(seed: int) -> np.random.RandomState:
    """Return the suite's kind of generator, which by itself takes seeds of 32 bits at most."""
    if seed < 2**32:
        return np.random.RandomState(seed)
    return np.random.RandomState(np.random.SeedSequence(seed).generate_state(8))


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Keep MuJoCo's remarks on the suite's own model files from every start of ours."""

    def is_news(record: logging.LogRecord) -> bool:
        return "deprecated" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)
