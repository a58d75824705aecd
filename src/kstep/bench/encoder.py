"""The encoder alone, by PyTorch and by our kernels; a matrix product as the reference for both."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from kstep.bench.sizes import Size
from kstep.bench.timing import Candidate, Work, name_of
from kstep.native import Backend
from kstep.native.choice import Trial

STRIDES = {"encoder": (2, 1, 1, 1), "compact encoder": (2, 2, 1, 1)}
WAYS = ("forward", "forward + backward")


def passes(size: Size, backends: tuple[Backend, ...], threads: int) -> list[Candidate]:
    """One batch through each encoder: forward without a graph, and forward and backward."""
    batch = size.experiment("ksl").method.learning.batch_size
    found = []
    for name, strides in STRIDES.items():
        trial = Trial(replace(size.encoder_shape(), strides=strides), batch)
        for backend in backends:
            features = trial.by_native if backend == "native" else trial.by_torch
            works: list[Work] = [torch.no_grad()(features), partial(trial.both_ways, features)]
            for way, work in zip(WAYS, works, strict=True):
                label = name_of(f"{name}, {way}", backend, threads)
                found.append(Candidate(label, work, 1, threads, backend))
    return found


def product_name(threads: int) -> str:
    return f"matrix product/{threads}"


def product(size: Size, threads: int) -> Candidate:
    """A large product of float32 matrices: what the processor can reach.

    Several in a row, so that the clock resolves them on a fast processor.
    """
    n, count = size.matrix, 4
    draw = torch.Generator().manual_seed(0)
    left, right = torch.randn(n, n, generator=draw), torch.randn(n, n, generator=draw)
    out = torch.empty(n, n)

    def work() -> None:
        for _ in range(count):
            torch.mm(left, right, out=out)

    return Candidate(product_name(threads), work, count, threads)
