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

from kstep.envs import ControlEnv, EnvConfig, make, make_apart, spec_of
from kstep.envs.remote import RETRIES, RemoteEnv
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
