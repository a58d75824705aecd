"""How many runs' representations collapsed: the paper's "significantly higher probability".

The paper has neither a count nor a criterion. Ours is that of the training watchdog (`run.health`),
from what every run logs: latents of a batch hardly differ in ten successive logged updates, that is
over 500 updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kstep.analysis.tables import Row
from kstep.files import json_lines
from kstep.report.statistics import fisher
from kstep.run import health
from kstep.run.folder import Run
from kstep.run.saved_encoders import label_of


def collapsed_runs(folders: Sequence[Path]) -> list[Row]:
    """Count per label, over tasks and seeds, the runs that collapsed at any time and at their end;
    `p` is Fisher's exact test of the first count against that of the label with the smallest share.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for folder in folders:
        run = Run.open(folder)
        if enough := [streak >= health.PATIENCE for streak in _streaks(run)]:
            found.setdefault(label_of(run.experiment), []).append((any(enough), enough[-1]))
    counts = {label: (sum(some for some, _ in own), len(own)) for label, own in found.items()}
    least = min(counts, key=lambda label: counts[label][0] / counts[label][1], default="")
    return [
        {
            "label": label,
            "runs": total,
            "collapsed": count,
            "collapsed_at_end": sum(end for _, end in found[label]),
            "p": float("nan") if label == least else fisher((count, total), counts[least]),
        }
        for label, (count, total) in counts.items()
    ]


def _streaks(run: Run) -> Iterator[int]:
    """Yield, for every logged update with latents, the number of flat ones in a row so far."""
    streak = 0
    for row in json_lines(run.metrics_file, strict=True):
        if "latent/rank" in row:
            streak = streak + 1 if health.is_flat(row) else 0
            yield streak
