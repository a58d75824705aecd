"""How many runs' representations collapsed: the paper's "significantly higher probability".

The paper gives neither a count nor a criterion. Ours is that of the watch on learning (`health`),
which every run logs: latents of a batch hardly differ, for ten logged updates in a row, 500 in all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kstep.analysis.tables import Row
from kstep.report.statistics import fisher
from kstep.run import health
from kstep.run.folder import Run
from kstep.run.saved_encoders import label_of


def collapsed_runs(folders: Sequence[Path]) -> list[Row]:
    """Count per label, over tasks and seeds, the runs that collapsed at some time and at their end;
    `p` is Fisher's exact test of the first count against that of the label with the smallest share.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for folder in folders:
        run = Run.open(folder)
        streaks = list(_streaks(run))
        if streaks:
            enough = [streak >= health.PATIENCE for streak in streaks]
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
    """Yield, for every logged update with latents, how many in a row were flat by then."""
    streak = 0
    logged = run.metrics_file.read_bytes() if run.metrics_file.exists() else b""
    for line in logged.split(b"\n")[:-1]:  # what follows the last line's end is being written
        row = json.loads(line)
        if "latent/rank" in row:
            streak = streak + 1 if health.is_flat(row) else 0
            yield streak
