"""What one update learns from: drawn from the replay, augmented, on the learning device.

Three arrangements, by what the auxiliary task declares: sequences of its own beside the critic's
transitions (KSL); the very views of the critic's transitions (CURL, SAC-AE, Proto-RL); windows
whose first transition is the critic's (PI-SAC).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kstep.data.replay import Replay, Rule, Sequences, Stacks
from kstep.rng import Streams
from kstep.types import SequenceBatch, TransitionBatch, View

if TYPE_CHECKING:
    from kstep.data.augment import Augment
    from kstep.methods.base import Method


@dataclass(frozen=True)
class Batch:
    """What one update learns from."""

    transitions: TransitionBatch
    sequences: SequenceBatch | None
    """What the auxiliary task learns from; None in an update without it."""


class Batches:
    """Draws the batches of one method."""

    def __init__(self, method: Method, streams: Streams, device: torch.device) -> None:
        self.size, self.views = method.learning.batch_size, method.core.critic_views
        self.augment, self.auxiliary = method.augment, method.auxiliary
        self.own = method.auxiliary.own_sequences if method.auxiliary is not None else None
        self.horizon = method.auxiliary.horizon if method.auxiliary is not None else 1
        self.streams, self.device = streams, device

    def draw(self, replay: Replay, *, sequences: bool) -> Batch:
        """Draw a batch; with `sequences` also what the auxiliary task learns from."""
        auxiliary, streams = self.auxiliary, self.streams
        if auxiliary is not None and auxiliary.shares_windows:
            windows = self._sequences(replay, self.augment)
            return Batch(_first_transition(windows), windows)
        drawn = replay.sequences(self.size, 1, streams.replay)
        transitions = self._transitions(drawn)
        if auxiliary is None or not sequences:
            return Batch(transitions, None)
        if self.own is None:
            return Batch(transitions, self._same_views(transitions, drawn.observation.at(0)))
        return Batch(transitions, self._sequences(replay, self.own.augment, self.own.sampling))

    def _transitions(self, drawn: Sequences) -> TransitionBatch:
        """Make `views` random views of each observation, one after the other."""
        rng, views = self.streams.augment, self.views
        found = [
            self.augment.train_view(drawn.observation.at(t), rng)
            for _ in range(views)
            for t in (0, 1)
        ]
        rest = (drawn.action[:, 0], drawn.reward[:, 0], drawn.bootstrap[:, 0])
        action, reward, bootstrap, *pairs = to_device(self.device, *rest, *found)
        first, second = pairs if views == 1 else (torch.cat(pairs[t::2]) for t in (0, 1))
        return TransitionBatch(
            observation=first,
            action=action.repeat(views, 1),
            reward=reward.repeat(views),
            next_observation=second,
            bootstrap=bootstrap.repeat(views),
        )

    def _sequences(self, replay: Replay, augment: Augment, rule: Rule = "any") -> SequenceBatch:
        drawn = replay.sequences(self.size, self.horizon, self.streams.replay, rule=rule)
        view = augment.train_view(drawn.observation, self.streams.augment)
        rest = (drawn.action, drawn.reward, drawn.bootstrap)
        observation, action, reward, bootstrap = to_device(self.device, view, *rest)
        return SequenceBatch(observation, action, reward, bootstrap, second_view=observation[:, 0])

    def _same_views(self, batch: TransitionBatch, first: Stacks) -> SequenceBatch:
        """Return the critic's first views as sequences of one transition."""
        size, second_view = self.size, batch.observation[: self.size]
        if self.auxiliary is not None and self.auxiliary.second_view:
            view = self.augment.train_view(first, self.streams.augment)
            (second_view,) = to_device(self.device, view)
        return SequenceBatch(
            observation=torch.stack(
                (batch.observation[:size], batch.next_observation[:size]), dim=1
            ),
            action=batch.action[:size, None],
            reward=batch.reward[:size, None],
            bootstrap=batch.bootstrap[:size, None],
            second_view=second_view,
        )


def _first_transition(windows: SequenceBatch) -> TransitionBatch:
    return TransitionBatch(
        observation=windows.observation[:, 0],
        action=windows.action[:, 0],
        reward=windows.reward[:, 0],
        next_observation=windows.observation[:, 1],
        bootstrap=windows.bootstrap[:, 0],
    )


def to_device(device: torch.device, *arrays: View) -> list[Tensor]:
    """Return the arrays as tensors on `device`, without a copy where none is needed."""
    tensors = [torch.as_tensor(array) for array in arrays]
    if device.type == "cuda":  # only from pinned memory does the transfer leave the processor free
        tensors = [tensor if tensor.is_cuda else tensor.pin_memory() for tensor in tensors]
    return [tensor.to(device, non_blocking=True) for tensor in tensors]
