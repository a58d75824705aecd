"""A video of a run's policy, at any size and from any camera."""

from __future__ import annotations

from pathlib import Path

from kstep.analysis.video import video
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
    with opened(run, device) as (agent, [env], _):
        output.parent.mkdir(parents=True, exist_ok=True)
        rate = fps or env.decisions_per_second()
        with video(output, fps=rate, quality=8) as add:

            def shoot(episode: Episode) -> None:
                add(env.film_frame(height, width, camera))

            seeds = evaluation_seeds(seed, -1, episodes)
            return evaluate(agent, [env], seeds, on_step=shoot)
