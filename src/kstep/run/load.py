"""Opening a finished or running run to look at what its policy does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kstep import envs
from kstep.agent import Agent
from kstep.envs import ControlEnv
from kstep.rng import Streams
from kstep.run import policies, system, trust
from kstep.run.folder import Run
from kstep.terminal import Terminal, say
from kstep.types import Counts


def _say_passed_over(problem: str) -> None:
    say(Terminal(stderr=True), f"left out: {problem}")


@contextmanager
def opened(
    folder: Path, device: str = "cpu", lanes: int = 1, at: int | None = None
) -> Iterator[tuple[Agent, list[ControlEnv], Counts]]:
    """Yield the run's agent, fresh environments, and how far it is: its newest weights, or those of
    a checkpoint or a saved policy at these env_steps."""
    run = Run.open(folder)
    trust.require(run)
    made = envs.make_lanes(run.experiment.env, run.experiment.seed, lanes)
    try:
        streams = Streams(run.experiment.seed, system.device(device))
        agent = Agent(run.experiment.method, envs.spec_of(made[0]), streams, device)
        yield agent, made, policies.weights(run, agent, _say_passed_over, at)
    finally:
        envs.close_lanes(made)
