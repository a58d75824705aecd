"""Progress for people: one calm live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kstep.terminal import say
from kstep.types import Counts

if TYPE_CHECKING:
    from kstep.run.evaluate import Evaluation


class ProgressReport:
    """A progress bar on a terminal while its `bar` is entered, plain lines elsewhere."""

    def __init__(self, title: str, budget: int, console: Console) -> None:
        self._budget = budget
        self._started: tuple[float, int] | None = None
        self._last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f} env steps"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", style="cyan"),
            TextColumn("{task.fields[evaluation]}", style="green"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task(
            title, total=budget, speed="", left="", evaluation="not evaluated yet"
        )

    def say(self, text: str) -> None:
        say(self.bar.console, text)

    def evaluated(self, counts: Counts, evaluation: Evaluation, seconds: float) -> None:
        episodes = len(evaluation.returns)
        self.say(
            f"  {counts.env_steps:>7,} env steps: return {evaluation.mean:7.1f} "
            f"± {evaluation.std:.1f} over {episodes} episode{'s' if episodes != 1 else ''}"
        )
        newest = f"return {evaluation.mean:.0f} at {counts.env_steps:,}"
        self.bar.update(self._task, evaluation=newest)
        if self._started is not None:
            # The time it took says nothing about the speed of learning.
            self._started = (self._started[0] + seconds, self._started[1])

    def advanced(self, counts: Counts, learning: bool) -> None:
        """Call once per decision."""
        now = time.monotonic()
        if learning and self._started is None:
            self._started = (now, counts.env_steps)
        # At the speed of learning, which the random beginning would flatter.
        speed = left = ""
        if self._started is not None and now > self._started[0]:
            rate = (counts.env_steps - self._started[1]) / (now - self._started[0])
            if rate > 0:
                speed = f"{rate:.1f}/s"
                left = f"{clock((self._budget - counts.env_steps) / rate)} left"
        self.bar.update(self._task, completed=counts.env_steps, speed=speed, left=left)
        if self.bar.disable and now - self._last_line > 60:
            self._last_line = now
            rest = f", {speed}, {left}" if left else ""
            self.say(
                f"  {counts.env_steps:>7,}/{self._budget:,} env steps, "
                f"{counts.decisions:,} decisions, {counts.updates:,} updates{rest}"
            )


def clock(seconds: float) -> str:
    """Return 3725 s as 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
