"""Stepping and rendering the task, with every renderer."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from kstep import envs
from kstep.bench.sizes import TASK, Size
from kstep.bench.timing import Candidate
from kstep.envs import ControlEnv, EnvConfig
from kstep.types import KstepError

ONLY = "exact"
"""The name of the renderer where there is only one."""


def names() -> tuple[str, ...]:
    """Return the values of `EnvConfig.renderer`."""
    annotation = typing.get_type_hints(EnvConfig).get("renderer")
    return typing.get_args(annotation) or (ONLY,)


def usual() -> str:
    """Return what a run uses by default."""
    return str(getattr(EnvConfig(TASK), "renderer", ONLY))


def configured(size: Size, name: str) -> EnvConfig:
    config = size.experiment("ksl").env
    if not hasattr(config, "renderer"):
        return config
    changes: dict[str, Any] = {"renderer": name}
    return replace(config, **changes)


def candidates(
    size: Size, threads: int, notice: Callable[[str], None], only: str | None = None
) -> list[Candidate]:
    """Frames, and complete decisions: simulate, then render. Renderers that fail are reported."""
    found = []
    for name in names() if only is None else (only,):
        try:
            env = envs.make(configured(size, name), seed=1)
            env.reset(seed=1)
        except (KstepError, ImportError) as error:
            notice(f"renderer {name}: left out ({error})")
            continue
        found += _of(env, name, size.frames, threads)
    return found


def draw_name(renderer: str) -> str:
    return f"frame/{renderer}"


def decision_name(renderer: str) -> str:
    return f"decision/{renderer}"


def _of(env: ControlEnv, name: str, count: int, threads: int) -> list[Candidate]:
    rng = np.random.default_rng(0)
    actions = env.action_space.shape or ()

    def draw() -> None:
        for _ in range(count):
            env.current_frame()

    def decide() -> None:
        for _ in range(count):
            _, _, terminated, truncated, _ = env.step(rng.uniform(-1, 1, actions))
            if terminated or truncated:
                env.reset(seed=1)

    return [
        Candidate(draw_name(name), draw, count, threads),
        Candidate(decision_name(name), decide, count, threads),
    ]
