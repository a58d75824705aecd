"""One run of the benchmark: measure in turns, print, write."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kstep import envs, native, style, values
from kstep.bench import encoder, figure, memory, renderers, report, steps
from kstep.bench.options import Options, Section
from kstep.bench.results import Measurements, results
from kstep.bench.sizes import PAPER, QUICK, Size
from kstep.bench.steps import COMPACT, KSL, RELEASED, Steps, Workload
from kstep.bench.timing import Candidate, Times, interleave
from kstep.files import write_json
from kstep.native import Backend
from kstep.run import system
from kstep.terminal import say
from kstep.types import KstepError


def bench(options: Options, console: Console) -> dict[str, Any]:
    """Measure, print, and write the JSON file and the figure beside it."""
    values.check(options)
    out = _free(options.out)
    system.keep_freed_memory()
    run = _Run(options, console)
    found = run.measured()
    document = {
        "format": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": run.size.preset,
        "rounds": run.rounds,
        "threads": list(run.threads),
        "backends": list(run.backends),
        "instructions": instructions(),
        "sections": list(options.sections),
        "notices": run.notices,
        "system": values.encode(system.describe("cpu", _rendering(run.size))),
        **results(found),
        "times": found.times.state(),
    }
    write_json(out, document)  # first: minutes of measuring must not be lost
    report.show(document, console)
    picture = out.with_suffix(".png")
    style.THEME.set(style.THEMES[options.theme])
    drawn = figure.draw(document, picture)
    say(console, f"written: {out}" + (f" and {picture}" if drawn else ""))
    return document


def instructions() -> dict[str, str]:
    """Return the instruction sets in use, ours and PyTorch's: speeds are theirs."""
    try:
        ours = native.kernels().instructions
    except native.Unavailable:
        ours = "none"
    return {"native": ours, "torch": torch.backends.cpu.get_cpu_capability().lower()}


class _Run:
    """What one run of the benchmark measures, and how."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.notices: list[str] = []
        self.size = QUICK if options.quick else PAPER
        cores = len(os.sched_getaffinity(0))
        self.threads = tuple(sorted(set(options.threads or (1, cores))))
        self.most = max(self.threads)
        self.rounds = options.rounds or self.size.rounds
        self.backends = self._backends()
        self.steps = Steps(self.size)

    def measured(self) -> Measurements:
        taken = None
        if "memory" in self.options.sections:
            # First, while this process is small: both must fit into memory at once.
            taken = memory.measure(self.size, self.backends[-1], self.most)
            if taken["notice"]:
                self._note(f"memory {taken['notice']}")
        # What several sections need is measured once.
        found = [c for section in self.options.sections for c in self._candidates(section)]
        times = self._in_turns(list({candidate.name: candidate for candidate in found}.values()))
        return Measurements(times, self.size, self.threads, self.backends, taken)

    def _note(self, text: str) -> None:
        self.notices.append(text)
        say(self.console, text)

    def _candidates(self, section: Section) -> list[Candidate]:
        """Return what a section needs."""
        if section == "methods":
            return self._steps(steps.METHODS)
        if section == "split":
            found = [self.steps.split(KSL, backend, self.most) for backend in self.backends]
            found += [self.steps.sequences(KSL, self.most), encoder.product(self.size, self.most)]
            found += self._steps([KSL])
            if "renderers" in self.options.sections:  # the default one is among all of them
                return found
            only = (renderers.USUAL,)
            return found + renderers.candidates(self.size, self.most, self._note, only)
        if section == "encoder":
            return [
                candidate
                for threads in self.threads
                for candidate in (
                    *encoder.passes(self.size, self.backends, threads),
                    *self._steps([KSL, COMPACT], threads),
                )
            ]
        if section == "busy":
            return [
                way(KSL, backend, threads)
                for threads in self.threads
                for backend in self.backends
                for way in (self.steps.step, self.steps.beside)
            ]
        if section == "plain":
            plain = [self.steps.plain(workload, self.most) for workload in (KSL, RELEASED)]
            if None in plain:
                self._note(
                    "plain reference: left out (benchmarks/plain.py is not in the installed "
                    "package, only in a checkout)"
                )
                return []
            return [*self._steps([KSL, RELEASED]), *filter(None, plain)]
        if section == "renderers":
            return renderers.candidates(self.size, self.most, self._note)
        if section == "cost":
            return [
                self.steps.step(workload, self.backends[-1], self.most)
                for cases in steps.cost_cases(self.size).values()
                for workload in cases.values()
            ]
        return []

    def _steps(self, workloads: list[Workload], threads: int | None = None) -> list[Candidate]:
        return [
            self.steps.step(workload, backend, threads or self.most)
            for workload in workloads
            for backend in self.backends
        ]

    def _backends(self) -> tuple[Backend, ...]:
        """Return the requested ones; the last is what a run would use."""
        if self.options.backend == "torch":
            return ("torch",)
        try:
            native.kernels()
        except native.Unavailable as error:
            if self.options.backend == "native":
                raise
            self._note(f"native encoder: left out ({error})")
            return ("torch",)
        return ("native",) if self.options.backend == "native" else ("torch", "native")

    def _in_turns(self, candidates: list[Candidate]) -> Times:
        say(self.console, f"{len(candidates)} measurements in turns, {self.rounds} rounds")
        started = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
        )
        with Progress(
            *columns, TimeElapsedColumn(), console=self.console, transient=True
        ) as progress:
            task = progress.add_task("warming up", total=(self.rounds + 1) * len(candidates))

            def before(number: int, candidate: Candidate) -> None:
                if progress.tasks[task].completed == len(candidates):
                    say(progress.console, f"a round takes {time.monotonic() - started:.0f} s")
                what = f"round {number} of {self.rounds}" if number else "warming up"
                progress.update(task, description=f"{what}: {candidate.name}", advance=1)

            return interleave(candidates, self.rounds, before=before)


def _rendering(size: Size) -> str:
    try:
        return envs.rendering(size.experiment("ksl").env)
    except KstepError as error:
        return f"rendering: none ({error})"


def _free(out: Path | None) -> Path:
    """Return a file that does not exist, nor its figure; raise if the requested one exists."""
    path = out or Path("bench.json")
    if path.suffix != ".json":
        raise KstepError(f"--out must end in .json, not {path.name}: the figure goes beside it")
    if not path.exists() and not path.with_suffix(".png").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    if out is not None:
        raise KstepError(f"{out} or its figure exists already: choose another --out")
    return Path(f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
