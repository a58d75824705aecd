"""A video of a run's policy, at any size and from any camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imageio.v2 as imageio

from kstep.run.episode import Episode
from kstep.run.evaluate import Evaluation, evaluate, evaluation_seeds
from kstep.run.load import opened
from kstep.types import KstepError


def film(
    run: Path,
    output: Path,
    *,
    height: int = 480,
    width: int = 640,
    camera: int | None = None,
    fps: float | None = None,
    episodes: int = 1,
    seed: int = 0,
    device: str = "cpu",
) -> Evaluation:
    """Film greedy episodes of a run's newest checkpoint; nothing is left behind if that fails.

    `camera` None: the one the agent sees through. `fps` None: real time, from the simulator's own
    clock where it has one. The same seed repeats the same starts.
    """
    for name, side in (("--height", height), ("--width", width)):
        if not 16 <= side <= 4096 or side % 2:
            raise KstepError(f"{name} must be an even number from 16 to 4096, not {side}")
    if output.suffix not in (".mp4", ".mkv", ".mov", ".gif"):
        raise KstepError(f"--output must end in .mp4, .mkv, .mov or .gif, not '{output.name}'")
    if output.exists():
        raise KstepError(f"{output} exists already; choose another --output")
    aside = output.with_name(f"{output.stem}.part{output.suffix}")
    with opened(run, device) as (agent, [env], _):
        output.parent.mkdir(parents=True, exist_ok=True)
        rate = fps or env.decisions_per_second()
        try:
            writer: Any
            with imageio.get_writer(aside, fps=rate, macro_block_size=2, quality=8) as writer:

                def shoot(episode: Episode) -> None:
                    writer.append_data(env.film_frame(height, width, camera))

                seeds = evaluation_seeds(seed, -1, episodes)
                result = evaluate(agent, [env], seeds, on_step=shoot)
            aside.rename(output)
        finally:
            aside.unlink(missing_ok=True)
    return result
