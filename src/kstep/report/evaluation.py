"""`kstep eval`: greedy episodes of a run's newest checkpoint, every return printed."""

from __future__ import annotations

from pathlib import Path

from kstep.run.evaluate import evaluate, evaluation_seeds
from kstep.run.load import opened
from kstep.terminal import say, terminal


def show(
    run: Path, *, episodes: int, seed: int, device: str = "cpu", at: int | None = None
) -> None:
    """Evaluate the run's policy and print its returns; the same seed repeats the same starts."""
    console = terminal()
    with opened(run, device, lanes=episodes, at=at) as (agent, lanes, counts):
        say(console, str(lanes[0].sight))
        result = evaluate(agent, lanes, evaluation_seeds(seed, -1, episodes))
    say(
        console,
        f"{run} at {counts.env_steps:,} env steps, {counts.decisions:,} decisions, "
        f"{counts.updates:,} updates",
    )
    for number, value in enumerate(result.returns, start=1):
        say(console, f"  episode {number:>3}: {value:8.2f}")
    say(console, f"mean {result.mean:.2f}, standard deviation over episodes {result.std:.2f}")
