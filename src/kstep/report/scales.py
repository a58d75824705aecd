"""What returns are divided by before tasks are aggregated.

Tasks of the suite give at most 1,000 per episode, and the field divides by that; games of Atari are
normalized by what random actions and a human score. Any other task has a scale of its own, which
nothing but its runs can tell: from the lowest to the highest score of all runs that are being
compared. Such a number says where a run is among these runs, not how well the task is solved, so
whoever prints it names the scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kstep.analysis.tables import Row, grouped
from kstep.envs import tasks
from kstep.report import human

FULL = 1000.0
"""The largest return of a task of the suite."""


@dataclass(frozen=True)
class Scale:
    """The returns that count as 0 and as 1."""

    low: float = 0.0
    high: float = FULL
    known: bool = True
    """Whether the task has it, or the runs have."""

    def __call__(self, score: float) -> float:
        return (score - self.low) / ((self.high - self.low) or 1.0)


def scales(rows: Sequence[Row]) -> dict[str, Scale]:
    """Return the scale of every task, from all scores of the runs that are compared."""
    found: dict[str, Scale] = {}
    for (task,), own in grouped(rows, "task").items():
        every = [float(row["score"]) for row in own]
        found[str(task)] = _known(str(task)) or Scale(min(every), max(every), known=False)
    return found


def _known(task: str) -> Scale | None:
    """Return the scale that the field has for a task, if it has one."""
    if task in human.scores():
        return Scale(*human.scores()[task])
    return Scale() if task in tasks.OF_SUITE else None


def remark(found: Mapping[str, Scale]) -> str:
    """Return a sentence about scales that are not the suite's; empty if all are."""
    own = [
        f"{task} from {scale.low:.4g} to {scale.high:.4g}"
        for task, scale in found.items()
        if not scale.known
    ]
    parts = [f"normalized by the range of the scores here: {', '.join(own)}"] if own else []
    if games := [task for task in found if task in human.scores()]:
        parts.append(f"human-normalized: {', '.join(games)}")
    return "; ".join(parts)
