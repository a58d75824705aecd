"""From folders and tables to what a page shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import kstep
from kstep import style
from kstep.analysis.tables import Row
from kstep.envs.tasks import PLANET
from kstep.report import paper, scores, statistics
from kstep.report.grid import Cell, Grid
from kstep.report.page import analyses, curves, films, records, returns
from kstep.report.page.data import Figure, Line, Live, PageData, Section, Style
from kstep.report.page.records import Record
from kstep.run.progress import clock
from kstep.style import DARK, LIGHT
from kstep.sweep import store
from kstep.sweep.plan import State
from kstep.types import KstepError

NAMED = 12
"""Problems that are listed before the rest is counted."""


@dataclass(frozen=True)
class Access:
    """How a page gets at what it shows: read for it alone, or by a server for many of them."""

    run: Callable[[Path], Record] = records.of_folder
    """Reads a run folder."""
    table: Callable[[Path], list[Row]] = analyses.read_table
    """Reads a table about encoders."""
    film: Callable[[Record, Path], str] | None = None
    """From a film's file to its address; empty: it is not shown. None: films become part of the
    page."""
    stop: Callable[[Record], str] | None = None
    """To the address that stops a run, where the page shows runs while they are trained."""


FROM_DISK = Access()


def gather(
    sources: Sequence[Path],
    say: Callable[[str], None] = lambda text: None,
    *,
    title: str = "",
    at: Sequence[int] = (),
    access: Access = FROM_DISK,
) -> PageData:
    """Read everything and compute everything that the page shows; `say` is told what is left out.
    There must be something, unless runs may still begin while the page is looked at."""
    left_out: list[str] = []
    every = [source for source in sources if source.exists()]
    for source in sources:
        if source not in every:
            raise KstepError(f"{source} does not exist")
    runs = records.read(every, left_out.append, access.run)
    folders = [source for source in every if source.is_dir()]
    studied = analyses.section(folders, left_out.append, access.table)
    if not runs and not studied.figures and not studied.clouds and access.stop is None:
        listed = ", ".join(map(str, sources))
        reason = f": {left_out[0]}" if left_out else ""
        raise KstepError(f"{listed} holds no run, no table of evaluations and no analysis{reason}")
    for problem in left_out:
        say(f"left out: {problem}")
    runs.sort(key=lambda run: (_place(run), run.label, _order(run.task), run.seed))
    rows = [row for run in runs for row in run.rows()]
    # Whoever watches may wait for a mark that nobody has reached yet.
    marks = [mark for mark in at if access.stop is None or scores.near(rows, mark)]
    about, remarks = _facts(runs), [*_missing(runs), *(f"Left out: {text}." for text in left_out)]
    found = [
        Section(
            "runs",
            "What was run",
            remarks=tuple(remarks[:NAMED])
            + (
                (f"{len(remarks) - NAMED} more remarks of this kind.",)
                if len(remarks) > NAMED
                else ()
            ),
        ),
        Section(
            "curves",
            "Learning curves",
            "Lines are means over seeds of the return of greedy evaluation episodes; the paper's "
            "are dashed. The band is chosen above.",
            figures=tuple(curves.figures(runs)),
        ),
        *returns.sections(rows, marks),
        _time(runs),
        studied,
        films.section(runs, access.film),
        _health(runs),
        Section("every-run", "Every run", tables=(_table_of_runs(runs),) if runs else ()),
    ]
    labels = dict.fromkeys(
        [
            *(run.label for run in runs),
            *(line.label for fig in studied.figures for line in fig.lines),
        ]
    )
    return PageData(
        title or "Results",
        _summary(runs),
        about,
        tuple(section for section in found if section.name == "runs" or not section.empty),
        styles(labels),
        alarms=tuple(_alarms(runs)),
        live=tuple(_live(run, access.stop) for run in runs if run.state == "running")
        if access.stop
        else (),
        made=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, kstep {kstep.__version__}",
    )


def _alarms(runs: Sequence[Record]) -> list[str]:
    """Return sentences about runs whose learning has gone wrong."""
    return [
        f"{alarm}: {named}."
        for alarm in dict.fromkeys(alarm for run in runs for alarm in run.alarms)
        for named in _grouped([run for run in runs if alarm in run.alarms])
    ]


def _live(run: Record, stop: Callable[[Record], str]) -> Live:
    """Return how a run that is being trained is doing."""
    return Live(
        address=stop(run),
        label=run.label,
        task=run.task,
        seed=run.seed,
        env_steps=run.reached,
        budget=run.budget or run.reached,
        left="" if run.seconds_left is None else clock(run.seconds_left),
        score=f"{run.points[-1].score:.1f}" if run.points else "",
        film=films.title(*run.films[-1]) if run.films else "",
    )


def _place(run: Record) -> int:
    """Return where a method is in the paper's order; others come after."""
    name = paper.name_of(str(run.identity["method"]))
    return [*returns.COLUMNS].index(name) if name in returns.COLUMNS else len(returns.COLUMNS)


def _order(task: str) -> tuple[int, str]:
    """Return where a task is in the benchmark's order; others come after, by name."""
    return [*PLANET].index(task) if task in PLANET else len(PLANET), task


def styles(labels: Iterable[str]) -> dict[str, Style]:
    """Return every method's look on both backgrounds."""
    every = [*labels]
    light, dark = style.looks(every, LIGHT), style.looks(every, DARK)
    return {
        label: Style(look.colour, dark[label].colour, look.symbol, look.dashes)
        for label, look in light.items()
    }


def _summary(runs: Sequence[Record]) -> str:
    if not runs:
        return "no runs"
    counted = {
        "run": len(runs),
        "method": len({run.label for run in runs}),
        "task": len({run.task for run in runs}),
    }
    number = {noun: f"{n} {noun}{'s' if n != 1 else ''}" for noun, n in counted.items()}
    states = [run.state for run in runs]
    ended = [f"{states.count(state)} {word}" for state, word in _WORDS if states.count(state)]
    return "; ".join([f"{number['run']} of {number['method']} on {number['task']}", *ended])


_WORDS: tuple[tuple[State, str], ...] = (
    ("running", "running"),
    ("partly", "stopped early"),
    ("failed", "failed"),
)


def _facts(runs: Sequence[Record]) -> tuple[tuple[str, str], ...]:
    """Return what was run, counted: every value with its number of runs where there are several."""
    seeds = sorted({run.seed for run in runs})
    columns = {
        "Methods": [run.label for run in runs],
        "Tasks": [run.task for run in runs],
        "Presets": [run.preset for run in runs],
        "Renderers": [_drawn_by(run.renderer) for run in runs],
        "Commits": [_short(run.commit) for run in runs],
        "Machines": [run.machine for run in runs],
        "From others": [run.source for run in runs if run.source != store.OURS],
    }
    facts = [(name, _counted(values)) for name, values in columns.items()]
    facts.insert(2, ("Seeds", ", ".join(map(str, seeds))))
    return tuple((name, text) for name, text in facts if text)


def _counted(values: Sequence[str]) -> str:
    counts = {value: values.count(value) for value in dict.fromkeys(values) if value}
    if len(counts) == 1 and sum(counts.values()) == len(values):
        return next(iter(counts))
    return ", ".join(f"{value} ({number})" for value, number in counts.items())


def _drawn_by(renderer: str) -> str:
    """Return what drew a run's images, without how long that took."""
    return re.sub(r"rendering: |, \d+ ms per frame", "", renderer)


def _short(commit: str) -> str:
    return " then ".join(
        word[:10] + "+" * word.endswith("+") if len(word) >= 40 else word
        for word in commit.split(" then ")
    )


def _missing(runs: Sequence[Record]) -> list[str]:
    """Return sentences about what failed, ended early or is not there."""
    remarks = [f"Failed: {run.name}: {run.problem}" for run in runs if run.state == "failed"]
    early = [run for run in runs if run.state == "partly"]
    remarks += [f"Stopped before the budget: {named}." for named in _grouped(early)]
    cells: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        if run.source == store.OURS:
            cells.setdefault((run.label, run.task), set()).add(run.seed)
    for label in dict.fromkeys(label for label, _ in cells):
        own = {task: seeds for (of, task), seeds in cells.items() if of == label}
        every = set().union(*own.values())
        for task, seeds in own.items():
            if lacking := sorted(every - seeds):
                listed = ", ".join(map(str, lacking))
                remarks.append(f"Missing: {label} on {task} with seed {listed}.")
    return remarks


def _grouped(runs: Sequence[Record]) -> list[str]:
    """Return names of runs, those of one method and task in one."""
    seeds: dict[tuple[str, str], list[int]] = {}
    for run in runs:
        seeds.setdefault((run.label, run.task), []).append(run.seed)
    return [
        f"{label} on {task}, seed{'s' * (len(own) > 1)} {', '.join(map(str, own))}"
        for (label, task), own in seeds.items()
    ]


def _table_of_runs(runs: Sequence[Record]) -> Grid:
    rows: list[list[Cell | str]] = []
    for run in runs:
        last = run.points[-1] if run.points else None
        budget = f" of {run.budget:,}" if run.budget else ""
        seconds = last.seconds if last else None
        rows.append(
            [
                run.label,
                run.task,
                Cell(str(run.seed), value=run.seed),
                dict(_WORDS).get(run.state, run.state),
                Cell(f"{run.reached:,}{budget}", value=run.reached),
                Cell(f"{last.score:.1f}", value=last.score) if last else "-",
                Cell(clock(seconds), value=seconds) if seconds is not None else "-",
                run.preset,
                _short(run.commit) or "-",
            ]
        )
    return Grid.of(
        ("method", "task", "seed", "state", "env steps", "return", "time", "preset", "commit"),
        rows,
        name="runs",
        title="All runs",
        caption="The return is the mean of the newest evaluation's episodes; the time is "
        "wall-clock time, where the run recorded it.",
    )


def _time(runs: Sequence[Record]) -> Section:
    """Return how long runs took, where they recorded it."""
    cells: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for run in runs:
        last = run.points[-1] if run.points else None
        if last and last.seconds is not None and last.decisions:
            cells.setdefault((run.label, run.task), []).append((last.seconds, last.decisions))
    rows: list[list[Cell | str]] = []
    for (label, task), own in cells.items():
        rates = statistics.summarize([1000 * seconds / decisions for seconds, decisions in own])
        total = sum(seconds for seconds, _ in own)
        spread = "" if np.isnan(rates.sd) else f" ± {rates.sd:.1f}"
        rate = Cell(f"{rates.mean:.1f}{spread} (n = {rates.n})", value=rates.mean)
        rows.append([label, task, rate, Cell(clock(total), value=total)])
    grid = Grid.of(
        ("method", "task", "seconds per 1,000 decisions", "all runs together"),
        rows,
        name="wall-clock",
        title="Wall-clock time",
        caption="Evaluations and the start of the process are included. Times of runs that "
        "shared a machine, or ran on different ones, cannot be compared.",
    )
    return Section("time", "Time", tables=(grid,) if rows else ())


def _health(runs: Sequence[Record]) -> Section:
    """Return histories of what the watchdog looks at, a figure per task and quantity."""
    titles = {
        "latent/rank": "Effective rank of the latents",
        "latent/spread": "Spread of the latents",
        "critic/q": "Mean Q",
        "actor/entropy": "Entropy of the policy",
    }
    drawn = []
    for task in dict.fromkeys(run.task for run in runs):
        of_task = [run for run in runs if run.task == task]
        for quantity, title in titles.items():
            lines = []
            for run in of_task:
                points = [
                    (float(row["env_steps"]), float(row[quantity]))
                    for row in run.history
                    if "env_steps" in row and quantity in row
                ]
                if points:
                    x, y = zip(*points, strict=True)
                    name = f"{run.label}, seed {run.seed}"
                    lines.append(
                        Line(run.label, name, {"env_steps": x}, y, (1,) * len(y), kind="run")
                    )
            if lines:
                name = f"health-{task}-{quantity.replace('/', '-')}"
                axes = {"env_steps": "env steps"}
                drawn.append(Figure(name, title, axes, quantity, tuple(lines), group=task))
    return Section(
        "health",
        "Health",
        f"One line per run, from at most {records.SAMPLED} of its logged updates. A rank near 1 or "
        "a spread near 0 means that the encoder maps all observations to almost the same latent.",
        tuple(drawn),
    )
