"""MinAtar (Young & Tian 2019, arXiv:1903.03176): five games of ten by ten cells, with the objects
in channels of their own. As the package has them by default: sticky actions with probability 0.1,
and games that become more difficult. Actions are those that have an effect in the game.

An episode is cut off after `LIMIT` env steps; the package has no limit.
"""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np

from kstep import extras
from kstep.envs.actions import DiscreteActions
from kstep.envs.base import ControlEnv
from kstep.envs.sight import Picture, either, side_lengths
from kstep.types import Array, ObservationKind

LIMIT = 10_000


class MinAtarEnv(ControlEnv):
    """One game. States are the cells of its image."""

    def __init__(
        self,
        game: str,
        *,
        observation: ObservationKind,
        size: int,
        resize: str | None,
        action_repeat: int,
        time_limit: int | None,
        seed: int,
    ) -> None:
        extras.need("minatar", "minatar")
        import minatar

        self._name = f"minatar:{game}"
        self._game = minatar.Environment(game)
        self._game.seed(seed)
        self._choices = self._game.minimal_action_set()
        shape = tuple(self._game.state_shape())
        self._colours = _colours(shape[2])
        sides = side_lengths((shape[0], shape[1]), size, resize)
        super().__init__(
            observation=observation,
            sight=either(observation, Picture("", shape, (0, 1, 2), 1), shape, *sides),
            actions=DiscreteActions(len(self._choices)),
            action_repeat=action_repeat,
            ends_after=LIMIT,
            time_limit=time_limit,
        )

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._game.seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
        self._game.last_action = 0  # it would stick to the next episode
        self._game.reset()

    def _simulate(self, action: Any) -> tuple[float, bool, bool]:
        reward, over = self._game.act(self._choices[action])
        return float(reward), bool(over), False

    def _see(self) -> Array:
        return self.sight.frame(self._game.state())

    def _state(self) -> Array:
        return self._game.state().ravel().astype(np.float32)  # type: ignore[no-any-return]

    def _draw(self, height: int, width: int, camera: int) -> Array:
        cells = self._game.state()
        image = np.zeros((*cells.shape[:2], 3), np.uint8)
        for channel, colour in enumerate(self._colours):
            image[cells[..., channel]] = colour
        rows, columns = (
            np.arange(side) * number // side
            for side, number in zip((height, width), cells.shape[:2], strict=True)
        )
        large: Array = image[rows[:, None], columns]
        return large


def _colours(number: int) -> list[tuple[int, ...]]:
    """Return colours that can be told apart, one for each channel."""
    parts = [colorsys.hsv_to_rgb(i / number, 0.6, 0.95) for i in range(number)]
    return [tuple(round(255 * part) for part in colour) for colour in parts]
