"""What a run says: JSON lines for programs, one calm live line for people.

Writers know how many bytes they have written, so that a run that goes on from a checkpoint can
drop what it had logged beyond it and the file ends up as if it had never stopped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from kstep.evaluate import Evaluation
from kstep.types import Counts, KstepError, Metrics


@dataclass(frozen=True)
class Written:
    """How much of a log belongs to a checkpoint, and what it said."""

    bytes: int = 0
    sha256: str | None = None
    """None: not known, or nothing yet."""


class JsonLines:
    """Append-only JSON lines with a known position and a running checksum."""

    def __init__(self, path: Path, written: Written) -> None:
        """Go on after `written`; with nothing where the file is gone."""
        kept = before(path, written)
        self.path = path
        self.lost = written.bytes - len(kept)
        """Bytes that should be there and are not."""
        path.touch()
        self._file = path.open("r+b")
        self._file.truncate(len(kept))
        self._file.seek(len(kept))
        self._sum = hashlib.sha256(kept)
        self._bytes = len(kept)

    def write(self, row: dict[str, Any]) -> None:
        line = (json.dumps(row) + "\n").encode()
        self._file.write(line)
        self._file.flush()  # for whoever is watching the file
        self._sum.update(line)
        self._bytes += len(line)

    def sync(self) -> Written:
        """Make everything written so far survive a crash of the machine, and say what that is."""
        os.fsync(self._file.fileno())
        return Written(self._bytes, self._sum.hexdigest())

    def close(self) -> None:
        self._file.close()


def before(path: Path, written: Written) -> bytes:
    """Return what of a log belongs to a checkpoint: nothing if it is gone.

    Raises if it was changed since or is too short, when what is left can no longer be checked.
    """
    try:
        with path.open("rb") as file:
            kept = file.read(written.bytes)
    except FileNotFoundError:
        return b""
    same = written.sha256 in (None, hashlib.sha256(kept).hexdigest())
    if len(kept) != written.bytes or not same:
        raise KstepError(
            f"{path} was changed since it was written. Restore it from a copy, or move it away to "
            "go on without what it held"
        )
    return kept


class TensorBoard:
    """The same numbers as TensorBoard events; needs the extra `tb`."""

    @staticmethod
    def refuse_missing() -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise KstepError("TensorBoard is not installed: pip install 'kstep[tb]'")

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def write(self, scalars: dict[str, float], env_steps: int) -> None:
        for path, value in scalars.items():
            self._writer.add_scalar(path, value, env_steps)

    def close(self) -> None:
        self._writer.close()


def scalars(metrics: Metrics) -> dict[str, float]:
    """Read the tensors; the one place that waits for the device."""
    return {path: float(value) for path, value in metrics.items()}


class _Remaining(ProgressColumn):
    """Time left at the speed of learning, which the random beginning would flatter."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("" if left is None else f"{clock(left)} left", style="cyan")


class Progresses:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, title: str, budget: int, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._budget = budget
        self._started: tuple[float, int] | None = None
        self._last_line = time.monotonic()
        self._last_evaluation = "not evaluated yet"
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:>7,.0f}/{task.total:,.0f} env steps"),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            _Remaining(),
            TextColumn("[green]{task.fields[evaluation]}"),
            console=console,
            disable=not self._live,
            transient=False,
        )
        self._task = self._bar.add_task(
            title, total=budget, speed="", left=None, evaluation=self._last_evaluation
        )

    def __enter__(self) -> Progresses:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, value, trace)

    def say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)

    def evaluated(self, counts: Counts, evaluation: Evaluation, seconds: float) -> None:
        self._last_evaluation = f"return {evaluation.mean:.0f} at {counts.env_steps:,}"
        episodes = len(evaluation.returns)
        self.say(
            f"  {counts.env_steps:>7,} env steps: return {evaluation.mean:7.1f} "
            f"± {evaluation.spread:.1f} over {episodes} episode{'s' if episodes != 1 else ''}"
        )
        self._bar.update(self._task, evaluation=self._last_evaluation)
        if self._started is not None:
            # The time it took says nothing about the speed of learning.
            self._started = (self._started[0] + seconds, self._started[1])

    def advanced(self, counts: Counts, learning: bool) -> None:
        """Call once per decision."""
        now = time.monotonic()
        if learning and self._started is None:
            self._started = (now, counts.env_steps)
        speed, left = "", None
        if self._started is not None and now > self._started[0]:
            rate = (counts.env_steps - self._started[1]) / (now - self._started[0])
            if rate > 0:
                speed = f"{rate:.1f}/s"
                left = (self._budget - counts.env_steps) / rate
        self._bar.update(
            self._task,
            completed=counts.env_steps,
            speed=speed,
            left=left,
            evaluation=self._last_evaluation,
        )
        if not self._live and now - self._last_line > 60:
            self._last_line = now
            rest = "" if left is None else f", {speed}, {clock(left)} left"
            self.say(
                f"  {counts.env_steps:>7,}/{self._budget:,} env steps, "
                f"{counts.decisions:,} decisions, {counts.updates:,} updates{rest}"
            )


def clock(seconds: float) -> str:
    """Return 3725 s as 1:02:05."""
    if not math.isfinite(seconds):
        return "?"
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
