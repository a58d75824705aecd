"""The paper's table of training times: each method's as a multiple of that of SAC from pixels.

In: run folders of `kstep sweep wall-clock`, which executes one run at a time and records beside
each folder how long every attempt took and how far it got. Out: a row per method. Times are of
complete runs, evaluations and the start of the process included, per decision (D24).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from kstep import reading
from kstep.analysis.tables import Row, deviation, write_both, write_table
from kstep.report import paper
from kstep.run.folder import Run, RunFolder
from kstep.run.saved_encoders import label_of
from kstep.types import KstepError

NORMAL = "sac_pixel"


def write(
    folders: Sequence[Path], output: Path, left_out: Callable[[str], None] | None = None
) -> list[Path]:
    """Write every run's time and the table, as CSV and as Markdown; runs that cannot be read are
    refused, or left out where `left_out` is to be told of them."""
    runs = list(reading.each(folders, _timed, left_out))
    output.mkdir(parents=True, exist_ok=True)
    each = write_table(output / "wall-clock-runs.csv", runs)
    return [each, *write_both(output / "wall-clock", normalized(runs))]


def _timed(folder: Path) -> Row:
    """Return the time that all attempts at a run took, and their decisions."""
    experiment = Run.open(folder).experiment
    attempts = RunFolder(folder).attempts(strict=True)
    rows = [row for row in attempts if row.outcome in ("done", "stopped")]
    decisions = sum(row.decisions for row in rows)
    if decisions < 1:
        raise KstepError(
            f"{folder} has no record of its time: train it with kstep sweep wall-clock, in a "
            "--runs folder of its own"
        )
    how = {f"{row.threads} threads of {row.device} on {row.node}" for row in rows}
    return {
        "label": label_of(experiment),
        "task": experiment.env.task,
        "seed": experiment.seed,
        "how": " and ".join(sorted(how)),
        "decisions": decisions,
        "seconds": sum(row.seconds for row in rows),
    }


def normalized(runs: Sequence[Row]) -> list[Row]:
    """Return seconds per decision by label, mean over runs, and as a multiple of SAC Pixel's."""
    if len(ways := {(row["task"], row["how"]) for row in runs}) > 1:
        listed = "; ".join(sorted(f"{task}, {how}" for task, how in ways))
        raise KstepError(f"times are comparable only on one task and machine, not {listed}")
    rates: dict[str, list[float]] = {}
    for row in runs:
        rate = float(row["seconds"]) / int(row["decisions"])
        rates.setdefault(str(row["label"]), []).append(rate)
    normal = [own for label, own in rates.items() if paper.name_of(label) == NORMAL]
    if not normal:
        raise KstepError(f"times are relative to {NORMAL}'s; none of these runs is one")
    theirs = paper.table("wall_clock_normalised")
    return [
        {
            "label": label,
            "runs": len(own),
            "seconds_per_decision": float(np.mean(own)),
            "std": deviation(own),
            "normalized": float(np.mean(own) / np.mean(normal[0])),
            "paper": theirs.get(paper.name_of(label), float("nan")),
        }
        for label, own in rates.items()
    ]
