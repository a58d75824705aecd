"""What `kstep analyze` has written about encoders, as figures, tables and point clouds."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kstep import reading
from kstep.analysis.tables import Row, grouped
from kstep.report.grid import Cell, Grid
from kstep.report.page import curves
from kstep.report.page.data import Cloud, Figure, Line, Section
from kstep.report.page.records import Point, Record
from kstep.types import KstepError

CURVES = {
    "reward-mse": ("held_out", "Error of a linear prediction of the reward", "squared error"),
    "temporal": ("normalized", "Distance from one decision's latent to the next", "distance"),
    "perturbation": ("normalized", "Distance under a perturbed image", "distance"),
    "collapse": ("effective_rank", "Dimensions in use", "effective rank"),
    "gradients": ("pooled", "Angle between critic's and auxiliary task's update", "cosine"),
}
"""Tables that are drawn over training: column, title, title of the axis."""
OTHERS = ("state-probe", "horizon", "reward-pca", "reward-pca-points")
IDENTITY = ("label", "task", "seed", "env_steps")

CLOUDS, MARKS, POINTS = 24, 4, 800
"""At most so many clouds on a page, marks of one method, and states in a cloud."""


def section(
    folders: Iterable[Path],
    left_out: Callable[[str], None],
    read: Callable[[Path], list[Row]],
) -> Section:
    """Return everything that was written about encoders below some folders; `read` is
    `read_table`, or what remembers it."""
    tables: dict[str, list[Row]] = {}
    for folder in folders:
        for path in _tables(folder):
            try:
                tables.setdefault(path.stem, []).extend(read(path))
            except KstepError as error:
                left_out(str(error))
    figures = [
        figure
        for name, (column, title, axis) in CURVES.items()
        for figure in _over_training(name, column, title, axis, tables.get(name, ()))
    ]
    return Section(
        "representations",
        "What the encoders learned",
        "From the tables that kstep analyze wrote. Distances are shares of the distance between "
        "two states drawn at random, and predictions are made for episodes that were held out.",
        (*figures, *_horizons(tables.get("horizon", ()))),
        tuple(_probes(tables.get("state-probe", ()))),
        tuple(_clouds(tables.get("reward-pca-points", ()), tables.get("reward-pca", ()))),
    )


def _tables(folder: Path) -> Iterator[Path]:
    """Yield every table about encoders below a folder, but not inside runs, nor through links."""
    known = {f"{name}.csv" for name in (*CURVES, *OTHERS)}
    for place, folders, files in os.walk(folder):
        if "config.json" in files:
            folders.clear()
            continue
        folders.sort()
        yield from (Path(place) / name for name in sorted(known.intersection(files)))


def read_table(path: Path) -> list[Row]:
    """Read a table, its identities as they should be and every other number as far as it is one."""
    found: list[Row] = []
    lines = csv.DictReader(reading.text(path).splitlines())
    try:
        for line in lines:
            if None in line or None in line.values() or not line.keys() >= {*IDENTITY}:
                raise ValueError("it has not the columns of kstep analyze")
            row: dict[str, str | int | float] = {
                key: text if key in ("label", "task", *_TEXTS) else float(text)
                for key, text in line.items()
            }
            found.append({**row, "seed": int(line["seed"]), "env_steps": int(line["env_steps"])})
    except (ValueError, csv.Error) as error:
        raise KstepError(f"{path}, line {lines.line_num}: {error}") from error
    return found


_TEXTS = ("perturbation", "quantity", "tensor")


def _over_training(
    name: str, column: str, title: str, axis: str, rows: Sequence[Row]
) -> Iterator[Figure]:
    kinds = ("task", "perturbation") if name == "perturbation" else ("task",)
    for (task, *kind), own in grouped(rows, *kinds).items():
        lines: list[Line] = []
        for (label,), of_label in grouped(own, "label").items():
            runs = [
                Record(
                    {"label": label, "task": task, "seed": seed, "exploration": 0},
                    "",
                    "",
                    tuple(
                        Point(int(row["env_steps"]), None, None, None, float(row[column]))
                        for row in sorted(of_run, key=lambda row: int(row["env_steps"]))
                        if row[column] == row[column]
                    ),
                )
                for (seed,), of_run in grouped(of_label, "seed").items()
            ]
            lines += curves.segments(str(label), [run for run in runs if run.points])
        if lines:
            file = "-".join(map(str, (name, task, *kind)))
            about = ", ".join(map(str, (title, *kind)))
            axes = {"env_steps": "env steps"}
            usual, note = curves.numbers(lines)
            yield Figure(file, about, axes, axis, tuple(lines), note, usual, group=str(task))


def _horizons(rows: Sequence[Row]) -> Iterator[Figure]:
    """Yield how far ahead the transition model beats predicting no change."""
    for (task,), own in grouped(rows, "task").items():
        lines = []
        for (label, seed, at), of_run in grouped(own, "label", "seed", "env_steps").items():
            x = {"ahead": tuple(float(row["ahead"]) for row in of_run)}
            for column, kind in (("model", "mean"), ("still", "paper")):
                name = f"{label}, seed {seed} at {at:,}" + ", no change" * (column == "still")
                y = tuple(float(row[column]) for row in of_run)
                lines.append(Line(str(label), name, x, y, (1,) * len(y), kind=kind))  # type: ignore[arg-type]
        yield Figure(
            f"horizon-{task}",
            "Predictions ahead",
            {"ahead": "decisions ahead"},
            "squared distance",
            tuple(lines),
            "Dashed: predicting that nothing changes.",
            group=str(task),
        )


def _probes(rows: Sequence[Row]) -> Iterator[Grid]:
    """Yield which quantities can be read from each method's last encoders."""
    for (task,), own in grouped(rows, "task").items():
        last = {
            label: max(int(r["env_steps"]) for r in of)
            for (label,), of in grouped(own, "label").items()
        }
        newest = [row for row in own if row["env_steps"] == last[row["label"]]]
        cells = grouped(newest, "quantity", "label")
        lines = []
        for quantity in dict.fromkeys(row["quantity"] for row in newest):
            line: list[Cell | str] = [str(quantity)]
            for label in last:
                values = [float(row["r2"]) for row in cells.get((quantity, label), ())]
                mean = sum(values) / len(values) if values else 0.0
                line.append(Cell(f"{mean:.3f} (n = {len(values)})", value=mean) if values else "-")
            lines.append(line)
        head = [f"{label} at {mark:,}" for label, mark in last.items()]
        yield Grid.of(
            ("quantity", *head),
            lines,
            name=f"state-probe-{task}",
            title=f"What can be read from the latents: {task}",
            caption="R² of a linear prediction on held-out episodes, mean over seeds; 1 is "
            "perfect, 0 no better than the mean.",
        )


def _clouds(points: Sequence[Row], about: Sequence[Row]) -> Iterator[Cloud]:
    """Yield the projections of each method's first seed at a few marks: projections of different
    seeds cannot be compared."""
    numbers = {tuple(row[name] for name in IDENTITY): row for row in about}
    shown = 0
    for (label, task), own in grouped(points, "label", "task").items():
        seed = min(int(row["seed"]) for row in own)
        by_mark = grouped((row for row in own if row["seed"] == seed), "env_steps")
        marks = sorted(int(mark) for (mark,) in by_mark)
        for mark in _few(marks):
            if shown == CLOUDS:
                return
            shown += 1
            states = by_mark[mark,]
            every = -(-len(states) // POINTS)
            chosen = states[::every]
            columns = ("pc1", "pc2", "pc3", "reward")
            note = f"{len(chosen):,} of {len(states):,} states are drawn."
            if found := numbers.get((label, task, seed, mark)):
                share = sum(float(found[f"variance_{i}"]) for i in (1, 2, 3))
                note += (
                    f" These components hold {share:.0%} of the variance; a linear classifier "
                    "separates high from low rewards with a balanced accuracy of "
                    f"{float(found['separability_2']):.2f} in two of them and "
                    f"{float(found['separability_3']):.2f} in three."
                )
            yield Cloud(
                f"{label}, {task}, seed {seed}, {mark:,} env steps",
                tuple(
                    (
                        float(s[columns[0]]),
                        float(s[columns[1]]),
                        float(s[columns[2]]),
                        float(s[columns[3]]),
                    )
                    for s in chosen
                ),
                note,
            )


def _few(marks: Sequence[int]) -> list[int]:
    """Return the first, the last and evenly spaced marks between them."""
    if len(marks) <= MARKS:
        return [*marks]
    return [marks[round(i * (len(marks) - 1) / (MARKS - 1))] for i in range(MARKS)]
