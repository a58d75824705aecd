"""Which run, and how it is executed. The fields are flags of `kstep train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import annotated_types as at
from tyro.conf import Positional, Suppress, UseAppendAction, arg

from kstep.data.ring import Storage
from kstep.types import BackendRequest, OverlapRequest
from kstep.values import Count, Positive, Threads

Imports: TypeAlias = Annotated[UseAppendAction[tuple[str, ...]], arg(name="import")]


@dataclass(frozen=True)
class Importing:
    """A command that may need an environment of the user's own."""

    imports: Imports = field(default=(), kw_only=True)
    """Import a module, or a file that ends in .py, that registers the environment. May be repeated.
    """

    def rest(self) -> dict[str, Any]:
        """Return all other flags."""
        return {name: value for name, value in vars(self).items() if name != "imports"}


@dataclass(frozen=True)
class RunRequest:
    """What to compute, and where to keep it."""

    method: Positional[str]
    """A method, such as ksl or sac_pixel (all of them: kstep list methods)."""
    task: Positional[str]
    """A task: cartpole_swingup, toy_reach, gym:<id>, gym:<module>:<id>, ... (kstep list tasks)."""
    preset: str = "paper"
    """paper: the paper's sizes. cpu: a compact encoder, a third of the work. debug: seconds."""
    seed: Count = 1
    """Decides everything random about the run."""
    env_steps: Positive | None = None
    """Budget in simulator steps, action repeats counted: 100_000, or 1e5 (100,000 unless the
    preset has less)."""
    evaluate_every: Positive | None = None
    """env steps between evaluations (20,000, the preset debug: 800): --set evaluation.every=N."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Change any setting: --set method.auxiliary.k=5 (keys: kstep show METHOD). May be repeated."""
    runs: Path = Path("runs")
    """Where run folders are kept."""
    folder: Path | None = None
    """This run's folder, instead of the usual one below --runs."""
    imports: Imports = ()
    """Import a module, or a file that ends in .py, that registers the environment. May be repeated.
    The run remembers it."""


@dataclass(frozen=True)
class Allowed:
    """Differences that the user accepts when resuming."""

    force_version: bool = False
    """Resume a checkpoint of other versions; the run is no longer reproducible."""
    force_renderer: bool = False
    """Resume with frames of another renderer; the run is no longer reproducible."""

    @property
    def any(self) -> bool:
        return self.force_version or self.force_renderer


@dataclass(frozen=True)
class Runtime:
    """Resources and habits of one run; none of it decides what is computed, up to rounding."""

    device: str = "cpu"
    """cpu, cuda or mps."""
    threads: Threads | None = None
    """Processor threads; the default uses all cores."""
    checkpoint_minutes: Annotated[float, at.Gt(0.0)] = 5.0
    """Minutes between checkpoints."""
    replay: Storage = "memory"
    """Where the frames of the replay are kept: disk is slower and needs no memory; device is the
    one that learns, which makes the views of frames as well."""
    overlap: OverlapRequest = "auto"
    """When the environment steps, bit for bit the same: in a process of its own, while learning
    (on) or after it (off), or in this process (here), which it can then hang, end or crash. auto:
    on where a core is free for it, otherwise off; the toy tasks here."""
    env_timeout: Annotated[float, at.Gt(0.0)] = 300.0
    """Seconds that an environment in a process of its own may take to answer; then the process is
    replaced."""
    encoder_backend: BackendRequest = "auto"
    """What computes the convolutions; auto: our kernels where they are correct and faster, else
    PyTorch. compiled: PyTorch's compiler, which captures graphs on CUDA. It decides the last bits,
    so a run keeps what it began with."""
    save_encoders_every: Positive | None = None
    """Also save the encoder every so many env steps, for kstep analyze (the paper: 5000)."""
    save_policies_every: Positive | None = None
    """Also save the policy every so many env steps, to film or evaluate it later (--at)."""
    frozen_encoder: Path | None = None
    """Use this encoder, saved by another run, without training it; only actor and critic learn."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra tb)."""
    wandb: Annotated[str, at.MinLen(1)] | None = None
    """Also log to this project of Weights & Biases (needs the extra wandb)."""
    allowed: Allowed = field(default_factory=Allowed)
    """What may differ from the checkpoint that is resumed."""
    log_every: Suppress[Positive] = 50
    """Updates between lines in metrics.jsonl."""
