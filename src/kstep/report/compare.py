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
from kstep.sweep.plan import RunSpec
from kstep.types import KstepError

if TYPE_CHECKING:
    import polars as pl

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""task -> method -> seed -> score."""

FULL = 1000.0
"""The largest return of a task of the suite; scores are divided by it for aggregates."""
FAILED = 0.1
"""A seed whose normalized score stays below counts as failed."""
THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
"""Where performance profiles are printed."""


def meant_for(specs: Sequence[RunSpec], mark: int) -> list[RunSpec]:
    """Return the runs of an experiment that are to be compared at a mark.

    Where a method has runs of several budgets with settings of their own, as Proto-RL has, those
    with the smallest budget that reaches the mark. Runs on frozen encoders are for `kstep analyze
    generalization`.
    """
    specs = [spec for spec in specs if spec.frozen_encoder is None]
    smallest: dict[tuple[str, str], int] = {}
    for spec in specs:
        if spec.env_steps >= mark:
            key = (spec.task, spec.method)
            smallest[key] = min(spec.env_steps, smallest.get(key, spec.env_steps))
    return [spec for spec in specs if smallest.get((spec.task, spec.method)) == spec.env_steps]


def select(frame: pl.DataFrame, specs: Sequence[RunSpec]) -> pl.DataFrame:
    """Keep the runs with the settings of these, whatever their seed, and what others published."""
    import polars as pl

    settings = sorted({spec.setting for spec in specs})
    return frame.filter((pl.col("source") != store.OURS) | pl.col("setting").is_in(settings))


def absent(frame: pl.DataFrame, specs: Sequence[RunSpec], mark: int, named: int = 5) -> str:
    """Say which runs have no evaluation at a mark: not begun, not there yet, or failed.

    They are in none of the numbers, so whoever reads these must know of them.
    """
    import polars as pl

    present = set(frame.filter(pl.col("mark") == mark)["digest"].to_list())
    lost = [spec.label for spec in specs if spec.digest not in present]
    if not lost:
        return f"all {len(specs)} planned runs are in the table"
    names = ", ".join(lost[:named]) + (", ..." if len(lost) > named else "")
    return f"{len(lost)} of {len(specs)} planned runs are not in the table: {names}"


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


def complete(scores: Scores) -> list[str]:
    """Return the methods that have every task, with a seed that all tasks share."""
    return [
        name
        for name in dict.fromkeys(name for row in scores.values() for name in row)
        if all(name in row for row in scores.values()) and len(matrix(scores, name))
    ]


def aggregates(scores: Scores, *, seed: int, repetitions: int = 2_000) -> Table:
    """Return IQM, optimality gap, failed seeds and probability of improvement per method."""
    methods = complete(scores)
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


def profiles(scores: Scores, *, seed: int, repetitions: int = 2_000) -> Table:
    """Return, per method, which part of its runs has a normalized score above each threshold."""
    methods = complete(scores)
    table = Table("score above", *methods, box=None)
    columns = []
    for name in methods:
        values = matrix(scores, name)
        part = statistics.performance_profile(values, THRESHOLDS)
        low, high = statistics.profile_band(values, THRESHOLDS, seed=seed, repetitions=repetitions)
        columns.append(
            [
                _interval(Interval(float(a), float(b), float(c), len(values)))
                for a, b, c in zip(part, low, high, strict=True)
            ]
        )
    for threshold, *cells in zip(THRESHOLDS, *columns, strict=True):
        table.add_row(f"{threshold:.1f}", *cells)
    return table


def efficiency(
    frame: pl.DataFrame, tasks: Sequence[str], *, seed: int, repetitions: int = 2_000
) -> Table:
    """Return the IQM over tasks at every mark, per method that has all the tasks there."""
    curves: dict[str, dict[int, Array]] = {}
    for mark in sorted(set(frame["mark"].to_list())):
        scores = gather(frame, mark, tasks, required=False)
        if set(scores) == set(tasks):
            for name in complete(scores):
                curves.setdefault(name, {})[mark] = matrix(scores, name)
    found = {
        name: statistics.sample_efficiency(
            curve, statistics.iqm, seed=seed, repetitions=repetitions
        )
        for name, curve in curves.items()
    }
    table = Table("env steps", *found, box=None)
    for mark in sorted({mark for curve in curves.values() for mark in curve}):
        cells = [
            f"{_interval(curve[mark])} (n = {curve[mark].n})" if mark in curve else "-"
            for curve in found.values()
        ]
        table.add_row(f"{mark:,}", *cells)
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
