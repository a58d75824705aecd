"""What the agent has lived through: a ring of single frames that hands out random batches.

In: one frame per decision with its action, reward and end flags. Out: `Sequences` of raw frames,
neither augmented nor scaled. Every frame is stored once and stacks are put together when they are
looked at; storing both stacks of every transition would take six times the memory at a stack of
three. ring.py says how frames, actions and rewards are written and lie in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from kstep.data.ring import Ring
from kstep.types import Array, KstepError, View

if TYPE_CHECKING:  # the ring needs PyTorch only where frames are on a device
    from kstep.data.on_device import DeviceFrames

Rule: TypeAlias = Literal["any", "released"]


@dataclass(frozen=True)
class Stacks:
    """Observations not put together yet: a ring of frames, and which of them each one stacks.

    Whoever makes a view of them, shifted or cut, can do so in one pass over the frames.
    """

    ring: Array | DeviceFrames
    """(slots, *frame_shape), borrowed: later frames may overwrite it"""
    slots: Array
    """(..., S) integers"""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the observations, (..., S, *frame_shape)."""
        return (*self.slots.shape, *self.ring.shape[1:])

    def at(self, t: int) -> Stacks:
        """Return the t-th observation of every sequence (B, T, S): (B, S)."""
        return Stacks(self.ring, self.slots[:, t])

    def together(self) -> View:
        """Return the observations as one new array, where the frames are."""
        return self.ring.take(self.slots, axis=0)


@dataclass(frozen=True)
class Sequences:
    """B stretches of T consecutive steps, as the replay stores them; none crosses an episode's end.

    Neither augmented nor scaled. A transition is a sequence of one step.
    """

    observation: Stacks
    """(B, T + 1, S, ...)"""
    action: Array
    """(B, T, A) in [-1, 1], or one-hot"""
    reward: Array
    """(B, T) summed over action repeats"""
    bootstrap: Array
    """(B, T) 1.0 unless the next state is terminal; a time limit is not terminal"""


class ReplayUnderfilled(KstepError):
    """Nothing that was asked for can be sampled yet."""


class Replay(Ring):
    """The newest decisions, to be drawn from."""

    def __len__(self) -> int:
        """Return how many transitions can be sampled."""
        return self._held

    def sequences(self, n: int, k: int, rng: np.random.Generator, rule: Rule = "any") -> Sequences:
        """Draw n stretches of k decisions, with replacement, none across an episode's end.

        Rule "any": uniform over all starts, those in the running episode included.
        Rule "released": what KSL's released code does (the paper lets a stretch start anywhere):
        an episode is drawn first, then a start in it; the running episode is left out, and so are
        the last two starts of each episode. An episode that is partly forgotten still counts as
        one, with the starts it has left.
        """
        if k < 1:
            raise ValueError(f"a sequence needs k of at least 1, got {k}")
        start = self.starts(n, k, rng, rule)
        frames = start[:, None] + np.arange(k + 1)
        slots = frames[:, :-1] % self.slots
        return Sequences(
            observation=self.stacks(frames),
            action=self._action[slots],
            reward=self._reward[slots],
            bootstrap=self._bootstrap[slots],
        )

    def starts(self, n: int, k: int, rng: np.random.Generator, rule: Rule) -> Array:
        """Draw the first frames (n,) of stretches of k decisions."""
        # Per episode the starts are one range of frames, low .. low + count - 1. There are far
        # fewer episodes than frames, so they can be listed again for every draw.
        episodes = np.arange(self._oldest_episode, self._episodes)
        first = self._first[episodes % self.slots]
        end = np.append(first[1:], self._total)  # one past the last frame
        low = np.maximum(first, self._oldest)
        count = end - k - low
        if rule == "released":
            count -= 2
            if self._running:
                count[-1] = 0
        count = np.maximum(count, 0)
        upto = np.cumsum(count)
        if not len(count) or upto[-1] == 0:
            what = "transitions" if k == 1 else f"sequences of {k} decisions"
            where = " in completed episodes" if rule == "released" else ""
            raise ReplayUnderfilled(
                f"asked for {n} {what}{where}, replay holds none ({len(self)} transitions in all): "
                "episodes are too short for it, or too few were played"
            )
        if rule == "released":
            eligible = np.flatnonzero(count)
            episode = eligible[rng.integers(len(eligible), size=n)]
            within = rng.integers(count[episode])
        else:
            draw = rng.integers(upto[-1], size=n)
            episode = np.searchsorted(upto, draw, side="right")
            within = draw - (upto[episode] - count[episode])
        starts: Array = low[episode] + within
        return starts

    def stacks(self, frames: Array) -> Stacks:
        """Return the stacks that end at these frames (...): (..., S, *frame_shape)."""
        # An episode's first frame stands in for those before it.
        back = np.minimum(self._t[frames % self.slots][..., None], self._back)
        slots = (frames[..., None] - back) % self.slots
        return Stacks(self._frames, slots)

    def newest_stack(self) -> Array:
        """Return the observation the agent is looking at now, (S, *frame_shape)."""
        newest = self.stacks(np.array(self._total - 1))
        stack: Array = newest.ring[newest.slots]
        return stack

    def largest_reward(self) -> float:
        """Return the largest absolute reward in the ring."""
        rewards = self._reward[: min(self._total, self.slots)]
        return float(np.abs(rewards).max(initial=0.0))
