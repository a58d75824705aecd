"""Returns of runs beside each other: a row per evaluation, a cell per method, curves over training.

What is compared, and with which of the paper's numbers, is `comparisons`' business. Seeds are the
unit: a run's score at a mark is the mean return of its evaluation episodes there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from kstep.analysis.curves import lines
from kstep.analysis.tables import Row, deviation
from kstep.run import Run
from kstep.types import KstepError


@dataclass(frozen=True)
class Cell:
    """What the paper prints: mean and standard deviation over so many runs."""

    mean: float
    std: float
    runs: int


Paper: TypeAlias = Callable[[str, str, int], Cell | None]
"""The paper's cell for a task, a method and a mark, if it has one."""
Place: TypeAlias = Callable[[str, str], tuple[str, str]]
"""Where a task and a label stand: the panel (or line of a table) and the line in it (or column)."""


def rows_of(folders: Iterable[Path], identify: Callable[[Run], Row]) -> list[Row]:
    """Read every evaluation of every run; `identify` gives its `label`, `task`, `seed` and what
    else tells two runs apart."""
    rows: list[Row] = []
    seen: dict[tuple[object, ...], Path] = {}
    for folder in folders:
        run = Run.open(folder)
        identity, evaluations = identify(run), run.evaluations()
        if not evaluations:
            raise KstepError(f"{folder} was not evaluated yet")
        key = tuple(identity.values())
        if key in seen:
            raise KstepError(
                f"{seen[key]} and {folder} are both {identity['label']} on {identity['task']} with "
                f"seed {identity['seed']}; compare one of them"
            )
        seen[key] = folder
        rows += [
            {**identity, "env_steps": found["mark"], "score": float(np.mean(found["returns"]))}
            for found in evaluations
        ]
    return rows


def table_marks(rows: Sequence[Row], at: Sequence[int], usual: Sequence[int]) -> list[int]:
    """Return the marks to tabulate: those asked for, else the usual ones that were reached, else
    the last that all runs have."""
    runs: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in ("env_steps", "score"))
        runs.setdefault(key, set()).add(int(row["env_steps"]))
    reached, shared = set.union(*runs.values()), set.intersection(*runs.values())
    missing = [mark for mark in at if mark not in reached]
    if missing:
        there = ", ".join(f"{mark:,}" for mark in sorted(reached))
        raise KstepError(f"no run was evaluated at {missing[0]:,} env steps, but at {there}")
    chosen = list(at) or [mark for mark in usual if mark in reached]
    if not chosen and not shared:
        raise KstepError("the runs have no evaluation at a common mark; name one with --at")
    return chosen or [max(shared)]


def summary(rows: Sequence[Row], marks: Sequence[int], paper: Paper) -> list[Row]:
    """Return mean, standard deviation and number of runs per mark, task and label, the paper's
    alongside; `p` is Welch's test against the best mean of the same task and mark."""
    table: list[Row] = []
    for mark in marks:
        for task in dict.fromkeys(str(row["task"]) for row in rows):
            here = [row for row in rows if (row["task"], row["env_steps"]) == (task, mark)]
            scores: dict[str, list[float]] = {}
            for row in here:
                scores.setdefault(str(row["label"]), []).append(float(row["score"]))
            best = max(scores, key=lambda label: np.mean(scores[label]), default="")
            for label, own in scores.items():
                theirs = paper(task, label, mark) or Cell(np.nan, np.nan, 0)
                table.append(
                    {
                        "task": task,
                        "label": label,
                        "env_steps": mark,
                        "mean": float(np.mean(own)),
                        "std": deviation(own),
                        "runs": len(own),
                        "p": float("nan") if label == best else _welch(scores[best], own),
                        "paper_mean": theirs.mean,
                        "paper_std": theirs.std,
                        "paper_runs": theirs.runs,
                    }
                )
    return table


def _welch(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the two-sided p value that two means differ; nan unless both have two runs and they
    vary."""
    if min(len(one), len(other)) < 2 or np.ptp(one) + np.ptp(other) == 0.0:
        return float("nan")
    return float(stats.ttest_ind(one, other, equal_var=False).pvalue)


def markdown(table: Sequence[Row], place: Place) -> str:
    """Return the table to read: ours and, in brackets, the paper's; a block per mark."""
    blocks = []
    for mark in dict.fromkeys(int(row["env_steps"]) for row in table):
        cells = {
            place(str(row["task"]), str(row["label"])): _shown(row)
            for row in table
            if row["env_steps"] == mark
        }
        columns = list(dict.fromkeys(column for _, column in cells))
        block = [
            f"| {mark:,} env_steps | {' | '.join(columns)} |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for line in dict.fromkeys(line for line, _ in cells):
            own = " | ".join(cells.get((line, column), "-") for column in columns)
            block.append(f"| {line} | {own} |")
        blocks.append("\n".join(block))
    return "\n\n".join(blocks) + "\n"


def _shown(row: Row) -> str:
    ours = _mean_and_std(float(row["mean"]), float(row["std"]), int(row["runs"]))
    if not row["paper_runs"]:
        return ours
    theirs = float(row["paper_mean"]), float(row["paper_std"]), int(row["paper_runs"])
    return f"{ours} [{_mean_and_std(*theirs)}]"


def _mean_and_std(mean: float, std: float, runs: int) -> str:
    spread = "" if np.isnan(std) else f" ± {std:.0f}"
    return f"{mean:.0f}{spread} (n = {runs})"


def figure(rows: Sequence[Row], place: Place, paper: Paper, marks: Sequence[int]) -> Figure:
    """Draw return over env_steps, a panel per line of the table; dashes are the paper's, known at
    `marks`."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panel, line = place(str(row["task"]), str(row["label"]))
        panels.setdefault(panel, []).append({**row, "label": line, "of": row["label"]})
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    shown = Figure(figsize=(4.4 * across, 3.4 * down), layout="constrained")
    grid = np.ravel(shown.subplots(down, across, squeeze=False))
    for axes, (title, own) in zip(grid, panels.items(), strict=False):
        drawn = lines(axes, own, "score")
        last = max(int(row["env_steps"]) for row in own)
        for line, task, label in dict.fromkeys(
            (str(row["label"]), str(row["task"]), str(row["of"])) for row in own
        ):
            theirs = {m: c for m in marks if m <= last and (c := paper(task, label, m))}
            means = [cell.mean for cell in theirs.values()]
            if means:
                axes.plot([*theirs], means, "--x", color=drawn[line], alpha=0.6, markersize=4)
        axes.plot([], [], "--", color="grey", label="the paper")
        axes.set(title=title, xlabel="env_steps", ylabel="return")
        axes.legend(fontsize="small")
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return shown
