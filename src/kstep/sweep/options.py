"""Which runs of an experiment to execute, and with what. The fields are flags of `kstep sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import annotated_types as at
from tyro.conf import Positional

from kstep.types import BackendRequest
from kstep.values import Count, Positive, Threads


@dataclass(frozen=True)
class SweepRequest:
    """Which runs, and what executes them."""

    experiment: Positional[str]
    """An experiment (kstep list experiments) or a .toml file of the same form."""
    scale: str = "paper"
    """paper: the paper's size. cpu: compact encoder, fewer seeds. debug: all of it in minutes."""
    tasks: tuple[str, ...] = ()
    """Only these tasks, or others than the experiment's."""
    methods: tuple[str, ...] = ()
    """Only these of the experiment's methods, or variants of them, such as ksl-results or
    drq-original."""
    seeds: str = ""
    """Only these seeds, such as 1-3 or 1,2,7."""
    plan: bool = False
    """Show the grid, what is done, what is missing and what it will take; start nothing."""
    runs: Path = Path("runs")
    """Where run folders are kept; for ray and slurm, on storage that every node sees."""
    table: Path | None = None
    """Runs whose evaluation at their budget is in this table (kstep collect) count as done."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """This machine; a Ray cluster (extra ray); Slurm (extra slurm)."""
    workers: Positive | None = None
    """Simultaneous runs on this machine; the default follows from cores and memory."""
    threads: Threads | None = None
    """Processor threads per run; the default divides the cores among the runs."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    retries: Count = 1
    """How often a run that died is retried, from its checkpoint."""
    checkpoint_minutes: Annotated[float, at.Gt(0.0)] = 5.0
    """Minutes between checkpoints: what the loss of a node costs."""
    encoder_backend: BackendRequest = "auto"
    """What computes the convolutions; auto: each machine chooses, which decides the last bits."""
    address: str = "auto"
    """Of the Ray cluster."""
    partition: str | None = None
    """Of Slurm."""
    hours: Annotated[float, at.Gt(0.0)] = 24.0
    """Time limit of one Slurm job; a run that needs longer is resubmitted and resumes."""
