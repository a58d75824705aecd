"""Starting or resuming a run by the names of its method and task: what `kstep train` does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console

from kstep.config import resolve
from kstep.envs import own
from kstep.run import clock, on_demand, saved_encoders, system, trust
from kstep.run.callbacks import Callback
from kstep.run.folder import Run
from kstep.run.progress import clock as as_clock
from kstep.run.runtime import RunRequest, Runtime
from kstep.run.train import train
from kstep.terminal import say, sparkline, terminal


def start(
    request: RunRequest,
    runtime: Runtime,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Bring the run to its budget and return it."""
    console = console or terminal()
    run = _run(request, runtime)
    say(console, f"run folder: {run.folder}")
    system.keep_freed_memory()
    train(run, runtime, console, callbacks)
    summarize(run, console)
    return run


def checkpoint_now(request: RunRequest, runtime: Runtime) -> None:
    """Have the process that is training the run write a checkpoint."""
    console = terminal()
    written = on_demand.request(_run(request, runtime), lambda text: say(console, text))
    say(console, f"written: {written}")


def _run(request: RunRequest, runtime: Runtime) -> Run:
    encoder, overrides = runtime.frozen_encoder, request.set
    module = own.module_of(request.task)
    own.bring([*request.imports, *([module] if module else [])])
    if request.evaluate_every is not None:
        overrides = (*overrides, f"evaluation.every={request.evaluate_every}")
    experiment = resolve(
        request.method,
        request.task,
        preset=request.preset,
        seed=request.seed,
        env_steps=request.env_steps,
        overrides=overrides,
        frozen_encoder=saved_encoders.frozen(encoder) if encoder else None,
    )
    system.device(runtime.device)
    special = bool(overrides) or encoder is not None
    folder = request.folder or Run.default_folder(request.runs, experiment, special)
    run = Run.prepare(folder, experiment)
    run.imports = own.absolute(request.imports) or run.imports
    trust.require(run)
    return run


def summarize(run: Run, console: Console) -> None:
    """Print what a run has come to, and what can be done with it."""
    evaluations = run.evaluations()
    last, best = evaluations[-1], max(evaluations, key=lambda row: row.mean)
    took = clock.spent(clock.ticks(run), last.decisions)
    time = f" in {as_clock(took[0])}" if took else ""
    say(console, f"done: {last.env_steps:,} env steps{time}; {run.evaluations_file}")
    means = [row.mean for row in evaluations]
    line = sparkline(means[-60:], min(0.0, *means), max(means))
    number = f"{len(last.returns)} episode{'s' if len(last.returns) > 1 else ''}"
    better = f", best {best.mean:.1f} at {best.env_steps:,}" if best.mean > last.mean else ""
    say(console, f"return {last.mean:.1f} over {number}  {line}{better}")
    say(console, "next:")
    for command in next_commands(run):
        say(console, f"  {command}")


def next_commands(run: Run) -> tuple[str, ...]:
    """Return what one may want to do with a run that is done."""
    folder = shlex.quote(str(run.folder))
    return (
        f"kstep film {folder} --output film.mp4",
        f"kstep eval {folder} --episodes 20",
        f"kstep report {folder} --output report",
    )
