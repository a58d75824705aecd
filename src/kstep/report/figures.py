"""Curves of returns over training, the paper's as dashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from kstep import style
from kstep.analysis.curves import Figure, canvas, lines
from kstep.analysis.tables import Row
from kstep.report import paper
from kstep.report.scores import Beside

Layout: TypeAlias = Callable[[str, str], tuple[str, str]]
"""A task and a label to their panel and line in a figure, or row and column in a table."""


def curves(rows: Sequence[Row], layout: Layout, beside: Beside) -> Figure:
    """Draw return over env_steps, a panel per row of the table; dashes are the paper's, dotted
    lines show where a method that explores first begins to receive the task's reward."""
    panels: dict[str, list[Row]] = {}
    for row in rows:
        panel, line = layout(str(row["task"]), str(row["label"]))
        panels.setdefault(panel, []).append({**row, "label": line, "of": row["label"]})
    every = {str(row["label"]): str(row["of"]) for own in panels.values() for row in own}
    # What a layout has given another name is still of its family.
    names = {n: n if n == of else f"{style.parse(of)[0]} {n}" for n, of in every.items()}
    found = style.looks(names.values())
    looks = {line: found[name] for line, name in names.items()}
    across = min(3, len(panels))
    down = -(-len(panels) // across)
    shown = canvas(4.4 * across, 3.4 * down)
    grid = np.ravel(shown.subplots(down, across, squeeze=False))
    named: set[str] = set()
    for axes, (title, own) in zip(grid, panels.items(), strict=False):
        drawn = lines(axes, own, "score", looks)
        last = max(int(row["env_steps"]) for row in own)
        first = {str(row["label"]): {**row, "label": row["of"]} for row in reversed(own)}
        dashed: set[tuple[float, ...]] = set()
        for line, row in first.items():
            theirs = {m: c for m in paper.CURVE_MARKS if m <= last and (c := beside(row, m))}
            means = tuple(cell.mean for cell in theirs.values())
            if means and means not in dashed:  # several variants share one column of the paper
                of_paper = {**style.level(), "color": drawn[line].colour}
                if len(means) <= len(paper.MARKS):  # its table, not its curve
                    of_paper |= {"linestyle": "none", "marker": "x", "markersize": 6}
                axes.plot([*theirs], means, **of_paper)
                dashed.add(means)
            if row["exploration"]:
                axes.axvline(int(row["exploration"]), color=drawn[line].colour, linestyle=":")
        axes.set(title=title, xlabel="env_steps", ylabel="return")
        if not set(drawn) <= named:
            if dashed:
                axes.plot([], [], **style.level(), marker="x", label="the paper")
            if any(row["exploration"] for row in own):
                axes.plot([], [], ":", color=style.THEME.get().muted, label="the task begins")
            axes.legend()
            named |= set(drawn)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    return shown
