"""Slurm's engine, tested with submitit's local executor (no Slurm needed)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstep.sweep.engines import Slot, Slurm
from kstep.sweep.plan import status
from tests.sweep.test_engines import specs_in

pytest.importorskip("submitit")

pytestmark = pytest.mark.slow


def test_jobs_execute_runs(tmp_path: Path) -> None:
    specs = specs_in(tmp_path, "sac_state", env_steps=60)
    outcomes = dict(event for event in Slurm(cluster="local").run(specs, Slot(), 1) if event)
    assert [outcome.result for outcome in outcomes.values()] == ["done"], outcomes
    assert {status(spec).state for spec in specs} == {"done"}
