"""Whole runs in tests: small experiments, carried out and compared bit for bit."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from rich.console import Console

from kstep.auxiliary.base import OwnSequences
from kstep.config import EvaluationConfig, Experiment
from kstep.methods import METHODS
from kstep.run import checkpoint, train
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from tests.make import tiny


def experiment(method: str = "ksl", env_steps: int = 90, **changes: Any) -> Experiment:
    overrides = ["method.learning.initial_decisions=30", "method.learning.batch_size=4"]
    if isinstance(METHODS[method].auxiliary, OwnSequences):
        overrides.append("method.auxiliary.sampling=any")
    small = tiny(method, *overrides)
    evaluation = EvaluationConfig(every=50, episodes=2)
    return replace(small, env_steps=env_steps, evaluation=evaluation, **changes)


def go(folder: Path, what: Experiment, said: StringIO | None = None, **runtime: Any) -> Run:
    """Bring a run to its budget; what it prints goes to `said`."""
    run = Run.prepare(folder, what)
    console = Console(file=said or StringIO(), soft_wrap=True)
    train.train(run, Runtime(threads=1, log_every=5, **runtime), console)
    return run


def weights(run: Run) -> dict[str, torch.Tensor]:
    folder, _ = checkpoint.newest(run)
    return safetensors.torch.load_file(folder / "agent.safetensors")


def assert_same(one: Run, two: Run) -> None:
    """Bit for bit: parameters, moments, logs, evaluations, streams, counts, replay."""
    assert one.metrics_file.read_bytes() == two.metrics_file.read_bytes()
    assert one.evaluations_file.read_bytes() == two.evaluations_file.read_bytes()
    first, second = weights(one), weights(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    states = [checkpoint.newest(run)[1] for run in (one, two)]
    for state in states:
        del state["replay"]["segments"]  # cut elsewhere, same frames
        del state["origin"]["commit"]  # work on the code may go on beside a long test
    assert states[0] == states[1]


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
