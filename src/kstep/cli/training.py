"""Training a run and looking at what it learned: train, eval, film, selfcheck."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import annotated_types as at
from tyro.conf import OmitArgPrefixes, Positional

from kstep import names
from kstep.run.runtime import RunRequest, Runtime
from kstep.terminal import say, terminal
from kstep.values import Count, Positive, Threads


@dataclass(frozen=True)
class Train(RunRequest):
    """Train an agent. The same command resumes a run that was stopped.

    Example: kstep train ksl cartpole_swingup --preset cpu --seed 1
    """

    runtime: OmitArgPrefixes[Runtime] = field(default_factory=Runtime)

    def __call__(self) -> None:
        names.check_method(self.method)
        from kstep.run.start import start

        start(self, self.runtime)


@dataclass(frozen=True)
class Eval:
    """Evaluate a run's newest checkpoint: greedy episodes, every return printed.

    Example: kstep eval runs/cartpole_swingup/ksl-cpu/seed1 --episodes 20
    """

    run: Positional[Path]
    """A run folder."""
    episodes: Positive = 10
    seed: Count = 0
    """Which episodes: the same seed repeats the same starts."""
    device: str = "cpu"

    def __call__(self) -> None:
        from kstep.report import evaluation

        evaluation.show(**vars(self))


@dataclass(frozen=True)
class Film:
    """Film a run's newest checkpoint as mp4.

    Example: kstep film runs/cartpole_swingup/ksl-cpu/seed1 --output swingup.mp4
    """

    run: Positional[Path]
    """A run folder."""
    output: Path = Path("film.mp4")
    episodes: Positive = 1
    seed: Count = 0
    height: int = 480
    width: int = 640
    camera: int | None = None
    """A camera's number; the default is the agent's own."""
    fps: Annotated[float, at.Gt(0.0)] | None = None
    """Frames per second; the default is real time."""
    device: str = "cpu"

    def __call__(self) -> None:
        from kstep.report.film import film

        result = film(**vars(self))
        say(terminal(), f"{self.output}: return {result.mean:.1f}")


@dataclass(frozen=True)
class Selfcheck:
    """Check that this installation learns: a short run with a known result.

    Five to twenty minutes on two cores, on rendered images. Example: kstep selfcheck --quick
    """

    quick: bool = False
    """A minute or so on the toy task, without MuJoCo and rendering."""
    seed: Count = 1
    """Another seed is another run; the expected band is the same."""
    runs: Path = Path("runs")
    """The run is kept below this folder; if interrupted, the same command resumes it."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    threads: Threads | None = None
    """Processor threads; the default uses all cores."""

    def __call__(self) -> None:
        from kstep.run import selfcheck

        check = selfcheck.quick(self.seed) if self.quick else selfcheck.swingup(self.seed)
        runtime = Runtime(self.device, self.threads)
        if selfcheck.selfcheck(check, self.runs, runtime, terminal()) == "below":
            sys.exit(1)
