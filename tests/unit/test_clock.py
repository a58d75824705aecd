"""How long runs take, across processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstep.run.clock import Tick, spent, ticks
from kstep.run.train import Stopped
from tests.runs import experiment, go, stop_after


def tick(process: str, decisions: int, seconds: float) -> Tick:
    return Tick(process, decisions, 8 * decisions, seconds, seconds / 2)


def test_times_of_all_processes_add_up() -> None:
    rows = [tick("a", 10, 5.0), tick("a", 20, 9.0), tick("b", 15, 2.0), tick("b", 30, 8.0)]
    assert spent(rows, 10) == (5.0, 2.5)
    assert spent(rows, 11) == (9.0, 4.5)
    assert spent(rows, 21) == (17.0, 8.5)
    assert spent(rows, 31) is None
    assert spent([], 0) is None


def test_a_run_keeps_its_clock_over_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = experiment(env_steps=60)
    with monkeypatch.context() as patch:
        stop_after(patch, 20)
        with pytest.raises(Stopped):
            go(tmp_path / "run", what)
    run = go(tmp_path / "run", what)
    rows = ticks(run)
    assert len({row.process for row in rows}) == 2
    assert [row.decisions for row in rows if row.process != rows[0].process][-1] == 60
    wall, cores = spent(rows, 60) or (0.0, 0.0)
    assert wall > rows[-1].seconds > 0.0
    assert cores > 0.0
