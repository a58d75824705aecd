"""SIGTERM and Ctrl-C wherever they come: one sentence, the usual code, nothing half-written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kstep import cli
from kstep.signals import SAME, Terminated, answered, signal_of
from tests.make import HANGING
from tests.runs import at_decision

# Sends the signal to itself when the interpreter reports an event, then is `kstep`.
STARTED = """
import os, runpy, sys
number, event, name, *arguments = sys.argv[1:]
def hook(happened, details, sent=[]):
    if happened == event and name in str(details) and not sent:
        sent.append(True)
        os.kill(os.getpid(), int(number))
import kstep.signals  # the earliest moment at which anything can be answered
sys.addaudithook(hook)
sys.argv = ["kstep", *arguments]
runpy.run_module("kstep", run_name="__main__", alter_sys=True)
"""

MOMENTS = {
    "while it imports": ("import", "tyro"),
    "while it imports PyTorch": ("import", "torch"),
    "while it imports the loop": ("import", "kstep.run.train"),
    "while it checks": ("subprocess.Popen", "git"),
    "while it waits for the lock": ("fcntl.flock", ""),
    "while it writes who it is": ("os.rename", "config.json"),
    "while it opens its logs": ("os.rename", "metrics.jsonl"),
}


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, moment) for moment in MOMENTS] + [(signal.SIGINT, "while it imports")],
)
def test_a_signal_during_start_up_ends_with_a_sentence(
    number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    event, name = MOMENTS[moment]
    command = [sys.executable, "-c", STARTED, str(int(number)), event, name]
    command += ["train", "sac_state", "toy_reach", "--preset", "debug", "--threads", "1"]
    ended = subprocess.run(
        [*command, "--folder", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=HANGING,
        check=False,
    )
    assert ended.returncode == 128 + number, ended.stderr
    what = "terminated" if number == signal.SIGTERM else "interrupted"
    assert ended.stderr == f"kstep: {what}\n"
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_selfcheck_has_the_code_of_its_signal(
    number: signal.Signals,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_decision(monkeypatch, 5, lambda: os.kill(os.getpid(), number))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["selfcheck", "--quick", "--threads", "1", "--runs", str(tmp_path)])
    assert stopped.value.code == 128 + number
    assert "stopped at 6 env steps; a checkpoint is written" in capsys.readouterr().err


def test_several_requests_at_once_are_one_and_a_later_one_counts_again() -> None:
    """The kernel sends one for each thread of a parent that dies."""
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with answered():
            with pytest.raises(Terminated) as first:
                signal.raise_signal(signal.SIGTERM)
            assert signal_of(first.value) == signal.SIGTERM
            signal.raise_signal(signal.SIGTERM)
            time.sleep(SAME)
            signal.raise_signal(signal.SIGTERM)
            raise AssertionError("it was not answered")

    with pytest.raises(SystemExit) as stopped:
        work()
    assert stopped.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone() -> None:
    found = []

    def work() -> None:
        with answered():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]


def test_a_sweep_that_is_terminated_stops_its_runs(tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(
        'tasks = ["toy_reach"]\n[[group]]\nmethods = ["sac_state"]\nseeds = 1\nenv_steps = 1e6\n'
    )
    command = [sys.executable, "-m", "kstep", "sweep", "long.toml", "--scale", "debug"]
    process = subprocess.Popen(
        [*command, "--threads", "1"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "runs" / "toy_reach" / "sac_state-debug" / "seed1.log"
    deadline = time.monotonic() + HANGING
    while not (log.exists() and "env steps: return" in log.read_text()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    error = process.communicate(timeout=HANGING)[1]
    assert process.returncode == 143
    assert error == "kstep: stopped; every run wrote a checkpoint. Rerun the command to resume\n"
    assert "a checkpoint is written" in log.read_text()
