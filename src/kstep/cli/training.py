"""Training a run and looking at what it learned: train, eval, film, export,
trust, selfcheck."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import annotated_types as at
import tyro
from tyro.conf import OmitArgPrefixes, Positional

from kstep import names, zoo
from kstep.envs import tasks
from kstep.report.options import Overlay
from kstep.run.runtime import Importing, RunRequest, Runtime
from kstep.terminal import say, terminal
from kstep.values import Count, Positive, Threads


@dataclass(frozen=True)
class Train(RunRequest):
    """Train an agent. The same command resumes a run that was stopped.

    Example: kstep train ksl cartpole_swingup --preset cpu --seed 1
    """

    runtime: OmitArgPrefixes[Runtime] = field(default_factory=Runtime)
    checkpoint_now: bool = False
    """Train nothing: let the process that is training this run write a checkpoint now, and wait for
    it. The same without this command: kill -USR1 with the number of that process."""

    def __call__(self) -> None:
        names.check_method(self.method)
        names.require(self.preset, names.PRESET_SUMMARIES, "preset")
        tasks.parse(self.task)
        from kstep.run import start

        (start.checkpoint_now if self.checkpoint_now else start.start)(self, self.runtime)


@dataclass(frozen=True)
class Eval(Importing):
    """Evaluate a run's newest checkpoint: greedy episodes, every return printed.

    Example: kstep eval runs/cartpole_swingup/ksl-cpu/seed1 --episodes 20
    """

    run: Positional[Path]
    """A run folder, or zoo:NAME (kstep list zoo)."""
    at: Count | None = None
    """A moment of training, in env steps, of a checkpoint or of a policy that kstep train
    --save-policies-every kept; the default is the newest."""
    episodes: Positive = 10
    seed: Count = 0
    """Which episodes: the same seed repeats the same starts."""
    device: str = "cpu"

    def __call__(self) -> None:
        zoo.check(self.run)
        from kstep.report import evaluation

        evaluation.show(**self.rest())


@dataclass(frozen=True)
class Film(Importing):
    """Film what policies do: a row per run, a column per moment of training.

    Example: kstep film runs/cartpole_swingup/ksl-cpu/seed1 --overlay reward looks
    """

    runs: Positional[tuple[Path, ...]]
    """Run folders, or zoo:NAME for trained agents that come with kstep (kstep list zoo)."""
    output: Path = Path("film.mp4")
    """Also .mkv, .mov, or .gif and .webp, which pages show like pictures."""
    at: tuple[Count, ...] = ()
    """Moments of training, in env steps, of checkpoints or of policies that kstep train
    --save-policies-every kept; the default is the newest."""
    overlay: tuple[Overlay, ...] = ()
    """What to draw over the pictures: the actions, the reward so far, where the encoder looks, and
    how well KSL's transition model predicted what came."""
    label: bool = True
    """Name the run and the moment in each picture."""
    episodes: Positive = 1
    seed: Count = 0
    """Which episodes: the same seed repeats the same starts."""
    height: int = 480
    """Of each picture, in pixels."""
    width: int = 640
    camera: int | None = None
    """A camera's number; the default is the agent's own."""
    fps: Annotated[float, at.Gt(0.0)] | None = None
    """Frames per second; the default is real time."""
    device: str = "cpu"

    def __call__(self) -> None:
        for run in self.runs:
            zoo.check(run)
        from kstep.report.film import film

        console = terminal()
        for title, result in film(**self.rest()).items():
            say(console, f"return {result.mean:.1f}: {title}")
        say(console, str(self.output))


@dataclass(frozen=True)
class Export(Importing):
    """Write a run's policy as one file for other programs: frames in, actions out.

    Example: kstep export runs/cartpole_swingup/ksl-cpu/seed1 -o policy.onnx --loader
    """

    run: Positional[Path]
    """A run folder, or zoo:NAME (kstep list zoo)."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("policy.onnx")
    """A file that ends in .onnx, or in .pt2 for torch.export."""
    encoder: bool = False
    """Export the encoder alone: frames in, latents out."""
    at: Count | None = None
    """A moment of training, in env steps, of a checkpoint or of a policy that kstep train
    --save-policies-every kept; the default is the newest."""
    loader: bool = False
    """Also copy deployed.py beside the file, which runs it with NumPy and ONNX Runtime alone."""

    def __call__(self) -> None:
        zoo.check(self.run)
        from kstep.interop.export import export

        for line in str(export(**self.rest())).splitlines():
            say(terminal(), line)


@dataclass(frozen=True)
class Trust:
    """Allow a run folder to have its environment's modules imported; asked for once per folder.

    Example: kstep trust runs/gym-Arm-v0/ksl-cpu/seed1
    """

    run: Positional[Path]
    """A run folder."""

    def __call__(self) -> None:
        from kstep.run import trust
        from kstep.run.folder import Run

        modules = trust.allow(Run.open(self.run))
        what = ", ".join(modules) if modules else "nothing: it needs no module"
        say(terminal(), f"{self.run} may import {what}")


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
