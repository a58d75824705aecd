"""One run of the benchmark: what to measure, in turns, and where to put what was found."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kstep import envs, native
from kstep.bench import encoder, memory, renderers, report, steps
from kstep.bench.results import Measured, results
from kstep.bench.sizes import PAPER, QUICK, SECTIONS, Section, Size
from kstep.bench.steps import COMPACT, KSL, RELEASED, Reading, Steps
from kstep.bench.timing import Candidate, Times, interleave
from kstep.files import write_json
from kstep.native import Backend
from kstep.nets.backends import require_native
from kstep.run import system
from kstep.types import KstepError


@dataclass(frozen=True)
class Options:
    """What to measure and how long."""

    only: tuple[Section, ...] = ()
    """Sections; none: all."""
    threads: tuple[int, ...] = ()
    """Numbers of threads; none: 1 and all cores. Where one will do, it is the largest."""
    rounds: int | None = None
    """None: what the size says."""
    backend: Literal["both", "torch", "native"] = "both"
    quick: bool = False
    """A small size and few rounds: whether it works, not how fast it is."""
    out: Path | None = None
    """None: bench.json here, or a dated name where that is taken."""

    @property
    def size(self) -> Size:
        return QUICK if self.quick else PAPER

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(section for section in SECTIONS if not self.only or section in self.only)


def bench(options: Options, console: Console) -> dict[str, Any]:
    """Measure, print, and write the JSON file and the figure beside it."""
    out = _free(options.out)
    _refuse_impossible(options)
    system.keep_freed_memory()
    run = _Run(options)
    for notice in run.notices:
        console.print(notice, highlight=False)
    found = run.measured(console)
    document = {
        "format": 1,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": options.size.name,
        "rounds": run.rounds,
        "threads": list(run.threads),
        "backends": list(run.backends),
        "sections": list(options.sections),
        "notices": run.notices,
        "system": system.describe("cpu", _rendering(run.size)),
        **results(found),
        "times": found.times.state(),
    }
    write_json(out, document)  # first: minutes of measuring must survive whatever follows
    report.show(document, console)
    from kstep.bench import figure  # a plotting library is no part of what is measured

    picture = out.with_suffix(".png")
    drawn = figure.draw(document, picture)
    console.print(f"written: {out}" + (f" and {picture}" if drawn else ""), highlight=False)
    return document


@dataclass
class _Run:
    options: Options
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.options
        self.size = options.size
        cores = len(os.sched_getaffinity(0))
        self.threads = tuple(sorted(set(options.threads or (1, cores))))
        self.rounds = self.size.rounds if options.rounds is None else options.rounds
        self.backends = self._backends()
        self.steps = Steps(self.size)
        method = self.size.experiment("ksl").method
        self.ks = {k: steps.with_k(k) for k in self.size.ks}
        usual = method.learning.batch_size
        self.batches = {n: steps.with_batch(n, usual) for n in self.size.batches}

    def measured(self, console: Console) -> Measured:
        sections = self.options.sections
        most, usual = max(self.threads), self.backends[-1]
        # First, while this process is small: the two must fit side by side.
        taken = memory.measure(self.size, usual, most) if "memory" in sections else None
        if taken and taken["notice"]:
            self._note(f"memory {taken['notice']}", console)
        said = len(self.notices)
        candidates = {c.name: c for section in sections for c in self._candidates(section)}
        for notice in self.notices[said:]:
            console.print(notice, highlight=False)
        times = self._in_turns(list(candidates.values()), console)
        seen = self.steps.agent(KSL)
        return Measured(
            times=times,
            threads=self.threads,
            backends=self.backends,
            readings=steps.readings(),
            ks=self.ks,
            batches=self.batches,
            memory=taken,
            product_flops=encoder.product_flops(self.size),
            convolution_inputs=seen.method.stack * seen.spec.frame_shape[2],
            convolution_maps=seen.encoder.map_shapes,
        )

    def _candidates(self, section: Section) -> list[Candidate]:
        """What a section needs; sections may need the same, which is then measured once."""
        most = max(self.threads)
        if section == "methods":
            return self._steps(steps.readings(), self.backends)
        if section == "split":
            found = [self.steps.split(KSL, backend, most) for backend in self.backends]
            found += [self.steps.sequences(KSL, most), encoder.product(self.size, most)]
            found += self._steps([KSL], self.backends)
            # The renderer a run uses unless told otherwise; no notice if that is coming anyway.
            quiet = "renderers" in self.options.sections
            note = (lambda text: None) if quiet else self.notices.append
            only = renderers.usual()
            return found + ([] if quiet else renderers.candidates(self.size, most, note, only))
        if section == "encoder":
            return [
                candidate
                for threads in self.threads
                for candidate in (
                    *encoder.passes(self.size, self.backends, threads),
                    *self._steps([KSL, COMPACT], self.backends, threads),
                )
            ]
        if section == "plain":
            plain = [self.steps.plain(reading, most) for reading in (KSL, RELEASED)]
            if None in plain:
                self.notices.append(
                    "plain reference: left out (benchmarks/plain.py is in a checkout, not in the "
                    "installed package)"
                )
                return []
            ours = self._steps([KSL, RELEASED], self.backends)
            return [*ours, *(candidate for candidate in plain if candidate)]
        if section == "renderers":
            return renderers.candidates(self.size, most, self.notices.append)
        if section == "cost":
            cases = [*self.ks.values(), *self.batches.values()]
            return self._steps(cases, self.backends[-1:])
        return []

    def _steps(
        self, readings: list[Reading], backends: tuple[Backend, ...], threads: int | None = None
    ) -> list[Candidate]:
        number = threads or max(self.threads)
        return [
            self.steps.step(reading, backend, number)
            for reading in readings
            for backend in backends
        ]

    def _backends(self) -> tuple[Backend, ...]:
        """Those asked for; the last is what a run would use."""
        if self.options.backend == "torch":
            return ("torch",)
        method = self.size.experiment("ksl").method
        frame = (method.encoder.image_size, method.encoder.image_size, 3)
        try:
            require_native(method.encoder, frame, method.stack)
        except native.Unavailable as error:
            if self.options.backend == "native":
                raise
            self.notices.append(f"native encoder: left out ({error})")
            return ("torch",)
        return ("native",) if self.options.backend == "native" else ("torch", "native")

    def _in_turns(self, candidates: list[Candidate], console: Console) -> Times:
        number = len(candidates)
        console.print(f"{number} things to time, {self.rounds} rounds in turns", highlight=False)
        started = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
            warmed: set[str] = set()
            task = progress.add_task("warming up", total=(self.rounds + 1) * len(candidates))

            def before(number: int, candidate: Candidate) -> None:
                if number == 0:
                    warmed.add(candidate.name)
                elif warmed:
                    warmed.clear()
                    seconds = time.monotonic() - started
                    progress.console.print(f"a round takes {seconds:.0f} s", highlight=False)
                what = f"round {number} of {self.rounds}" if number else "warming up"
                progress.update(task, description=f"{what}: {candidate.name}", advance=1)

            return interleave(candidates, self.rounds, before=before)

    def _note(self, text: str, console: Console) -> None:
        self.notices.append(text)
        console.print(text, highlight=False)


def _rendering(size: Size) -> str:
    try:
        return envs.rendering(size.experiment("ksl").env)
    except KstepError as error:
        return f"rendering: none ({error})"


def _refuse_impossible(options: Options) -> None:
    if options.rounds is not None and options.rounds < 1:
        raise KstepError(f"--rounds must be at least 1, not {options.rounds}")
    if any(number < 1 for number in options.threads):
        raise KstepError(f"--threads must be at least 1, not {min(options.threads)}")


def _free(out: Path | None) -> Path:
    """A file that is not there yet, nor its figure; what was asked for by name must be free."""
    path = out or Path("bench.json")
    if path.suffix != ".json":
        raise KstepError(f"--out must end in .json, not {path.name}: the figure goes beside it")
    if not path.exists() and not path.with_suffix(".png").exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    if out is not None:
        raise KstepError(f"{out} or its figure is there already: choose another --out")
    return Path(f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json")
