"""Environments: a task's name in, frames or states and rewards out.

Everything heavy is imported when an environment is made: the toys never import MuJoCo.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from kstep.envs.base import ControlEnv, spec_of, try_out
from kstep.envs.tasks import PLANET, Task, names, parse
from kstep.types import KstepError, ObservationKind

__all__ = [
    "PLANET",
    "ControlEnv",
    "EnvConfig",
    "Task",
    "make",
    "names",
    "parse",
    "renderer",
    "rendering",
    "spec_of",
    "try_out",
]


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and what of it is seen."""

    task: str
    """domain_task of the control suite, gym:<id>, toy_reach or toy_glide."""
    observation: ObservationKind = "pixels"
    size: int = 84
    """Height and width of a frame; unused for states."""
    action_repeat: int | None = None
    """None: the task's own."""
    camera: int | None = None
    """None: the task's own."""


def make(config: EnvConfig, seed: int, *, apart: bool = False) -> ControlEnv:
    """Make an environment; `seed` starts the generator that `reset()` without a seed draws from.

    `apart`: in a process of its own, so that it can move while this one learns.
    """
    task = parse(config.task)
    if apart:
        from kstep.envs.worker import RemoteEnv

        return RemoteEnv(config, seed)
    repeat = task.action_repeat if config.action_repeat is None else config.action_repeat
    camera = task.camera if config.camera is None else config.camera
    if task.kind == "toy":
        from kstep.envs.toy import ToyEnv

        return ToyEnv(
            task.task,
            observation=config.observation,
            size=config.size,
            action_repeat=repeat,
            seed=seed,
        )
    if task.kind == "gym":
        from kstep.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(
            task.task,
            observation=config.observation,
            size=config.size,
            action_repeat=repeat,
            seed=seed,
        )
    _prepare_suite(config.observation)
    from kstep.envs.dmc import SuiteEnv

    return SuiteEnv(
        task,
        observation=config.observation,
        size=config.size,
        action_repeat=repeat,
        camera=camera,
        seed=seed,
    )


def rendering(config: EnvConfig) -> str:
    """Say in one line how frames are made."""
    if config.observation == "state":
        return "rendering: none, the agent sees the state"
    kind = parse(config.task).kind
    if kind == "suite":
        from kstep.envs import gl

        return gl.describe(gl.choose())
    return f"rendering: the {'toy' if kind == 'toy' else 'environment'}'s own"


def renderer(config: EnvConfig) -> str:
    """Name what draws, the same wherever the same pixels come out."""
    if config.observation == "pixels" and parse(config.task).kind == "suite":
        from kstep.envs import gl

        return gl.choose().device
    return rendering(config).removeprefix("rendering: ")


def _prepare_suite(observation: ObservationKind) -> None:
    """Settle how MuJoCo draws before dm_control is imported; states may do without."""
    from kstep.envs import gl

    try:
        gl.choose()
    except KstepError:
        if observation == "pixels":
            raise
        # Left to itself, dm_control tries every library and can die of an exception that
        # PyOpenGL raises for a missing one. The setting is read once, at this import.
        user = os.environ.get("MUJOCO_GL")
        os.environ["MUJOCO_GL"] = "disabled"
        try:
            import kstep.envs.dmc  # noqa: F401
        finally:
            if user is None:
                del os.environ["MUJOCO_GL"]
            else:
                os.environ["MUJOCO_GL"] = user
