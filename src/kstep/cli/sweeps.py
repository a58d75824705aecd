"""Many runs and their results: sweep, status, collect, import, compare."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from kstep.run.runtime import Importing
from kstep.sweep import experiments
from kstep.sweep.options import SweepRequest
from kstep.terminal import say, terminal
from kstep.values import Count, Positive


@dataclass(frozen=True)
class Sweep(SweepRequest, Importing):
    """Run one of the paper's experiments, or your own. The same command resumes it.

    Example: kstep sweep main --scale cpu --tasks cartpole_swingup --seeds 1-3 --plan
    """

    def __call__(self) -> None:
        experiments.read(self.experiment, self.scale)  # a wrong name is refused at once
        from kstep.sweep.command import run_sweep

        run_sweep(self, self.imports)


@dataclass(frozen=True)
class Status:
    """Show how the runs below a folder are doing: returns so far, time left, failures.

    Example: kstep status runs
    """

    runs: Positional[Path] = Path("runs")
    """A run folder, or a folder with some somewhere below it."""

    def __call__(self) -> None:
        from kstep.sweep import status

        status.show(self.runs, terminal())


@dataclass(frozen=True)
class Collect:
    """Gather every evaluation below a folder into one Parquet table. Repeating it is harmless.

    Example: kstep collect runs --output results.parquet
    """

    runs: Positional[Path] = Path("runs")
    """A folder with run folders somewhere below it."""
    output: Path = Path("results.parquet")
    """The table; rows of runs that are not below the folder stay in it."""

    def __call__(self) -> None:
        from kstep.sweep import store

        say(terminal(), str(store.collect(self.runs, self.output)))


@dataclass(frozen=True)
class Import:
    """Put other people's results, as CSV, into the table beside ours (format: docs/scale.md).

    Example: kstep import drq_authors.csv --source "DrQ, authors' data"
    """

    file: Positional[Path]
    """CSV with the columns method, task, seed, env_steps, return and perhaps others."""
    source: str
    """Where the numbers come from; shown with them. Importing a source again replaces it."""
    output: Path = Path("results.parquet")

    def __call__(self) -> None:
        from kstep.sweep import store

        say(terminal(), str(store.import_csv(self.file, self.source, self.output)))


@dataclass(frozen=True)
class Compare:
    """Compare methods at an experiment's marks: per task, in the aggregate, beside the paper.

    Example: kstep compare main --scale cpu --table results.parquet --paper
    """

    experiment: Positional[str]
    """An experiment (kstep list experiments) or a .toml file of the same form."""
    scale: str = "paper"
    """Whose preset and marks to use."""
    table: Path = Path("results.parquet")
    """Made by kstep collect."""
    tasks: tuple[str, ...] = ()
    """Only these tasks."""
    paper: bool = False
    """Put the paper's numbers beside ours, and whether they differ (Welch, p = 0.05)."""
    seed: Count = 0
    """Of the bootstrap."""
    repetitions: Positive = 2_000
    """Of the bootstrap; 50,000 for publication."""

    def __call__(self) -> None:
        experiment = experiments.read(self.experiment, self.scale)
        from kstep.report import compare
        from kstep.sweep import store

        compare.compare(
            experiment,
            store.read(self.table),
            terminal(240),
            tasks=self.tasks,
            beside_paper=self.paper,
            seed=self.seed,
            repetitions=self.repetitions,
        )
