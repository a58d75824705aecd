"""Starting or resuming a run by the names of its method and task: what `kstep train` does."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from kstep.config import resolve
from kstep.run import saved_encoders, system
from kstep.run.callbacks import Callback
from kstep.run.folder import Run
from kstep.run.runtime import RunRequest, Runtime
from kstep.run.train import train
from kstep.terminal import say, terminal


def start(
    request: RunRequest,
    runtime: Runtime,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Bring the run to its budget and return it."""
    console, encoder = console or terminal(), runtime.frozen_encoder
    experiment = resolve(
        request.method,
        request.task,
        preset=request.preset,
        seed=request.seed,
        env_steps=request.env_steps,
        overrides=request.set,
        frozen_encoder=saved_encoders.frozen(encoder) if encoder else None,
    )
    system.device(runtime.device)
    special = bool(request.set) or encoder is not None
    folder = request.folder or Run.default_folder(request.runs, experiment, special)
    run = Run.prepare(folder, experiment)
    say(console, f"run folder: {run.folder}")
    system.keep_freed_memory()
    train(run, runtime, console, callbacks)
    say(console, f"done: {run.evaluations_file}")
    return run
