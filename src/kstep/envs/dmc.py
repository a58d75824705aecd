"""DeepMind Control Suite tasks (Tassa et al., arXiv:1801.00690) behind our contract.

In: a `Task` of the suite. Out: a `SuiteEnv`. Importing this module imports MuJoCo; for pixels,
`kstep.envs.gl.choose()` must have run before (`kstep.envs.make` does that).
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
from kstep.envs.actions import BoxActions
from kstep.envs.base import ControlEnv, RendererFailed
from kstep.envs.raytraced import RayTracer
from kstep.envs.sight import drawn
from kstep.envs.tasks import Task
from kstep.types import Array, KstepError, ObservationKind, Renderer

FREE, BALL, SLIDE, HINGE = range(4)
JOINT_SIZES = {FREE: (7, 6), BALL: (4, 3), SLIDE: (1, 1), HINGE: (1, 1)}
"""Sizes of the positions and velocities of each kind of joint in MuJoCo."""

RENDERING_TRIES = 3


class SuiteEnv(ControlEnv):
    """One task of the suite; states are its observations flattened in their own order."""

    def __init__(
        self,
        task: Task,
        *,
        observation: ObservationKind,
        size: int,
        resize: str | None,
        action_repeat: int,
        time_limit: int | None,
        camera: int,
        seed: int,
        renderer: Renderer = "exact",
    ) -> None:
        self._name = task.name
        self._renderer = renderer
        with _without_deprecations():
            self._env: Any = suite.load(
                task.domain, task.task, task_kwargs={"random": _generator(seed)}
            )
        self._physics = self._env.physics
        self._closed = False
        shapes = [spec.shape for spec in self._env.observation_spec().values()]
        sight = drawn(observation, size, resize, sum(math.prod(shape) for shape in shapes))
        # The rendering context reads this when it is made, with the first frame. A buffer no larger
        # than the frame has the same pixels as MuJoCo's 640 x 480, and less to clear.
        visual = self._physics.model.vis
        visual.global_.offheight, visual.global_.offwidth = sight.height, sight.width
        if renderer == "quick":
            visual.quality.shadowsize = 512
        self._check_camera(camera)
        taken = self._env.action_spec()
        bounds = (np.broadcast_to(bound, taken.shape) for bound in (taken.minimum, taken.maximum))
        low, high = (tuple(map(float, bound)) for bound in bounds)
        limit = self._env._step_limit  # dm_control keeps the time limit nowhere else.
        super().__init__(
            observation=observation,
            sight=sight,
            actions=BoxActions(low, high, taken.shape),
            action_repeat=action_repeat,
            # Quotients of decimal time steps come out as 999.9999 or 1000.0001.
            ends_after=None if math.isinf(limit) else math.ceil(limit - 1e-6),
            time_limit=time_limit,
            camera=camera,
        )
        self._time_step: Any = None
        self._lender: SuiteEnv | None = None
        self._tracers: dict[tuple[int, int, int], RayTracer] = {}

    def decisions_per_second(self) -> float:
        return 1.0 / (float(self._env.control_timestep()) * self.action_repeat)

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            # Every suite task samples its start, and nothing later, from this generator.
            self._env.task._random = _generator(seed)
        try:
            self._time_step = self._env.reset()
        except RuntimeError as error:
            if "rendering backend" not in str(error):
                raise
            # quadruped_escape uploads its terrain to OpenGL, rendered or not.
            raise KstepError(f"{self} needs rendering even for states: {error}") from error

    def _simulate(self, action: Array) -> tuple[float, bool, bool]:
        try:
            self._time_step = self._env.step(action)
        except PhysicsError as error:
            raise KstepError(f"the simulation of {self} diverged: {error}") from error
        last = bool(self._time_step.last())
        # The suite's discount is 0 in a terminal state and 1 at its time limit.
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

    def draw_with(self, other: ControlEnv) -> None:
        # A context holds meshes, textures and height fields. The first two are the model's; height
        # fields change with each episode, so they cannot be shared.
        if isinstance(other, SuiteEnv) and not self._physics.model.nhfield:
            self._lender = other

    def quantities(self) -> dict[str, float]:
        """Return every joint's position and velocity.

        An angle without limits is returned as sine and cosine: full turns look the same.
        """
        model, data = self._physics.model, self._physics.data
        found: dict[str, float] = {}
        for joint in range(model.njnt):
            name = model.id2name(joint, "joint") or f"joint {joint}"
            kind, at, speed = (
                int(array[joint]) for array in (model.jnt_type, model.jnt_qposadr, model.jnt_dofadr)
            )
            positions, velocities = JOINT_SIZES[kind]
            if kind == HINGE and not model.jnt_limited[joint]:
                found[f"sin {name}"] = math.sin(data.qpos[at])
                found[f"cos {name}"] = math.cos(data.qpos[at])
            else:
                found |= _numbered(name, data.qpos[at : at + positions])
            found |= _numbered(f"{name} velocity", data.qvel[speed : speed + velocities])
        return found

    def _draw(self, height: int, width: int, camera: int) -> Array:
        self._check_camera(camera)
        owner = self._lender or self
        if self._renderer == "raytraced":
            tracer = owner._tracer(height, width, camera)
            return tracer.draw(self._physics.data.ptr, self._physics.model.ptr)
        for _ in range(RENDERING_TRIES):
            try:
                owner._make_room(height, width)
                self._physics._contexts = owner._physics.contexts
                return np.array(self._physics.render(height, width, camera_id=camera), np.uint8)
            except RuntimeError as error:
                failure = error
                # Rendering changes no state, so a new context renders the same frame.
                with contextlib.suppress(RuntimeError):
                    owner._free_contexts()
        gl.forget()
        raise RendererFailed(
            f"{self} cannot be rendered ({failure}); `python -m kstep.envs.gl --check` says why"
        ) from failure

    def _tracer(self, height: int, width: int, camera: int) -> RayTracer:
        """Return the tracer of frames of this size, made with the first of them."""
        key = (height, width, camera)
        if key not in self._tracers:
            self._tracers[key] = RayTracer(self._physics.model.ptr, *key)
        return self._tracers[key]

    def _make_room(self, height: int, width: int) -> None:
        """Enlarge the rendering buffer where a frame, of a film, would not fit."""
        buffer = self._physics.model.vis.global_
        if height <= buffer.offheight and width <= buffer.offwidth:
            return
        buffer.offheight = max(buffer.offheight, height)
        buffer.offwidth = max(buffer.offwidth, width)
        self._free_contexts()  # the next frame makes new ones at this size

    def _free_contexts(self) -> None:
        with self._physics._contexts_lock:
            if self._physics._contexts:
                self._physics._free_rendering_contexts()

    def close(self) -> None:
        """Free the simulator and its OpenGL context; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._running = False
            if self._lender is not None:
                self._physics._contexts = None  # not ours to free
            self._physics.free()
        super().close()


def _numbered(name: str, values: Array) -> dict[str, float]:
    if len(values) == 1:
        return {name: float(values[0])}
    return {f"{name} {i}": float(value) for i, value in enumerate(values)}


def _generator(seed: int) -> np.random.RandomState:
    """Return the suite's kind of generator, whose own seeds have at most 32 bits."""
    if seed < 2**32:
        return np.random.RandomState(seed)
    return np.random.RandomState(np.random.SeedSequence(seed).generate_state(8))


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Suppress MuJoCo's deprecation warnings about the suite's own model files."""

    def is_other(record: logging.LogRecord) -> bool:
        return "deprecated" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)
