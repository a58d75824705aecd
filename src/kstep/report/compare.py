"""Methods side by side, from the table of evaluations: per task, in the aggregate, and the paper.

In: the table and an experiment. Out: tables (`Grid`), computed from one score per seed and printed
here; a page shows the same ones. Every number has its n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

import numpy as np
import polars as pl
from rich.console import Console
from rich.text import Text

from kstep.analysis.tables import Row, grouped
from kstep.report import human, scores, statistics
from kstep.report import scales as scaling
from kstep.report.comparisons import cell, comparison_of
from kstep.report.grid import Cell, Grid
from kstep.report.paper import Place
from kstep.report.scales import Scale
from kstep.report.scores import exploring
from kstep.report.statistics import Array, Interval, stars
from kstep.sweep.experiments import Sweep
from kstep.sweep.plan import RunSpec, plan, with_variants
from kstep.terminal import say
from kstep.types import KstepError

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""task -> label -> seed -> score, normalized."""

FAILED = 0.1
"""A seed with a normalized score below this counts as failed."""
THRESHOLDS = tuple(tenth / 10 for tenth in range(1, 10))
"""Of the printed performance profiles."""


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
    """Print all comparisons of an experiment's runs and of other variants of its methods."""
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
    presets = f"preset {' and '.join(sweep.presets)}"
    chosen = {mark: scores.near(rows, mark) for mark in sweep.marks}
    scale = scaling.scales(rows)
    if not any(chosen.values()):
        wanted = " or ".join(f"{mark:,}" for mark in sweep.marks)
        raise KstepError(f"no evaluation at {wanted} env steps, but at {marks[-8:]}")
    for mark, here in chosen.items():
        if not here:
            say(console, f"\nno evaluation at {mark:,} env steps yet")
            continue
        cells, found = scores.summary(here, [mark], comparison.beside), at(here, mark, scale)
        say(console, Text.assemble((f"\n{mark:,} env steps", "bold"), f", {presets}"))
        console.print(per_task(cells).printed())
        for remark in (
            scores.taken_elsewhere(here),
            scores.left_out(rows, here, mark),
            absent(here, specs, planned, mark),
        ):
            if remark:
                say(console, remark)
        grids = (aggregates(found, scale, **draws), profiles(found, **draws), improved(cells))
        for grid in (human.table(cells), *grids):
            if grid.rows:
                console.print(grid.printed())
        for remark in (incomplete(found), scaling.remark(scale)):
            if remark:
                say(console, remark)
        if beside_paper:
            console.print(beside(cells).printed())
    say(console, "\nIQM along the curve", "bold")
    together = {str(row["task"]) for here in chosen.values() for row in here}
    curves = efficiency(rows, marks, together, scale, **draws)
    console.print(_curve_table(curves).printed())
    labels = dict.fromkeys(str(row["label"]) for row in rows)
    if without := [label for label in labels if label not in curves]:
        say(console, f"left out, no evaluation of all tasks at one mark: {', '.join(without)}")
    if beside_paper:
        title = Text.assemble(("\nalong the paper's curves", "bold"), ", marks by difference")
        say(console, title)
        console.print(along_curves(scores.summary(rows, marks, comparison.beside)).printed())
    if remark := scores.strangers(table, who, tasks):
        say(console, f"\n{remark}")


def absent(
    here: Sequence[Row], specs: Sequence[RunSpec], who: Mapping[str, Row], mark: int, named: int = 5
) -> str:
    """Return a sentence about the runs without an evaluation at a mark: not started, not there
    yet, or failed. They are in none of the numbers, so a reader must know of them."""
    present = {(row["label"], row["task"], row["seed"]) for row in here}
    expected = [
        spec
        for spec in specs
        if spec.env_steps >= mark and not exploring({**who[spec.setting], "env_steps": mark})
    ]
    missing = [
        spec.label
        for spec in expected
        if (who[spec.setting]["label"], spec.task, spec.seed) not in present
    ]
    if not missing:
        return f"all {len(expected)} planned runs have an evaluation at this mark"
    names = ", ".join(missing[:named]) + (", ..." if len(missing) > named else "")
    return (
        f"{len(missing)} of {len(expected)} planned runs have no evaluation at this mark: {names}"
    )


def incomplete(found: Scores) -> str:
    """Return a sentence about what is in no aggregate: a label without every task, and seeds that
    are not in every task of their label; empty if all is in them."""
    whole, parts = complete(found), []
    for label in dict.fromkeys(label for row in found.values() for label in row):
        lacking = [task for task, row in found.items() if label not in row]
        seeds = [row[label].keys() for row in found.values() if label in row]
        single = sorted(seed for seed in set().union(*seeds) if not all(seed in s for s in seeds))
        if lacking:
            parts.append(f"{label} (nothing on {', '.join(lacking)})")
        elif label not in whole:
            parts.append(f"{label} (no seed is in all tasks)")
        elif single:
            parts.append(f"{label} with seed {', '.join(map(str, single))} (not in all tasks)")
    return f"left out of the aggregates: {', '.join(parts)}" if parts else ""


def at(rows: Sequence[Row], mark: int, scale: Mapping[str, Scale]) -> Scores:
    """Return the normalized scores of every seed at a mark."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in rows:
        if row["env_steps"] == mark and not exploring(row):
            task = str(row["task"])
            cell = found.setdefault(task, {}).setdefault(str(row["label"]), {})
            cell[int(row["seed"])] = scale[task](float(row["score"]))
    return found


def per_task(cells: Sequence[Row]) -> Grid:
    """Return mean ± sd (n) per cell; stars on the best as in the paper, and after Holm."""
    labels = list(dict.fromkeys(str(row["label"]) for row in cells))
    rows = []
    for (task,), of_task in grouped(cells, "task").items():
        own = {str(row["label"]): row for row in of_task}
        printed = {
            label: Cell(cell(row), bool(row["best"]), float(row["mean"]))
            for label, row in own.items()
        }
        found = [printed.get(label, "-") for label in labels]
        rows.append([str(task), *found, _p_of_best([*own.values()])])
    return Grid.of(("task", *labels, "best against others"), rows)


def _p_of_best(own: Sequence[Row]) -> str:
    """Return the p of the best against its closest rival, as in the paper and after Holm."""
    p, holm = (
        max((float(row[name]) for row in own if not np.isnan(float(row[name]))), default=None)
        for name in ("p", "p_holm")
    )
    if p is None or holm is None:
        return "needs two methods with two seeds"
    won = "".join(str(row["stars"]) for row in own)
    return f"p {p:.3g}{won}, Holm {holm:.3g}{stars(holm) if won else ''}"


def improved(cells: Sequence[Row]) -> Grid:
    """Return KSL's average improvement over each other method, the paper's alongside."""
    rows = []
    for row in scores.improvements(cells):
        ours, theirs = (
            "-" if np.isnan(float(row[name])) else f"{row[name]:.1f} %"
            for name in ("percent", "paper_percent")
        )
        rows.append([str(row["label"]), str(row["over"]), ours, theirs, str(row["tasks"])])
    return Grid.of(("average improvement of", "over", "ours", "the paper's", "tasks"), rows)


def matrix(found: Scores, label: str) -> Array:
    """Return (runs, tasks) of normalized scores: the seeds that every task of the label has."""
    rows = [row[label] for row in found.values() if label in row]
    return np.array([[row[seed] for row in rows] for seed in shared_seeds(found, label)])


def shared_seeds(found: Scores, label: str) -> tuple[int, ...]:
    """Return the seeds that every task of the label has."""
    rows = [row[label] for row in found.values() if label in row]
    return tuple(sorted(set.intersection(*(set(row) for row in rows))))


def complete(found: Scores) -> list[str]:
    """Return the labels that have every task, with a seed that all tasks share."""
    return [
        label
        for label in dict.fromkeys(label for row in found.values() for label in row)
        if all(label in row for row in found.values()) and len(matrix(found, label))
    ]


def aggregates(found: Scores, scale: Mapping[str, Scale], **draws: int) -> Grid:
    """Return IQM, optimality gap, failed seeds and probability of improvement per label; `draws`
    are the seed and the repetitions of the bootstrap."""
    labels = complete(found)
    first = max(labels, key=lambda label: float(statistics.iqm(matrix(found, label))), default="")
    known = [scale[task].known for task in found]
    rows = []
    for label in labels:
        values = matrix(found, label)
        better = statistics.improvement_interval(matrix(found, first), values, **draws)
        middle = statistics.bootstrap(values, statistics.iqm, **draws)
        gap = statistics.bootstrap(values, statistics.optimality_gap, **draws)
        counted = values[:, known]
        rows.append(
            (
                Cell(label),
                Cell(f"{shown(middle)}, {middle.note}", value=middle.value),
                Cell(shown(gap), value=gap.value),
                f"{(counted < FAILED).sum()} of {counted.size}" if counted.size else "-",
                "-" if label == first else Cell(shown(better), value=better.value),
            )
        )
    return Grid.of(("method", "IQM", "optimality gap", "failed", f"P({first} better)"), rows)


def profiles(found: Scores, **draws: int) -> Grid:
    """Return, per label, the share of its runs with a normalized score above each threshold."""
    labels = complete(found)
    rows: list[list[str]] = []
    for threshold in THRESHOLDS if labels else ():
        share = statistics.share_above(threshold)
        own = (statistics.bootstrap(matrix(found, label), share, **draws) for label in labels)
        rows.append([f"{threshold:.1f}", *map(shown, own)])
    return Grid.of(("score above", *labels), rows)


def efficiency(
    rows: Sequence[Row],
    marks: Sequence[int],
    tasks: set[str],
    scale: Mapping[str, Scale],
    **draws: int,
) -> dict[str, dict[int, Interval]]:
    """Return the IQM over tasks at every mark, per label that has all the tasks there."""
    return {
        label: {
            mark: statistics.bootstrap(values, statistics.iqm, **draws)
            for mark, (_, values) in along.items()
        }
        for label, along in whole(rows, marks, tasks, scale).items()
    }


def whole(
    rows: Sequence[Row], marks: Sequence[int], tasks: set[str], scale: Mapping[str, Scale]
) -> dict[str, dict[int, tuple[tuple[int, ...], Array]]]:
    """Return, per label and mark at which it has all the tasks, the seeds that all of them have and
    their (runs, tasks) of normalized scores."""
    curves: dict[str, dict[int, tuple[tuple[int, ...], Array]]] = {}
    for mark in marks:
        found = at(rows, mark, scale)
        if set(found) == tasks:
            for label in complete(found):
                cell = shared_seeds(found, label), matrix(found, label)
                curves.setdefault(label, {})[mark] = cell
    return curves


def _curve_table(curves: Mapping[str, Mapping[int, Interval]]) -> Grid:
    rows = []
    for mark in sorted({mark for curve in curves.values() for mark in curve}):
        cells = [
            f"{shown(curve[mark])} (n = {curve[mark].n})" if mark in curve else "-"
            for curve in curves.values()
        ]
        rows.append([f"{mark:,}", *cells])
    return Grid.of(("env steps", *curves), rows)


def beside(cells: Sequence[Row]) -> Grid:
    """Return ours beside the paper's for every cell that both have."""
    rows = [
        (str(row["task"]), str(row["label"]), cell(row), cell(row, "paper_"), str(row["place"]))
        for row in cells
        if row["paper_runs"]
    ]
    return Grid.of(("task", "method", "ours", "the paper", "difference"), rows)


def along_curves(cells: Sequence[Row]) -> Grid:
    """Return, per curve that both have, at how many marks ours differs, and which way."""
    compared = [row for row in cells if row["paper_runs"] and int(row["env_steps"]) > 0]
    *words, few = get_args(Place)
    rows = []
    for (task, label), own in grouped(compared, "task", "label").items():
        places = [row["place"] for row in own]
        rows.append([str(task), str(label), *(str(places.count(word)) for word in (*words, few))])
    return Grid.of(("task", "method", *words, f"marks with {few}"), rows)


def shown(found: Interval) -> str:
    """Return an estimate and, where there were enough seeds, its interval."""
    if np.isnan(found.low):
        return f"{found.value:.3f}"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"
