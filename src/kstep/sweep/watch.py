"""A sweep for people: the grid before it starts, a live table while it runs, a word at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, nullcontext
from itertools import islice

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kstep.native import Backend
from kstep.run.progress import clock
from kstep.sweep import plan
from kstep.sweep.engines import Engine, Outcome, Slot
from kstep.sweep.plan import RunSpec, State, Status, Sweep

COLOURS: dict[State, str] = {
    "done": "green",
    "running": "cyan",
    "partly": "yellow",
    "failed": "red",
    "missing": "dim",
}
MARKS: dict[State, str] = {
    "done": "●",
    "running": "▶",
    "partly": "◐",
    "failed": "✗",
    "missing": "·",
}
SHOWN = 15
"""Runs in the live table; more do not fit a terminal."""


def show_plan(
    sweep: Sweep,
    specs: Sequence[RunSpec],
    statuses: Sequence[Status],
    console: Console,
    cores: int,
    backend: Backend,
) -> None:
    """Print the grid, what is done and missing, and what the rest will take."""
    console.print(f"[bold]{sweep.name}[/bold] ({sweep.scale}): {sweep.title}", highlight=False)
    if sweep.preset != "paper":
        console.print(f"preset {sweep.preset}: not the paper's sizes", style="yellow")
    console.print(_grid(specs, statuses))
    legend = "  ".join(f"[{COLOURS[s]}]{MARKS[s]} {s}[/]" for s in plan.STATES)
    console.print(f"one mark per seed: {legend}", highlight=False)
    counted = plan.count(statuses)
    words = ", ".join(f"{number} {state}" for state, number in counted.items() if number)
    console.print(f"{len(specs)} runs: {words}", highlight=False)
    if sweep.transfer:
        on_frozen = [spec for spec in specs if spec.frozen_encoder is not None]
        ready = sum(spec.ready for spec in on_frozen)
        console.print(
            f"{len(on_frozen)} of them on frozen encoders: {ready} can be planned now, "
            f"{len(on_frozen) - ready} when the runs that train their encoders are done",
            highlight=False,
        )
    for spec, found in zip(specs, statuses, strict=True):
        if found.problem:
            console.print(f"  failed: {spec.label}: {found.problem}", style="red", markup=False)
    left = plan.estimate(specs, statuses, plan.measured_speeds(specs), backend)
    unfinished = len(specs) - counted["done"]
    if unfinished:
        by = "native convolutions" if backend == "native" else "PyTorch's convolutions"
        source = (
            "measured speed"
            if left.measured == unfinished
            else f"assumed speed, {by}"
            if not left.measured
            else f"measured speed for {left.measured} runs, assumed for the others, {by}"
        )
        console.print(
            f"left: about {left.core_hours:,.1f} core-hours, {left.hours(cores):,.1f} hours on "
            f"{cores} cores ({source}); longest run {left.longest_core_hours:,.1f} core-hours",
            highlight=False,
        )
        console.print(f"memory: {left.memory_gb:.1f} GB for the largest run", highlight=False)
    console.print(f"disk: {left.disk_gb:,.1f} GB when all are complete", highlight=False)


def conduct(
    engine: Engine,
    specs: Sequence[RunSpec],
    slot: Slot,
    retries: int,
    console: Console,
) -> dict[RunSpec, Outcome]:
    """Carry out what is not done, show how it goes, and return how each run ended."""
    todo = [spec for spec in specs if plan.status(spec).state != "done"]
    outcomes: dict[RunSpec, Outcome] = {}
    waiting = dict.fromkeys(todo)
    started = drawn = time.monotonic()
    done_before = len(specs) - len(todo)
    live = (
        Live(console=console, refresh_per_second=2, transient=True)
        if console.is_terminal
        else nullcontext()
    )
    with live as screen, closing(engine.run(todo, slot, retries)) as events:
        for event in events:
            if event is not None:
                spec, outcome = event
                outcomes[spec] = outcome
                del waiting[spec]
                number = done_before + len(outcomes)
                console.print(_line(spec, outcome, number, len(specs)), highlight=False)
            # Not after every run: a table takes reads of its own, and many may end at once.
            if screen is not None and (event is None or time.monotonic() > drawn + 0.5):
                drawn = time.monotonic()
                screen.update(_table(waiting, outcomes, len(todo), drawn - started))
    return outcomes


def conduct_in_stages(
    engine: Engine,
    planned: Callable[[], Sequence[RunSpec]],
    slot: Slot,
    retries: int,
    console: Console,
) -> dict[RunSpec, Outcome]:
    """Carry out what is ready, then plan again: what became ready by that, until nothing does."""
    outcomes: dict[RunSpec, Outcome] = {}
    seen: set[RunSpec] = set()
    while specs := [spec for spec in planned() if spec.ready and spec not in seen]:
        outcomes |= conduct(engine, specs, slot, retries, console)
        seen.update(specs)
    return outcomes


def summary(outcomes: dict[RunSpec, Outcome], console: Console) -> bool:
    """Say how a sweep ended; whether everything went well."""
    counted = Counter(outcome.result for outcome in outcomes.values())
    words = ", ".join(f"{number} {result}" for result, number in sorted(counted.items()))
    console.print(f"sweep ended: {words or 'nothing was left to do'}", highlight=False)
    for spec, outcome in outcomes.items():
        if outcome.result == "failed":
            console.print(
                f"\n{spec.label}, {outcome.attempts} attempts, log {spec.run.log_file}\n{outcome.error}",
                style="red",
                markup=False,
                highlight=False,
            )
        elif outcome.result == "busy":
            console.print(f"{spec.label} is written by another process", style="yellow")
    return set(counted) <= {"done"}


def _line(spec: RunSpec, outcome: Outcome, number: int, total: int) -> str:
    colour = {"done": "green", "failed": "red"}.get(outcome.result, "yellow")
    again = f", {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    return (
        f"[{colour}]{outcome.result:8}[/] {spec.label}, {clock(outcome.seconds)}{again} "
        f"({number} of {total})"
    )


def _grid(specs: Sequence[RunSpec], statuses: Sequence[Status]) -> Table:
    cells: dict[tuple[str, str], Text] = {}
    for spec, found in sorted(zip(specs, statuses, strict=True), key=lambda pair: pair[0].seed):
        row = f"{spec.folder.parent.name} {spec.env_steps:,}"
        cell = cells.setdefault((row, spec.task), Text())
        cell.append(MARKS[found.state], COLOURS[found.state])
    table = Table("method, preset, env steps", box=None)
    tasks = list(dict.fromkeys(task for _, task in cells))
    for task in tasks:
        table.add_column(task)
    for row in dict.fromkeys(row for row, _ in cells):
        table.add_row(row, *(cells.get((row, task), Text()) for task in tasks))
    return table


def _table(
    waiting: Iterable[RunSpec], outcomes: dict[RunSpec, Outcome], total: int, seconds: float
) -> Group:
    table = Table("run", "state", "env steps", box=None)
    # Queues are worked off from the front, so what runs is near the first that is not done.
    for spec in islice(waiting, SHOWN):
        found = plan.status(spec)
        if found.state == "running":
            part = f"{found.env_steps:,} / {spec.env_steps:,}"
            table.add_row(spec.label, f"[{COLOURS['running']}]running[/]", part)
    counted = Counter(outcome.result for outcome in outcomes.values())
    words = ", ".join(f"{number} {result}" for result, number in sorted(counted.items()))
    head = f"{len(outcomes)} of {total} ended ({words or 'none yet'}), {clock(seconds)}"
    return Group(Text(head), table)
