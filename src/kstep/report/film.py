"""A video of what a run's policy does, at any size and from any camera."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import imageio.v2 as imageio

from kstep.agent import Agent
from kstep.envs import ControlEnv
from kstep.run.episode import Episode
from kstep.run.evaluate import Evaluation, evaluate
from kstep.types import KstepError


@dataclass(frozen=True)
class FilmConfig:
    """What the video looks like."""

    height: int = 480
    width: int = 640
    camera: int | None = None
    """None: the camera the agent sees through."""
    fps: float | None = None
    """None: real time, from the simulator's own clock where it has one."""


def film(
    agent: Agent, env: ControlEnv, seeds: list[int], path: Path, config: FilmConfig
) -> Evaluation:
    """Film one greedy episode per seed into `path`; nothing is left behind if it fails."""
    for name, side in (("--height", config.height), ("--width", config.width)):
        if not 16 <= side <= 4096 or side % 2:
            raise KstepError(f"{name} must be an even number from 16 to 4096, not {side}")
    if config.fps is not None and config.fps <= 0:
        raise KstepError(f"--fps must be positive, not {config.fps:g}")
    if path.suffix not in (".mp4", ".mkv", ".mov", ".gif"):
        raise KstepError(f"--output must end in .mp4, .mkv, .mov or .gif, not '{path.name}'")
    if not seeds:
        raise KstepError("--episodes must be at least 1")
    if path.exists():
        raise KstepError(f"{path} exists already; choose another --output")
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.stem}.part{path.suffix}")
    fps = config.fps or env.decisions_per_second()
    try:
        writer: Any
        with imageio.get_writer(aside, fps=fps, macro_block_size=2, quality=8) as writer:

            def shoot(episode: Episode) -> None:
                writer.append_data(env.film_frame(config.height, config.width, config.camera))

            result = evaluate(agent, [env], seeds, on_step=shoot)
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    return result
