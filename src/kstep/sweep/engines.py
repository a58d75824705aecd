"""Where runs are executed: on this machine, on a Ray cluster, on Slurm.

An engine takes runs and yields their outcomes. All of them do the same for one run: `execute`
starts `kstep train` as a process, with its output in a log beside the run folder, records how it
ended, and retries from the checkpoint if it was killed. None of them schedules: that is left to a
thread pool, to Ray, to Slurm. The lock in the run folder keeps out a second writer, whichever
engine, machine or user started it.
"""

from __future__ import annotations

import contextlib
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
from typing import Any, Literal, Protocol, TypeAlias

import psutil  # type: ignore[import-untyped, unused-ignore]

from kstep import extras
from kstep.errors import Busy, KstepError, explain
from kstep.run.folder import Attempt
from kstep.sweep import cost, plan
from kstep.sweep.plan import RunSpec
from kstep.types import BackendRequest, OverlapRequest

Result = Literal["done", "failed", "stopped", "busy"]

LOCK_SECONDS = 120.0
"""Seconds to wait for another writer of a run, such as a dying earlier attempt, to release it."""
GRACE = 600.0
"""Seconds a run has to write its checkpoint after it was asked to stop."""
ERROR_BYTES = 8_000
"""How much of a failed attempt's output is kept in its record."""


@dataclass(frozen=True)
class Slot:
    """Resources for one run, as CLI flags."""

    threads: int = 1
    memory_gb: float = 2.0
    device: str = "cpu"
    overlap: OverlapRequest = "off"
    checkpoint_minutes: float = 5.0
    encoder_backend: BackendRequest = "auto"
    """`auto`: each machine chooses, which decides the last bits of runs that begin there."""

    @property
    def gpus(self) -> int:
        return int(self.device.startswith("cuda"))

    def arguments(self) -> list[str]:
        flags = ("threads", "device", "overlap", "checkpoint_minutes", "encoder_backend")
        return [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in flags]

    def environment(self) -> dict[str, str]:
        """Return the variables of the run's process, for libraries with threads of their own."""
        # Mesa's rasterizer would start a thread per core; 0 lets the thread that draws do it all.
        drawing = self.threads if self.threads > 1 else 0
        return {
            "LP_NUM_THREADS": str(drawing),
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
        }


@dataclass(frozen=True)
class Outcome:
    """How a run ended here."""

    result: Result
    seconds: float = 0.0
    attempts: int = 0
    error: str = ""
    """The end of its output, traceback included, if it failed."""
    final: bool = False
    """Whether a retry would end the same way."""


Events: TypeAlias = Generator[tuple[RunSpec, Outcome] | None, None, None]


class Engine(Protocol):
    """Executes runs. Ending the iteration early stops them, each with a checkpoint."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        """Yield each run's outcome when it ends, and None about once a second meanwhile."""
        ...


def execute(
    spec: RunSpec, slot: Slot, retries: int = 1, stopping: threading.Event | None = None
) -> Outcome:
    """Bring one run to its budget; a killed attempt is retried from its checkpoint."""
    stopping = stopping or threading.Event()
    started = time.monotonic()
    attempts = 0
    while True:
        if plan.status(spec).state == "done":
            outcome = Outcome("done")
            break
        if not _wait_for_lock(spec, stopping):
            outcome = Outcome("stopped" if stopping.is_set() else "busy")
            break
        attempts += 1
        try:
            outcome = _attempt(spec, slot, stopping)
        except (KstepError, OSError) as error:  # such as a log that cannot be written
            outcome = Outcome("failed", error=explain(error) or str(error), final=True)
        # Busy: another writer was quicker.
        may_retry = outcome.result in ("busy", "failed") and not outcome.final
        if not may_retry or attempts > retries:
            break
    return replace(outcome, seconds=time.monotonic() - started, attempts=attempts)


def _attempt(spec: RunSpec, slot: Slot, stopping: threading.Event) -> Outcome:
    spec.folder.parent.mkdir(parents=True, exist_ok=True)
    before = max(spec.run.checkpointed(), 0)
    started, clock = datetime.now(UTC), time.monotonic()
    # -P: nothing is imported from the current directory.
    command = [sys.executable, "-P", "-m", "kstep.sweep.die_with_parent", str(os.getpid())]
    command += [*spec.arguments(), *slot.arguments()]
    with spec.run.open_log() as log:
        position = log.seek(0, os.SEEK_END)
        # In a session of its own: Ctrl-C reaches only this process, which then stops it once.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=slot.environment(),
            start_new_session=True,
        )
        try:
            code = _wait(process, stopping)
        except BaseException:  # such as a cancelled task of Ray: leave no process behind
            _stop(process)
            raise
    with spec.run.log_file.open("rb") as log:
        log.seek(max(position, log.seek(0, os.SEEK_END) - ERROR_BYTES))
        output = log.read().decode(errors="replace")
    attempt = _judge(spec, code, output, stopping.is_set())
    row = Attempt(
        started=started.isoformat(timespec="seconds"),
        seconds=round(time.monotonic() - clock, 3),
        threads=slot.threads,
        device=slot.device,
        node=socket.gethostname(),
        decisions=max(spec.run.checkpointed() - before, 0),
        outcome=attempt.result,
        code=code,
        error=attempt.error,
    )
    spec.run.record_attempt(row)
    return attempt


def _judge(spec: RunSpec, code: int, output: str, stopping: bool) -> Outcome:
    if code == 0:
        status = plan.status(spec)
        if status.state == "done":
            return Outcome("done")
        if status.state == "failed":
            return Outcome("failed", error=status.problem, final=True)
        return Outcome("failed", error=f"ended without an error at {status.env_steps:,} env steps")
    if code == Busy.exit_code:
        return Outcome("busy")
    if stopping:
        return Outcome("stopped")
    if code in (130, 143):
        return Outcome("failed", error="stopped by a signal from outside")
    if code < 0:
        return Outcome("failed", error=f"{output}\nkilled by {signal.Signals(-code).name}")
    return Outcome("failed", error=output, final=code == 2)


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

    Done runs count as well, so that resuming later uses as many threads as before. That decides
    nothing for runs of the native backend; with PyTorch's convolutions, and for methods that see a
    state, a run with another number of threads is the same only up to rounding.
    """
    cores = cores or len(os.sched_getaffinity(0))
    needed = max((cost.cost_of(spec).memory_gb for spec in specs), default=1.0)
    free = memory_gb if memory_gb is not None else psutil.virtual_memory().available / 1e9
    runs = max(len(specs), 1)
    fits = int(min(0.9 * free / needed, runs))
    if fits < 1:
        raise KstepError(
            f"a run needs about {needed:.1f} GB of memory and {free:.1f} GB are free; "
            "use kstep train with --replay disk, or a machine with more memory"
        )
    if alone:
        workers = 1
    threads = threads or max(1, cores // min(workers or cores, fits))
    # One run at a time, even if --threads exceeds the cores.
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
                future = pool.submit(execute, spec, slot, retries, stopping)
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
    """How often Ray restarts a run, from its checkpoint, when its worker or node dies."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        ray = _import("ray")
        if not ray.is_initialized():
            try:
                # Ray lets every worker import from the directory that this is called in.
                with contextlib.chdir(sys.prefix):
                    ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError) as error:
                raise KstepError(
                    f"no Ray cluster at '{self.address}': {error}. Start one with "
                    "`ray start --head`, or give --address"
                ) from error
        task = ray.remote(execute).options(
            num_cpus=slot.threads,
            num_gpus=slot.gpus,
            memory=int(slot.memory_gb * 1e9),
            max_retries=self.node_deaths,
            scheduling_strategy="SPREAD",
        )
        # More pending tasks than the cluster can start would only slow down every request to it.
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
    """Time limit of one job; a run that reaches it is resubmitted and resumes."""
    at_once: int = 100
    cluster: str | None = None
    """`local` runs the jobs on this machine, for tests."""

    def run(self, specs: Sequence[RunSpec], slot: Slot, retries: int) -> Events:
        submitit = _import("submitit")
        if not specs:
            return
        # Jobs start in this directory, as `python -m`; the variable is -P for all of them.
        os.environ["PYTHONSAFEPATH"] = "1"
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
                    except Exception as error:  # submitit raises many kinds
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
    """One run as submitit needs it: callable, and resubmitted after preemption."""

    spec: RunSpec
    slot: Slot
    retries: int

    def __call__(self) -> Outcome:
        return execute(self.spec, self.slot, self.retries)

    def checkpoint(self) -> Any:
        """Resubmit the same run; its process dies with this one, after writing a checkpoint."""
        return _import("submitit").helpers.DelayedSubmission(self)


def _absolute(spec: RunSpec) -> RunSpec:
    """Return the run with absolute paths: other machines have other working directories."""
    encoder = spec.frozen_encoder and spec.frozen_encoder.absolute()
    return replace(spec, folder=spec.folder.absolute(), frozen_encoder=encoder)


def _import(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        extra = {"ray": "ray", "submitit": "slurm"}[name]
        raise KstepError(f"{name} is not installed: {extras.command(extra)}") from error
