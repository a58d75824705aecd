"""Environments that are broken, each in its own way: `Broken/<trouble>-v0`.

Importable in any process that has this folder on its path, as a user's own package would be.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

LENGTH = 10
"""Of an episode."""
LATE = 7
"""The step of an episode at which something goes wrong that goes well at first."""
RARE = 5
"""The episode in which something goes wrong that goes well in others: the third of a training, as
two resets come before it. Evaluations have not as many."""
ONCE = "KSTEP_BROKEN_ONCE"
"""Environment variable: a file that marks trouble which happened and does not come back."""


class Broken(gymnasium.Env[Any, Any]):
    """A point that moves over an image of one colour, and what is wrong with it."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, trouble: str, render_mode: str | None = None) -> None:
        self.trouble, self.render_mode = trouble, render_mode
        self.resets = self.clock = 0
        self.action_space: Any = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space: Any = gymnasium.spaces.Box(0, 255, (48, 48, 3), np.uint8)
        if trouble.startswith("render_"):
            self.observation_space = gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float64)
        self.do("init")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        rng = np.random.default_rng() if self.trouble == "reset_at_random" else self.np_random
        self.at, self.clock = rng.uniform(-1, 1, 2), 0
        self.resets += 1
        self.image = np.zeros((48, 48, 3), np.uint8)
        self.do("reset")
        if self.trouble == "reset_old_api":
            return self.see()
        return (None if self.trouble == "reset_none" else self.see()), {}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + 0.1 * np.asarray(action), -1, 1)
        self.clock += 1
        self.do("step")
        reward, ended = self.rewards(), self.clock >= LENGTH
        terminated = {
            "step_ends_at_once": True,
            "step_ends_in_vectors": np.array([False, True]),
            "step_ends_in_words": "never",
            "step_never_ends": False,
        }.get(self.trouble, ended)
        if self.trouble == "step_old_api":
            return self.see(), reward, ended, {}
        return self.see(), reward, terminated, False, {}

    def rewards(self) -> Any:
        late = self.clock >= LATE
        return {
            "reward_nan": np.nan,
            "reward_infinite": -np.inf if late else 1.0,
            "reward_beyond_float32": 1e300 if late else 1.0,
            "reward_huge": 1e30,
            "reward_text": "plenty",
            "reward_none": None,
            "reward_vector": np.ones(3),
            "reward_complex": 1j,
            "reward_array": np.array([0.5]),
        }.get(self.trouble, float(self.at[0]))

    def see(self) -> Any:
        if self.trouble.startswith("render_"):
            return self.at.copy()
        late = self.clock >= LATE
        # One array, painted over and over: whoever keeps it sees the present.
        self.image[:] = (100 + 50 * self.at[0], 100 + 50 * self.at[1], 20 * self.clock % 256)
        return {
            "observation_shape": np.zeros((30, 30, 3), np.uint8) if late else self.image,
            "observation_float": self.image.astype(np.float32),
            "observation_none": None if late else self.image,
            "observation_ragged": [[1, 2], [3]] if late else self.image,
            "observation_list": [[1.0, 2.0]],
        }.get(self.trouble, self.image)

    def render(self) -> Any:
        self.do("render")
        return {
            "render_none": None,
            "render_float": np.zeros((48, 48, 3), np.float32),
            "render_list": [self.at],
        }.get(self.trouble, np.full((48, 48, 3), 60 + 50 * self.at[0], np.uint8))

    def close(self) -> None:
        self.do("close")

    def do(self, when: str) -> None:
        """Let happen what this trouble brings at this time."""
        place, _, what = self.trouble.partition("_")
        late, rare = what.startswith("late_"), what.startswith("rarely_")
        early = when == "step" and self.clock < LATE
        soon = self.resets < RARE
        if place != when or (late and early) or (rare and (early or soon)):
            return
        action = globals().get(what.removeprefix("late_").removeprefix("rarely_"))
        if action is not None and not ((late or rare) and _happened()):
            action()


def _happened() -> bool:
    mark = os.environ.get(ONCE)
    if mark is None:
        return False
    if Path(mark).exists():
        return True
    Path(mark).touch()
    return False


def raises() -> None:
    raise ValueError("the motor\nis   missing")


def raises_memory_error() -> None:
    raise MemoryError


def raises_os_error() -> None:
    Path("/nowhere/at/all").read_text()


def raises_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def recurses() -> None:
    recurses()


def needs_a_package() -> None:
    import a_package_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401


def exits() -> None:
    os._exit(0)


def leaves() -> None:
    sys.exit(3)


def crashes() -> None:
    ctypes.string_at(0)


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hangs() -> None:
    time.sleep(1e6)


def spins() -> None:
    while True:
        pass


def asks() -> None:
    input("continue? ")


def moves_away() -> None:
    os.chdir("/")


def takes_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def seeds_everything() -> None:
    random.seed(0)
    np.random.seed(0)


def prints() -> None:
    print("step " * 100)


def starts_threads() -> None:
    threading.Thread(target=time.sleep, args=(1e6,)).start()


def closes_files() -> None:
    os.closerange(3, 256)


class NoSpaces(gymnasium.Env[Any, Any]):
    metadata = {"render_modes": []}  # noqa: RUF012


class NoEnvironment:
    pass


class OtherActions(Broken):
    """Actions of a kind that is not understood."""

    def __init__(self, trouble: str, render_mode: str | None = None) -> None:
        super().__init__(trouble, render_mode)
        spaces = gymnasium.spaces
        self.action_space = {
            "actions_unbounded": spaces.Box(-np.inf, np.inf, (2,)),
            "actions_too_wide": spaces.Box(-1e308, 1e308, (2,), np.float64),
            "actions_fixed": spaces.Box(0.0, 0.0, (2,)),
            "actions_multidiscrete": spaces.MultiDiscrete([2, 3]),
            "actions_dict": spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,))}),
            "actions_none": None,
        }[trouble]


TROUBLES = [
    "none",
    *(f"init_{what}" for what in ("raises", "needs_a_package", "exits", "leaves", "crashes")),
    *("reset_raises", "reset_old_api", "reset_none", "reset_at_random", "reset_leaves"),
    *("reset_rarely_hangs", "reset_exits"),
    *("step_raises", "step_late_raises", "step_raises_memory_error", "step_raises_os_error"),
    *("step_raises_keyboard_interrupt", "step_recurses", "step_needs_a_package", "step_old_api"),
    *("step_exits", "step_late_exits", "step_leaves", "step_crashes", "step_late_crashes"),
    *("step_kills_itself", "step_late_kills_itself", "step_hangs", "step_late_hangs"),
    *("step_late_spins", "step_rarely_hangs", "step_rarely_spins"),
    *("step_asks", "step_closes_files"),
    *("step_ends_at_once", "step_ends_in_vectors", "step_ends_in_words", "step_never_ends"),
    *("step_moves_away", "step_takes_signals", "step_seeds_everything", "step_prints"),
    "step_starts_threads",
    *("reward_nan", "reward_infinite", "reward_beyond_float32", "reward_huge", "reward_text"),
    *("reward_none", "reward_vector", "reward_complex", "reward_array"),
    *("observation_shape", "observation_float", "observation_none", "observation_ragged"),
    "observation_list",
    *("render_none", "render_float", "render_list", "render_raises", "render_rarely_exits"),
    *("close_raises", "close_hangs", "close_exits"),
]
OTHER_ACTIONS = ["unbounded", "too_wide", "fixed", "multidiscrete", "dict", "none"]

for trouble in TROUBLES:
    limit = None if trouble == "step_never_ends" else 2 * LENGTH
    gymnasium.register(
        f"Broken/{trouble}-v0",
        "kstep_broken:Broken",
        max_episode_steps=limit,
        kwargs={"trouble": trouble},
    )
for actions in OTHER_ACTIONS:
    gymnasium.register(
        f"Broken/actions_{actions}-v0",
        "kstep_broken:OtherActions",
        max_episode_steps=LENGTH,
        kwargs={"trouble": f"actions_{actions}"},
    )
gymnasium.register("Broken/no_spaces-v0", "kstep_broken:NoSpaces", max_episode_steps=LENGTH)
gymnasium.register("Broken/no_environment-v0", "kstep_broken:NoEnvironment")
