"""Returns in the paper's layout, and what is aggregated over tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from kstep.analysis.tables import Row
from kstep.report import compare, human, paper, scores, statistics
from kstep.report import scales as scaling
from kstep.report.comparisons import COMPARISONS, cell
from kstep.report.grid import Cell, Grid
from kstep.report.page import curves
from kstep.report.page.data import Figure, Line, Section
from kstep.types import KstepError

DRAWS = {"seed": 0, "repetitions": 2_000}
"""Of every bootstrap over tasks, as `kstep compare` has them."""
THRESHOLDS = tuple(step / 50 for step in range(51))
"""Of the drawn performance profiles."""

COLUMNS = {
    "ksl": "KSL",
    "rad": "RAD",
    "drq": "DrQ",
    "curl": "CURL",
    "sac_ae": "SAC-AE",
    "sac_state": "SAC State",
    "sac_pixel": "SAC Pixel",
}
"""Of the paper's Table 1, in its order."""


def sections(rows: Sequence[Row], at: Sequence[int]) -> list[Section]:
    """Return the paper's table with ours, and what is aggregated over tasks."""
    try:
        marks = sorted(scores.table_marks(rows, at), reverse=True) if rows else []
    except KstepError:
        if at:
            raise
        return []
    beside, scale = COMPARISONS["main"].beside, scaling.scales(rows)
    returns: list[Grid] = []
    over_tasks: list[Grid] = []
    drawn: list[Figure] = []
    remarks: list[str] = []
    chosen = {mark: scores.near(rows, mark) for mark in marks}
    for mark, here in chosen.items():
        cells, found = scores.summary(here, [mark], beside), compare.at(here, mark, scale)
        returns.append(table_1(cells, mark))
        returns += _human(cells, mark)
        where = (scores.taken_elsewhere(here), scores.left_out(rows, here, mark))
        remarks += [f"{mark:,} env steps: {text}." for text in where if text]
        if compare.complete(found):
            over_tasks += _aggregates(cells, found, scale, mark)
            drawn.append(_profiles(found, mark))
        if text := compare.incomplete(found):
            remarks.append(f"{mark:,} env steps: {text}.")
    if text := scaling.remark(scale):
        others = any(own.known for own in scale.values())
        remarks.append(f"Returns are {text}{'; all others are divided by 1,000' * others}.")
    together = {str(row["task"]) for here in chosen.values() for row in here}
    steps = sorted({int(row["env_steps"]) for row in rows})
    along = compare.whole(rows, steps, together, scale)
    if along:
        drawn.insert(0, _efficiency(along))
    return [
        Section(
            "returns",
            "Returns",
            "The layout is that of the paper's Table 1. In each cell, ours is above, with its "
            "number of seeds n, and the paper's is below.",
            tables=tuple(returns),
        ),
        Section(
            "aggregates",
            "Over all tasks",
            "Scores are returns divided by the task's scale, 1,000 for tasks of the suite; each "
            "seed of each task counts once. Intervals are stratified bootstrap intervals of 95 %; "
            "they need three seeds.",
            tuple(drawn),
            tuple(over_tasks),
            remarks=tuple(remarks),
        ),
    ]


def table_1(cells: Sequence[Row], mark: int) -> Grid:
    """Return the returns at a mark in the paper's layout: ours, and below them the paper's."""
    labels = list(dict.fromkeys(str(row["label"]) for row in cells))
    tasks = list(dict.fromkeys(str(row["task"]) for row in cells))
    theirs = paper.cells("main", mark) if ("main", mark) in paper.BOLD else {}
    known = {name for task in tasks for name in theirs.get(task, {})}
    columns: list[tuple[str, str]] = []
    for name in COLUMNS:
        own = [label for label in labels if paper.name_of(label) == name]
        columns += [(name, label) for label in own] or [(name, "")] * (name in known)
    columns += [("", label) for label in labels if paper.name_of(label) not in COLUMNS]
    ours = {(str(row["task"]), str(row["label"])): row for row in cells}
    order = [*paper.table("main")["steps_100k"]]
    rows = []
    for task in sorted(tasks, key=lambda task: order.index(task) if task in order else len(order)):
        row: list[Cell | str] = [task]
        for name, label in columns:
            mine, their = ours.get((task, label)), theirs.get(task, {}).get(name)
            printed = f"{their.mean:.0f} ± {their.sd:.0f}{their.stars}" if their else ""
            if mine is None:
                row.append(Cell("-", below=printed, below_bold=bool(their and their.best)))
                continue
            if not their and mine["paper_runs"]:  # another table of the paper, or its curve
                printed = cell(mine, "paper_").rpartition(" (")[0]
            bold = bool(mine["paper_best"])
            row.append(Cell(cell(mine), bool(mine["best"]), float(mine["mean"]), printed, bold))
        rows.append(row)
    head = [
        (f"{COLUMNS[name]}" if label in ("", name) else f"{COLUMNS[name]} ({label})")
        if name
        else label
        for name, label in columns
    ]
    return Grid.of(
        ("task", *head),
        rows,
        name=f"returns-{mark}",
        title=f"Returns at {mark:,} env steps",
        caption="Mean ± standard deviation over seeds. Bold: the highest mean of the methods that "
        "see images; * p < 0.05, ** p < 0.01 against its closest rival (Welch's test, "
        "uncorrected, as in the paper).",
    )


def _human(cells: Sequence[Row], mark: int) -> list[Grid]:
    """Return the human-normalized scores of Atari's games, if there are any."""
    grid, title = human.table(cells), f"Human-normalized scores at {mark:,} env steps"
    caption = "0 is what random actions score in a game, 1 what a human tester scored."
    return [_named(grid, f"human-{mark}", title, caption)] if grid.rows else []


def _aggregates(
    cells: Sequence[Row], found: compare.Scores, scale: Mapping[str, scaling.Scale], mark: int
) -> list[Grid]:
    labels = compare.complete(found)
    values = {label: compare.matrix(found, label) for label in labels}
    better = [
        [
            label,
            *(
                "-" if label == other else _probability(values[label], values[other])
                for other in labels
            ),
        ]
        for label in labels
    ]
    at = f"at {mark:,} env steps"
    grids = [
        _named(
            compare.aggregates(found, scale, **DRAWS),
            f"aggregates-{mark}",
            f"Aggregates {at}",
            "The interquartile mean is the mean of the middle half of all runs of all tasks, the "
            "optimality gap the mean shortfall from 1. A seed below a tenth of a known scale "
            "counts as failed.",
        ),
        _named(
            Grid.of(("P(row > column)", *labels), better),
            f"improvement-{mark}",
            f"Probability of improvement {at}",
            "How likely a run of the row's method returns more than one of the column's, on a task "
            "drawn at random.",
        ),
        _named(
            compare.improved(cells),
            f"average-improvement-{mark}",
            f"KSL's average improvement {at}",
            "By how many percent KSL's mean return is above that of each other method that sees "
            "images, averaged over the tasks that both have.",
        ),
    ]
    return [grid for grid in grids if grid.rows and len(labels) > (grid.name[:4] == "impr")]


def _named(grid: Grid, name: str, title: str, caption: str) -> Grid:
    return replace(grid, name=name, title=title, caption=caption)


def _probability(first: statistics.Array, second: statistics.Array) -> Cell:
    found = statistics.improvement_interval(first, second, **DRAWS)
    return Cell(compare.shown(found), value=found.value)


def _profiles(found: compare.Scores, mark: int) -> Figure:
    lines = []
    for label in compare.complete(found):
        values = compare.matrix(found, label)
        shares = [
            statistics.bootstrap(values, statistics.share_above(threshold), **DRAWS)
            for threshold in THRESHOLDS
        ]
        lines.append(_of_intervals(label, "score", THRESHOLDS, shares))
    usual, note = curves.numbers(lines)
    return Figure(
        f"profile-{mark}",
        f"Performance profiles at {mark:,} env steps",
        {"score": "normalized score"},
        "share of runs above it",
        tuple(lines),
        note,
        usual,
        y_range=(-0.02, 1.02),
    )


def _efficiency(
    along: Mapping[str, Mapping[int, tuple[tuple[int, ...], statistics.Array]]],
) -> Figure:
    """Return the IQM along training: as of a learning curve, a line has one set of seeds."""
    lines = []
    for label, curve in along.items():
        most = max(len(seeds) for seeds, _ in curve.values())
        for seeds, stretch in groupby(curve.items(), key=lambda cell: cell[1][0]):
            found = {
                mark: statistics.bootstrap(values, statistics.iqm, **DRAWS)
                for mark, (_, values) in stretch
            }
            line = _of_intervals(label, "env_steps", [*found], [*found.values()])
            lines.append(line if len(seeds) == most else replace(line, kind="fewer"))
    usual, note = curves.numbers(lines)
    return Figure(
        "iqm",
        "Interquartile mean along training",
        {"env_steps": "env steps"},
        "IQM of normalized scores",
        tuple(lines),
        note,
        usual,
    )


def _of_intervals(
    label: str, axis: str, x: Sequence[float], found: Sequence[statistics.Interval]
) -> Line:
    known = not any(np.isnan(point.low) for point in found)
    ends = (tuple(point.low for point in found), tuple(point.high for point in found))
    return Line(
        label,
        label,
        {axis: tuple(map(float, x))},
        tuple(point.value for point in found),
        tuple(point.n for point in found),
        {"interval": ends} if known else {},
    )
