"""Transitions over several decisions, for cores that learn from n-step returns.

    R = r_0 + g r_1 + ... + g^(m-1) r_(m-1),  m = n, or fewer where the episode or a life ends
    y = R + g^m V(s_m)                        no V where s_m is terminal; a time limit keeps it

A transition over m decisions has the form of one over a single decision: R is its reward, and its
bootstrap is g^(m-1), or 0, so that a core multiplies the value of the last state by `bootstrap` and
`discount` as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kstep.data.batches import Batch, Batches
from kstep.data.replay import Replay, Sequences
from kstep.rng import Streams

if TYPE_CHECKING:
    from kstep.methods.base import Method


def transitions(
    replay: Replay, size: int, n: int, discount: float, rng: np.random.Generator
) -> Sequences:
    """Draw `size` transitions over n decisions, uniformly over all starts of at least one."""
    start = replay.starts(size, 1, rng, "any")
    action, reward, bootstrap, inside = replay.steps(start[:, None] + np.arange(n))
    inside[:, 1:] &= np.logical_and.accumulate(bootstrap[:, :-1] > 0, axis=1)
    decisions = inside.sum(1)
    weights = np.power(discount, np.arange(n), dtype=reward.dtype)
    last = bootstrap[np.arange(size), decisions - 1] * weights[decisions - 1]
    return Sequences(
        observation=replay.stacks(np.stack((start, start + decisions), axis=1)),
        action=action[:, :1],
        reward=(reward * weights * inside).sum(1, keepdims=True),
        bootstrap=last[:, None],
    )


class NStepBatches(Batches):
    """Batches whose transitions span n decisions; the auxiliary task draws its own, of single
    decisions, also where it would share the critic's."""

    def __init__(
        self, method: Method, streams: Streams, device: torch.device, n: int, discount: float
    ) -> None:
        super().__init__(method, streams, device)
        self.n, self.discount = n, discount

    def draw(self, replay: Replay, *, sequences: bool) -> Batch:
        drawn = transitions(replay, self.size, self.n, self.discount, self.streams.replay)
        batch, own = Batch(self._transitions(drawn), None), self.own
        if self.auxiliary is None or not sequences:
            return batch
        if own is None:
            return Batch(batch.transitions, super().draw(replay, sequences=True).sequences)
        found = self._sequences(replay, own.augment, own.sampling)
        return Batch(batch.transitions, found)
