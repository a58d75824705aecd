"""How many runs' representations collapsed: the paper's "significantly higher probability".

The paper has neither a count nor a criterion. Ours is that of the training watchdog (`run.health`),
from what every run logs: latents of a batch hardly differ in ten successive logged updates, that is
over 500 updates. The first 2,000 do not count: a new encoder's latents may be as flat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kstep import reading
from kstep.analysis.tables import Row
from kstep.report.statistics import fisher
from kstep.run import health
from kstep.run.folder import Run
from kstep.run.saved_encoders import label_of


def collapsed_runs(
    folders: Sequence[Path], left_out: Callable[[str], None] | None = None
) -> list[Row]:
    """Count per label, over tasks and seeds, the runs that collapsed at any time and at their end;
    `p` is Fisher's exact test of the first count against that of the label with the smallest share.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for label, enough in reading.each(folders, _flat_for_long, left_out):
        if enough:
            found.setdefault(label, []).append((any(enough), enough[-1]))
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


def _flat_for_long(folder: Path) -> tuple[str, list[bool]]:
    """Return a run's label and, for every logged update, whether latents were flat long enough."""
    run = Run.open(folder)
    return label_of(run.experiment), [streak >= health.PATIENCE for streak in _streaks(run)]


def _streaks(run: Run) -> Iterator[int]:
    """Yield, for every logged update with latents, the number of flat ones in a row so far."""
    streak = 0
    for row in run.logged():
        if row.keys() >= health.SPREADS:
            streak = streak + 1 if health.is_flat(row, row.get("updates", 0)) else 0
            yield streak
