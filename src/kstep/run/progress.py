"""Progress for people: one calm live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from kstep.terminal import say
from kstep.types import Counts

if TYPE_CHECKING:
    from kstep.run.evaluate import Evaluation
    from kstep.run.folder import Evaluated

BAR = 16
"""Characters of the bar."""


class ProgressReport:
    """A progress bar on a terminal while its `bar` is entered, plain lines elsewhere."""

    def __init__(
        self, title: str, budget: int, console: Console, newest: Evaluated | None = None
    ) -> None:
        """`newest` is the last evaluation of a run that is resumed."""
        self._budget = budget
        self._started: tuple[float, int] | None = None
        self._last_line = time.monotonic()
        self.bar = Progress(_Line(console), console=console, disable=not console.is_terminal)
        evaluation = ("not evaluated yet", "")
        if newest is not None:
            evaluation = _newest(newest.mean, newest.env_steps)
        self._task = self.bar.add_task(
            title, total=budget, speed="", left="", evaluation=evaluation
        )

    def say(self, text: str) -> None:
        say(self.bar.console, text)

    def evaluated(self, counts: Counts, evaluation: Evaluation, seconds: float) -> None:
        episodes = len(evaluation.returns)
        self.say(
            f"  {counts.env_steps:>7,} env steps: return {evaluation.mean:7.1f} "
            f"± {evaluation.std:.1f} over {episodes} episode{'s' if episodes != 1 else ''}"
        )
        self.bar.update(self._task, evaluation=_newest(evaluation.mean, counts.env_steps))
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


class _Line(ProgressColumn):
    """All of the bar in one line: what matters least is left out where the terminal is narrow."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        done, budget = int(task.completed), int(task.total or 0)
        share = done / budget if budget else 1.0
        filled = round(BAR * share)
        parts = {
            "title": (task.description, "bold"),
            "bar": ("━" * filled + "╌" * (BAR - filled), "cyan"),
            "count": (f"{done:,}/{budget:,} env steps", ""),
            "speed": (task.fields["speed"], ""),
            "elapsed": (clock(task.elapsed or 0.0), ""),
            "left": (task.fields["left"], "cyan"),
            "evaluation": ("".join(task.fields["evaluation"]), "green"),
        }
        shorter = (
            ("speed", ""),
            ("elapsed", ""),
            ("count", f"{done:,}/{budget:,}"),
            ("evaluation", task.fields["evaluation"][0]),
            ("bar", ""),
            ("count", f"{share:.0%}"),
            ("evaluation", ""),
            ("title", ""),
        )
        for name, text in shorter:
            if sum(len(text) + 2 for text, _ in parts.values() if text) - 2 <= self._console.width:
                break
            parts[name] = (text, parts[name][1])
        shown = [part for part in parts.values() if part[0]]
        return Text("  ").join(Text(*part, no_wrap=True) for part in shown)


def _newest(mean: float, env_steps: int) -> tuple[str, str]:
    """Return what the bar says of an evaluation, and what it adds where there is room."""
    return f"return {mean:.0f}", f" at {env_steps:,}"


def clock(seconds: float) -> str:
    """Return 3725 s as 1:02:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
