"""Full disks, missing memory, signals, dying workers and renderers: reported, and nothing lost."""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kstep import cli, errors
from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.data.ring import FRAMES_FILE, ReplayConfig
from kstep.envs import EnvConfig, gl, make, make_apart, toy
from kstep.envs.base import RendererFailed
from kstep.envs.remote import RemoteEnv
from kstep.errors import Fault
from kstep.run import checkpoint, train
from kstep.run.evaluate import Evaluation, evaluate
from kstep.run.folder import Run
from kstep.run.train import Stopped
from kstep.types import EnvSpec, KstepError
from kstep.values import override
from tests.make import expect
from tests.runs import ALWAYS, assert_same, at_decision, contents, experiment, go


def whole(run: Run) -> bool:
    """Nothing half-written lies about."""
    return not list(run.folder.rglob("*.part"))


@pytest.mark.parametrize("kind", [errno.ENOSPC, errno.EROFS])
def test_wherever_writing_fails_the_folder_stays_whole(
    kind: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every flush to disk of a run fails once, each time in a run that is then resumed."""
    small: dict[str, Any] = {"checkpoint_minutes": ALWAYS}
    reference = go(tmp_path / "reference", experiment(env_steps=34), **small)
    folder, real = tmp_path / "run", os.fsync
    said = {errno.ENOSPC: "the disk is full", errno.EROFS: "no permission to write"}[kind]
    for fails_at in range(1, 32):  # what a run begins with, and then more than one checkpoint
        calls = 0

        def fsync(descriptor: int, fails_at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(kind, os.strerror(kind))
            real(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            with pytest.raises(Fault, match=rf"{said}.*The run folder is intact"):
                go(folder, experiment(env_steps=34), **small)
        assert not list(folder.rglob("*.part"))
    assert_same(reference, go(folder, experiment(env_steps=34), **small))


def test_the_command_tells_a_full_disk_from_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    command = ["train", "ksl", "toy_reach", "--preset", "debug", "--threads", "1"]
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--folder", str(tmp_path / "run")])
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("kstep: the disk is full")
    assert "Free some space and rerun the command. The run folder is intact" in error


def no_memory_for_torch() -> None:
    torch.empty(2**60, dtype=torch.uint8)


def no_memory_for_numpy() -> None:
    np.empty(2**60, np.uint8)


@pytest.mark.parametrize("happens", [no_memory_for_torch, no_memory_for_numpy])
def test_no_memory_is_told_and_nothing_is_lost(
    happens: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=50))
    with monkeypatch.context() as patch:
        at_decision(patch, 40, happens)
        with pytest.raises(Fault, match=r"out of memory.*checkpoint is at 40 env steps"):
            go(tmp_path / "run", experiment(env_steps=50), checkpoint_minutes=ALWAYS)
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=50)))


def test_what_is_no_fault_of_the_surroundings_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistake() -> None:
        raise RuntimeError("a mistake of ours")

    assert errors.explain(RuntimeError("a mistake of ours")) is None
    at_decision(monkeypatch, 3, mistake)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        go(tmp_path / "run", experiment(env_steps=50))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_with_a_checkpoint(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_decision(monkeypatch, 35, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Stopped, match="a checkpoint is written") as stopped:
        go(tmp_path / "run", experiment(env_steps=50))
    assert stopped.value.exit_code == 128 + number
    run = Run.open(tmp_path / "run")
    assert checkpoint.newest(run)[1].counts.decisions == 36


def test_a_second_sigterm_is_not_somebody_in_a_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel sends one for each thread of a parent that dies."""

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    at_decision(monkeypatch, 35, twice)
    with pytest.raises(Stopped, match="a checkpoint is written") as stopped:
        go(tmp_path / "run", experiment(env_steps=50))
    assert stopped.value.exit_code == 143
    assert checkpoint.newest(Run.open(tmp_path / "run"))[1].counts.decisions == 36


def test_two_signals_end_at_once_even_inside_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=50))
    real = os.fsync
    interrupted = False

    def fsync(descriptor: int) -> None:
        nonlocal interrupted
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if "agent.safetensors" in path and "000000036" in path and not interrupted:
            interrupted = True
            os.kill(os.getpid(), signal.SIGINT)
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        at_decision(patch, 35, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Stopped, match=r"stopped at once.*no checkpoint yet") as stopped:
            go(tmp_path / "run", experiment(env_steps=50))
    assert interrupted
    assert stopped.value.exit_code == 130
    assert whole(Run.open(tmp_path / "run"))
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=50)))


def test_two_signals_keep_a_checkpoint_that_is_just_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=50))
    real = os.rename

    def rename(old: Any, new: Any, **options: Any) -> None:
        real(old, new, **options)
        if Path(new).name == "000000036":
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        at_decision(patch, 35, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(Stopped, match=r"stopped at once.*checkpoint is at 36 env steps"):
            go(tmp_path / "run", experiment(env_steps=50))
    said = StringIO()
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=50), said))
    assert "resuming at 36 env steps" in said.getvalue()


def test_a_stop_does_not_wait_for_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=60))
    with monkeypatch.context() as patch:
        at_decision(patch, 49, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped, match="stopped at 50 env steps"):
            go(tmp_path / "run", experiment(env_steps=60))
    assert [row.mark for row in Run.open(tmp_path / "run").evaluations()] == [0]
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=60)))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stop_inside_an_evaluation_ends_it(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first, one in between, and the last, which is made up for once the budget is spent."""
    reference = go(tmp_path / "reference", experiment(env_steps=60))
    calls, real = 0, evaluate

    def stopped_in(*arguments: Any) -> Evaluation:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", stopped_in)
        with pytest.raises(Stopped, match=r"a checkpoint is written") as stopped:
            go(tmp_path / "run", experiment(env_steps=60))
    assert stopped.value.exit_code == 143
    run = Run.open(tmp_path / "run")
    assert [row.mark for row in run.evaluations()] == [0, 50, 60][:number]
    assert not run.is_done(60)
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=60)))
    assert run.is_done(60)


@pytest.mark.parametrize(
    ("method", "setting", "part"),
    [
        ("pi_sac", "method.auxiliary.pretraining=6", "pretrain"),
        ("sac_ae", "method.learning.burst=6", "update"),
    ],
)
def test_a_stop_does_not_wait_for_the_updates_that_learning_starts_with(
    method: str, setting: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = override(experiment(method, env_steps=34), [setting])
    reference = go(tmp_path / "reference", what)
    calls, real = 0, getattr(Agent, part)

    def stopped_in(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Agent, part, stopped_in)
        with pytest.raises(Stopped, match=r"stopped during .*checkpoint is at 30 env") as stopped:
            go(tmp_path / "run", what, checkpoint_minutes=ALWAYS)
    assert calls == 2
    assert stopped.value.exit_code == 143
    assert_same(reference, go(tmp_path / "run", what))


def test_the_wall_clock_may_jump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=40))
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: (-1) ** next(jumps) * 1e10)
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=40)))
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1  # none came early


def test_a_worker_that_cannot_draw_any_more_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig("toy_reach", size=36)
    here, remote = make(config, 0), expect(RemoteEnv, make_apart(config, 0))
    try:
        here.reset(seed=1)
        remote.reset(seed=1)
        action, first = np.array([0.1, 0.2], np.float32), remote.pid
        real, failures = remote._simulator._connection.recv, 0

        def recv() -> Any:
            nonlocal failures
            failures += 1
            real()
            return "useless", "the driver is gone"

        there = remote._simulator
        there._connection = _Answering(there._connection, recv)  # type: ignore[assignment]
        found, expected = remote.step(action), here.step(action)
        assert failures == 1
        assert remote.pid != first
        assert np.array_equal(found[0], expected[0])
        assert np.array_equal(remote.step(action)[0], here.step(action)[0])
    finally:
        remote.close()


class _Answering:
    """A connection whose answers are someone else's."""

    def __init__(self, connection: Any, recv: Callable[[], Any]) -> None:
        self._connection, self.recv = connection, recv

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def test_a_drawing_that_fails_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EnvConfig("cartpole_swingup", size=32)
    env, untroubled = make(config, 0), make(config, 0)
    try:
        env.reset(seed=1)
        expected = [untroubled.reset(seed=1)[0], untroubled.step(np.ones(1))[0]][1]
        from dm_control.mujoco import Physics  # how it renders is chosen by now

        fails, original = 2, Physics.render

        def render(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal fails
            if fails:
                fails -= 1
                raise RuntimeError("context lost")
            return original(self, *arguments, **options)

        monkeypatch.setattr(Physics, "render", render)
        assert np.array_equal(env.step(np.ones(1))[0], expected)
        assert fails == 0
        monkeypatch.setattr(gl, "forget", lambda: None)
        fails = 10**6
        with pytest.raises(RendererFailed, match=r"cannot be rendered.*context lost"):
            env.current_frame()
    finally:
        env.close()
        untroubled.close()


def test_a_replay_on_disk_takes_its_room_at_once(tmp_path: Path) -> None:
    """A page that cannot be written later would kill the process without a word."""
    spec = EnvSpec("pixels", (84, 84, 3), 1, 1, 50)
    replay = Replay(ReplayConfig(200, "disk"), spec, 3, tmp_path)
    taken = os.stat(tmp_path / FRAMES_FILE).st_blocks * 512
    assert taken >= replay.slots * 84 * 84 * 3


def test_a_stale_lock_is_no_lock(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=35))
    (run.folder / "lock").write_bytes(b"\xff 999999")
    go(run.folder, experiment(env_steps=36))
    assert checkpoint.reached(run) == 36


def test_an_environment_that_breaks_in_mid_run_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = go(tmp_path / "reference", experiment(env_steps=50))
    with monkeypatch.context() as patch:
        at_decision(patch, 40, lambda: patch.setattr(toy, "PROGRESS", math.nan))
        with pytest.raises(KstepError, match="toy_reach gave a reward of nan"):
            go(tmp_path / "run", experiment(env_steps=50), checkpoint_minutes=ALWAYS)
    assert contents(tmp_path / "run")
    assert_same(reference, go(tmp_path / "run", experiment(env_steps=50), StringIO()))
