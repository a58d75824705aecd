"""An environment in its process, while `kstep check-env` looks at it (bench/check_env.py).

It answers what training asks for and some more: what is wrong with an observation by the
environment's own space, how long each call took, what Gymnasium's checker says.
"""

from __future__ import annotations

import math
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env

from kstep import envs
from kstep.envs.base import spec_of
from kstep.types import Array

NEEDLESS = "recommend using a symmetric and normalized space"
"""In a warning of Gymnasium's checker about bounds of actions: ours are mapped onto them."""


@dataclass(frozen=True)
class Seen:
    """What a reset or a decision led to."""

    frame: Array
    reward: float
    terminated: bool
    truncated: bool
    seconds: float
    misfit: str
    """What is wrong with the observation by the environment's own space, if anything."""

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated


class Examined:
    """What the other process asks; its attributes are sent there when it is made."""

    def __init__(self, config: envs.EnvConfig, seed: int) -> None:
        self._config, self._seed = config, seed
        self._env = envs.make(config, seed)
        self.spec, self.sight, self.actions = spec_of(self._env), self._env.sight, self._env.actions

    def __str__(self) -> str:
        return str(self._env)

    def reset(self, *, seed: int) -> Seen:
        began = time.perf_counter()
        frame, _ = self._env.reset(seed=seed)
        return Seen(frame, 0.0, False, False, time.perf_counter() - began, self._misfit())

    def step(self, action: Array) -> Seen:
        began = time.perf_counter()
        frame, reward, terminated, truncated, _ = self._env.step(action)
        seconds = time.perf_counter() - began
        return Seen(frame, float(reward), terminated, truncated, seconds, self._misfit())

    def by_gymnasium(self) -> tuple[str, list[str]]:
        """Run Gymnasium's checker on another one; return what it stopped at and its warnings."""
        env = envs.make(self._config, self._seed)
        stopped_at = ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                # Not its check of rendering: that opens windows.
                check_env(getattr(env, "inner", env), skip_render_check=True, skip_close_check=True)
            except Exception as error:  # assertions, and whatever the environment raises
                stopped_at = f"{type(error).__name__}: {error}"
            env.close()
        texts = [_plain(str(each.message)) for each in warned]
        return _plain(stopped_at), [t for t in dict.fromkeys(texts) if NEEDLESS not in t]

    def close(self) -> None:
        self._env.close()

    def _misfit(self) -> str:
        inner = getattr(self._env, "inner", None)
        if inner is None:  # ours: it makes what it says
            return ""
        return misfit(inner.observation_space, self._env.last, "observation")  # type: ignore[attr-defined]


def misfit(space: Any, value: Any, called: str) -> str:
    """Return in words why a value is not of a space; empty if it is."""
    if isinstance(space, gymnasium.spaces.Dict):
        if not isinstance(value, Mapping):
            return f"{called} is a {type(value).__name__}, but its space is a Dict"
        if value.keys() != space.spaces.keys():
            return f"{called} has the keys {sorted(value)}, but its space has {sorted(space)}"
        parts = (misfit(part, value[key], f'{called}["{key}"]') for key, part in space.items())
        return next(filter(None, parts), "")
    if not isinstance(space, gymnasium.spaces.Box):
        return "" if space.contains(value) else f"{called} is {value!r}, which is not in {space}"
    if not isinstance(value, np.ndarray | np.generic):
        return f"{called} is a {type(value).__name__}, but its space has NumPy arrays {space.shape}"
    if value.shape != space.shape:
        return f"{called} has shape {value.shape}, but its space says {space.shape}"
    if not np.can_cast(value.dtype, space.dtype):
        return f"{called} is {value.dtype}, but its space says {space.dtype}"
    if space.contains(value):
        return ""
    low, high = float(space.low.min()), float(space.high.max())
    least, most = float(np.min(value)), float(np.max(value))
    if math.isnan(least):
        return f"{called} has values that are not numbers (NaN)"
    return (
        f"{called} has values from {least:g} to {most:g}, outside of what its space says: "
        f"{low:g} to {high:g}"
    )


def _plain(text: str) -> str:
    """Return a message of Gymnasium without colours, in one line, without what it is called."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(text.removeprefix("WARN: ").removeprefix("UserWarning: ").split())
