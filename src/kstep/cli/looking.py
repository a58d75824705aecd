"""Methods, names and this machine: show, list, doctor, bench."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from tyro.conf import Positional

from kstep import names
from kstep.bench.options import Options
from kstep.envs import tasks
from kstep.report.listing import Listing, lines
from kstep.terminal import say, terminal


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
