"""A sweep on the terminal: the grid before it starts, a live table while it runs, a summary."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from itertools import islice

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kstep.run.progress import clock
from kstep.sweep import cost, plan
from kstep.sweep.engines import Engine, Outcome, Slot
from kstep.sweep.experiments import Sweep
from kstep.sweep.plan import RunSpec, State, Status
from kstep.terminal import Column, counted, say, table
from kstep.types import Backend

SYMBOLS: dict[State, tuple[str, str]] = {
    "done": ("●", "green"),
    "running": ("▶", "cyan"),
    "partly": ("◐", "yellow"),
    "failed": ("✗", "red"),
    "missing": ("·", "dim"),
}
"""Of runs in these states, with their colours."""
SHOWN = 15
"""Runs in the live table; more do not fit a terminal."""


NAMED = 8
"""Runs that a plan names; the grid has all of them."""


def show_plan(
    sweep: Sweep,
    specs: Sequence[RunSpec],
    console: Console,
    backend: Backend,
    tabled: Mapping[str, float] | None = None,
) -> None:
    """Print the grid, what is done and missing, and what the rest will take.

    `tabled`: core-seconds per decision of runs in a table of results, by setting.
    """
    statuses, cores = [plan.status(spec) for spec in specs], len(os.sched_getaffinity(0))
    say(console, Text.assemble((sweep.name, "bold"), f" ({sweep.scale_name}): {sweep.title}"))
    for preset in sweep.presets:
        if preset != "paper":
            of_some = " of some runs" if len(sweep.presets) > 1 else ""
            say(console, f"preset {preset}{of_some}: not the paper's sizes", "yellow")
    for block in _grid(specs, statuses, console.width):
        console.print(block, crop=False)
    legend = [(f"  {symbol} {state}", colour) for state, (symbol, colour) in SYMBOLS.items()]
    say(console, Text.assemble("one symbol per seed:", *legend))
    counts = Counter(status.state for status in statuses)
    words = ", ".join(f"{counts[state]} {state}" for state in SYMBOLS if counts[state])
    say(console, f"{len(specs)} runs: {words}")
    waiting = [s.label for s, at in zip(specs, statuses, strict=True) if at.state != "done"]
    if waiting:
        more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
        say(console, f"not done, in the order of starting: {', '.join(waiting[:NAMED])}{more}")
    if sweep.transfer:
        on_frozen = [spec for spec in specs if spec.frozen_encoder is not None]
        ready = sum(spec.ready for spec in on_frozen)
        say(
            console,
            f"{len(on_frozen)} of them on frozen encoders: {ready} can be planned now, "
            f"{len(on_frozen) - ready} when the runs that train their encoders are done",
        )
    for spec, status in zip(specs, statuses, strict=True):
        if status.problem:
            say(console, f"  failed: {spec.label}: {status.problem}", "red")
    left = cost.estimate(specs, statuses, cost.measured_speeds(specs, tabled), backend)
    unfinished = len(specs) - counts["done"]
    if unfinished:
        by = "native convolutions" if backend == "native" else "PyTorch's convolutions"
        measured = "speed measured here or, in the table, elsewhere" if tabled else "measured speed"
        source = (
            measured
            if left.measured == unfinished
            else f"assumed speed, {by}"
            if not left.measured
            else f"{measured} for {left.measured} runs, assumed for the others, {by}"
        )
        say(
            console,
            f"left: about {left.core_hours:,.1f} core-hours, {left.hours(cores):,.1f} hours on "
            f"{counted(cores, 'core')} ({source}); "
            f"longest run {left.longest_core_hours:,.1f} core-hours",
        )
        say(console, f"memory: {left.memory_gb:.1f} GB for the largest run")
    say(console, f"disk: {left.disk_gb:,.1f} GB when all are complete")


def conduct(
    engine: Engine, specs: Sequence[RunSpec], slot: Slot, retries: int, console: Console
) -> dict[RunSpec, Outcome]:
    """Execute the runs that are not done, show their progress, and return how each ended."""
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
                say(console, _line(spec, outcome, done_before + len(outcomes), len(specs)))
            # Not after every run: the table needs reads of its own, and many may end at once.
            if screen is not None and (event is None or time.monotonic() > drawn + 0.5):
                drawn = time.monotonic()
                elapsed = drawn - started
                screen.update(_table(waiting, outcomes, len(todo), elapsed, console.width))
    return outcomes


def conduct_in_stages(
    engine: Engine,
    planned: Callable[[], Sequence[RunSpec]],
    slot: Slot,
    retries: int,
    console: Console,
) -> dict[RunSpec, Outcome]:
    """Execute the runs that are ready, then plan again, until no further run has become ready."""
    outcomes: dict[RunSpec, Outcome] = {}
    started: set[RunSpec] = set()
    while specs := [spec for spec in planned() if spec.ready and spec not in started]:
        outcomes |= conduct(engine, specs, slot, retries, console)
        started.update(specs)
    return outcomes


def summarize(outcomes: dict[RunSpec, Outcome], console: Console) -> None:
    """Print how a sweep ended."""
    say(console, f"sweep ended: {_counts(outcomes) or 'nothing was left to do'}")
    for spec, outcome in outcomes.items():
        if outcome.result == "failed":
            say(
                console,
                f"\n{spec.label}, {outcome.attempts} attempts, log {spec.run.log_file}\n"
                f"{outcome.error}",
                "red",
            )
        elif outcome.result == "busy":
            say(console, f"{spec.label} is being written by another process", "yellow")


def _line(spec: RunSpec, outcome: Outcome, number: int, total: int) -> Text:
    colour = {"done": "green", "failed": "red"}.get(outcome.result, "yellow")
    attempts = f", {outcome.attempts} attempts" if outcome.attempts > 1 else ""
    rest = f" {spec.label}, {clock(outcome.seconds)}{attempts} ({number} of {total})"
    return Text.assemble((f"{outcome.result:8}", colour), rest)


def _counts(outcomes: dict[RunSpec, Outcome]) -> str:
    counts = Counter(outcome.result for outcome in outcomes.values())
    return ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))


def _grid(
    specs: Sequence[RunSpec], statuses: Sequence[Status], width: int
) -> Iterator[Table | Text]:
    """Yield the grid of methods and tasks: one table, or several where tasks are too many."""
    cells: dict[str, dict[tuple[str, str], Text]] = {}
    for spec, status in sorted(zip(specs, statuses, strict=True), key=lambda pair: pair[0].seed):
        row = spec.folder.parent.name, f"{spec.env_steps:,}"
        cell = cells.setdefault(spec.task, {}).setdefault(row, Text())
        cell.append(*SYMBOLS[status.state])
    rows = list(dict.fromkeys(row for own in cells.values() for row in own))
    left = (Column("method, preset"), Column("env steps", "right"))
    before = sum(max(len(c.title), *(len(row[i]) for row in rows)) + 2 for i, c in enumerate(left))
    across = max(len(cell) for own in cells.values() for cell in own.values()) + 2
    plain = before + sum(max(len(task) + 2, across) for task in cells) <= width + 2
    count = len(cells) if plain else max(1, (width + 2 - before) // across)
    for tasks in (list(cells)[i : i + count] for i in range(0, len(cells), count)):
        # Where names do not fit side by side, each has a line of its own, above its column.
        for i in [] if plain else reversed(range(len(tasks))):
            name = f"{tasks[i]} ┐"
            bars = f"{'':{across - 1}}│" * (len(tasks) - 1 - i)
            yield Text(f"{name:>{before + across * i + 1}}{bars}", no_wrap=True, overflow="ignore")
        columns = [Column(task if plain else "│".ljust(across - 2)) for task in tasks]
        lines: list[list[str | Text]] = [
            [*row, *(cells[task].get(row, Text()) for task in tasks)] for row in rows
        ]
        yield table([*left, *columns], lines, width)


def _table(
    waiting: Iterable[RunSpec],
    outcomes: dict[RunSpec, Outcome],
    total: int,
    seconds: float,
    width: int,
) -> Group:
    counts = _counts(outcomes) or "none yet"
    ended = f"{len(outcomes)} of {total} ended ({counts}), {clock(seconds)}"
    # Queues are processed from the front, so running ones are near the first that is not done.
    statuses = [(spec, plan.status(spec)) for spec in islice(waiting, SHOWN)]
    rows = [
        (
            spec.label,
            Text("running", SYMBOLS["running"][1]),
            f"{at.env_steps:,} / {spec.env_steps:,}",
        )
        for spec, at in statuses
        if at.state == "running"
    ]
    columns = (Column("run"), Column("state", rank=1), Column("env steps", "right"))
    return Group(Text(ended), table(columns, rows, width))
