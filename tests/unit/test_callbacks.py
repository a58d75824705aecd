"""Callbacks: told everything in order, unable to change or to lose a run."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kstep
from kstep import KstepError
from kstep.errors import Stopped
from kstep.run import train
from kstep.run.callbacks import TensorBoard, WeightsAndBiases
from kstep.run.evaluate import Evaluation
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from kstep.types import Counts
from tests.runs import assert_same, at_decision, experiment, go


class Told(kstep.Callback):
    """Remembers everything, and tries to change it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.values: list[dict[str, Any]] = []
        self.returns: list[tuple[float, ...]] = []

    def start(self, run: Run, counts: Counts) -> None:
        self._note("start", counts)

    def metrics(self, counts: Counts, values: Mapping[str, float]) -> None:
        self.values.append({**asdict(counts), **values})
        self._note("metrics", counts)
        values.clear()  # type: ignore[attr-defined]

    def evaluation(self, counts: Counts, evaluation: Evaluation) -> None:
        self.returns.append(evaluation.returns)
        self._note("evaluation", counts)

    def checkpoint(self, counts: Counts, folder: Path) -> None:
        assert (folder / "state.json").exists()
        self._note("checkpoint", counts)

    def end(self, counts: Counts, outcome: str) -> None:
        self._note(outcome, counts)

    def _note(self, event: str, counts: Counts) -> None:
        self.events.append((event, counts.env_steps))
        counts.env_steps = -1


def follow(folder: Path, *callbacks: kstep.Callback, **runtime: Any) -> tuple[Run, str]:
    """A small run with callbacks, and what it printed."""
    run, said = Run.prepare(folder, experiment()), StringIO()
    console = Console(file=said, soft_wrap=True)
    train.train(run, Runtime(threads=1, log_every=5, **runtime), console, callbacks)
    return run, said.getvalue()


def test_everything_is_told_in_order_and_nothing_is_changed(tmp_path: Path) -> None:
    told = Told()
    run, _ = follow(tmp_path / "told", told)
    assert_same(run, go(tmp_path / "alone", experiment()))
    assert told.values == [*run.logged()]
    assert told.returns == [row.returns for row in run.evaluations()]
    events = [event for event, _ in told.events]
    assert events[:2] == ["start", "evaluation"]
    assert events[-3:] == ["evaluation", "checkpoint", "done"]
    steps = [steps for _, steps in told.events]
    assert steps == sorted(steps)
    assert steps[-1] == 90


class Broken(Told):
    """Raises at one kind of event."""

    def __init__(self, event: str) -> None:
        super().__init__()
        self.event = event

    def _note(self, event: str, counts: Counts) -> None:
        super()._note(event, counts)
        if event == self.event:
            raise ValueError("no\nroom")


@pytest.mark.parametrize("event", ["metrics", "evaluation", "checkpoint", "done"])
def test_one_that_raises_is_reported_and_left_out_and_the_run_continues(
    event: str, tmp_path: Path
) -> None:
    broken, told = Broken(event), Told()
    run, said = follow(tmp_path / "run", broken, told)
    assert run.reached() == 90
    assert [name for name, _ in broken.events].count(event) == 1
    assert broken.events[-1][0] == event
    assert told.events[-1] == ("done", 90)
    method = "end" if event == "done" else event
    assert f"warning: the callback Broken raised ValueError in {method}() at {__file__}:" in said
    assert "no room. It is no longer called; the run continues" in said


def test_one_that_cannot_start_ends_the_run_at_once(tmp_path: Path) -> None:
    first, last = Told(), Told()
    with pytest.raises(KstepError, match=r"the callback Broken raised ValueError in start\(\)"):
        follow(tmp_path / "run", first, Broken("start"), last)
    assert first.events == [("start", 0), ("failed", 0)]
    assert last.events == []
    follow(tmp_path / "run", last)
    assert last.events[-1] == ("done", 90)


def test_a_run_that_is_stopped_and_resumed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    with monkeypatch.context() as patch:
        at_decision(patch, 69, lambda: os.kill(os.getpid(), signal.SIGTERM))
        with pytest.raises(Stopped):
            follow(tmp_path / "run", told)
    assert told.events[-2:] == [("checkpoint", 70), ("stopped", 70)]
    follow(tmp_path / "run", told)
    assert ("start", 70) in told.events
    assert told.events[-1] == ("done", 90)


def test_tensorboard_has_what_the_log_has(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run, _ = follow(tmp_path / "run", TensorBoard())
    events = reader.EventAccumulator(str(run.tensorboard))
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("evaluation/return")]
    assert found == [(row.env_steps, pytest.approx(row.mean)) for row in run.evaluations()]
    losses = [row["critic/loss"] for row in run.logged() if "critic/loss" in row]
    assert [event.value for event in events.Scalars("critic/loss")] == pytest.approx(losses)


def test_tensorboard_hides_what_was_beyond_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Killed(BaseException):
        pass

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patch:
        at_decision(patch, 80, kill)
        with pytest.raises(Killed):
            follow(tmp_path / "run", checkpoint_minutes=1000.0, tensorboard=True)
    run, _ = follow(tmp_path / "run", tensorboard=True)
    events = reader.EventAccumulator(str(run.tensorboard), {"scalars": 0})
    events.Reload()
    # The run had no checkpoint, so all of it was repeated.
    steps = [event.step for event in events.Scalars("critic/loss")]
    assert steps == [row["env_steps"] for row in run.logged() if "critic/loss" in row]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "DISABLE_GIT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    run, _ = follow(tmp_path / "run", WeightsAndBiases("kstep-tests"))
    # wandb's own process may still be writing: wait for its end, as Python does at exit.
    wandb.teardown()
    (file,) = run.wandb.glob("offline-run-*/run-*.wandb")
    # Records in blocks of 32 KiB, as LevelDB writes logs: text between headers of seven bytes.
    data = file.read_bytes()
    text = b"".join(data[at + 7 : at + 32_768] for at in range(0, len(data), 32_768))
    rows = [*run.logged(), *({"evaluation/return": row.mean} for row in run.evaluations())]
    for row in rows:
        for name in row.keys() & {"critic/loss", "train/return", "evaluation/return"}:
            assert name.encode() in text
            assert json.dumps(row[name]).encode() in text


@pytest.mark.parametrize(
    ("flag", "module", "package"),
    [({"tensorboard": True}, "tensorboard", "tensorboard"), ({"wandb": "p"}, "wandb", "wandb")],
)
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    flag: dict[str, Any],
    module: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kstep.extras.find_spec", lambda name: None)
    with pytest.raises(
        KstepError, match=rf"^{module} is not installed: pip install '{package}[^']+'$"
    ):
        follow(tmp_path / "run", **flag)
    assert not (tmp_path / "run").exists()
