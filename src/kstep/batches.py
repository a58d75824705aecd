"""What one update learns from: drawn from the replay, augmented, on the learning device.

Three arrangements, all of them values of a method: transitions and, apart from them, sequences for
the auxiliary task (KSL); transitions whose views that task shares (CURL, SAC-AE, Proto-RL);
sequences whose first transition serves the reinforcement-learning loss (PI-SAC, `aligned`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kstep import augment
from kstep.auxiliary.base import AuxiliaryTask
from kstep.methods.base import Method
from kstep.replay import Replay
from kstep.rng import Streams
from kstep.types import Array, SequenceBatch, TransitionBatch, to_device


@dataclass
class Drawn:
    """What one update learns from."""

    replay: Replay
    transitions: TransitionBatch
    sequences: SequenceBatch | None = None
    """Where transitions are the beginnings of sequences."""
    slow_latents: Tensor | None = None
    """(T * B, D) of all observations but the first, where both losses need some of them."""
    latent: Tensor | None = None
    """(B, D) of the first observations, with its graph, where it serves both losses."""
    prepared: TransitionBatch | None = None
    """The transitions as the core takes them, once the agent has prepared them."""
    bonus: Tensor | None = None
    """The mean of the auxiliary task's reward, where it gives one."""


class Batches:
    """Draws batches for one method."""

    def __init__(
        self, method: Method, task: AuxiliaryTask | None, streams: Streams, device: torch.device
    ) -> None:
        """`task` is looked at for what it needs: its horizon and whether it wants another view."""
        self.method = method
        self.horizon = task.horizon if task else 0
        self.second_view = task.second_view if task else False
        self.streams = streams
        self.device = device
        self.augment = augment.build(method.augment)
        self.sequence_augment = augment.build(method.sequence_augment)

    def draw(self, replay: Replay) -> Drawn:
        """Draw the transitions of one update, with the sequences they begin where aligned."""
        if not self.method.learning.aligned:
            return Drawn(replay, self._transitions(replay))
        sequences = self._own_sequences(replay)
        first = TransitionBatch(
            observation=sequences.observation[:, 0],
            action=sequences.action[:, 0],
            reward=sequences.reward[:, 0],
            next_observation=sequences.observation[:, 1],
            bootstrap=sequences.bootstrap[:, 0],
        )
        return Drawn(replay, first, sequences)

    def sequences(self, drawn: Drawn) -> SequenceBatch:
        """Return what the auxiliary task learns from in the same update."""
        if drawn.sequences is not None:
            return drawn.sequences
        if self.horizon > 0:
            return self._own_sequences(drawn.replay)
        batch, size = drawn.transitions, self.method.learning.batch_size
        return SequenceBatch(
            observation=torch.stack(
                (batch.observation[:size], batch.next_observation[:size]), dim=1
            ),
            action=batch.action[:size, None],
            reward=batch.reward[:size, None],
            bootstrap=batch.bootstrap[:size, None],
            second_view=batch.second_view,
        )

    def _transitions(self, replay: Replay) -> TransitionBatch:
        """Draw a batch and augment it; with several views they stand one after the other."""
        batch = replay.transitions(self.method.learning.batch_size, self.streams.replay)
        views = self.method.sac.critic_views
        pairs = [
            self.augment.train_pair(batch.observation, batch.next_observation, self.streams.augment)
            for _ in range(views)
        ]

        def joined(side: int) -> Tensor:
            drawn = [pair[side] for pair in pairs]
            return self._tensor(drawn[0] if views == 1 else np.concatenate(drawn))

        def repeated(values: Array) -> Tensor:
            return self._tensor(values).repeat(views, *[1] * (values.ndim - 1))

        second = None
        if self.second_view:
            second = self._tensor(self.augment.train_view(batch.observation, self.streams.augment))
        return TransitionBatch(
            observation=joined(0),
            action=repeated(batch.action),
            reward=repeated(batch.reward),
            next_observation=joined(1),
            bootstrap=repeated(batch.bootstrap),
            second_view=second,
        )

    def _own_sequences(self, replay: Replay) -> SequenceBatch:
        batch = replay.sequences(
            self.method.learning.batch_size,
            self.horizon,
            self.streams.replay,
            rule=self.method.sequence_rule,
        )
        view = self.sequence_augment.train_view(batch.observation, self.streams.augment)
        return SequenceBatch(
            observation=self._tensor(view),
            action=self._tensor(batch.action),
            reward=self._tensor(batch.reward),
            bootstrap=self._tensor(batch.bootstrap),
        )

    def _tensor(self, array: Array) -> Tensor:
        return to_device(array, self.device)
