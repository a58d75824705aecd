"""Impossible wishes and broken environments: refused early, by name, with nothing written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from kstep.cli import main
from kstep.config import resolve
from kstep.types import Array, KstepError


class Custom(gymnasium.Env[Array, Array]):
    """A user's first environment; `wrong` says what they have not got right."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, wrong: str = "", render_mode: str | None = None) -> None:
        self.wrong, self.render_mode = wrong, render_mode
        low = np.array([-2.0, 1.0 if wrong == "no room" else 0.0], np.float32)
        self.action_space: Any = gymnasium.spaces.Box(low, np.array([2.0, 1.0], np.float32))
        if wrong == "unbounded actions":
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space: Any = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
        self.resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.resets += 1
        self.at = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        if self.wrong == "not repeatable":
            self.at += self.resets
        if self.wrong == "old reset":
            return self.at
        return self.at.copy(), {}

    def step(self, action: Array) -> Any:
        assert self.action_space.contains(action), "an action outside of its bounds"
        self.at = self.at + float(action[0]) * 0.01
        if self.wrong == "raises":
            raise KeyError("missing")
        if self.wrong == "old step":
            return self.at, 0.0, False, {}
        seen = np.zeros(5, np.float32) if self.wrong == "shape" else self.at.copy()
        if self.wrong == "nan state":
            seen[1] = np.nan
        reward: Any = {"nan reward": np.nan, "text reward": "lots", "inf reward": np.inf}.get(
            self.wrong, 1.0
        )
        return seen, reward, self.wrong == "ends at once", False, {}

    def render(self) -> Any:
        if self.wrong == "no image":
            return None
        if self.wrong == "flat image":
            return np.zeros((50, 50), np.uint8)
        image = np.full((50, 50, 3), 100 + int(self.at[0] * 50) % 100, np.uint8)
        return image.astype(np.float32) / 255 if self.wrong == "float image" else image


WRONG = {
    "no room": "bounds leave no room",
    "unbounded actions": "without bounds",
    "not repeatable": "does not repeat itself",
    "old reset": r"returned ndarray from reset\(\); needed are observation, info",
    "raises": r"raised KeyError in step\(\) at .*test_input\.py:\d+: 'missing'",
    "old step": r"returned 4 values from step\(\); needed are observation, reward, terminated",
    "shape": r"gave an observation \(5,\) float32; needed is \(3,\)",
    "nan state": "an observation that is not finite",
    "nan reward": "gave a reward of nan",
    "inf reward": "gave a reward of inf",
    "text reward": "gave 'lots' as reward; needed is a number",
    "ends at once": "ends its episodes with the first decision",
    "no image": "needed is",
    "flat image": r"a rendered image \(50, 50\) uint8; needed is \(H, W, 3\) uint8",
    "float image": r"a rendered image \(50, 50, 3\) float32; needed is \(H, W, 3\) uint8",
}
OF_PIXELS = ("no image", "flat image", "float image")


def create(**options: Any) -> Custom:
    return Custom(**options)


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The environment's process imports nothing from the current directory.
    monkeypatch.chdir(tmp_path)
    for wrong in ("", *WRONG):
        gymnasium.register(_id(wrong), create, max_episode_steps=30, kwargs={"wrong": wrong})
    yield
    for wrong in ("", *WRONG):
        gymnasium.registry.pop(_id(wrong))


def _id(wrong: str) -> str:
    return f"Custom{wrong.title().replace(' ', '')}-v0"


def train(method: str, task: str, *extra: str) -> None:
    options = ["--preset", "debug", "--env-steps", "50", "--threads", "1"]
    main(["train", method, task, *options, *extra])


def refused(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        train(*arguments, "--folder", str(folder / "run"))
    assert stopped.value.code == 2
    assert not list(folder.iterdir())
    return capsys.readouterr().err


@pytest.mark.parametrize("wrong", WRONG)
def test_broken_environments_are_refused_before_anything_is_written(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    method = "sac_pixel" if wrong in OF_PIXELS else "sac_state"
    error = refused(capsys, tmp_path, method, f"gym:{_id(wrong)}")
    assert re.search(rf"kstep: gym:{_id(wrong)} .*{WRONG[wrong]}", error), error
    assert "Traceback" not in error


@pytest.mark.parametrize("method", ["sac_state", "ksl"])
def test_the_same_environment_put_right_trains(method: str, tmp_path: Path) -> None:
    train(method, f"gym:{_id('')}", "--folder", str(tmp_path / "run"))
    assert (tmp_path / "run" / "evaluations.jsonl").stat().st_size > 0


def test_k_longer_than_an_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer = ["--set", "method.auxiliary.k=31"]
    error = refused(capsys, tmp_path, "ksl", f"gym:{_id('')}", *longer)
    assert "sequences of 31 decisions, but episodes have 30" in error


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        (
            "ksl",
            ["method.learning.batch_size=2000"],
            "replay_capacity=1000 must be at least .*=2000",
        ),
        ("ksl", ["env.observation=state"], "env.observation cannot be set"),
        ("sac_state", ["env.observation=pixels"], "env.observation cannot be set"),
    ],
)
def test_what_can_never_work_is_refused_by_name(
    method: str, overrides: list[str], message: str
) -> None:
    with pytest.raises(KstepError, match=message):
        resolve(method, "toy_reach", preset="debug", overrides=overrides)
