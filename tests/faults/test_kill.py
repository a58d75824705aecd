"""Kill a run at any instant, start the same command again: it ends as if nothing had happened.

The instants are drawn from a fixed seed, but the machine decides what they fall into: imports, the
first file, a checkpoint half written, the middle of an episode, the last evaluation.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kstep.run.folder import Run
from tests.make import HANGING
from tests.runs import assert_same

FAMILIES = {"plain": "sac_pixel", "auxiliary": "ksl", "two-phase": "proto_rl"}
TOY = ["toy_reach", "--preset", "debug", "--set", "evaluation.every=100"]


def command(method: str, folder: Path, *options: str) -> list[str]:
    start = [sys.executable, "-m", "kstep", "train", method, *options]
    # Hardly a moment passes without a checkpoint, so that kills find one half written.
    return [*start, "--threads", "1", "--checkpoint-minutes", "0.0005", "--folder", str(folder)]


def finish(arguments: list[str], folder: Path) -> Run:
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANGING)
    assert done.returncode == 0, done.stdout + done.stderr
    return Run.open(folder)


def killed(arguments: list[str], begun: Path, seconds: float) -> bool:
    """Start the command, kill it that long after `begun` is touched; False: it was done before.

    What it touches at its start is the lock: until then it imports, which is too dull to be killed
    in more than now and then.
    """
    before = begun.stat().st_mtime_ns if begun.exists() else 0
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and not _touched(begun, before):
            time.sleep(0.01)
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    out = process.communicate()[0].decode()
    assert process.returncode in (0, -signal.SIGKILL), out
    return process.returncode != 0


def _touched(path: Path, before: int) -> bool:
    try:
        return path.stat().st_mtime_ns > before
    except FileNotFoundError:
        return False


def kill_again_and_again(method: str, tmp_path: Path, kills: int, longest: float) -> None:
    options = [*TOY, "--env-steps", "200"]
    whole = finish(command(method, tmp_path / "whole", *options), tmp_path / "whole")
    arguments, rng = command(method, tmp_path / "run", *options), random.Random(method)
    count = run = 0
    while count < kills:
        folder = tmp_path / "run" / str(run)
        arguments = command(method, folder, *options)
        if killed(arguments, folder / "lock", rng.uniform(0.0, longest)):
            count += 1
        else:  # done before it could be killed: it must be right, and the next one starts over
            assert_same(whole, Run.open(folder))
            run += 1
    assert_same(whole, finish(arguments, folder))
    assert not list(folder.rglob("*.part"))
    print(f"{method}: {count} kills over {run + 1} runs")


@pytest.mark.parametrize("method", ["ksl"])
def test_a_killed_run_ends_as_if_it_had_not_been(method: str, tmp_path: Path) -> None:
    kill_again_and_again(method, tmp_path, kills=3, longest=1.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("method", FAMILIES.values(), ids=FAMILIES)
def test_a_run_killed_many_times_ends_as_if_it_had_not_been(method: str, tmp_path: Path) -> None:
    kill_again_and_again(method, tmp_path, kills=20, longest=1.5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_run_of_the_real_task_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Cart-pole from 84-pixel images, drawn in a process of its own, killed in mid-run."""
    options = ["cartpole_swingup", "--preset", "debug", "--set", "method.image_size=84"]
    options += ["--overlap", "on"]
    whole = finish(command("ksl", tmp_path / "whole", *options), tmp_path / "whole")
    folder = tmp_path / "run"
    arguments = command("ksl", folder, *options)
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    while process.poll() is None and not _learned(folder):
        time.sleep(0.05)
    assert process.poll() is None, "it was done before it could be killed"
    process.kill()
    process.wait()
    assert_same(whole, finish(arguments, folder))


def _learned(folder: Path) -> bool:
    """Whether a run is in the middle: 100 of its 200 decisions are in a checkpoint."""
    return any(path.name >= "000000100" for path in folder.glob("checkpoints/[0-9]*"))
