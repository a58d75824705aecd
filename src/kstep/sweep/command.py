"""`kstep sweep`: plan, print the plan, execute, report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from kstep.envs import own
from kstep.errors import Fault, Stopped
from kstep.native import expected
from kstep.signals import signal_of
from kstep.sweep import conduct, engines, experiments, plan
from kstep.sweep.engines import Engine, Slot
from kstep.sweep.options import SweepRequest
from kstep.sweep.plan import RunSpec
from kstep.terminal import counted, say, terminal


def run_sweep(request: SweepRequest, imports: Sequence[str] = ()) -> None:
    """Execute every requested run that is not done; raise if one of them failed.

    `imports`: modules that register environments, for every run.
    """
    console = terminal()
    sweep = experiments.read(request.experiment, request.scale)
    seeds = experiments.seeds(request.seeds) if request.seeds else ()
    recorded, tabled = recorded_runs(request.table) if request.table else ({}, {})

    def planned() -> list[RunSpec]:
        return plan.plan(
            sweep,
            request.runs,
            tasks=request.tasks,
            methods=request.methods,
            seeds=seeds,
            recorded=recorded,
            imports=own.absolute(imports),
        )

    specs = planned()
    backend = expected(request.encoder_backend, request.device)
    conduct.show_plan(sweep, specs, console, backend, tabled)
    if request.plan:
        return
    engine, slot = _engine(request, specs, sweep.alone, console)
    try:
        outcomes = conduct.conduct_in_stages(engine, planned, slot, request.retries, console)
    except KeyboardInterrupt as interrupt:
        raise Stopped(
            "stopped; every run wrote a checkpoint. Rerun the command to resume",
            signal_of(interrupt),
        ) from None
    conduct.summarize(outcomes, console)
    left = sum(outcome.result != "done" for outcome in outcomes.values())
    if left:
        raise Fault(f"{left} of {len(outcomes)} runs are not done. Rerun the command to retry them")


def recorded_runs(table: Path) -> tuple[dict[str, int], dict[str, float]]:
    """Return what a table of results has: the env_steps of each run's newest evaluation, by digest,
    and each setting's processor time per decision."""
    from kstep.sweep import store  # tables are imported only where they are read

    frame = store.read(table)
    return store.reached(frame), store.core_seconds(frame)


def _engine(
    request: SweepRequest, specs: Sequence[RunSpec], alone: bool, console: Console
) -> tuple[Engine, Slot]:
    here = request.engine == "local"
    workers, slot = engines.divide(
        specs,
        workers=request.workers,
        threads=request.threads if here else request.threads or 1,
        device=request.device,
        alone=alone,
        memory_gb=None if here else float("inf"),
    )
    slot = replace(
        slot,
        checkpoint_minutes=request.checkpoint_minutes,
        encoder_backend=request.encoder_backend,
    )
    if request.engine == "ray":
        return engines.Ray(request.address), slot
    if request.engine == "slurm":
        return engines.Slurm(request.partition, int(60 * request.hours)), slot
    say(console, f"{counted(workers, 'run')} at once, {counted(slot.threads, 'thread')} each")
    return engines.Local(workers), slot
