"""How long a run took: a line of clock.jsonl per evaluation and checkpoint.

Times are kept out of the other logs, which are bit for bit the same however often a run is stopped.
Each process counts from its own start. `spent` adds up the processes of a run, so work that was
lost with a killed process and repeated counts twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import annotated_types as at
import psutil  # type: ignore[import-untyped, unused-ignore]

from kstep import reading
from kstep.run.folder import RunFolder
from kstep.types import Counts
from kstep.values import Count, encode

Seconds = Annotated[float, at.Ge(0.0), at.Le(1e10)]
"""Up to three centuries: sums of these are finite."""


@dataclass(frozen=True)
class Tick:
    """A line of clock.jsonl."""

    process: str
    """When the process started: what tells the processes of a run apart."""
    decisions: Count
    env_steps: Count
    seconds: Seconds
    """Of wall-clock time since the process started."""
    core_seconds: Seconds
    """Of processor time, that of its environments included."""


class Clock:
    """Writes down how long this process has been training a run."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._process = psutil.Process()
        self._started, self._wall = datetime.now(UTC), time.monotonic()
        self._cores = self._core_seconds()
        with suppress(reading.Missing):
            # A file of its own, whatever has its name: perhaps a backup shares it.
            run.tree.write(run.clock_file, reading.contents(run.clock_file, reading.LARGEST_LOG))

    def tick(self, counts: Counts) -> None:
        row = Tick(
            self._started.isoformat(timespec="milliseconds"),
            counts.decisions,
            counts.env_steps,
            round(time.monotonic() - self._wall, 3),
            round(max(self._core_seconds() - self._cores, 0.0), 3),
        )
        self._run.tree.append_line(self._run.clock_file, json.dumps(encode(row)))

    def _core_seconds(self) -> float:
        own = self._process.cpu_times()
        total = own.user + own.system + own.children_user + own.children_system
        for child in self._process.children(recursive=True):
            with suppress(psutil.Error):  # it may end while it is looked at
                times = child.cpu_times()
                total += times.user + times.system
        return float(total)


def ticks(run: RunFolder) -> list[Tick]:
    """Return what was written down; nothing for runs of versions that kept no clock."""
    return list(reading.json_lines(run.clock_file, Tick, strict=False))


def spent(rows: Sequence[Tick], decisions: int) -> tuple[float, float] | None:
    """Return the wall-clock and the processor seconds that a run had taken when it first reached
    this many decisions; None if that was not written down."""
    seconds = core_seconds = 0.0
    before: Tick | None = None
    for row in rows:
        if before is not None and row.process != before.process:
            seconds += before.seconds
            core_seconds += before.core_seconds
        if row.decisions >= decisions:
            return seconds + row.seconds, core_seconds + row.core_seconds
        before = row
    return None
