"""An environment in a process of its own: the same to the bit, and it survives its death."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kstep.envs import ControlEnv, EnvConfig, close_lanes, make, make_apart, make_lanes, spec_of
from kstep.envs.remote import RETRIES, RemoteEnv
from kstep.errors import Fault
from kstep.types import KstepError
from tests.make import expect

CONFIG = EnvConfig("toy_reach", size=36)


@pytest.fixture
def remote() -> Iterator[RemoteEnv]:
    env = apart(CONFIG)
    yield env
    env.close()


def apart(config: EnvConfig, **options: Any) -> RemoteEnv:
    return expect(RemoteEnv, make_apart(config, 0, **options))


def same_step(env: ControlEnv, remote: RemoteEnv, action: np.ndarray, kill: bool = False) -> bool:
    expected = env.step(action)
    remote.begin_step(action)
    if kill:
        os.kill(remote.pid, signal.SIGKILL)
    found = remote.finish_step()
    assert np.array_equal(found[0], expected[0])
    assert found[1:] == expected[1:]
    return bool(expected[2] or expected[3])


def test_it_is_the_same_environment(remote: RemoteEnv) -> None:
    env = make(CONFIG, 0)
    assert spec_of(remote) == spec_of(env)
    rng = np.random.default_rng(0)
    for seed in range(3):
        assert np.array_equal(remote.reset(seed=seed)[0], env.reset(seed=seed)[0])
        while not same_step(env, remote, rng.uniform(-1, 1, 2).astype(np.float32)):
            pass
    assert np.array_equal(remote.film_frame(64, 48), env.film_frame(64, 48))
    assert remote.decisions_per_second() == env.decisions_per_second()


def test_it_survives_being_killed_at_any_moment(remote: RemoteEnv) -> None:
    env = make(CONFIG, 0)
    remote.reset(seed=1)
    env.reset(seed=1)
    action = np.array([0.05, -0.02], np.float32)
    for number in range(6):
        same_step(env, remote, action, kill=number in (0, 3))
    os.kill(remote.pid, signal.SIGKILL)
    assert np.array_equal(remote.current_frame(), env.current_frame())
    os.kill(remote.pid, signal.SIGKILL)
    assert np.array_equal(remote.reset(seed=2)[0], env.reset(seed=2)[0])
    same_step(env, remote, action)


def test_a_worker_that_keeps_dying_is_reported(
    remote: RemoteEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.reset(seed=1)
    starts, broken = tmp_path / "starts", tmp_path / "python"
    broken.write_text(f"#!/bin/sh\necho started >> '{starts}'\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    os.kill(remote.pid, signal.SIGKILL)
    with pytest.raises(KstepError, match="failed 4 times in a row: it was ended with exit code 0"):
        remote.step(np.zeros(2, np.float32))
    assert len(starts.read_text().splitlines()) == RETRIES


def test_a_process_that_dies_while_starting_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(Fault, match=r"toy_reach failed 4 times in a row: .* with exit code 3"):
        apart(CONFIG)


def test_several_in_one_process_survive_its_death() -> None:
    """As lanes of an evaluation do, all of which have a step under way."""
    lanes = make_lanes(CONFIG, 0, 3, beside := apart(CONFIG))
    env, action = make(CONFIG, 0), np.array([0.05, -0.02], np.float32)
    try:
        assert {expect(RemoteEnv, lane).pid for lane in lanes} == {beside.pid}
        beside.reset(seed=9)
        for seed, lane in enumerate(lanes):
            lane.reset(seed=seed)
        for _ in range(2):
            for lane in lanes:
                lane.begin_step(action)
            os.kill(beside.pid, signal.SIGKILL)
            found = [lane.finish_step() for lane in lanes]
        for seed, (frame, *rest) in enumerate(found):
            env.reset(seed=seed)
            env.step(action)
            expected = env.step(action)
            assert np.array_equal(frame, expected[0])
            assert rest == [*expected[1:]]
        env.reset(seed=9)
        same_step(env, beside, action)
    finally:
        close_lanes(lanes)
        beside.close()


def test_what_was_made_importable_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PYTHONPATH, or on the path of the program, but not because it lies in the current
    directory."""
    for name, folder in (("here", "here"), ("chosen", "chosen")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"kstep_{name}.py").write_text(MODULE.format(name=name))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), str(tmp_path / "chosen"), *sys.path])
    for name in ("here", "chosen"):
        __import__(f"kstep_{name}")
    env = apart(EnvConfig("gym:Kstep_chosen-v0", "state"))
    assert env.reset(seed=1)[0].shape == (2,)
    env.close()
    with pytest.raises(KstepError, match=r"No module named 'kstep_here'"):
        apart(EnvConfig("gym:Kstep_here-v0", "state"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "here"))
    apart(EnvConfig("gym:Kstep_here-v0", "state")).close()


MODULE = """
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), dict()

gymnasium.register("Kstep_{name}-v0", Env, max_episode_steps=5)
"""


def test_what_the_environment_refuses_is_refused_here(remote: RemoteEnv) -> None:
    with pytest.raises(KstepError, match="at least 1 pixel"):
        apart(EnvConfig("toy_reach", size=0))
    remote.reset(seed=0)
    with pytest.raises(KstepError, match="not finite"):
        remote.step(np.array([np.nan, 0], np.float32))
    with pytest.raises(KstepError, match="needs a seed"):
        remote.reset()


def test_nothing_is_imported_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('imported from here')\n")
    monkeypatch.chdir(tmp_path)
    env = apart(CONFIG)
    assert env.reset(seed=1)[0].shape == (36, 36, 3)
    env.close()


def test_no_process_is_left_behind() -> None:
    env = apart(CONFIG)
    pid = env.pid
    env.close()
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
