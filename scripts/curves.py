"""Turn run folders into a CSV of evaluations and a figure beside the paper's curve.

    python scripts/curves.py RUN [RUN ...] --out docs/results/cartpole_swingup_cpu

writes <out>.csv (one row per evaluation episode) and <out>.png.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from importlib.resources import files
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from kstep.run import Run

PAPER_NAMES = {
    "cartpole_swingup": "Cartpole, Swingup",
    "finger_spin": "Finger, Spin",
    "reacher_easy": "Reacher, Easy",
    "cheetah_run": "Cheetah, Run",
    "walker_walk": "Walker, Walk",
    "ball_in_cup_catch": "Ball in Cup, Catch",
}
COLOURS = {"ksl": "#c0392b", "ksl-results": "#8e44ad", "sac_pixel": "#2c6fbb"}
COLUMNS = ("method", "preset", "task", "seed", "env_steps", "decisions", "updates", "episode")


def rows_of(run: Run) -> list[dict[str, object]]:
    experiment = run.experiment
    identity = {
        "method": experiment.method.name,
        "preset": experiment.preset,
        "task": experiment.env.task,
        "seed": experiment.seed,
    }
    return [
        identity
        | {name: row[name] for name in ("env_steps", "decisions", "updates")}
        | {"episode": episode, "return": round(value, 4)}
        for row in run.evaluations()
        for episode, value in enumerate(row["returns"])
    ]


def paper_curve(task: str, method: str = "KSL") -> tuple[list[int], np.ndarray, np.ndarray]:
    text = files("kstep").joinpath("data/ksl_paper_curves.csv").read_text()
    rows = [
        row
        for row in csv.DictReader(text.splitlines())
        if row["task"] == PAPER_NAMES[task] and row["method"] == method
    ]
    steps = [int(row["env_steps"]) for row in rows]
    return (
        steps,
        np.array([float(r["mean"]) for r in rows]),
        np.array([float(r["std"]) for r in rows]),
    )


def draw(rows: list[dict[str, object]], target: Path) -> None:
    tasks = {str(row["task"]) for row in rows}
    (task,) = tasks
    curves: dict[tuple[str, str, int], dict[int, list[float]]] = defaultdict(dict)
    for row in rows:
        key = (str(row["method"]), str(row["preset"]), int(str(row["seed"])))
        curve = curves[key].setdefault(int(str(row["env_steps"])), [])
        curve.append(float(str(row["return"])))
    last = max(step for curve in curves.values() for step in curve)

    figure, axes = plt.subplots(figsize=(7.2, 4.2), dpi=160)
    steps, mean, spread = paper_curve(task)
    shown = [i for i, step in enumerate(steps) if step <= last]
    axes.fill_between(
        [steps[i] for i in shown],
        (mean - spread)[shown],
        (mean + spread)[shown],
        color="#999999",
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(
        [steps[i] for i in shown],
        mean[shown],
        color="#666666",
        linestyle="--",
        label="KSL, the paper (10 seeds, mean ± one standard deviation)",
    )
    for (method, preset, seed), curve in curves.items():
        x = sorted(curve)
        y = [float(np.mean(curve[step])) for step in x]
        label = f"{method}, preset {preset}, seed {seed} (mean of {len(curve[x[0]])} episodes)"
        axes.plot(x, y, marker="o", markersize=3.5, color=COLOURS.get(method), label=label)
    axes.set_xlabel("env steps (simulator steps, action repeats counted)")
    axes.set_ylabel("return")
    axes.set_title(f"{task} from pixels", loc="left")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, last)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    rows = [row for folder in arguments.runs for row in rows_of(Run.open(folder))]
    with arguments.out.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=[*COLUMNS, "return"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
