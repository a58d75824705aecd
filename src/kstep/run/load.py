"""Opening a finished or running run to look at what its policy does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kstep import envs
from kstep.agent import Agent
from kstep.envs import ControlEnv
from kstep.rng import Streams
from kstep.run import checkpoint, policies, system, trust
from kstep.run.folder import Run
from kstep.terminal import Terminal, say
from kstep.types import Counts, KstepError


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
        yield agent, made, weights(run, agent, at)
    finally:
        envs.close_lanes(made)


def only_policy(run: Run, at: int | None = None) -> Path | None:
    """Return the file of a policy, which can act but not learn, if that is all there is of a run at
    these env_steps, or at its newest moment."""
    if at is None:
        return run.policy_file if run.policy_file.exists() else None
    return next((path for path in run.saved_policies() if int(path.stem) == at), None)


def weights(run: Run, agent: Agent, at: int | None = None) -> Counts:
    """Load a run's newest weights, or those at these env_steps, for acting only."""
    policy = only_policy(run, at)
    if policy is not None:
        return policies.load(run, agent, policy)
    seen: list[int] = []

    def chosen(state: checkpoint.Weights) -> None:
        seen.append(state.counts.env_steps)
        if at is not None and state.counts.env_steps != at:
            raise KstepError(f"it is at {state.counts.env_steps:,} env steps")

    try:
        return checkpoint.load_weights(run, agent, _say_passed_over if at is None else None, chosen)
    except KstepError:
        if at is None or at in seen:
            raise
    saved = [int(path.stem) for path in run.saved_policies()]
    have = ", ".join(f"{mark:,}" for mark in sorted({*saved, *seen})) or "none"
    raise KstepError(
        f"{run.folder} has no policy at {at:,} env steps; it has: {have}. "
        "kstep train --save-policies-every N keeps more of them"
    )
