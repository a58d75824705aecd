"""Environments that are broken in many ways: each ends with one sentence and an intact folder, or
trains."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from kstep import cli
from kstep.envs import remote
from kstep.run import checkpoint, train
from kstep.run.folder import Run
from tests.make import HANGING
from tests.runs import ALWAYS, assert_same

IMPORTABLE = Path(__file__).parent / "importable"

DIED = r"the process that simulates {task} failed 4 times in a row: it was ended"

REFUSED = {
    # made
    "init_raises": r"{task} raised ValueError in __init__\(\) at \S+: the motor is missing",
    "init_needs_a_package": r"{task} needs a package that is missing: No module named 'a_package",
    "init_leaves": r"{task} raised SystemExit in __init__\(\)",
    "no_spaces": r"{task} shows no image",
    "no_environment": r"{task} raised TypeError in __init__\(\).*must inherit from",
    "actions_unbounded": r"{task} takes actions without bounds",
    "actions_too_wide": r"{task} takes actions without bounds",
    "actions_fixed": r"{task} takes actions whose bounds leave no room",
    "actions_multidiscrete": r"{task} takes MultiDiscrete\(\[2 3\]\) actions",
    "actions_dict": r"{task} takes Dict\(",
    "actions_none": r"{task} takes None actions",
    "step_never_ends": r"{task} has no time limit.*--set env\.time_limit=1000",
    # reset
    "reset_raises": r"{task} raised ValueError in reset\(\)",
    "reset_leaves": r"{task} raised SystemExit in reset\(\)",
    "reset_old_api": r"{task} returned ndarray from reset\(\); needed are observation, info",
    "reset_none": r"{task} gave an observation \(\) object",
    "reset_at_random": r"{task} does not repeat itself",
    # step
    "step_raises": r"{task} raised ValueError in step\(\) at \S+: the motor is missing",
    "step_late_raises": r"{task} raised ValueError in step\(\)",
    "step_raises_os_error": r"{task} raised FileNotFoundError in step\(\)",
    "step_raises_keyboard_interrupt": r"{task} raised KeyboardInterrupt",
    "step_recurses": r"{task} raised RecursionError in step\(\)",
    "step_needs_a_package": r"{task} needs a package that is missing",
    "step_old_api": r"{task} returned 4 values from step\(\)",
    "step_leaves": r"{task} raised SystemExit in step\(\) at \S+: 3",
    "step_asks": r"{task} raised EOFError in step\(\)",
    "step_ends_at_once": r"{task} ends its episodes with the first decision",
    "step_ends_in_vectors": r"{task} gave array\(\[False,  True\]\) as terminated; needed is True",
    "step_ends_in_words": r"{task} gave 'never' as terminated; needed is True",
    "reward_nan": r"{task} gave a reward of nan",
    "reward_infinite": r"{task} gave a reward of -inf",
    "reward_beyond_float32": r"{task} gave a reward of 1e\+300",
    "reward_text": r"{task} gave 'plenty' as reward; needed is a number",
    "reward_none": r"{task} gave None as reward",
    "reward_vector": r"{task} gave array\(\[1\., 1\., 1\.\]\) as reward",
    "reward_complex": r"{task} gave 1j as reward",
    "observation_shape": r"{task} gave an observation \(30, 30, 3\) uint8",
    "observation_float": r"{task} gave an observation \(48, 48, 3\) float32",
    "observation_none": r"{task} gave an observation \(\) object",
    "observation_ragged": r"{task} gave an observation that is no array",
    "observation_list": r"{task} gave an observation \(1, 2\) float64",
    "render_none": r"{task} gave a rendered image \(\) object",
    "render_float": r"{task} gave a rendered image \(48, 48, 3\) float32",
    "render_list": r"{task} gave a rendered image \(1, 2\) float64",
    "render_raises": r"{task} raised ValueError in render\(\)",
}
"""Exit code 2: nothing but a change of the environment would help."""

FAILED = {
    "init_exits": DIED + " with exit code 0",
    "init_crashes": DIED + " by SIGSEGV",
    "reset_exits": DIED + " with exit code 0",
    "step_raises_memory_error": r"out of memory",
    "step_exits": DIED + " with exit code 0",
    "step_late_exits": DIED + " with exit code 0",
    "step_crashes": DIED + " by SIGSEGV",
    "step_late_crashes": DIED + " by SIGSEGV",
    "step_kills_itself": DIED + " by SIGKILL",
    "step_closes_files": r"the process that simulates {task} failed 4 times in a row",
    "reward_huge": r"",
}
"""Exit code 1: it may be different another time."""

TRAINS = (
    "none",
    "reward_array",
    "step_moves_away",
    "step_takes_signals",
    "step_seeds_everything",
    "step_prints",
    "step_starts_threads",
    "render_rarely_exits",  # once in every process, which is then replaced
    "close_raises",
    "close_hangs",
    "close_exits",
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user would who keeps environments in a folder."""
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    monkeypatch.setenv("PYTHONPATH", str(IMPORTABLE))
    import kstep_broken  # type: ignore[import-not-found]  # noqa: F401


def task_of(trouble: str) -> str:
    return f"gym:Broken/{trouble}-v0"


def command(trouble: str, folder: Path, *options: str) -> list[str]:
    words = ["train", "sac_pixel", task_of(trouble), "--preset", "debug", "--env-steps", "44"]
    settings = ("method.learning.initial_decisions=30", "method.learning.batch_size=4")
    for setting in (*settings, "evaluation.every=40"):
        words += ["--set", setting]
    # Hardly a moment passes without a checkpoint.
    words += ["--threads", "1", "--checkpoint-minutes", str(ALWAYS), "--env-timeout", "60"]
    return [*words, *options, "--folder", str(folder)]


def intact(folder: Path) -> bool:
    """Nothing was begun, or what is there can be opened, and no file of it is half written."""
    if not (folder / "config.json").exists():
        return not folder.exists() or not any(path.is_file() for path in folder.rglob("*"))
    run = Run.open(folder)
    return not list(folder.rglob("*.part")) and (
        not run.checkpoint_folders() or checkpoint.newest(run)[1].counts.decisions >= 0
    )


def ends(trouble: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Train; return the exit code and the sentence."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(command(trouble, folder))
    out, error = capfd.readouterr()
    assert "Traceback" not in out + error
    assert intact(folder)
    assert isinstance(stopped.value.code, int)
    (sentence,) = (line for line in error.splitlines() if line.startswith("kstep: "))
    return stopped.value.code, sentence


@pytest.mark.parametrize("trouble", REFUSED)
def test_it_is_refused(trouble: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, sentence = ends(trouble, tmp_path / "run", capfd)
    assert re.search(REFUSED[trouble].format(task=task_of(trouble)), sentence), sentence
    assert code == 2


@pytest.mark.parametrize("trouble", FAILED)
def test_it_fails(trouble: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, sentence = ends(trouble, tmp_path / "run", capfd)
    assert re.search(FAILED[trouble].format(task=task_of(trouble)), sentence), sentence
    assert code == 1


@pytest.mark.parametrize("trouble", TRAINS)
def test_it_trains(trouble: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    here = os.getcwd()
    cli.main(command(trouble, tmp_path / "run"))
    assert "Traceback" not in "".join(capfd.readouterr())
    assert Run.open(tmp_path / "run").is_done(44)
    assert os.getcwd() == here


def test_the_page_counts_them() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "reliability.md").read_text().split())
    kinds = len(REFUSED) + len(FAILED) + len(TRAINS)
    assert f"{kinds} kinds of broken environments" in text
    counts = f"{len(REFUSED)} are refused, {len(FAILED)} end with exit code 1, {len(TRAINS)} train"
    assert counts in text


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("step_late_hangs", r"it did not answer step\(\) within 2 s"),
        ("step_late_spins", r"it did not answer step\(\) within 2 s"),
        ("reset_rarely_hangs", r"it did not answer reset\(\) within 2 s"),
        ("step_late_exits", "it was ended with exit code 0"),
        ("step_late_crashes", "it was ended by SIGSEGV"),
        ("step_late_kills_itself", "it was ended by SIGKILL"),
    ],
)
def test_what_happens_once_leaves_no_trace(
    trouble: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The process is replaced, which is reported, and the run is the same to the bit."""
    (tmp_path / "happened").touch()
    monkeypatch.setenv("KSTEP_BROKEN_ONCE", str(tmp_path / "happened"))
    cli.main(command(trouble, tmp_path / "calm"))
    assert "is replaced" not in capfd.readouterr().out
    monkeypatch.setenv("KSTEP_BROKEN_ONCE", str(tmp_path / "happens"))
    cli.main(command(trouble, tmp_path / "run", "--env-timeout", "2"))
    task = task_of(trouble)
    said = capfd.readouterr().out
    assert re.search(f"the process that simulates {task} is replaced: {reason}", said), said
    assert_same(Run.open(tmp_path / "calm"), Run.open(tmp_path / "run"))


def test_what_always_hangs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "RETRIES", 1)
    with pytest.raises(SystemExit) as stopped:
        cli.main(command("step_late_hangs", tmp_path / "run", "--env-timeout", "2"))
    assert stopped.value.code == 1
    assert re.search(
        r"^kstep: the process that simulates gym:Broken/step_late_hangs-v0 failed 2 times in a "
        r"row: it did not answer \w+\(\) within 2 s",
        capfd.readouterr().err,
    )
    assert intact(tmp_path / "run")


@pytest.mark.parametrize("overlap", ["on", "off", "here"])
@pytest.mark.parametrize(
    ("trouble", "number"),
    [
        ("step_rarely_hangs", signal.SIGTERM),
        ("reset_rarely_hangs", signal.SIGTERM),
        ("step_rarely_spins", signal.SIGINT),
    ],
)
def test_a_stop_is_answered_while_the_environment_hangs(
    trouble: str, number: int, overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, folder = tmp_path / "hangs", tmp_path / "run"
    monkeypatch.setenv("KSTEP_BROKEN_ONCE", str(mark))
    process = started(command(trouble, folder, "--overlap", overlap), patience=1.0)
    wait_for(mark, process)
    process.send_signal(number)
    out, _ = process.communicate(timeout=HANGING)
    assert process.returncode == 128 + number, out
    assert re.search("kstep: stopped while .* did not answer. The run folder is intact", out), out
    assert intact(folder)


def test_a_stop_is_answered_while_an_evaluation_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, folder = tmp_path / "hangs", tmp_path / "run"
    monkeypatch.setenv("KSTEP_BROKEN_ONCE", str(mark))
    process = started(command("step_late_hangs", folder))
    wait_for(mark, process)  # in the first episode that is long enough
    process.terminate()
    out, _ = process.communicate(timeout=HANGING)
    assert process.returncode == 143, out
    assert "kstep: stopped at 0 env steps; a checkpoint is written" in out
    assert checkpoint.reached(Run.open(folder)) == 0


def test_one_ctrl_c_ends_an_evaluation_that_would_never_end(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = command("step_never_ends", folder, "--set", "env.time_limit=1000000000")
    process = started(words)
    wait_for(folder / "evaluations.jsonl", process)  # it is made before the first evaluation
    time.sleep(3)  # whether it has begun by now or not: it is not waited for
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=HANGING)
    assert process.returncode == 130, out
    assert "stopped at 0 env steps; a checkpoint is written" in out
    assert checkpoint.reached(Run.open(folder)) == 0


def test_a_hung_process_does_not_outlive_a_killed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "hangs"
    monkeypatch.setenv("KSTEP_BROKEN_ONCE", str(mark))
    process = started(command("step_late_hangs", tmp_path / "run"))
    wait_for(mark, process)
    (worker,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    psutil.wait_procs([worker], timeout=HANGING)
    assert not worker.is_running()


def started(words: list[str], patience: float = train.PATIENCE) -> subprocess.Popen[str]:
    """Start a command as a user would whose program registers the environments.

    `patience` is for how many seconds it waits for an environment once it was asked to stop.
    """
    program = "import kstep_broken, kstep.cli, kstep.run.train as train\n"
    program += f"train.PATIENCE = {patience}; kstep.cli.main({words!r})"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + HANGING
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
