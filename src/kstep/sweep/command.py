"""`kstep sweep`: plan, print the plan, execute, report."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from kstep.errors import Fault, Stopped
from kstep.native import expected
from kstep.run.progress import say
from kstep.sweep import engines, experiments, plan, watch
from kstep.sweep.engines import Engine, Slot
from kstep.sweep.options import Resources, Selection
from kstep.sweep.plan import RunSpec


def run_sweep(selection: Selection, resources: Resources, *, only_plan: bool = False) -> None:
    """Execute every run of the selection that is not done; raise if one of them failed."""
    console = Console()
    sweep = experiments.read(selection.experiment, selection.scale)
    seeds = experiments.seeds(selection.seeds) if selection.seeds else ()

    def planned() -> list[RunSpec]:
        tasks, methods = selection.tasks, selection.methods
        return plan.plan(sweep, selection.runs, tasks=tasks, methods=methods, seeds=seeds)

    specs = planned()
    cores = len(os.sched_getaffinity(0))
    backend = expected(resources.encoder_backend, resources.device)
    watch.show_plan(sweep, specs, [plan.status(s) for s in specs], console, cores, backend)
    if only_plan:
        return
    engine, slot = _engine(resources, specs, sweep.alone, console)
    try:
        outcomes = watch.conduct_in_stages(engine, planned, slot, resources.retries, console)
    except KeyboardInterrupt:
        raise Stopped(
            "stopped; every run wrote a checkpoint. Rerun the command to resume", signal.SIGINT
        ) from None
    watch.summarize(outcomes, console)
    left = sum(outcome.result != "done" for outcome in outcomes.values())
    if left:
        raise Fault(f"{left} of {len(outcomes)} runs are not done. Rerun the command to retry them")


def _engine(
    resources: Resources, specs: Sequence[RunSpec], alone: bool, console: Console
) -> tuple[Engine, Slot]:
    here = resources.engine == "local"
    workers, slot = engines.divide(
        specs,
        workers=resources.workers,
        threads=resources.threads if here else resources.threads or 1,
        device=resources.device,
        alone=alone,
        memory_gb=None if here else float("inf"),
    )
    slot = replace(
        slot,
        checkpoint_minutes=resources.checkpoint_minutes,
        encoder_backend=resources.encoder_backend,
    )
    if resources.engine == "ray":
        return engines.Ray(resources.address), slot
    if resources.engine == "slurm":
        return engines.Slurm(resources.partition, int(60 * resources.hours)), slot
    say(console, f"{workers} runs at once, {slot.threads} threads each")
    return engines.Local(workers), slot
