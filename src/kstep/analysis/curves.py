"""Lines over training: the figure most questions share."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kstep import style
from kstep.analysis.tables import Row, deviation
from kstep.files import write_atomically
from kstep.style import Look

if TYPE_CHECKING:
    import matplotlib.figure

Figure: TypeAlias = "matplotlib.figure.Figure"


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, in the process's look from now on. The
    plotting library is imported only here, when something is drawn: nothing else should wait for
    it."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(style.rc())
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, completely or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    write_atomically(path, picture.getvalue())
    return path


def panels(
    rows: Sequence[Row], titles: Mapping[str, str], level: str | None = None, *, log: bool = False
) -> Figure:
    """Draw one panel per column in `titles`; `level` is a column to draw as a dashed line."""
    shown = canvas(4.6 * len(titles), 3.4)
    grid = shown.subplots(1, len(titles), squeeze=False)
    for axes, (column, title) in zip(grid[0], titles.items(), strict=True):
        lines(axes, rows, column)
        if level is not None:
            axes.axhline(float(rows[0][level]), **style.level(), label=level)
        # A perfect prediction has no logarithm: linear below a millionth.
        if log:
            axes.set_yscale("symlog", linthresh=1e-6, subs=[2, 3, 5])
            axes.yaxis.set_minor_formatter("{x:g}")  # values may all be within one decade
            axes.yaxis.set_major_formatter("{x:g}")
        axes.set(title=title, xlabel="env_steps")
        axes.legend()
    return shown


def lines(
    axes: Any, rows: Sequence[Row], column: str, looks: Mapping[str, Look] | None = None
) -> dict[str, Look]:
    """Draw a line per label and task, the mean over runs, with one standard deviation as a band;
    return their looks by name, from `looks` or as the names have them. With a single task the name
    is the label."""
    tasks = {row["task"] for row in rows}
    named: dict[str, list[Row]] = {}
    for row in rows:
        name = str(row["label"]) + (f", {row['task']}" if len(tasks) > 1 else "")
        named.setdefault(name, []).append(row)
    used = {name: (looks or {}).get(name, own) for name, own in style.looks(named).items()}
    for name, own in named.items():
        marks = sorted({int(row["env_steps"]) for row in own})
        values = [[float(r[column]) for r in own if r["env_steps"] == mark] for mark in marks]
        mean = np.array([np.mean(v) for v in values])
        axes.plot(marks, mean, label=name, **used[name].line())
        if max(len(v) for v in values) > 1:
            band = np.nan_to_num([deviation(v) for v in values])  # a single run has no band
            axes.fill_between(
                marks, mean - band, mean + band, color=used[name].colour, alpha=0.2, lw=0
            )
    axes.locator_params(axis="x", nbins=5)
    axes.xaxis.set_major_formatter(lambda at, _: f"{at / 1000:g}k" if at >= 1000 else f"{at:g}")
    return used
