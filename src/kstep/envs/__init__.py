"""Environments: a task's name in; frames or states, and rewards, out.

Heavy packages are imported when an environment is made: the toy tasks never import MuJoCo, and what
a run has learned can be loaded where no simulator is installed, not even Gymnasium.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kstep.envs.tasks import PLANET as PLANET
from kstep.envs.tasks import names as names
from kstep.envs.tasks import parse as parse
from kstep.types import ObservationKind, Overlap, Renderer
from kstep.values import LATER, Count, Name, Positive

if TYPE_CHECKING:
    from kstep.envs.base import ControlEnv as ControlEnv
    from kstep.envs.base import spec_of as spec_of
    from kstep.envs.base import try_out as try_out


T = TypeVar("T")


def __getattr__(name: str) -> Any:
    if name in ("ControlEnv", "spec_of", "try_out"):
        from kstep.envs import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and what the agent sees of it."""

    task: Name
    """domain_task of the control suite, gym:<id>, gym:<module>:<id>, atari:<game>, minatar:<game>,
    toy_reach, toy_glide or toy_arrows."""
    observation: ObservationKind = "pixels"
    size: Positive = 84
    """Pixels of a frame's shorter side; unused for states."""
    action_repeat: Positive | None = None
    """None: the task's own."""
    camera: Count | None = None
    """None: the task's own."""
    renderer: Renderer = "exact"
    """How a task of the suite is rendered. exact: every pixel as dm_control has it. quick: the same
    with a shadow map of 512 instead of 2048; twice as fast, hardly distinguishable. raytraced: no
    OpenGL, much faster, but different images (`fast-render`)."""
    image: Name | None = field(default=None, metadata=LATER)
    """Where a Gymnasium environment's picture is: a key of its dictionary observation, several keys
    with commas, or `render` for what it draws. None: the images of the observation; if there are
    none, what it draws."""
    vector: Name | None = field(default=None, metadata=LATER)
    """Numbers that are seen beside the picture: a key of the dictionary observation, several keys
    with commas, or `none`. None: all that are beside an image in it."""
    resize: Name | None = field(default=None, metadata=LATER)
    """Height and width of a frame, such as 84x112; `square`: `size` by `size`; `none`: as the
    environment gives it. None: its shorter side is `size`, its shape is kept."""
    time_limit: Positive | None = field(default=None, metadata=LATER)
    """Env steps after which an episode is cut off. None: the task's own limit; where it has none,
    one must be set."""


def make(config: EnvConfig, seed: int) -> ControlEnv:
    """Make an environment; `seed` is for the generator of `reset()` calls without a seed."""
    task = parse(config.task)
    repeat = task.action_repeat if config.action_repeat is None else config.action_repeat
    options: Any = {
        "observation": config.observation,
        "size": config.size,
        "resize": config.resize,
        "action_repeat": repeat,
        "time_limit": config.time_limit,
        "seed": seed,
    }
    if task.kind == "toy":
        from kstep.envs.toy import ToyEnv

        return ToyEnv(task.task, **options)
    if task.kind == "atari":
        from kstep.envs.atari import AtariEnv

        return AtariEnv(task.task, **options)
    if task.kind == "minatar":
        from kstep.envs.minatar import MinAtarEnv

        return MinAtarEnv(task.task, **options)
    if task.kind == "gym":
        from kstep.envs.gymnasium import GymnasiumEnv

        return GymnasiumEnv(task.task, image=config.image, vector=config.vector, **options)
    _prepare_suite(needs_gl=config.observation == "pixels" and config.renderer != "raytraced")
    from kstep.envs.dmc import SuiteEnv

    camera = task.camera if config.camera is None else config.camera
    return SuiteEnv(task, camera=camera, renderer=config.renderer, **options)


def make_for_training(
    config: EnvConfig,
    seed: int,
    overlap: Overlap,
    timeout: float,
    report: Callable[[str], None],
) -> ControlEnv:
    """Make an environment that steps when and where `overlap` says."""
    if overlap == "here":
        return make(config, seed)
    return make_apart(config, seed, eager=overlap == "on", timeout=timeout, report=report)


def make_apart(config: EnvConfig, seed: int, **options: Any) -> ControlEnv:
    """Make an environment in a process of its own; `options` are those of `RemoteEnv`."""
    from kstep.envs.remote import RemoteEnv

    return RemoteEnv(parse(config.task).name, maker_of(config, seed, make), **options)


def maker_of(config: EnvConfig, seed: int, made: Callable[[EnvConfig, int], T]) -> Callable[[], T]:
    """Return what makes an environment, or something of it, in another process as well."""
    task = parse(config.task)
    # By its full name: the short one of an own environment is known here only.
    maker: Callable[[], T] = functools.partial(made, replace(config, task=task.name), seed)
    if task.kind == "gym":
        from kstep.envs.gymnasium import TakingRegistration

        return TakingRegistration(task.task, maker)
    return maker


def needs_process(config: EnvConfig) -> bool:
    """Whether an environment may hang, exit or crash: all but the toys and MinAtar, which are a few
    lines of NumPy each."""
    return parse(config.task).kind not in ("toy", "minatar")


def make_beside(config: EnvConfig, seed: int, other: ControlEnv) -> ControlEnv:
    """Make an environment in the process that another one runs in."""
    from kstep.envs.remote import RemoteEnv

    if isinstance(other, RemoteEnv):
        return make_apart(config, seed, beside=other)
    return make(config, seed)


MOST_LANES = 10


def make_lanes(
    config: EnvConfig, seed: int, number: int, beside: ControlEnv | None = None
) -> list[ControlEnv]:
    """Make environments to step in parallel: `number` of them, ten at most, all in the process of
    `beside`, or else in one of their own if they need one.

    They share one rendering context where possible; each of its own would take 70 MB.
    """
    if beside is not None:
        lanes = [make_beside(config, seed, beside)]
    else:
        lanes = [(make_apart if needs_process(config) else make)(config, seed)]
    try:
        while len(lanes) < min(number, MOST_LANES):
            lanes.append(make_beside(config, seed, lanes[0]))
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
