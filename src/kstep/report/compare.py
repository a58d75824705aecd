"""Methods side by side, from the table of evaluations: per task, in the aggregate, and the paper.

In: the table and an experiment. Out: tables of what follows from one score per seed. Every number
comes with its n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from kstep.analysis.tables import Row
from kstep.report import scores, statistics
from kstep.report.comparisons import cell, comparison_of
from kstep.report.scores import exploring
from kstep.report.statistics import Array, Interval, stars
from kstep.sweep.plan import RunSpec, Sweep, plan, with_variants
from kstep.types import KstepError

if TYPE_CHECKING:
    import polars as pl

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""task -> label -> seed -> score."""

FULL = 1000.0
"""The largest return of a task of the suite; scores are divided by it for aggregates."""
FAILED = 0.1
"""A seed whose normalized score stays below counts as failed."""
THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
"""Where performance profiles are printed."""


def compare(
    sweep: Sweep,
    table: pl.DataFrame,
    console: Console,
    *,
    tasks: Sequence[str] = (),
    beside_paper: bool = False,
    seed: int = 0,
    repetitions: int = 2_000,
) -> None:
    """Print everything about an experiment's runs, and about other variants of its methods."""
    comparison = comparison_of(sweep.paper)
    specs = [spec for spec in plan(sweep, tasks=tasks) if spec.frozen_encoder is None]
    planned = scores.identities(specs, comparison.identify)
    who = dict(planned)
    if comparison.variants:
        more = plan(with_variants(sweep), tasks=tasks)
        who |= scores.identities((s for s in more if s.frozen_encoder is None), comparison.identify)
    rows = scores.from_table(table, who, tasks)
    marks = sorted({int(row["env_steps"]) for row in rows})
    draws = {"seed": seed, "repetitions": repetitions}
    if not set(sweep.marks) & set(marks):
        wanted = " or ".join(f"{mark:,}" for mark in sweep.marks)
        raise KstepError(f"nothing was evaluated at {wanted} env steps; there is {marks[-8:]}")
    for mark in sweep.marks:
        if mark not in marks:
            console.print(f"\nnothing was evaluated at {mark:,} env steps yet", highlight=False)
            continue
        cells, found = scores.summary(rows, [mark], comparison.beside), at(rows, mark)
        console.print(f"\n[bold]{mark:,} env steps[/], preset {sweep.preset}", highlight=False)
        console.print(per_task(cells))
        console.print(absent(table, specs, planned, mark), highlight=False)
        for shown in (aggregates(found, **draws), profiles(found, **draws), improved(cells)):
            if shown.row_count:
                console.print(shown)
        if beside_paper:
            console.print(beside(cells))
    console.print("\n[bold]IQM along the curve[/]", highlight=False)
    together = {str(row["task"]) for row in rows if row["env_steps"] in sweep.marks}
    console.print(efficiency(rows, marks, together, **draws))
    if beside_paper:
        console.print("\n[bold]along the paper's curves[/], marks where ours is")
        console.print(along_curves(scores.summary(rows, marks, comparison.beside)))


def absent(
    table: pl.DataFrame, specs: Sequence[RunSpec], who: Mapping[str, Row], mark: int, named: int = 5
) -> str:
    """Say which runs have no evaluation at a mark: not begun, not there yet, or failed.

    They are in none of the numbers, so whoever reads these must know of them.
    """
    import polars as pl

    present = set(table.filter(pl.col("mark") == mark)["digest"].to_list())
    meant = [
        spec
        for spec in specs
        if spec.env_steps >= mark and not exploring({**who[spec.setting], "env_steps": mark})
    ]
    lost = [spec.label for spec in meant if spec.digest not in present]
    if not lost:
        return f"all {len(meant)} planned runs are in the table"
    names = ", ".join(lost[:named]) + (", ..." if len(lost) > named else "")
    return f"{len(lost)} of {len(meant)} planned runs are not in the table: {names}"


def at(rows: Sequence[Row], mark: int) -> Scores:
    """Return the scores of every seed at a mark."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["env_steps"] == mark and not exploring(row):
            cell = found.setdefault(str(row["task"]), {}).setdefault(str(row["label"]), {})
            cell[int(row["seed"])] = float(row["score"])
    return found


def per_task(cells: Sequence[Row]) -> Table:
    """Return mean ± sd (n) per cell; stars on the best as in the paper, and after Holm."""
    labels = list(dict.fromkeys(str(row["label"]) for row in cells))
    table = Table("task", *labels, "best against others", box=None)
    for task in dict.fromkeys(row["task"] for row in cells):
        own = {str(row["label"]): row for row in cells if row["task"] == task}
        shown = {label: cell(row) for label, row in own.items()}
        shown |= {label: f"[bold]{shown[label]}[/]" for label, row in own.items() if row["best"]}
        table.add_row(
            str(task), *(shown.get(label, "-") for label in labels), _verdict([*own.values()])
        )
    return table


def _verdict(own: Sequence[Row]) -> str:
    """Return the p of the best against its closest rival, as in the paper and with Holm's."""
    p, holm = (
        max((float(row[name]) for row in own if not np.isnan(float(row[name]))), default=None)
        for name in ("p", "p_holm")
    )
    if p is None or holm is None:
        return "needs two methods with two seeds"
    won = "".join(str(row["stars"]) for row in own)
    return f"p {p:.3g}{won}, Holm {holm:.3g}{stars(holm) if won else ''}"


def improved(cells: Sequence[Row]) -> Table:
    """Return KSL's average improvement over each other method, the paper's alongside."""
    table = Table("average improvement of", "over", "ours", "the paper's", "tasks", box=None)
    for row in scores.improvements(cells):
        ours, theirs = (
            "-" if np.isnan(float(row[name])) else f"{row[name]:.1f} %"
            for name in ("percent", "paper_percent")
        )
        table.add_row(str(row["label"]), str(row["over"]), ours, theirs, str(row["tasks"]))
    return table


def matrix(found: Scores, label: str) -> Array:
    """Return (runs, tasks) of normalized scores: the seeds that every task of the label has."""
    rows = [row[label] for row in found.values() if label in row]
    seeds = sorted(set.intersection(*(set(row) for row in rows)))
    return np.array([[row[seed] / FULL for row in rows] for seed in seeds])


def complete(found: Scores) -> list[str]:
    """Return the labels that have every task, with a seed that all tasks share."""
    return [
        label
        for label in dict.fromkeys(label for row in found.values() for label in row)
        if all(label in row for row in found.values()) and len(matrix(found, label))
    ]


def aggregates(found: Scores, *, seed: int, repetitions: int = 2_000) -> Table:
    """Return IQM, optimality gap, failed seeds and probability of improvement per label."""
    labels = complete(found)
    table = Table("method", "IQM", "optimality gap", "failed", box=None)
    first = max(labels, key=lambda label: float(statistics.iqm(matrix(found, label))), default="")
    table.add_column(f"P({first} better)")
    for label in labels:
        values = matrix(found, label)
        better = statistics.improvement_interval(
            matrix(found, first), values, seed=seed, repetitions=repetitions
        )
        middle = statistics.bootstrap(values, statistics.iqm, seed=seed, repetitions=repetitions)
        gap = statistics.bootstrap(
            values, statistics.optimality_gap, seed=seed, repetitions=repetitions
        )
        table.add_row(
            label,
            f"{_interval(middle)}, {middle.note}",
            _interval(gap),
            f"{statistics.failed(values, FAILED)} of {values.size}",
            "-" if label == first else _interval(better),
        )
    return table


def profiles(found: Scores, *, seed: int, repetitions: int = 2_000) -> Table:
    """Return, per label, which part of its runs has a normalized score above each threshold."""
    labels = complete(found)
    table = Table("score above", *labels, box=None)
    columns = []
    for label in labels:
        values = matrix(found, label)
        part = statistics.performance_profile(values, THRESHOLDS)
        low, high = statistics.profile_band(values, THRESHOLDS, seed=seed, repetitions=repetitions)
        columns.append(
            [
                _interval(Interval(float(a), float(b), float(c), len(values)))
                for a, b, c in zip(part, low, high, strict=True)
            ]
        )
    for threshold, *own in zip(THRESHOLDS, *columns, strict=True):
        table.add_row(f"{threshold:.1f}", *own)
    return table


def efficiency(
    rows: Sequence[Row],
    marks: Sequence[int],
    tasks: set[str],
    *,
    seed: int,
    repetitions: int = 2_000,
) -> Table:
    """Return the IQM over tasks at every mark, per label that has all the tasks there."""
    curves: dict[str, dict[int, Array]] = {}
    for mark in marks:
        found = at(rows, mark)
        if set(found) == tasks:
            for label in complete(found):
                curves.setdefault(label, {})[mark] = matrix(found, label)
    along = {
        label: statistics.sample_efficiency(
            curve, statistics.iqm, seed=seed, repetitions=repetitions
        )
        for label, curve in curves.items()
    }
    table = Table("env steps", *along, box=None)
    for mark in sorted({mark for curve in curves.values() for mark in curve}):
        cells = [
            f"{_interval(curve[mark])} (n = {curve[mark].n})" if mark in curve else "-"
            for curve in along.values()
        ]
        table.add_row(f"{mark:,}", *cells)
    return table


def beside(cells: Sequence[Row]) -> Table:
    """Return ours beside the paper's for every cell that both have."""
    table = Table("task", "method", "ours", "the paper", "ours is", box=None)
    for row in cells:
        if row["paper_runs"]:
            ours, theirs = cell(row), cell(row, "paper_")
            table.add_row(str(row["task"]), str(row["label"]), ours, theirs, str(row["place"]))
    return table


def along_curves(cells: Sequence[Row]) -> Table:
    """Return, per curve that both have, at how many marks ours is inside, above or below."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in cells:
        if row["paper_runs"] and int(row["env_steps"]) > 0:
            key = (str(row["task"]), str(row["label"]))
            found.setdefault(key, []).append(str(row["place"]))
    table = Table(
        "task", "method", "inside", "above", "below", "marks with too few seeds", box=None
    )
    for key, places in found.items():
        words = ("inside", "above", "below", scores.FEW)
        table.add_row(*key, *(str(places.count(word)) for word in words))
    return table


def _interval(found: Interval) -> str:
    if np.isnan(found.low):
        return f"{found.value:.3f}"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]".replace("[", "\\[")
