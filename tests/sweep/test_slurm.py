"""Slurm's engine, tested with submitit's local executor (no Slurm needed)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstep.sweep.engines import Slot, Slurm
from kstep.sweep.plan import status
from tests.sweep.test_engines import hostile, specs_in

pytest.importorskip("submitit")

pytestmark = pytest.mark.slow


def test_jobs_execute_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where modules of the names that they import lie in the current directory."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(hostile(tmp_path))
    specs = specs_in(tmp_path, "sac_state", env_steps=60)
    outcomes = dict(event for event in Slurm(cluster="local").run(specs, Slot(), 1) if event)
    assert [outcome.result for outcome in outcomes.values()] == ["done"], outcomes
    assert {status(spec).state for spec in specs} == {"done"}
    assert not (tmp_path / "hostile" / "__pycache__").exists()
