"""Is an encoder trained on one task of use on another?

The paper's table of generalization: encoders trained on one task, frozen, a plain SAC agent trained
on top in every other task; mean and standard deviation of the return over source tasks and seeds.
What is frozen: convolutions, linear layer and LayerNorm, for fast and slow values; everything else
starts afresh (D35). A run of this kind is `kstep train sac_pixel TASK --frozen-encoder FILE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from kstep.analysis.tables import Row, base_of, reference, write_table
from kstep.run import Run
from kstep.types import KstepError


def transfer(rows: Sequence[Row]) -> list[Row]:
    """Return mean and standard deviation per task and method, the paper's alongside.

    `rows`: one per run, with `label` (of the method that trained the encoder), `source`, `task`,
    `seed` and `score`. A run on the encoder's own task does not count.
    """
    paper = reference("generalization_100k")["rows"]
    carried = [row for row in rows if row["source"] != row["task"]]
    table: list[Row] = []
    for task, label in dict.fromkeys((str(row["task"]), str(row["label"])) for row in carried):
        scores = [float(r["score"]) for r in carried if (r["task"], r["label"]) == (task, label)]
        theirs = paper.get(task, {}).get(base_of(label), {})
        table.append(
            {
                "task": task,
                "label": label,
                "mean": float(np.mean(scores)),
                "std": float(np.std(scores)),
                "runs": len(scores),
                "paper_mean": theirs.get("mean", float("nan")),
                "paper_std": theirs.get("std", float("nan")),
            }
        )
    return table


def figure(table: Sequence[Row]) -> Figure:
    """Draw a bar per method and task; the paper's value is a mark."""
    tasks = list(dict.fromkeys(str(row["task"]) for row in table))
    labels = list(dict.fromkeys(str(row["label"]) for row in table))
    shown = Figure(figsize=(1.6 * len(tasks) + 2.0, 3.6), layout="constrained")
    axes = shown.subplots()
    width = 0.8 / len(labels)
    for index, label in enumerate(labels):
        own = [row for row in table if row["label"] == label]
        places = [tasks.index(str(row["task"])) + index * width for row in own]
        means = [float(row["mean"]) for row in own]
        axes.bar(places, means, width, yerr=[float(row["std"]) for row in own], label=label)
        theirs = [float(row["paper_mean"]) for row in own]
        axes.plot(places, theirs, "k_", label="paper" if index == 0 else None)
    axes.set_xticks(np.arange(len(tasks)) + 0.4 - width / 2, tasks, rotation=20)
    axes.set_ylabel("return")
    axes.legend(fontsize="small")
    return shown


def rows_of(folders: Sequence[Path]) -> list[Row]:
    """Read the last evaluation of every run with a frozen encoder."""
    rows: list[Row] = []
    for folder in folders:
        run = Run.open(folder)
        source, evaluations = run.experiment.frozen_encoder, run.evaluations()
        if source is None:
            raise KstepError(f"{folder} has no frozen encoder: kstep train --frozen-encoder FILE")
        if not evaluations:
            raise KstepError(f"{folder} was not evaluated yet")
        rows.append(
            {
                "label": source.label,
                "source": source.task,
                "source_seed": source.seed,
                "source_env_steps": source.env_steps,
                "task": run.experiment.env.task,
                "seed": run.experiment.seed,
                "env_steps": evaluations[-1]["env_steps"],
                "score": float(np.mean(evaluations[-1]["returns"])),
            }
        )
    return rows


def write(folders: Sequence[Path], output: Path) -> list[Path]:
    """Write the runs, the table and its figure; return the files."""
    rows = rows_of(folders)
    table = transfer(rows)
    if not table:
        raise KstepError("every run has an encoder of its own task: nothing was carried over")
    output.mkdir(parents=True, exist_ok=True)
    picture = output / "transfer.png"
    figure(table).savefig(picture, dpi=120)
    return [
        write_table(output / "transfer-runs.csv", rows),
        write_table(output / "transfer.csv", table),
        picture,
    ]
