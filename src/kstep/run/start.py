"""Starting or resuming a run by the names of its method and task: what `kstep train` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from kstep.config import resolve
from kstep.run import saved_encoders, system
from kstep.run.folder import Run
from kstep.run.progress import say
from kstep.run.runtime import Runtime
from kstep.run.train import train


def start(
    method: str,
    task: str,
    runtime: Runtime,
    *,
    preset: str = "paper",
    seed: int = 1,
    env_steps: int | None = None,
    overrides: Sequence[str] = (),
    runs: Path = Path("runs"),
    folder: Path | None = None,
) -> Run:
    """Bring the run to its budget and return it; `folder` instead of the usual one below `runs`."""
    console, encoder = Console(), runtime.frozen_encoder
    experiment = resolve(
        method,
        task,
        preset=preset,
        seed=seed,
        env_steps=env_steps,
        overrides=overrides,
        frozen_encoder=saved_encoders.frozen(encoder) if encoder else None,
    )
    system.device(runtime.device)
    special = bool(overrides) or encoder is not None
    run = Run.prepare(folder or Run.default_folder(runs, experiment, special), experiment)
    say(console, f"run folder: {run.folder}")
    system.keep_freed_memory()
    train(run, runtime, console)
    say(console, f"done: {run.evaluations_file}")
    return run
