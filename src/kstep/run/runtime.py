"""How a run is carried out, as opposed to what it computes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import annotated_types as at

from kstep.data.ring import Storage
from kstep.native import Asked
from kstep.run.provenance import Allowed
from kstep.values import Positive


@dataclass(frozen=True)
class Runtime:
    """Resources and habits of one run; none of it decides what is computed, up to rounding."""

    device: str = "cpu"
    """cpu, cuda or mps."""
    threads: Positive | None = None
    """Processor threads; the default uses all cores."""
    checkpoint_minutes: Annotated[float, at.Gt(0.0)] = 5.0
    """Minutes between checkpoints."""
    replay: Storage = "memory"
    """Where the frames of the replay are kept; disk is slower and needs no memory."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Step the environment in a process of its own while learning; same results, bit for bit.
    auto: for simulated pixels, where a core is free for it."""
    encoder_backend: Asked = "auto"
    """What computes the convolutions; auto: our kernels where they are right and faster, else
    PyTorch. compiled: PyTorch's compiler, which captures graphs on CUDA. It decides the last bits,
    so a run keeps what it began with."""
    save_encoders_every: Positive | None = None
    """Also keep the encoder every so many env steps, for kstep analyze (the paper: 5000)."""
    frozen_encoder: Path | None = None
    """Use this encoder, saved by another run, without training it; only actor and critic learn."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra tb)."""
    allowed: Allowed = field(default_factory=Allowed)
    """What may differ from the checkpoint that is resumed."""
    log_every: Positive = 50
    """Updates between lines in metrics.jsonl."""
