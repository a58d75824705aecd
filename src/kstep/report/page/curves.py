"""Learning curves: a figure per task, a line per method and set of seeds.

A mean over a set of seeds that changes on the way is not a curve of anything: it moves when a seed
ends. So a line consists of neighbouring evaluations of the same seeds. Where the set changes, it
ends, and another begins with its own n.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from kstep.analysis.tables import Row
from kstep.envs.tasks import PLANET
from kstep.report import paper, statistics
from kstep.report.comparisons import COMPARISONS
from kstep.report.page.data import Band, Figure, Line, Numbers
from kstep.report.page.records import Point, Record

AXES = {
    "env_steps": "env steps",
    "decisions": "decisions",
    "updates": "updates",
    "hours": "hours",
}
DOTTED = (
    " Vertical dots: where a method that explores first begins to learn from the task's reward."
)
DRAWS = {"seed": 0, "repetitions": 1_000}
"""Of the bootstrap of a curve's mean."""


def figures(records: Sequence[Record]) -> list[Figure]:
    """Return the curves of every task."""
    tasks = dict.fromkeys(record.task for record in records if record.points)
    return [_figure(task, [r for r in records if r.task == task]) for task in tasks]


def _figure(task: str, records: Sequence[Record]) -> Figure:
    by_label: dict[str, list[Record]] = {}
    for record in records:
        if record.points:
            by_label.setdefault(record.label, []).append(record)
    last = max(point.mark for record in records for point in record.points)
    lines: list[Line] = []
    dashed: set[Numbers] = set()
    for label, own in by_label.items():
        lines += segments(label, own)
        lines += [_run(record) for record in own] if len(own) > 1 else []
        theirs = _of_paper(own[0].identity, last)
        if theirs is not None and theirs.y not in dashed:  # variants share the paper's column
            lines.append(theirs)
            dashed.add(theirs.y)
    known = {
        axis for line in lines for axis, at in line.x.items() if any(v is not None for v in at)
    }
    rules = {(r.label, float(r.identity["exploration"])) for r in records}
    usual, note = numbers(lines)
    return Figure(
        f"curve-{task}",
        task,
        {axis: title for axis, title in AXES.items() if axis in known},
        "return",
        tuple(lines),
        note + DOTTED * any(rule[1] for rule in rules),
        usual,
        tuple(sorted(rule for rule in rules if rule[1])),
    )


def numbers(lines: Sequence[Line]) -> tuple[int, str]:
    """Return the number of seeds that most lines have, and a sentence about the points' n."""
    found = [line.n[0] for line in lines if line.kind in ("mean", "fewer")]
    usual = max(sorted(set(found), reverse=True), key=found.count)
    seeds = f"n = {usual} seed{'s' if usual > 1 else ''}"
    if set(found) == {usual}:
        return usual, f"Every point has {seeds}."
    note = f"Points have {seeds} unless another n stands at the end of their line."
    if any(line.kind == "fewer" for line in lines):
        note += " A line ends where its set of seeds changes; thinner lines have fewer seeds."
    return usual, note


def segments(label: str, records: Sequence[Record]) -> Iterator[Line]:
    """Yield a line for every stretch of evaluations of the same seeds."""
    at: dict[int, dict[int, Point]] = {}
    for record in records:
        for point in record.points:
            at.setdefault(point.mark, {})[record.seed] = point
    most = max(map(len, at.values()))
    for seeds, stretch in groupby(sorted(at), key=lambda mark: tuple(sorted(at[mark]))):
        points = [[at[mark][seed] for seed in seeds] for mark in stretch]
        scores = [[point.score for point in same] for same in points]
        cells = [statistics.summarize(values) for values in scores]
        bands: dict[str, Band] = {}
        if len(seeds) > 1:
            bands["sd"] = (
                tuple(cell.mean - cell.sd for cell in cells),
                tuple(cell.mean + cell.sd for cell in cells),
            )
        if len(seeds) >= statistics.FEWEST_SEEDS:
            ends = [
                statistics.bootstrap(np.array(values)[:, None], _mean, **DRAWS) for values in scores
            ]
            bands["interval"] = (tuple(e.low for e in ends), tuple(e.high for e in ends))
        yield Line(
            label,
            f"{label}, n = {len(seeds)} (seed {', '.join(map(str, seeds))})",
            {axis: tuple(_mean_of(same, axis) for same in points) for axis in AXES},
            tuple(cell.mean for cell in cells),
            (len(seeds),) * len(cells),
            bands,
            "mean" if len(seeds) == most else "fewer",
        )


def _mean(scores: statistics.Array) -> statistics.Array:
    return np.asarray(scores.mean(axis=(-2, -1)))


def _mean_of(points: Sequence[Point], axis: str) -> float | None:
    """Return where a point is on an axis: the mean over its seeds, if all of them know it."""
    found = [_on(point, axis) for point in points]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if len(known) == len(found) else None


def _on(point: Point, axis: str) -> float | None:
    if axis == "env_steps":
        return point.mark
    if axis == "hours":
        return None if point.seconds is None else point.seconds / 3600
    found: int | None = getattr(point, axis)
    return found


def _run(record: Record) -> Line:
    return Line(
        record.label,
        f"{record.label}, seed {record.seed}",
        {axis: tuple(_on(point, axis) for point in record.points) for axis in AXES},
        tuple(point.score for point in record.points),
        (1,) * len(record.points),
        kind="run",
    )


def _of_paper(identity: Row, last: int) -> Line | None:
    """Return the paper's curve of a method up to a mark, or what its tables have of it."""
    beside = COMPARISONS["main"].beside
    theirs = {
        mark: cell
        for mark in paper.CURVE_MARKS
        if mark <= last and (cell := beside(identity, mark))
    }
    if not theirs:
        return None
    x: dict[str, Any] = {"env_steps": tuple(map(float, theirs))}
    if repeat := PLANET.get(str(identity["task"])):
        x["decisions"] = tuple(mark / repeat for mark in theirs)
    cells = theirs.values()
    sd: Mapping[str, Band] = {
        "sd": (tuple(c.mean - c.sd for c in cells), tuple(c.mean + c.sd for c in cells))
    }
    name = f"{paper.name_of(str(identity['label']))} in the paper"
    means = tuple(cell.mean for cell in cells)
    return Line(str(identity["label"]), name, x, means, tuple(c.n for c in cells), sd, kind="paper")
