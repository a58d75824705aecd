"""Methods, names, environments and this machine: show, list, check-env, doctor, bench."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import annotated_types as at
import tyro
from tyro.conf import Positional, UseAppendAction

from kstep import names
from kstep.bench.options import Options
from kstep.envs import tasks
from kstep.report.listing import Listing, lines
from kstep.run.runtime import Importing
from kstep.terminal import say, terminal
from kstep.values import Count, Positive


@dataclass(frozen=True)
class Show:
    """Explain a method (who owns what, which loss reaches what), or where two methods differ.

    Example: kstep show ksl --diff ksl-released
    """

    method: Positional[str]
    diff: str | None = None
    """Another method to compare with."""
    task: str = "cartpole_swingup"
    """For settings that depend on the task."""
    preset: str = "paper"

    def __call__(self) -> None:
        for method in filter(None, (self.method, self.diff)):
            names.check_method(method)
        names.require(self.preset, names.PRESET_SUMMARIES, "preset")
        tasks.parse(self.task)
        from kstep.report import show

        show.show(self.method, self.diff, self.task, self.preset)


@dataclass(frozen=True)
class List:
    """List methods, encoders, tasks, presets, experiments or trained agents that come with kstep.

    Example: kstep list methods
    """

    what: Positional[Listing] = "methods"

    def __call__(self) -> None:
        console = terminal()
        for line in lines(self.what):
            say(console, line)


@dataclass(frozen=True)
class CheckEnv(Importing):
    """Check an environment before training in it; says what to fix, and draws what the agent sees.

    Gymnasium's checker and ours: the same seed must lead to the same episode; observations,
    rewards, ends, time limit, speed. Example: kstep check-env gym:my_package:Arm-v0
    """

    task: Positional[str]
    """A task: gym:<id>, gym:<module>:<id>, one of your own (--import), cartpole_swingup, ..."""
    method: str = "ksl"
    """The method that is to see it."""
    preset: str = "paper"
    set: UseAppendAction[tuple[str, ...]] = ()
    """Change a setting, as in kstep train: --set env.image=rgb. May be repeated."""
    seed: Count = 1
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("check-env.png")
    """Where to draw what the agent sees."""
    env_timeout: Annotated[float, at.Gt(0.0)] = 60.0
    """Seconds that it may take to answer."""
    decisions: Positive = 500
    """How many random actions to take at most."""

    def __call__(self) -> None:
        names.check_method(self.method)
        names.require(self.preset, names.PRESET_SUMMARIES, "preset")
        tasks.parse(self.task)
        from kstep.bench import check_env

        if not check_env.show(terminal(), **self.rest()):
            sys.exit(1)


@dataclass(frozen=True)
class Doctor:
    """Check rendering, versions, threads and memory; prints what to do where something is
    missing."""

    backend: str | None = None
    """Test this rendering backend only."""

    def __call__(self) -> None:
        from kstep.bench.doctor import doctor

        if not doctor(terminal(), self.backend):
            sys.exit(1)


@dataclass(frozen=True)
class Bench(Options):
    """Measure speed and memory in one interleaved run: tables, a JSON file and a figure.

    Leave the machine idle meanwhile; about ten minutes on two cores. Example: kstep bench
    """

    def __call__(self) -> None:
        from kstep.bench.measure import bench

        bench(self, terminal(120))
