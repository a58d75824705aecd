"""Turn run folders into a CSV of evaluations and a figure, beside the paper's curve and band where
the paper has the task.

    python scripts/curves.py RUN [RUN ...] --out docs/results/cartpole_swingup_cpu

writes <out>.csv (one row per evaluation episode) and <out>.png, and prints every evaluation's mean
with the paper's beside it. Several seeds of several methods are drawn thin, and their means thick.
Where several pairs of runs differ in their encoder's backend alone, it
prints their differences too, native minus torch.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_1samp

from kstep import style
from kstep.analysis.curves import canvas, save
from kstep.report import paper
from kstep.report.statistics import Summary
from kstep.run.folder import Evaluated, Run

BACKENDS = {"native": style.SOLID, "torch": style.DASHES[2]}


class Curve(NamedTuple):
    """Which run, and its returns by env_steps."""

    method: str
    preset: str
    task: str
    seed: int
    backend: str
    rows: list[Evaluated]

    @property
    def means(self) -> dict[int, float]:
        return {row.env_steps: row.mean for row in self.rows}


def curve_of(folder: Path) -> Curve:
    run = Run.open(folder)
    experiment = run.experiment
    return Curve(
        experiment.method.name,
        experiment.preset,
        experiment.env.task,
        experiment.seed,
        run.encoder_backend or "",
        run.evaluations(),
    )


def paper_curve(task: str) -> dict[int, Summary]:
    """Return the paper's curve of KSL by env_steps; empty where it has none."""
    return paper.curves().get((task, "ksl"), {})


def write(curves: list[Curve], target: Path) -> None:
    identity = ("method", "preset", "task", "seed", "backend")
    counts = ("env_steps", "decisions", "updates")
    with target.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*identity, *counts, "episode", "return"])
        for curve in curves:
            for row in curve.rows:
                for episode, value in enumerate(row.returns):
                    known = (getattr(curve, name) for name in identity)
                    reached = (getattr(row, name) for name in counts)
                    writer.writerow([*known, *reached, episode, round(value, 4)])


def draw(curves: list[Curve], target: Path) -> None:
    (task,) = {curve.task for curve in curves}
    last = max(step for curve in curves for step in curve.means)
    figure = canvas(7.2, 4.2)
    axes, theme = figure.subplots(), style.THEME.get()
    theirs = {step: p for step, p in paper_curve(task).items() if step <= last}
    if theirs:
        points = [*theirs.values()]
        low, high = [p.mean - p.sd for p in points], [p.mean + p.sd for p in points]
        axes.fill_between([*theirs], low, high, color=theme.muted, alpha=0.2, linewidth=0)
        axes.plot(
            [*theirs],
            [p.mean for p in points],
            **style.level(),
            label=f"KSL, the paper ({points[0].n} seeds, mean ± one standard deviation)",
        )
    backends = {curve.backend for curve in curves}
    seeds = sorted({curve.seed for curve in curves})
    by_seed = len(seeds) > 1 and len({curve.method for curve in curves}) == 1
    looks = style.looks(curve.method for curve in curves)
    averaged = [] if by_seed or len(seeds) == 1 or len(backends) > 1 else [*looks]
    for method in averaged:
        own = [curve for curve in curves if curve.method == method]
        steps = [step for step in own[0].means if all(step in curve.means for curve in own)]
        means = [float(np.mean([curve.means[step] for curve in own])) for step in steps]
        label = f"{method}, preset {own[0].preset}, mean of {len(own)} seeds"
        axes.plot(steps, means, label=label, **looks[method].line())
    for curve in curves:
        look = looks[curve.method]
        if averaged:
            axes.plot(
                [*curve.means], [*curve.means.values()], color=look.colour, alpha=0.35, lw=0.8
            )
            continue
        if by_seed:
            look = replace(look, colour=style.palette()[seeds.index(curve.seed) - 1])
        which = f"{curve.method}, preset {curve.preset}, seed {curve.seed}"
        if len(backends) > 1:
            which += f", {curve.backend} encoder"
            look = replace(look, dash=BACKENDS.get(curve.backend, look.dash))
        axes.plot([*curve.means], [*curve.means.values()], label=which, **look.line())
    axes.set_xlabel("env steps (simulator steps, action repeats counted)")
    axes.set_ylabel("return (mean of an evaluation's episodes)")
    axes.set_title(f"{task} from pixels")
    if theirs:
        axes.set_ylim(bottom=0)
    axes.set_xlim(0, last)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(fontsize=8 if len(curves) < 5 else 6, loc="upper left")
    save(figure, target)


def tell(curves: list[Curve]) -> None:
    for curve in curves:
        print(f"{curve.method}, preset {curve.preset}, seed {curve.seed}, {curve.backend}")
        theirs = paper_curve(curve.task)
        for row in curve.rows:
            returns = np.asarray(row.returns)
            step = row.env_steps
            line = f"{step:>9,}  {returns.mean():6.1f} ± {returns.std():5.1f}"
            if step in theirs:
                mean, std = theirs[step].mean, theirs[step].sd
                away = (returns.mean() - mean) / std if std else float("nan")
                place = "inside" if abs(returns.mean() - mean) <= std else "outside"
                line += (
                    f"   the paper's KSL {mean:6.1f} ± {std:5.1f}: {place} ({away:+.1f} deviations)"
                )
            print(line)


def tell_pairs(curves: list[Curve]) -> None:
    """Print native minus torch at every mark that several pairs of runs have reached."""
    found = {(curve[:4], curve.backend): curve.means for curve in curves}
    pairs = [
        (native, found[who, "torch"])
        for (who, backend), native in found.items()
        if backend == "native" and (who, "torch") in found
    ]
    differences: dict[int, list[float]] = {}
    for native, torch in pairs:
        for step in native.keys() & torch.keys() - {0}:
            differences.setdefault(step, []).append(native[step] - torch[step])
    for step, of in sorted(differences.items()):
        if len(of) > 1:
            p = ttest_1samp(of, 0.0).pvalue
            print(
                f"native - torch at {step:,}, {len(of)} pairs: mean {np.mean(of):+.1f}, standard "
                f"deviation {np.std(of, ddof=1):.1f}, p = {p:.2f} (paired t)"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    curves = [curve_of(folder) for folder in arguments.runs]
    write(curves, arguments.out.with_suffix(".csv"))
    draw(curves, arguments.out.with_suffix(".png"))
    tell(curves)
    tell_pairs(curves)


if __name__ == "__main__":
    main()
