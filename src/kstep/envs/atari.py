"""Games of the Arcade Learning Environment (Bellemare et al. 2013, arXiv:1207.4708), by the
protocol of 100,000 decisions (Kaiser et al. 2019, arXiv:1903.00374; van Hasselt et al. 2019,
arXiv:1906.05243).

An env step is a frame of the game. A decision lasts four; the agent sees the larger of the last two
at each pixel, since some games draw an object in every other frame only, in grey, at 84x84. An
episode begins with 1 to 30 frames without an action and is cut off after 108,000. Actions are the
game's own, and none is repeated by chance.

Two things concern learning alone, and `step` gives them beside what happened: rewards between -1
and 1, and the loss of a life as an end. The episode continues then, so that returns are the game's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kstep import extras
from kstep.envs.actions import DiscreteActions
from kstep.envs.base import ControlEnv
from kstep.envs.sight import Picture, either, resized, side_lengths
from kstep.types import LEARNED_REWARD, LIFE_LOST, Array, KstepError, ObservationKind
from kstep.values import near

if TYPE_CHECKING:
    import ale_py

LIMIT = 108_000
"""Frames: half an hour."""
MOST_IDLE = 30
FRAMES_PER_SECOND = 60.0
SCREEN = (210, 160)
NOT_FOR_ONE = ("combat", "joust", "maze_craze", "warlords")
"""Games that come along and that no single player can load: ALE ends the process that tries."""
NOTE = "the larger of the last two frames"


class AtariEnv(ControlEnv):
    """One game. States are the console's memory."""

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
        self._name = f"atari:{game}"
        self._ale = _console(self._name, game)
        self._choices = self._ale.getMinimalActionSet()
        self._generator = np.random.Generator(np.random.PCG64(seed))
        # Neither a reset nor a restored state alone forgets all that was played before.
        self._new = self._ale.cloneSystemState()
        self._screens = (np.zeros(SCREEN, np.uint8),) * 2
        screen = Picture("", self._screen().shape, (0, 1))
        sides = side_lengths(SCREEN, size, resize or "square")
        super().__init__(
            observation=observation,
            sight=either(observation, screen, self._ale.getRAM().shape, *sides, note=NOTE),
            actions=DiscreteActions(len(self._choices)),
            action_repeat=action_repeat,
            ends_after=LIMIT,
            time_limit=time_limit,
        )

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        lives = self._ale.lives()
        frame, reward, terminated, truncated, info = super().step(action)
        info[LEARNED_REWARD] = float(np.clip(reward, -1.0, 1.0))
        info[LIFE_LOST] = self._ale.lives() < lives
        return frame, reward, terminated, truncated, info

    def _begin(self, seed: int | None) -> None:
        if seed is not None:
            self._generator = np.random.Generator(np.random.PCG64(seed))
        self._ale.restoreSystemState(self._new)
        self._ale.reset_game()
        for _ in range(self._generator.integers(1, MOST_IDLE + 1)):
            self._ale.act(0)
            if self._ale.game_over():
                self._ale.reset_game()
        self._screens = (self._screen(),) * 2

    def _simulate(self, action: Any) -> tuple[float, bool, bool]:
        reward = float(self._ale.act(self._choices[action]))
        self._screens = (self._screens[1], self._screen())
        return reward, bool(self._ale.game_over(with_truncation=False)), False

    def _screen(self) -> Array:
        screen: Array = self._ale.getScreenGrayscale()
        return screen

    def _see(self) -> Array:
        return self.sight.frame(np.maximum(*self._screens))

    def _state(self) -> Array:
        return self._ale.getRAM().astype(np.float32)

    def _draw(self, height: int, width: int, camera: int) -> Array:
        return resized(self._ale.getScreenRGB(), height, width)

    def decisions_per_second(self) -> float:
        return FRAMES_PER_SECOND / self.action_repeat


def _console(name: str, game: str) -> ale_py.ALEInterface:
    """Return a console with the game in it; the games come with the package."""
    extras.need("ale_py", "atari")
    import ale_py
    from ale_py import roms

    games = {_spelled(rom): rom for rom in roms.get_all_rom_ids() if rom not in NOT_FOR_ONE}
    if game not in games:
        capitals = {own.lower(): own for own in games}
        similar = capitals.get(game.lower())
        meant = f" Did you mean {similar!r}?" if similar else near(game, games)
        raise KstepError(f"{name} cannot be made: there is no game called {game!r}.{meant}")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    console = ale_py.ALEInterface()
    console.setFloat("repeat_action_probability", 0.0)
    console.setInt("random_seed", 0)  # nothing is left to chance
    path = roms.get_rom_path(games[game])
    assert path is not None  # it is one of those that are there
    console.loadROM(path)
    return console


def _spelled(rom: str) -> str:
    """Return the game's usual name, so that each has one: MsPacman for ms_pacman."""
    return rom.title().replace("_", "")
