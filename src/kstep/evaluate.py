"""Evaluation: greedy episodes in an environment of their own, every return kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from kstep.agent import Agent
from kstep.envs import ControlEnv
from kstep.episode import Episode
from kstep.rng import episode_seed


@dataclass(frozen=True)
class Evaluation:
    """The returns of one policy, one per episode."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    """Decisions per episode."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def spread(self) -> float:
        """Standard deviation over episodes (not over seeds)."""
        return float(np.std(self.returns))


def evaluation_seeds(seed: int, mark: int, episodes: int) -> list[int]:
    """Return the episode seeds of the evaluation at `mark`: the same whenever it is repeated."""
    return [episode_seed(seed, f"evaluate at {mark}", index) for index in range(episodes)]


def evaluate(
    agent: Agent,
    env: ControlEnv,
    seeds: Iterable[int],
    on_step: Callable[[Episode], None] | None = None,
) -> Evaluation:
    """Run one greedy episode per seed. Changes nothing in the agent, not even a random stream."""
    returns, lengths = [], []
    for seed in seeds:
        episode = Episode(env, agent.method.stack)
        episode.start(seed)
        done = False
        while not done:
            if on_step is not None:
                on_step(episode)
            done = episode.step(agent.act(episode.observation[None], explore=False)[0]).done
        returns.append(episode.total_reward)
        lengths.append(len(episode.actions))
    return Evaluation(tuple(returns), tuple(lengths))
