"""Evaluation: greedy episodes in environments of their own, every return kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kstep.agent import Agent
from kstep.rng import episode_seed
from kstep.run.episode import Episode

if TYPE_CHECKING:
    from kstep.envs import ControlEnv


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
    def std(self) -> float:
        """Standard deviation over episodes (not over seeds)."""
        return float(np.std(self.returns))


def evaluation_seeds(seed: int, mark: int, episodes: int) -> list[int]:
    """Return the episode seeds of the evaluation at `mark`: the same whenever it is repeated."""
    return [episode_seed(seed, f"evaluate at {mark}", index) for index in range(episodes)]


def evaluate(
    agent: Agent,
    lanes: Sequence[ControlEnv],
    seeds: Sequence[int],
    on_step: Callable[[Episode], None] | None = None,
) -> Evaluation:
    """Run one greedy episode per seed. Changes nothing in the agent, not even a random stream.

    As many episodes at a time as there are environments, in lock step: one pass through the
    networks decides for all of them.
    """
    finished: list[Episode] = []
    for first in range(0, len(seeds), len(lanes)):
        batch = seeds[first : first + len(lanes)]
        episodes = [Episode(env, agent.method.stack) for env in lanes[: len(batch)]]
        for episode, seed in zip(episodes, batch, strict=True):
            episode.start(seed)
        running = episodes
        while running:
            if on_step is not None:
                for episode in running:
                    on_step(episode)
            observations = np.stack([episode.observation for episode in running])
            actions = agent.act(observations, explore=False)
            for episode, action in zip(running, actions, strict=True):
                episode.begin(action)
            running = [episode for episode in running if not episode.finish().done]
        finished += episodes
    returns = tuple(episode.total_reward for episode in finished)
    return Evaluation(returns, tuple(len(episode.actions) for episode in finished))
