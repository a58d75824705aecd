"""Engines: a sweep end to end, failures beside successes, killed runs that resume."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from kstep.cli import main
from kstep.sweep import engines
from kstep.sweep.engines import Local, Slot, divide, execute
from kstep.sweep.experiments import read
from kstep.sweep.plan import NO_ENCODERS, RunSpec, plan, status
from kstep.types import KstepError
from tests.make import HANGING

OFTEN = Slot(checkpoint_minutes=0.002)


def specs_in(folder: Path, *methods: str, seeds: int = 1, env_steps: int = 120) -> list[RunSpec]:
    names = ", ".join(f'"{name}"' for name in methods)
    folder.mkdir(exist_ok=True)
    file = folder / "tiny.toml"
    file.write_text(
        f'tasks = ["toy_reach"]\n[[group]]\nmethods = [{names}]\nseeds = "1-{seeds}"\n'
        f"env_steps = {env_steps}\n"
    )
    return plan(read(str(file), "debug"), folder / "runs")


def results(spec: RunSpec) -> bytes:
    return (spec.folder / "evaluations.jsonl").read_bytes()


def wait_until(condition: object, seconds: float = HANGING) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def test_cores_and_memory_are_divided() -> None:
    main_sweep = plan(read("main"), tasks=["walker_walk"], methods=["ksl"])
    assert len(main_sweep) == 10
    workers, slot = divide(main_sweep, cores=8, memory_gb=64)
    assert (workers, slot.threads, slot.overlap) == (8, 1, "off")
    assert slot.memory_gb == pytest.approx(3.5, abs=0.1)
    workers, slot = divide(main_sweep, cores=40, memory_gb=64)
    assert (workers, slot.threads) == (10, 4)
    workers, slot = divide(main_sweep, cores=16, memory_gb=10)  # room for two
    assert (workers, slot.threads) == (2, 8)
    workers, slot = divide(main_sweep, cores=8, memory_gb=64, alone=True)
    assert (workers, slot.threads) == (1, 8)
    workers, slot = divide(main_sweep, cores=8, memory_gb=64, threads=3)
    assert (workers, slot.threads, slot.overlap) == (2, 3, "auto")
    workers, slot = divide(main_sweep, cores=2, memory_gb=float("inf"), threads=1)
    assert (workers, slot.threads) == (2, 1)  # a cluster's memory is for the cluster to count
    with pytest.raises(KstepError, match="needs about"):
        divide(main_sweep, cores=8, memory_gb=2)


def test_a_run_with_one_core_draws_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LP_NUM_THREADS", raising=False)
    assert Slot(threads=1).environment()["LP_NUM_THREADS"] == "0"
    assert Slot(threads=3).environment()["LP_NUM_THREADS"] == "3"
    monkeypatch.setenv("LP_NUM_THREADS", "2")
    assert Slot(threads=1).environment()["LP_NUM_THREADS"] == "2"  # the user's own


def test_from_the_command_line_to_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, table = tmp_path / "runs", tmp_path / "results.parquet"
    command = ["sweep", "main", "--scale", "debug", "--methods", "ksl", "sac_state"]
    command += ["--seeds", "1", "--runs", str(runs), "--workers", "2", "--threads", "1"]
    main([*command, "--plan", "--encoder-backend", "torch"])
    said = capsys.readouterr().out
    assert "2 runs: 2 missing" in said
    assert "assumed speed, PyTorch's convolutions" in said
    assert not runs.exists()
    main(command)
    assert "sweep ended: 2 done" in capsys.readouterr().out
    main(command)
    again = capsys.readouterr().out
    assert "2 runs: 2 done" in again
    assert "nothing was left to do" in again
    polars = pytest.importorskip("polars")
    main(["collect", str(runs), "--output", str(table)])
    assert "2 runs read" in capsys.readouterr().out
    frame = polars.read_parquet(table)
    assert set(frame["method"]) == {"ksl", "sac_state"}
    assert frame["env_steps"].max() == 200


def test_frozen_encoders_from_the_first_stage_to_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "table"
    command = ["sweep", "generalization", "--scale", "debug", "--methods", "ksl", "rad"]
    command += ["--seeds", "1", "--runs", str(runs), "--workers", "2", "--threads", "1"]
    main([*command, "--plan"])
    said = capsys.readouterr().out
    assert "8 runs: 8 missing" in said
    assert "4 of them on frozen encoders: 0 can be planned now, 4 when" in said
    # One source cannot be trained: the others' encoders are transferred all the same.
    spoiled = runs / "toy_reach" / "rad-debug" / "seed1"
    spoiled.mkdir(parents=True)
    (spoiled / "somebody's file").touch()
    with pytest.raises(SystemExit):
        main(command)
    assert "sweep ended: 6 done, 1 failed" in capsys.readouterr().out
    (spoiled / "somebody's file").unlink()
    main(command)
    said = capsys.readouterr().out
    assert "4 of them on frozen encoders: 3 can be planned now, 1 when" in said
    assert "sweep ended: 2 done" in said
    main([*command, "--plan"])
    assert "8 runs: 8 done" in capsys.readouterr().out
    folders = sorted(str(path) for path in runs.glob("*/sac_pixel-on-*/seed1"))
    assert len(folders) == 4
    main(["analyze", "generalization", *folders, "--output", str(out)])
    with (out / "generalization.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["task"], row["label"]) for row in rows} == {
        (task, label) for task in ("toy_reach", "toy_glide") for label in ("ksl-debug", "rad-debug")
    }
    assert {row["runs"] for row in rows} == {"1"}


def test_a_run_without_its_encoders_is_not_tried_twice(tmp_path: Path) -> None:
    (spec,) = specs_in(tmp_path, "sac_pixel", env_steps=60)
    assert execute(spec, Slot()).result == "done"
    outcome = execute(replace(spec, save_encoders_every=30), Slot(), retries=3)
    assert (outcome.result, outcome.attempts) == ("failed", 1)
    assert outcome.error == NO_ENCODERS


def test_nothing_is_imported_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec,) = specs_in(tmp_path, "sac_state", env_steps=60)
    monkeypatch.chdir(hostile(tmp_path))
    outcome = execute(spec, replace(Slot(), overlap="on"))
    assert outcome.result == "done", outcome.error
    assert not (tmp_path / "hostile" / "__pycache__").exists()


def hostile(tmp_path: Path) -> Path:
    """A folder in which modules lie that must not be imported."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for name in ("gymnasium", "torch", "rich", "tyro", "submitit", "cloudpickle"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported from here')\n")
    return folder


def test_one_failure_is_recorded_and_the_others_continue(tmp_path: Path) -> None:
    bad, good = specs_in(tmp_path, "sac_state", seeds=2)
    bad.folder.mkdir(parents=True)
    (bad.folder / "somebody's file").touch()
    outcomes = dict(event for event in Local(1).run([bad, good], Slot(), 1) if event)
    assert outcomes[good].result == "done"
    assert outcomes[bad].result == "failed"
    assert outcomes[bad].attempts == 1  # it would end the same way again
    assert "is not a run of kstep" in outcomes[bad].error
    assert status(bad).state == "failed"
    assert "is not a run of kstep" in status(bad).problem


def test_a_killed_run_resumes_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    for name in ("calm", "killed"):
        (tmp_path / name).mkdir()
    (calm,) = specs_in(tmp_path / "calm", "sac_state", env_steps=300)
    (killed,) = specs_in(tmp_path / "killed", "sac_state", env_steps=300)
    assert execute(calm, OFTEN).result == "done"

    def kill_once() -> None:
        lock = killed.folder / "lock"
        wait_until(lambda: len(list(killed.folder.glob("checkpoints/0*"))) > 1)
        os.kill(int(lock.read_text().split()[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill_once)
    killer.start()
    outcome = execute(killed, OFTEN, retries=2)
    killer.join()
    assert (outcome.result, outcome.attempts) == ("done", 2)
    assert results(killed) == results(calm)
    first, second = map(json.loads, killed.run.attempts_file.read_text().splitlines())
    assert "killed by SIGKILL" in first["error"]
    assert first["decisions"] > 0
    assert first["decisions"] + second["decisions"] == 300


def test_a_larger_budget_continues_the_same_run(tmp_path: Path) -> None:
    (small,) = specs_in(tmp_path, "sac_state", env_steps=60)
    assert execute(small, Slot()).result == "done"
    large = replace(small, env_steps=200)
    assert (status(large).state, status(large).env_steps) == ("partly", 60)
    assert execute(large, Slot()).result == "done"
    assert "resuming at 60 env steps" in large.run.log_file.read_text()
    (at_once,) = specs_in(tmp_path / "at_once", "sac_state", env_steps=200)
    assert execute(at_once, Slot()).result == "done"
    # The same but for the evaluation at the end of the small budget.
    assert set(results(at_once).splitlines()) < set(results(large).splitlines())


def test_stopping_writes_a_checkpoint_and_nothing_outlives_its_starter(tmp_path: Path) -> None:
    (spec,) = specs_in(tmp_path, "sac_state", env_steps=1_000_000)
    code = (
        "import sys, pickle; from kstep.sweep.engines import execute, Slot\n"
        "execute(pickle.loads(sys.stdin.buffer.read()), Slot())"
    )
    import pickle

    starter = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert starter.stdin is not None
    starter.stdin.write(pickle.dumps(spec))
    starter.stdin.close()
    lock = spec.folder / "lock"
    wait_until(lambda: lock.exists() and lock.read_text() and spec.run.is_locked())
    evaluations = spec.folder / "evaluations.jsonl"
    wait_until(lambda: evaluations.exists() and evaluations.stat().st_size > 0)
    assert status(spec).state == "running"
    process = psutil.Process(int(lock.read_text().split()[0]))
    # A second writer is kept out and does not count as a failure.
    quick = replace(spec, env_steps=10)
    seconds, engines.LOCK_SECONDS = engines.LOCK_SECONDS, 0.5
    try:
        assert execute(quick, Slot()).result == "busy"
    finally:
        engines.LOCK_SECONDS = seconds
    starter.kill()
    starter.wait()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    assert not spec.run.is_locked()
    assert list(spec.folder.glob("checkpoints/0*"))
    # It resumes, and is stopped through its engine.
    before = status(spec).env_steps
    events = Local(1).run([spec], Slot(), 1)
    wait_until(lambda: next(events) is None and spec.run.is_locked())
    time.sleep(1)
    events.close()
    assert not spec.run.is_locked()
    assert status(spec).state == "partly"
    assert status(spec).env_steps >= before
    assert json.loads(spec.run.attempts_file.read_text().splitlines()[-1])["outcome"] == "stopped"
