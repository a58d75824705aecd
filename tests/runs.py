"""Whole runs in tests: small experiments, carried out and compared bit for bit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from rich.console import Console

from kstep.auxiliary.base import OwnSequences
from kstep.config import EvaluationConfig, Experiment
from kstep.methods import METHODS
from kstep.run import checkpoint, train
from kstep.run.folder import Run
from kstep.run.health import Health
from kstep.run.runtime import Runtime
from kstep.types import Array
from kstep.values import encode
from tests.make import tiny

ALWAYS = 1e-9
"""Minutes between checkpoints so short that one follows every decision."""


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


def at_decision(
    monkeypatch: pytest.MonkeyPatch, number: int, happens: Callable[[], object]
) -> None:
    """Let something happen inside one decision of a run, counted from 0 over the whole run: when
    its action is chosen, before anything is learned or stepped."""
    original = Health.watch_action

    def watch_action(health: Health, action: Array) -> None:
        if len(health.replay) == number:
            happens()
        original(health, action)

    monkeypatch.setattr(Health, "watch_action", watch_action)


def stop_after(
    monkeypatch: pytest.MonkeyPatch, decisions: int, number: int = signal.SIGINT
) -> None:
    """Send a signal that ends the run once that many decisions are taken."""
    at_decision(monkeypatch, decisions - 1, lambda: os.kill(os.getpid(), number))


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
    states = [encode(checkpoint.newest(run)[1]) for run in (one, two)]
    for state in states:
        del state["replay"]["segments"]  # cut elsewhere, same frames
        del state["provenance"]["commit"]  # the code may change beside a long test
    assert states[0] == states[1]


def contents(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
