"""Stepping and rendering the task, with every renderer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import numpy as np

from kstep import envs
from kstep.bench.sizes import Size
from kstep.bench.timing import Candidate
from kstep.envs import ControlEnv, EnvConfig
from kstep.types import KstepError, Renderer

NAMES: tuple[Renderer, ...] = get_args(Renderer)
USUAL: Renderer = EnvConfig.renderer
"""What a run uses by default."""


def candidates(
    size: Size, threads: int, notice: Callable[[str], None], names: Sequence[Renderer] = NAMES
) -> list[Candidate]:
    """Frames, and complete decisions: simulate, then render. Renderers that fail are reported."""
    found = []
    for name in names:
        try:
            env = envs.make(replace(size.experiment("ksl").env, renderer=name), seed=1)
            env.reset(seed=1)
        except (KstepError, ImportError) as error:
            notice(f"renderer {name}: left out ({error})")
            continue
        found += _of(env, name, size.frames, threads)
    return found


def names_of(renderer: Renderer) -> tuple[str, str]:
    """Return the names of what is timed: a frame, and a complete decision."""
    return f"frame/{renderer}", f"decision/{renderer}"


def _of(env: ControlEnv, name: Renderer, count: int, threads: int) -> list[Candidate]:
    rng = np.random.default_rng(0)
    actions = env.action_space.shape or ()

    def render() -> None:
        for _ in range(count):
            env.current_frame()

    def decide() -> None:
        for _ in range(count):
            _, _, terminated, truncated, _ = env.step(rng.uniform(-1, 1, actions))
            if terminated or truncated:
                env.reset(seed=1)

    works = zip(names_of(name), (render, decide), strict=True)
    return [Candidate(label, work, count, threads) for label, work in works]
