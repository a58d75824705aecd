"""How runs are doing, on terminals of any width; a run's last words; a checkpoint on demand."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest

from kstep.cli import main, parsed
from kstep.config import resolve
from kstep.run import checkpoint, on_demand, start
from kstep.run.clock import Tick
from kstep.run.folder import Attempt, Evaluated, Run, RunFolder
from kstep.run.progress import ProgressReport
from kstep.run.runtime import Runtime
from kstep.run.train import train
from kstep.sweep import conduct, experiments, status
from kstep.sweep.plan import plan
from kstep.terminal import Terminal, say, sparkline
from kstep.types import Counts, KstepError
from tests.runs import assert_same, at_decision, experiment, go

WIDTHS = [60, 80, 120]
FAILED = Attempt("", 9.0, 1, "cpu", "here", 5, "failed", 1, "Traceback\nkstep: the disk is full\n")


def made(
    root: Path, method: str, task: str, seed: int, returns: dict[int, float], env_steps: int
) -> Run:
    """A run folder as training would leave it, with these returns; its process took ten env steps
    per second and began to learn at 1,000."""
    what = resolve(method, task, preset="cpu", seed=seed, env_steps=env_steps)
    run = Run.prepare(Run.default_folder(root, what, overridden=False), what)
    with run.locked():
        run.begin()
        rows = [Evaluated(m, m, m, m, 1, (r,), (1,)) for m, r in returns.items()]
        run.evaluations_file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
        began = (datetime.now(UTC) - timedelta(hours=3)).isoformat(timespec="milliseconds")
        ticks = [Tick(began, m, m, 5.0 + m / 10, 1.0) for m in (0, 1_000, *returns)]
        run.clock_file.write_text("".join(json.dumps(asdict(tick)) + "\n" for tick in ticks))
        last = max(returns)
        (run.checkpoints / f"{last:09d}").mkdir()
        (run.checkpoints / f"{last:09d}" / "state.json").write_text("{}")
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    made(root, "ksl", "cartpole_swingup", 1, {0: 3.0, 50_000: 400.0, 100_000: 860.0}, 100_000)
    made(root, "ksl-one-optimizer", "cartpole_swingup", 12, {0: 3.0, 20_000: 99.0}, 100_000)
    failed = made(root, "sac_pixel", "ball_in_cup_catch", 1, {0: 0.0}, 100_000)
    failed.record_attempt(FAILED)
    RunFolder(failed.folder.with_name("seed2")).record_attempt(FAILED)
    (root / "odd").mkdir()
    (root / "odd" / "config.json").write_text("{")
    return root


def test_status_names_changed_settings_as_their_folder_does(tmp_path: Path) -> None:
    what = resolve("ksl", "toy_reach", preset="debug", seed=7, overrides=["method.auxiliary.k=2"])
    run = Run.prepare(Run.default_folder(tmp_path, what, overridden=True), what)
    with run.locked():
        run.begin()
    found = status.read(run.folder).method
    assert found == run.folder.parent.name != "ksl-debug"


@pytest.mark.parametrize("width", WIDTHS)
def test_status_fits_every_terminal(root: Path, width: int) -> None:
    said = StringIO()
    running = RunFolder(root / "cartpole_swingup" / "ksl-one-optimizer-cpu" / "seed12")
    with running.locked():
        status.show(root, Terminal(file=said, width=width))
    lines = said.getvalue().splitlines()
    (done,) = (line for line in lines if re.search(r"ksl-cpu +1 ", line))
    (trained,) = (line for line in lines if "ksl-one-optimizer-cpu" in line)
    assert {"●", "100%", "860"} <= set(done.split())
    assert "█" in done
    # 80,000 env steps at ten per second
    assert {"▶", "12", "20%", "99", "2:13:20"} <= set(trained.split())
    assert all(len(line.rstrip()) <= width for line in (done, trained))
    assert ("20,000" in trained) == (width == 120)
    assert "3 runs: 1 done, 1 running, 1 failed" in lines
    assert "the last of those running ends in about 2:13:20" in lines
    problems = [line for line in lines if line.startswith("failed: ")]
    assert [Path(line.split(": ")[1]).name for line in problems] == ["seed1", "seed2"]
    assert all(line.endswith("the disk is full") for line in problems)
    assert any(line.startswith("left out: ") and "odd" in line for line in lines)


def test_status_of_nothing(tmp_path: Path) -> None:
    for folder, sentence in ((tmp_path, "there is no run below"), (tmp_path / "x", "not a folder")):
        with pytest.raises(KstepError, match=sentence):
            status.read_all(folder, lambda problem: None)


def test_a_young_run_knows_no_time_left(tmp_path: Path) -> None:
    run = made(tmp_path, "ksl", "cartpole_swingup", 1, {0: 1.0}, 100_000)
    run.clock_file.unlink()
    found = status.read(run.folder)
    assert found.seconds_left is None
    assert found.curve(4) == [1.0, None, None, None]


def test_what_was_logged_since_the_newest_tick_counts(tmp_path: Path) -> None:
    run = made(tmp_path, "ksl", "cartpole_swingup", 1, {0: 1.0}, 100_000)
    run.metrics_file.write_text('{"env_steps": 11000.0}\n')
    began = datetime.now(UTC).timestamp() - 3 * 3600
    os.utime(run.metrics_file, (began, began + 105.0 + 2_000))  # five env steps per second since
    assert status.read(run.folder).rate == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_plan_fits_every_terminal(width: int, tmp_path: Path) -> None:
    sweep = experiments.read("main", "cpu")
    said = StringIO()
    conduct.show_plan(sweep, plan(sweep, tmp_path), Terminal(file=said, width=width), "torch")
    lines = said.getvalue().splitlines()
    begin, end = (
        next(i for i, line in enumerate(lines) if line.startswith(start))
        for start in ("preset", "one symbol")
    )
    grid = lines[begin + 1 : end]
    assert all(len(line.rstrip()) <= width for line in grid)
    text = "\n".join(grid)
    for spec in plan(sweep, tmp_path):
        assert spec.task in text
        assert sum(line.startswith(f"{spec.folder.parent.name} ") for line in grid) == 1
    assert "…" not in text
    (first,) = (line for line in grid if line.startswith("ksl-cpu "))
    head = grid[grid.index(first) - 1]
    if "│" in head:  # each name has a line down to its own column
        columns = [i for i, sign in enumerate(head) if sign == "│"]
        names = sorted((line.index("┐"), line.split()[0]) for line in grid if "┐" in line)
        assert [at for at, _ in names] == columns
        assert [name for _, name in names] == list(dict.fromkeys(sweep.group[0].tasks))
        assert all(first[column] == "·" for column in columns)


def test_a_sparkline_has_a_scale_and_gaps() -> None:
    assert sparkline([0.0, 50.0, 100.0, None], 0.0, 100.0) == "▁▅█ "
    assert sparkline([3.0, 3.0], 3.0, 3.0) == "▁▁"
    assert sparkline([-5.0, 500.0], 0.0, 100.0) == "▁█"


def test_a_sentence_is_wrapped_between_words_and_a_path_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = StringIO()
    console = Terminal(file=said, width=20)
    say(console, "twelve letters in every second line")
    say(console, "/a/path/that/is/longer/than/twenty/letters")
    assert [line.rstrip() for line in said.getvalue().splitlines()] == [
        "twelve letters in",
        "every second line",
        "/a/path/that/is/longer/than/twenty/letters",
    ]


@pytest.mark.parametrize("width", [40, *WIDTHS])
def test_the_bar_fits_and_knows_earlier_evaluations(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = StringIO()
    newest = Evaluated(80_000, 80_000, 1, 1, 1, (812.4, 800.0), (1, 1))
    title = "ksl (cpu) cartpole_swingup"
    report = ProgressReport(title, 100_000, Terminal(file=said, width=width), newest)
    with report.bar:
        report.advanced(Counts(env_steps=80_000, decisions=1, updates=1, episodes=1), True)
        time.sleep(0.01)
        report.advanced(Counts(env_steps=80_080, decisions=1, updates=1, episodes=1), True)
        report.bar.refresh()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", plain) if line.strip()]
    assert all(len(line.rstrip()) <= width for line in lines)
    last = lines[-1]
    assert re.search(r"\d+:\d\d left", last)
    if width > 40:
        assert title in last
        assert "return 806" in last
    assert ("at 80,000" in last) == (width == 120)


def test_training_ends_with_a_summary_and_commands_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "sac_pixel", "toy_reach", "--preset", "debug", "--env-steps", "60"]
    main([*words, "--evaluate-every", "20", "--runs", "my runs", "--threads", "1"])
    said = capsys.readouterr().out
    (run,) = (Run.open(path.parent) for path in tmp_path.rglob("config.json"))
    assert [row.mark for row in run.evaluations()] == [0, 20, 40, 60]
    assert f"return {run.evaluations()[-1].mean:.1f} over 1 episode" in said
    assert re.search(r"done: 60 env steps in \d+:\d\d", said)
    assert len(start.next_commands(run)) == 3
    shown = said.partition("next:\n")[2].splitlines()
    relative = Run.open(run.folder.relative_to(tmp_path))
    assert [line.strip() for line in shown] == list(start.next_commands(relative))
    for line in shown:
        parsed(shlex.split(line)[1:])  # raises if there is no such command


def test_a_signal_makes_a_checkpoint_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = go(tmp_path / "plain", experiment(env_steps=60))
    assert [path.name for path in plain.checkpoint_folders()] == ["000000060"]
    at_decision(monkeypatch, 40, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    before = signal.getsignal(signal.SIGUSR1)
    asked = go(tmp_path / "asked", experiment(env_steps=60))
    assert [path.name for path in asked.checkpoint_folders()] == ["000000041", "000000060"]
    assert signal.getsignal(signal.SIGUSR1) == before
    assert_same(plain, asked)


def test_a_young_run_says_when_and_a_checkpoint_comes_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.prepare(tmp_path / "run", experiment(env_steps=60))
    found: list[object] = []
    waiting: list[threading.Thread] = []

    def ask() -> None:
        found.append(on_demand.request(run, lambda text: None))

    def look() -> None:
        with pytest.raises(KstepError) as error:
            checkpoint.newest(run)
        found.append(str(error.value))
        waiting.append(threading.Thread(target=ask))
        waiting[0].start()

    def wait() -> None:
        """Until the signal has come: it is answered after this decision."""
        while signalled == []:
            time.sleep(0.01)

    signalled: list[int] = []
    original = signal.pidfd_send_signal

    def send(process: int, number: int) -> None:
        original(process, number)
        signalled.append(number)

    monkeypatch.setattr(signal, "pidfd_send_signal", send)
    at_decision(monkeypatch, 36, wait)
    at_decision(monkeypatch, 35, look)
    train(run, Runtime(threads=1), Terminal(file=StringIO()))
    waiting[0].join()
    sentence, folder = found
    assert "writes the first one in about 5 min" in str(sentence)
    assert f"kill -USR1 {os.getpid()}" in str(sentence)
    assert folder in run.checkpoint_folders()


def test_only_the_process_that_trains_a_run_is_asked(tmp_path: Path) -> None:
    """A folder from somebody else may name any process."""
    run = Run.prepare(tmp_path / "run", experiment())
    with run.locked():
        run.begin()
        assert on_demand.trainer(run) == os.getpid()
        run.lock_file.write_text("1\n5")
        assert on_demand.trainer(run) is None
        assert "by another process" in on_demand.first_checkpoint(run)
    with pytest.raises(KstepError, match="no process on this machine is training"):
        on_demand.request(run, lambda text: None)
    assert "resumes it" in on_demand.first_checkpoint(run)
