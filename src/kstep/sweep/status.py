"""How the runs below a folder are doing: `kstep status`.

In: a folder. Out: one `Progress` per run, from small reads of its own files, and a table of them
for terminals of any width. Nothing is written, so it may be asked of runs that are being trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kstep import reading
from kstep.config import setting
from kstep.envs.tasks import OF_SUITE
from kstep.run import clock
from kstep.run.folder import Evaluated, Run, RunFolder
from kstep.run.progress import clock as as_clock
from kstep.sweep.conduct import SYMBOLS
from kstep.sweep.plan import Status, status_of
from kstep.sweep.store import run_folders
from kstep.terminal import Column, counted, decimals, say, sparkline, table
from kstep.types import KstepError

NARROWEST, WIDEST = 4, 24
"""Characters of a sparkline."""


@dataclass(frozen=True)
class Progress:
    """What the files of one run show."""

    folder: Path
    method: str
    """With its preset, and with the digest of its settings where its folder has that."""
    task: str
    seed: int
    env_steps: int
    budget: int
    status: Status
    evaluations: tuple[Evaluated, ...]
    rate: float | None
    """env_steps per second of its newest process, evaluations included; None if not known yet."""

    @property
    def seconds_left(self) -> float | None:
        if self.status.state == "done":
            return 0.0
        return (self.budget - self.env_steps) / self.rate if self.rate else None

    def curve(self, width: int) -> list[float | None]:
        """Return the newest mean return in each of `width` equal parts of the budget, None beyond
        the newest evaluation."""
        if not self.evaluations:
            return []
        marks = [self.budget * (i + 1) / width for i in range(width)]
        newest = self.evaluations[-1].env_steps
        values: list[float | None] = []
        for i, mark in enumerate(marks):
            before = [row.mean for row in self.evaluations if row.env_steps <= mark]
            begun = self.budget * i / width <= newest
            values.append(before[-1] if begun and before else None)
        return values


def read(folder: Path) -> Progress:
    """Read how one run is doing."""
    run = Run.open(folder)
    experiment, evaluations = run.experiment, tuple(run.evaluations())
    status = status_of(run, experiment.env_steps)
    plain = f"{experiment.method.name}-{experiment.preset}"
    special = f"{plain}-{setting(experiment)[:6]}"
    return Progress(
        folder=folder,
        method=special if folder.parent.name == special else plain,
        task=experiment.env.task,
        seed=experiment.seed,
        env_steps=status.env_steps,
        budget=experiment.env_steps,
        status=status,
        evaluations=evaluations,
        rate=rate(run, status),
    )


def rate(run: Run, status: Status) -> float | None:
    """Return env_steps per second: of the newest process since its first evaluation or checkpoint
    after learning began, up to its newest log entry."""
    ticks = clock.ticks(run)
    if not ticks:
        return None
    started = datetime.fromisoformat(ticks[-1].process).timestamp()
    begun = run.experiment.method.learning.initial_decisions
    own = [tick for tick in ticks if tick.process == ticks[-1].process]
    first = next((tick for tick in own if tick.decisions >= begun), own[0])
    last, seconds = own[-1].env_steps, own[-1].seconds
    if status.env_steps > last:  # what was logged since has no time but that of its file
        last, seconds = status.env_steps, run.metrics_file.stat().st_mtime - started
    if last > first.env_steps and seconds > first.seconds:
        return (last - first.env_steps) / (seconds - first.seconds)
    return None


def read_all(root: Path, left_out: Callable[[str], None]) -> list[Progress]:
    """Read every run below a folder, in order; `left_out` is told of what cannot be read."""
    if not root.is_dir():
        raise KstepError(f"{root} is not a folder")
    found = list(reading.each(run_folders(root, left_out), read, left_out))
    if not found:
        raise KstepError(f"there is no run below {root}: kstep train makes one")
    return found


def show(root: Path, console: Console) -> None:
    """Print a table per task, what failed, and how much is left."""
    problems: list[str] = []
    found = read_all(root, problems.append)
    by_task: dict[str, list[Progress]] = {}
    for progress in found:
        by_task.setdefault(progress.task, []).append(progress)
    for task, own in by_task.items():
        say(console, Text(task, "bold"))
        console.print(_table(own, console.width), crop=False)
    legend = [(f"  {symbol} {state}", colour) for state, (symbol, colour) in SYMBOLS.items()]
    say(console, Text.assemble("newest evaluation's mean return;", *legend[:-1]))
    counts = Counter(progress.status.state for progress in found)
    words = ", ".join(f"{counts[state]} {state}" for state in SYMBOLS if counts[state])
    say(console, f"{counted(len(found), 'run')}: {words}")
    running = [p.seconds_left for p in found if p.status.state == "running"]
    known = [seconds for seconds in running if seconds is not None]
    if known:
        say(console, f"the last of those running ends in about {as_clock(max(known))}")
    for progress in found:
        if progress.status.problem:
            say(console, f"failed: {progress.folder}: {progress.status.problem}", "red")
    for folder, problem in _never_begun(root):
        say(console, f"failed: {folder}: {problem}", "red")
    for problem in problems:
        say(console, f"left out: {problem}", "yellow")


def _never_begun(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders that a sweep could not even begin to fill, and why."""
    for record in sorted(root.rglob("*.attempts.jsonl")):
        run = RunFolder(record.with_name(record.name.removesuffix(".attempts.jsonl")))
        if not run.config_file.exists() and (problem := run.last_problem()):
            yield run.folder, problem


def _table(runs: Sequence[Progress], width: int) -> Table:
    means = [row.mean for run in runs for row in run.evaluations]
    low, high = min([0.0, *means]), max([0.0, *means])
    digits = 0 if runs[0].task in OF_SUITE else decimals(max(-low, high))
    room = width - max(len(run.method) for run in runs) - 35  # what the other columns take
    spark = max(NARROWEST, min(WIDEST, room))
    columns = (
        Column(""),
        Column("method, preset"),
        Column("seed", "right"),
        Column("done", "right"),
        Column("return", "right"),
        Column(f"{low:,.{digits}f} to {high:,.{digits}f}"[:spark].ljust(spark)),
        Column("left", "right"),
        Column("env steps", "right", rank=1),
        Column("per s", "right", rank=2),
    )
    rows = [_row(run, spark, low, high, digits) for run in runs]
    return table(columns, rows, width)


def _row(run: Progress, spark: int, low: float, high: float, digits: int) -> list[str | Text]:
    left = run.seconds_left
    return [
        Text(*SYMBOLS[run.status.state]),
        run.method,
        str(run.seed),
        f"{run.env_steps / run.budget:.0%}",
        f"{run.evaluations[-1].mean:,.{digits}f}" if run.evaluations else "",
        sparkline(run.curve(spark), low, high),
        as_clock(left) if left else "" if left == 0.0 else "?",
        f"{run.env_steps:,}",
        f"{run.rate:.1f}" if run.rate else "",
    ]
