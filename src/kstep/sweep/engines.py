"""Carrying out runs: on this machine, on a Ray cluster, on Slurm.

An engine takes runs and yields their outcomes. All of them do the same thing for one run:
`carry_out` starts `kstep train` as a process, with its output in a log beside the run folder,
writes down how it ended, and tries again from the checkpoint if it was killed. None of them
schedules: that is left to a thread pool, to Ray, to Slurm. The lock in the run folder keeps a
second writer out, whichever engine, machine or user started it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import psutil  # type: ignore[import-untyped, unused-ignore]

from kstep.errors import Busy, KstepError
from kstep.sweep import plan
from kstep.sweep.plan import RunSpec

Result = Literal["done", "failed", "stopped", "busy"]

LOCK_SECONDS = 120.0
"""Seconds to wait for another writer, such as the dying attempt before, to let go of a run."""
GRACE = 600.0
"""Seconds a run has to write its checkpoint after it was asked to stop."""
ERROR_BYTES = 8_000
"""How much of a failed attempt's output is kept in its record."""


@dataclass(frozen=True)
class Slot:
    """What one run may use, and how it is told."""

    threads: int = 1
    memory_gb: float = 2.0
    device: str = "cpu"
    overlap: Literal["auto", "on", "off"] = "off"
    checkpoint_minutes: float = 5.0
    encoder_backend: str = "auto"
    """`auto` lets each machine choose, which decides the last bits of what begins there."""

    @property
    def gpus(self) -> int:
        return int(self.device.startswith("cuda"))

    def arguments(self) -> list[str]:
        return [
            *("--threads", str(self.threads)),
            *("--device", self.device),
            *("--overlap", self.overlap),
            *("--checkpoint-minutes", str(self.checkpoint_minutes)),
            *("--encoder-backend", self.encoder_backend),
        ]


@dataclass(frozen=True)
class Outcome:
    """How a run ended here."""

    result: Result
    seconds: float = 0.0
    attempts: int = 0
    error: str = ""
    """The end of its output, traceback included, if it failed."""


Events: TypeAlias = Generator[tuple[RunSpec, Outcome] | None, None, None]


class Engine(Protocol):
    """Carries out runs. Ending the iteration early stops them, each with a checkpoint."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        """Yield each run's outcome as it comes, and None about once a second meanwhile."""
        ...


def carry_out(
    spec: RunSpec, slot: Slot, retries: int = 1, stopping: threading.Event | None = None
) -> Outcome:
    """Bring one run to its budget; a killed attempt is followed by another from its checkpoint."""
    stopping = stopping or threading.Event()
    started = time.monotonic()
    attempts = 0
    while True:
        if plan.status(spec).state == "done":
            return Outcome("done", time.monotonic() - started, attempts)
        if not _wait_for_lock(spec, stopping):
            result: Result = "stopped" if stopping.is_set() else "busy"
            return Outcome(result, time.monotonic() - started, attempts)
        attempts += 1
        attempt = _attempt(spec, slot, stopping)
        if attempt.result == "busy" and attempts <= retries:
            continue  # another writer was a moment quicker
        if attempt.result != "failed" or attempt.final or attempts > retries:
            seconds = time.monotonic() - started
            return Outcome(attempt.result, seconds, attempts, attempt.error)


@dataclass(frozen=True)
class _Attempt:
    result: Result
    error: str = ""
    final: bool = False
    """Whether trying again would end the same way."""


def _attempt(spec: RunSpec, slot: Slot, stopping: threading.Event) -> _Attempt:
    spec.folder.parent.mkdir(parents=True, exist_ok=True)
    before = max(spec.run.checkpointed(), 0)
    started, clock = datetime.now(UTC), time.monotonic()
    command = [sys.executable, "-m", "kstep.sweep.leash", str(os.getpid())]
    command += [*spec.arguments(), *slot.arguments()]
    environment = {**os.environ, "OMP_NUM_THREADS": str(slot.threads)}
    with spec.run.log_file.open("ab") as log:
        position = log.tell()
        # A session of its own: Ctrl-C reaches this process only, which then stops it once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            code = _wait(process, stopping)
        except BaseException:  # a cancelled task of Ray, say: nothing is left behind
            _stop(process)
            raise
    with spec.run.log_file.open("rb") as log:
        log.seek(max(position, log.seek(0, os.SEEK_END) - ERROR_BYTES))
        output = log.read().decode(errors="replace")
    attempt = _judge(spec, code, output, stopping.is_set())
    row = {
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - clock, 3),
        "threads": slot.threads,
        "device": slot.device,
        "node": socket.gethostname(),
        "decisions": max(spec.run.checkpointed(), 0) - before,
        "outcome": attempt.result,
        "code": code,
        "error": attempt.error,
    }
    with spec.run.attempts_file.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return attempt


def _judge(spec: RunSpec, code: int, output: str, asked: bool) -> _Attempt:
    if code == 0:
        found = plan.status(spec)
        if found.state == "done":
            return _Attempt("done")
        if found.problem == plan.NO_ENCODERS:
            return _Attempt("failed", found.problem, final=True)
        return _Attempt("failed", f"ended without an error at {found.env_steps:,} env steps")
    if code == Busy.exit_code:
        return _Attempt("busy")
    if asked:
        return _Attempt("stopped")
    if code == 130:
        return _Attempt("failed", "stopped by a signal from outside")
    if code < 0:
        return _Attempt("failed", f"{output}\nkilled by {signal.Signals(-code).name}")
    return _Attempt("failed", output, final=code == 2)


def _wait(process: subprocess.Popen[bytes], stopping: threading.Event) -> int:
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if stopping.is_set():
                return _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(timeout=GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _wait_for_lock(spec: RunSpec, stopping: threading.Event) -> bool:
    deadline = time.monotonic() + LOCK_SECONDS
    while spec.run.is_locked():
        if time.monotonic() > deadline or stopping.wait(0.2):
            return False
    return not stopping.is_set()


def divide(
    specs: Sequence[RunSpec],
    *,
    workers: int | None = None,
    threads: int | None = None,
    device: str = "cpu",
    alone: bool = False,
    cores: int | None = None,
    memory_gb: float | None = None,
) -> tuple[int, Slot]:
    """Divide this machine among all runs of a plan: how many at once, and what each may use.

    Done runs count as well, so that going on later uses as many threads as before: with another
    number of threads a run is the same up to rounding only.
    """
    cores = cores or len(os.sched_getaffinity(0))
    needed = max((plan.memory_gb(spec) for spec in specs), default=1.0)
    room = memory_gb if memory_gb is not None else psutil.virtual_memory().available / 1e9
    runs = max(len(specs), 1)
    fits = int(min(0.9 * room / needed, runs))
    if fits < 1:
        raise KstepError(
            f"a run needs about {needed:.1f} GB of memory and {room:.1f} GB are free; "
            "see --replay disk of kstep train, or run it elsewhere"
        )
    if alone:
        workers = 1
    threads = threads or max(1, cores // min(workers or cores, fits))
    # With --threads more than the cores, one run at a time still goes.
    workers = workers or max(1, min(cores // threads, fits))
    overlap: Literal["auto", "off"] = "auto" if workers * threads < cores else "off"
    return workers, Slot(threads, needed, device, overlap)


@dataclass(frozen=True)
class Local:
    """A queue of processes on this machine."""

    workers: int = 1

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        stopping = threading.Event()
        finished: queue.SimpleQueue[tuple[RunSpec, Future[Outcome]]] = queue.SimpleQueue()
        pool = ThreadPoolExecutor(self.workers)
        try:
            for spec in specs:
                future = pool.submit(carry_out, spec, slot, retries, stopping)
                future.add_done_callback(lambda done, spec=spec: finished.put((spec, done)))  # type: ignore[misc]
            left = len(specs)
            while left:
                try:
                    spec, done = finished.get(timeout=1)
                except queue.Empty:
                    yield None
                    continue
                left -= 1
                yield spec, done.result()
        finally:
            stopping.set()
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Ray:
    """Tasks on an existing Ray cluster; run folders on storage that every node sees."""

    address: str = "auto"
    node_deaths: int = 5
    """How often Ray starts a run again, from its checkpoint, when its worker or node dies."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        ray = _import("ray")
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError) as error:
                raise KstepError(
                    f"no Ray cluster at '{self.address}': {error}. Start one with "
                    "`ray start --head`, or give --address"
                ) from error
        task = ray.remote(carry_out).options(
            num_cpus=slot.threads,
            num_gpus=slot.gpus,
            memory=int(slot.memory_gb * 1e9),
            max_retries=self.node_deaths,
            scheduling_strategy="SPREAD",
        )
        # More than the cluster can start would only make every question to it longer.
        most = 4 * max(int(ray.cluster_resources().get("CPU", 1)), 1)
        waiting = iter(specs)
        running: dict[Any, RunSpec] = {}
        try:
            while True:
                for spec in islice(waiting, most - len(running)):
                    running[task.remote(_absolute(spec), slot, retries)] = spec
                if not running:
                    return
                ready, _ = ray.wait(list(running), num_returns=1, timeout=1)
                if not ready:
                    yield None
                for reference in ready:
                    try:
                        outcome = ray.get(reference)
                    except ray.exceptions.RayError as error:
                        outcome = Outcome("failed", error=str(error))
                    yield running.pop(reference), outcome
        finally:
            for reference in running:
                ray.cancel(reference, force=False)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=GRACE)


@dataclass(frozen=True)
class Slurm:
    """Jobs of a Slurm array, through submitit; run folders on storage that every node sees."""

    partition: str | None = None
    minutes: int = 24 * 60
    """Time limit of one job; a run that meets it is submitted again and goes on."""
    at_once: int = 100
    cluster: str | None = None
    """`local` runs the jobs here, as a rehearsal."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        submitit = _import("submitit")
        if not specs:
            return
        folder = _absolute(specs[0]).folder.parents[2] / "slurm"
        executor = submitit.AutoExecutor(folder=folder, cluster=self.cluster)
        executor.update_parameters(
            name="kstep",
            timeout_min=self.minutes,
            cpus_per_task=slot.threads,
            gpus_per_node=slot.gpus,
            mem_gb=slot.memory_gb,
            slurm_array_parallelism=self.at_once,
            **({"slurm_partition": self.partition} if self.partition else {}),
        )
        with executor.batch():
            jobs = [executor.submit(SlurmJob(_absolute(s), slot, retries)) for s in specs]
        left = dict(zip(jobs, specs, strict=True))
        try:
            while left:
                finished = [job for job in left if job.done()]
                for job in finished:
                    try:
                        outcome = job.result()
                    except Exception as error:  # submitit's own kinds are many
                        outcome = Outcome("failed", error=str(error))
                    yield left.pop(job), outcome
                if not finished:
                    yield None
                    time.sleep(1)
        finally:
            for job in left:
                job.cancel(check=False)


@dataclass(frozen=True)
class SlurmJob:
    """One run as submitit wants it: callable, and able to say how it goes on after preemption."""

    spec: RunSpec
    slot: Slot
    retries: int

    def __call__(self) -> Outcome:
        return carry_out(self.spec, self.slot, self.retries)

    def checkpoint(self) -> Any:
        """Submit the same run again; its process, on its leash, writes a checkpoint as it ends."""
        return _import("submitit").helpers.DelayedSubmission(self)


def _absolute(spec: RunSpec) -> RunSpec:
    """Other machines have other working directories."""
    encoder = spec.frozen_encoder
    return replace(
        spec,
        folder=Path(os.path.abspath(spec.folder)),
        frozen_encoder=encoder and Path(os.path.abspath(encoder)),
    )


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        extra = {"ray": "ray", "submitit": "slurm"}[name]
        raise KstepError(f"{name} is not installed: pip install 'kstep[{extra}]'") from error
