"""Actions: the vectors that agents choose, and what an environment takes in their place.

Agent, replay and auxiliary tasks see an action as a vector (A,): in [-1, 1] where the environment's
space is a bounded Box, one-hot where it is Discrete. `true` is the one place where a vector becomes
the environment's own action. A value that needs no simulator and is stored as JSON, so that a
trained policy can give real actions without one.
"""

from __future__ import annotations

import abc
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kstep.types import ActionKind, Array, KstepError
from kstep.values import Family, Positive

if TYPE_CHECKING:  # a policy gives actions where Gymnasium is not installed
    import gymnasium


@dataclass(frozen=True)
class Actions(Family):
    """What an environment takes."""

    kind: ClassVar[ActionKind]

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The size A of the vector."""

    @abc.abstractmethod
    def true(self, vector: Array) -> Any:
        """Turn a vector (A,) into the environment's own action."""

    @abc.abstractmethod
    def example(self) -> Array:
        """Return some valid vector (A,), always the same."""

    def space(self) -> gymnasium.Space[Any]:
        """Return what our own environments say of themselves."""
        import gymnasium

        return gymnasium.spaces.Box(-1.0, 1.0, (self.dim,), np.float32)


@dataclass(frozen=True)
class BoxActions(Actions):
    """Real numbers between bounds; [-1, 1] is mapped onto them."""

    kind = "box"

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[Positive, ...]
    """Of what the environment takes; its numbers are in C order."""
    dtype: str = "float64"

    @property
    def dim(self) -> int:
        return len(self.low)

    def true(self, vector: Array) -> Array:
        low, middle, half, high = self._mapping
        inside: Array = np.clip(middle + half * vector.astype(np.float64), low, high)
        return inside.reshape(self.shape).astype(self.dtype)

    def example(self) -> Array:
        return np.zeros(self.dim, np.float32)

    @functools.cached_property
    def _mapping(self) -> tuple[Array, Array, Array, Array]:
        low, high = np.array(self.low), np.array(self.high)
        # middle + half * action is exact where the true bounds are -1 and 1.
        return low, (high + low) / 2, (high - low) / 2, high


@dataclass(frozen=True)
class DiscreteActions(Actions):
    """One of `n` choices."""

    kind = "discrete"

    n: Positive
    start: int = 0
    """The environment's number of the first choice."""

    @property
    def dim(self) -> int:
        return self.n

    def true(self, vector: Array) -> np.int64:
        if vector.shape == ():  # an index already, as Gymnasium's own spaces have it
            vector = self.vector(int(vector) - self.start)
        index = int(vector.argmax())
        if (vector != self.vector(index)).any():
            raise KstepError(f"an action must be one-hot, with a single 1, not {vector}")
        return np.int64(self.start + index)

    def vector(self, index: int) -> Array:
        """Return the one-hot vector (n,) of a choice, counted from 0."""
        if not 0 <= index < self.n:
            raise KstepError(f"an action must be one of {self.n}, not number {index}")
        chosen = np.zeros(self.n, np.float32)
        chosen[index] = 1.0
        return chosen

    def example(self) -> Array:
        return self.vector(0)

    def space(self) -> gymnasium.Space[Any]:
        import gymnasium

        return gymnasium.spaces.Discrete(self.n, start=self.start)


def actions_of(space: Any, env: object) -> Actions:
    """Describe a Gymnasium action space, refusing by name what no agent here can choose from."""
    import gymnasium

    if isinstance(space, gymnasium.spaces.Discrete):
        if space.n < 2:
            raise KstepError(f"{env} takes {space} actions, which leave nothing to choose")
        return DiscreteActions(int(space.n), int(space.start))
    if not isinstance(space, gymnasium.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise KstepError(
            f"{env} takes {space} actions; needed is a Box of floats, or Discrete. Wrap it so that "
            "it takes one of these"
        )
    with np.errstate(over="ignore"):
        room = space.high.astype(np.float64) - space.low
    if not np.isfinite(room).all():
        raise KstepError(
            f"{env} takes actions without bounds: [-1, 1] cannot be mapped onto {space}. Give its "
            "action_space finite bounds"
        )
    if room.size == 0 or not (room > 0).all():
        raise KstepError(f"{env} takes actions whose bounds leave no room: {space}")
    low, high = (tuple(map(float, np.ravel(bound))) for bound in (space.low, space.high))
    return BoxActions(low, high, space.shape, str(space.dtype))
