"""Environments: a task's name in; frames or states, and rewards, out.

Heavy packages are imported when an environment is made: the toy tasks never import MuJoCo.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kstep.envs.base import ControlEnv as ControlEnv
from kstep.envs.base import spec_of as spec_of
from kstep.envs.base import try_out as try_out
from kstep.envs.tasks import PLANET as PLANET
from kstep.envs.tasks import names as names
from kstep.envs.tasks import parse as parse
from kstep.types import ObservationKind, Renderer
from kstep.values import Count, Name, Positive


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and what the agent sees of it."""

    task: Name
    """domain_task of the control suite, gym:<id>, toy_reach or toy_glide."""
    observation: ObservationKind = "pixels"
    size: Positive = 84
    """Height and width of a frame; unused for states."""
    action_repeat: Positive | None = None
    """None: the task's own."""
    camera: Count | None = None
    """None: the task's own."""
    renderer: Renderer = "exact"
    """How a task of the suite is rendered. exact: as dm_control does. quick: the same with a shadow
    map of 512 instead of 2048 and a buffer no larger than the frame; twice as fast, hardly
    distinguishable. raytraced: no OpenGL, much faster, but different images (`fast-render`)."""


def make(config: EnvConfig, seed: int, *, apart: bool = False) -> ControlEnv:
    """Make an environment; `seed` is for the generator of `reset()` calls without a seed.

    `apart`: in a process of its own, so that it can step while this one learns.
    """
    task = parse(config.task)
    if apart:
        from kstep.envs.worker import RemoteEnv

        return RemoteEnv(config, seed)
    repeat = task.action_repeat if config.action_repeat is None else config.action_repeat
    options: Any = {"observation": config.observation, "size": config.size}
    options |= {"action_repeat": repeat, "seed": seed}
    if task.kind == "toy":
        from kstep.envs.toy import ToyEnv

        return ToyEnv(task.task, **options)
    if task.kind == "gym":
        from kstep.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(task.task, **options)
    _prepare_suite(needs_gl=config.observation == "pixels" and config.renderer != "raytraced")
    from kstep.envs.dmc import SuiteEnv

    camera = task.camera if config.camera is None else config.camera
    return SuiteEnv(task, camera=camera, renderer=config.renderer, **options)


MOST_LANES = 10


def make_lanes(config: EnvConfig, seed: int, number: int) -> list[ControlEnv]:
    """Make environments to step in parallel: `number` of them, ten at most.

    They share one rendering context where possible; each of its own would take 70 MB.
    """
    lanes = [make(config, seed)]
    try:
        while len(lanes) < min(number, MOST_LANES):
            lanes.append(make(config, seed))
            lanes[-1].draw_with(lanes[0])
    except BaseException:
        close_lanes(lanes)
        raise
    return lanes


def close_lanes(lanes: Sequence[ControlEnv]) -> None:
    """Close them, the owner of the shared rendering context last."""
    for env in reversed(lanes):
        env.close()


def rendering(config: EnvConfig) -> str:
    """Return one line about how frames are rendered."""
    if config.observation == "state":
        return "rendering: none, the agent sees the state"
    kind = parse(config.task).kind
    if kind == "suite":
        if config.renderer == "raytraced":
            return "rendering: ray traced without OpenGL, not to be compared with other renderers"
        from kstep.envs import gl

        described = gl.describe(gl.choose())
        return described if config.renderer == "exact" else f"{described}, {config.renderer}"
    return f"rendering: the {'toy' if kind == 'toy' else 'environment'}'s own"


def renderer(config: EnvConfig) -> str:
    """Return an identifier of the renderer: equal wherever the pixels are equal."""
    opengl = config.renderer != "raytraced"
    if config.observation == "pixels" and parse(config.task).kind == "suite" and opengl:
        from kstep.envs import gl

        return gl.choose().device
    return rendering(config).removeprefix("rendering: ")


def _prepare_suite(*, needs_gl: bool) -> None:
    """Choose how MuJoCo renders before dm_control is imported; not everything needs OpenGL."""
    from kstep.envs import gl

    if not gl.prepare(required=needs_gl):
        # By default dm_control tries every library and can fail with an exception that PyOpenGL
        # raises for a missing one. The setting is read once, at this import.
        user = os.environ.get("MUJOCO_GL")
        os.environ["MUJOCO_GL"] = "disabled"
        try:
            import kstep.envs.dmc  # noqa: F401
        finally:
            if user is None:
                del os.environ["MUJOCO_GL"]
            else:
                os.environ["MUJOCO_GL"] = user
