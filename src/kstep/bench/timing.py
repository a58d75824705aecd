"""Work in turns, and the medians of its times.

A machine's load changes all the time. Measured one after the other, two things meet different
loads; measured in turns, round after round, both meet the same, and the ratio of their medians is
meaningful.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from kstep.bench.busy import neighbour
from kstep.native import Backend
from kstep.run import system

Work = Callable[[], object]
"""May return a dictionary: its own measurements by name, in any unit."""


@dataclass(frozen=True)
class Candidate:
    """Something to time."""

    name: str
    work: Work
    count: int = 1
    """How many things one call does; results are per thing."""
    threads: int | None = None
    """None: as many as PyTorch uses."""
    backend: Backend = "torch"
    """Whose threads these are."""
    beside: bool = False
    """Whether another process keeps a core busy meanwhile."""


@dataclass
class Times:
    """What every round measured, per thing: milliseconds, and the work's own measurements."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    inside: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.rounds

    def ms(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self.rounds[name])

    def parts(self, name: str) -> dict[str, float]:
        """Return the medians of this work's own measurements."""
        return {part: statistics.median(found) for part, found in self.inside[name].items()}

    def ratio(self, slow: str, fast: str) -> dict[str, Any]:
        """Return how many times as long `slow` takes: ratio of medians, and range over rounds."""
        pairs = zip(self.rounds[slow], self.rounds[fast], strict=True)
        each = sorted(a / b for a, b in pairs)
        return {"ratio": self.ms(slow) / self.ms(fast), "rounds": [each[0], each[-1]]}

    def state(self) -> dict[str, Any]:
        return {name: {"ms": self.ms(name), "rounds": found} for name, found in self.rounds.items()}


def name_of(what: str, backend: Backend, threads: int) -> str:
    """Return the name of what is timed by several backends, or with several threads."""
    return f"{what}/{backend}/{threads}"


def interleave(
    candidates: Iterable[Candidate],
    rounds: int,
    *,
    before: Callable[[int, Candidate], None] = lambda number, candidate: None,
    now: Callable[[], float] = time.perf_counter,
) -> Times:
    """Time every candidate once per round; round 0 warms up and does not count.

    `before` is called with the round and the candidate that come next.
    """
    # Grouped by number of threads: changing it costs a little each time.
    ordered = sorted(candidates, key=lambda candidate: -(candidate.threads or 0))
    times = Times(
        {candidate.name: [] for candidate in ordered}, {candidate.name: {} for candidate in ordered}
    )
    for number in range(rounds + 1):
        for candidate in ordered:
            before(number, candidate)
            other = neighbour() if candidate.beside else nullcontext()
            with other, system.threads(candidate.threads, candidate.backend):
                started = now()
                inside = candidate.work()
                spent = now() - started
            if number == 0:
                continue
            times.rounds[candidate.name].append(1000 * spent / candidate.count)
            for part, value in inside.items() if isinstance(inside, dict) else ():
                found = times.inside[candidate.name].setdefault(part, [])
                found.append(value / candidate.count)
    return times
