"""Methods side by side, from the table of evaluations: per task, in the aggregate, and the paper.

In: a frame of evaluations and a mark in env_steps. Out: one score per seed for every method and
task, and tables of what follows from them. Every number comes with its n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from kstep.report import paper, statistics
from kstep.report.statistics import Array, Interval, Summary, summarize
from kstep.sweep import store
from kstep.types import KstepError

if TYPE_CHECKING:
    import polars as pl

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""task -> method -> seed -> score."""

FULL = 1000.0
"""The largest return of a task of the suite; scores are divided by it for aggregates."""
FAILED = 0.1
"""A seed whose normalized score stays below counts as failed."""


def gather(
    frame: pl.DataFrame, mark: int, tasks: Sequence[str] = (), *, required: bool = True
) -> Scores:
    """Return one score per seed at a mark. Two settings under one name are refused."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    settings: dict[tuple[str, str], str] = {}
    for row in store.scores(frame, mark).iter_rows(named=True):
        task = row["task"]
        if tasks and task not in tasks:
            continue
        name = _label(row)
        if settings.setdefault((task, name), row["setting"]) != row["setting"]:
            raise KstepError(
                f"the table holds {name} on {task} with several settings; collect the runs to be "
                "compared into a table of their own"
            )
        found.setdefault(task, {}).setdefault(name, {})[row["seed"]] = row["score"]
    if not found and required:
        marks = sorted(set(frame["mark"].to_list()))
        raise KstepError(f"nothing was evaluated at {mark:,} env steps; there is {marks[-8:]}")
    return found


def per_task(scores: Scores) -> Table:
    """Return mean ± sd (n) per cell; stars on the best as in the paper, and after Holm."""
    methods = list(dict.fromkeys(name for row in scores.values() for name in row))
    table = Table("task", *methods, "best against others", box=None)
    for task, row in scores.items():
        cells = {name: summarize(list(seeds.values())) for name, seeds in row.items()}
        tested = {name: cell for name, cell in cells.items() if cell.n > 1}
        verdict, best = "needs two methods with two seeds", ""
        if len(tested) > 1:
            plain = statistics.best_against_others(tested)
            holm = statistics.best_against_others(tested, correct=True)
            best = plain.name
            verdict = f"p {plain.largest:.3g}{statistics.stars(plain.largest)}"
            verdict += f", Holm {holm.largest:.3g}{statistics.stars(holm.largest)}"
        shown = [
            f"[bold]{show(cells[name])}[/]"
            if name == best
            else show(cells[name])
            if name in cells
            else "-"
            for name in methods
        ]
        table.add_row(task, *shown, verdict)
    return table


def matrix(scores: Scores, method: str) -> Array:
    """Return (runs, tasks) of normalized scores: the seeds that every task of the method has."""
    rows = [row[method] for row in scores.values() if method in row]
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    return np.array([[row[seed] / FULL for row in rows] for seed in seeds])


def aggregates(scores: Scores, *, seed: int, repetitions: int = 2_000) -> Table:
    """Return IQM, optimality gap, failed seeds and probability of improvement per method."""
    methods = [
        name
        for name in dict.fromkeys(name for row in scores.values() for name in row)
        if all(name in row for row in scores.values()) and len(matrix(scores, name))
    ]
    table = Table("method", "IQM", "optimality gap", "failed", box=None)
    first = max(methods, key=lambda name: float(statistics.iqm(matrix(scores, name))), default="")
    table.add_column(f"P({first} better)")
    for name in methods:
        values = matrix(scores, name)
        better = statistics.improvement_interval(
            matrix(scores, first), values, seed=seed, repetitions=repetitions
        )
        middle = statistics.bootstrap(values, statistics.iqm, seed=seed, repetitions=repetitions)
        gap = statistics.bootstrap(
            values, statistics.optimality_gap, seed=seed, repetitions=repetitions
        )
        table.add_row(
            name,
            f"{_interval(middle)}, {middle.note}",
            _interval(gap),
            f"{statistics.failed(values, FAILED)} of {values.size}",
            "-" if name == first else _interval(better),
        )
    return table


def beside_paper(scores: Scores, table: str, mark: int) -> Table:
    """Return ours beside the paper's for every cell that both have."""
    theirs = paper.cells(table, mark)
    shown = Table("task", "method", "ours", "the paper", "ours is", box=None)
    for task, row in scores.items():
        for name, seeds in row.items():
            cell = theirs.get(task, {}).get(name)
            if cell is None:
                continue
            ours = summarize(list(seeds.values()))
            few = ours.n < statistics.FEWEST_SEEDS
            word = "too few seeds to say" if few else paper.place(ours, cell)
            shown.add_row(task, name, show(ours), show(cell), word)
    return shown


def along_curves(frame: pl.DataFrame, tasks: Sequence[str] = ()) -> Table:
    """Return, per curve that both have, at how many marks ours is inside, above or below."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for mark in sorted(set(frame["mark"].to_list())):
        for task, row in gather(frame, mark, tasks, required=False).items():
            for name, seeds in row.items():
                found.setdefault((task, name), {})[mark] = list(seeds.values())
    shown = Table(
        "task", "method", "inside", "above", "below", "marks with too few seeds", box=None
    )
    for (task, name), curve in found.items():
        theirs = paper.curves().get((task, name), {})
        words = [
            "few"
            if len(curve[mark]) < statistics.FEWEST_SEEDS
            else paper.place(summarize(curve[mark]), theirs[mark])
            for mark in curve
            if mark > 0 and mark in theirs
        ]
        if words:
            counts = [str(words.count(word)) for word in ("inside", "above", "below", "few")]
            shown.add_row(task, name, *counts)
    return shown


def show(cell: Summary) -> str:
    """Return a summary as 841 ± 33 (n = 10)."""
    sd = "" if np.isnan(cell.sd) else f" ± {cell.sd:.0f}"
    return f"{cell.mean:.0f}{sd} (n = {cell.n})"


def _interval(found: Interval) -> str:
    if np.isnan(found.low):
        return f"{found.value:.3f}"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]".replace("[", "\\[")


def _label(row: Mapping[str, str]) -> str:
    name = row["method"]
    if row["flavour"] not in ("controlled", "published"):
        name += f"-{row['flavour']}"
    return name if row["source"] == store.OURS else f"{name} ({row['source']})"
