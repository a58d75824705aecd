"""Who is told what happens in a run: your own code, TensorBoard, Weights & Biases, `on_progress`.

A callback is told, it does not decide: nothing that it returns or changes reaches the run. One that
cannot start ends the run before anything is lost. One that raises later is reported and left out
from then on, while the run continues: to lose hours of training to a log that cannot be written
would be worse than to lose the log.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from kstep import extras
from kstep.files import fingerprint
from kstep.types import Counts, KstepError
from kstep.values import encode

if TYPE_CHECKING:
    from kstep.run.evaluate import Evaluation
    from kstep.run.folder import Run
    from kstep.run.runtime import Runtime

Outcome: TypeAlias = Literal["done", "stopped", "failed"]


class Callback:
    """Told what happens in a run. Override what you need; `counts` says how far the run is."""

    def start(self, run: Run, counts: Counts) -> None:
        """Training begins, or is resumed where `counts` are: what was reported beyond them is
        reported again."""

    def metrics(self, counts: Counts, values: Mapping[str, float]) -> None:
        """A line was written to metrics.jsonl: an update (every 50th) or the end of an episode."""

    def evaluation(self, counts: Counts, evaluation: Evaluation) -> None:
        """The policy was evaluated."""

    def checkpoint(self, counts: Counts, folder: Path) -> None:
        """A checkpoint was written."""

    def end(self, counts: Counts, outcome: Outcome) -> None:
        """Training is over: at its budget, stopped to be resumed later, or by an error."""


class Callbacks:
    """Tells all of them, each by itself."""

    def __init__(self, callbacks: Iterable[Callback], report: Callable[[str], None]) -> None:
        self._callbacks, self._report = list(callbacks), report

    def start(self, run: Run, counts: Counts) -> None:
        """Tell all of them that training begins; raise where one cannot start."""
        waiting, self._callbacks = self._callbacks, []
        for callback in waiting:
            try:
                callback.start(run, replace(counts))
            except Exception as error:
                raise KstepError(_blame(callback, "start", error)) from error
            self._callbacks.append(callback)

    def tell(self, event: str, *about: Any) -> None:
        """Call the method of that name of every callback with copies of what it is about."""
        for callback in self._callbacks.copy():
            try:
                getattr(callback, event)(*(_copy(value) for value in about))
            except Exception as error:
                self._callbacks.remove(callback)
                what = _blame(callback, event, error)
                self._report(f"warning: {what}. It is no longer called; the run continues")


def _blame(callback: Callback, event: str, error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"the callback {type(callback).__name__} raised {type(error).__name__} in {event}() at "
        f"{at.filename}:{at.lineno}: {' '.join(str(error).split())}"
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Counts):
        return replace(value)
    return {**value} if isinstance(value, dict) else value


def asked_for(runtime: Runtime) -> list[Callback]:
    """Return the callbacks that flags ask for."""
    found: list[Callback] = [TensorBoard()] if runtime.tensorboard else []
    return found + ([WeightsAndBiases(runtime.wandb)] if runtime.wandb is not None else [])


class TensorBoard(Callback):
    """Events in the folder `tensorboard` of the run; needs the extra `tb`."""

    def start(self, run: Run, counts: Counts) -> None:
        from torch.utils.tensorboard import SummaryWriter

        run.tree.make(run.tensorboard)
        # What an interrupted run wrote beyond its checkpoint is hidden.
        self._writer = SummaryWriter(str(run.tensorboard), purge_step=counts.env_steps)

    def metrics(self, counts: Counts, values: Mapping[str, float]) -> None:
        for path, value in values.items():
            self._writer.add_scalar(path, value, counts.env_steps)

    def evaluation(self, counts: Counts, evaluation: Evaluation) -> None:
        self.metrics(counts, {"evaluation/return": evaluation.mean})

    def end(self, counts: Counts, outcome: Outcome) -> None:
        self._writer.close()


class WeightsAndBiases(Callback):
    """A run of a Weights & Biases project, resumed with ours; needs the extra `wandb`.

    Where and whether anything is sent is decided by `WANDB_MODE` and wandb's own settings.
    """

    def __init__(self, project: str) -> None:
        self.project = project

    def start(self, run: Run, counts: Counts) -> None:
        import wandb

        experiment = run.experiment
        run.tree.make(run.wandb)
        self._run = wandb.init(
            project=self.project,
            name=f"{experiment.method.name}-{experiment.preset} {experiment.env.task}",
            group=experiment.env.task,
            config=encode(experiment),
            dir=str(run.folder),
            id=run.digest + fingerprint(str(run.folder.absolute()))[:8],
            resume="allow",
        )
        for unit in ("decisions", "updates", "env_steps"):
            self._run.define_metric(unit)
        self._run.define_metric("*", step_metric="env_steps")

    def metrics(self, counts: Counts, values: Mapping[str, float]) -> None:
        self._run.log({**asdict(counts), **values})

    def evaluation(self, counts: Counts, evaluation: Evaluation) -> None:
        self.metrics(counts, {"evaluation/return": evaluation.mean})

    def end(self, counts: Counts, outcome: Outcome) -> None:
        self._run.finish(exit_code=int(outcome == "failed"))


def require_packages(runtime: Runtime) -> None:
    """Refuse flags whose package is missing."""
    if runtime.tensorboard:
        extras.need("tensorboard", "tb")
    if runtime.wandb is not None:
        extras.need("wandb", "wandb")


@dataclass(frozen=True)
class Progress:
    """How far a run is; as a text one line about it."""

    env_steps: int
    budget: int
    decisions: int
    updates: int
    returns: tuple[float, ...] = ()
    """Of an evaluation, if there was one just now."""

    def __str__(self) -> str:
        line = f"{self.env_steps:,}/{self.budget:,} env steps"
        if not self.returns:
            return f"{line}, {self.decisions:,} decisions, {self.updates:,} updates"
        mean, number = sum(self.returns) / len(self.returns), len(self.returns)
        return f"{line}: return {mean:.1f} over {number} episode{'s' if number != 1 else ''}"


class OnProgress(Callback):
    """Calls a function with a `Progress`: at the start and the end of a run, at every evaluation,
    and every few seconds between them."""

    def __init__(self, function: Callable[[Progress], object], every: float = 10.0) -> None:
        self._function, self._every = function, every

    def start(self, run: Run, counts: Counts) -> None:
        self._budget = run.experiment.env_steps
        self._call(counts)

    def metrics(self, counts: Counts, values: Mapping[str, float]) -> None:
        if time.monotonic() - self._called > self._every:
            self._call(counts)

    def evaluation(self, counts: Counts, evaluation: Evaluation) -> None:
        self._call(counts, evaluation.returns)

    def end(self, counts: Counts, outcome: Outcome) -> None:
        self._call(counts)

    def _call(self, counts: Counts, returns: tuple[float, ...] = ()) -> None:
        self._called = time.monotonic()
        done = counts.env_steps, self._budget, counts.decisions, counts.updates
        self._function(Progress(*done, returns))
