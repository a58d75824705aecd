"""The encoder alone, by PyTorch and by our kernels; a matrix product as the reference for both."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kstep.bench.sizes import Size
from kstep.bench.timing import Candidate
from kstep.native import Backend
from kstep.native.choice import Trial
from kstep.nets.backends import native_shape

STRIDES = {"encoder": (2, 1, 1, 1), "compact encoder": (2, 2, 1, 1)}
WAYS = ("forward", "forward + backward")


def pass_name(encoder: str, way: str, backend: Backend, threads: int) -> str:
    return f"{encoder}, {way}/{backend}/{threads}"


def passes(size: Size, backends: tuple[Backend, ...], threads: int) -> list[Candidate]:
    """One batch through each encoder: forward without a graph, and forward and backward."""
    method = size.experiment("ksl").method
    found = []
    for name, strides in STRIDES.items():
        frame = (method.encoder.image_size, method.encoder.image_size, 3)
        shape = native_shape(method.encoder, frame, method.stack)
        assert shape is not None
        shape = type(shape)(shape.frames, shape.height, shape.width, shape.colours, strides)
        trial = Trial(shape, method.learning.batch_size)
        for backend in backends:
            features = trial.by_native if backend == "native" else trial.by_torch
            forward, both = WAYS
            found += [
                Candidate(pass_name(name, forward, backend, threads), _alone(features), 1, threads),
                Candidate(
                    pass_name(name, both, backend, threads), _both(trial, features), 1, threads
                ),
            ]
    return found


def _alone(features: Callable[[], Tensor]) -> Callable[[], None]:
    def work() -> None:
        with torch.no_grad():
            features()

    return work


def _both(trial: Trial, features: Callable[[], Tensor]) -> Callable[[], None]:
    def work() -> None:
        trial.both_ways(features)

    return work


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


def product_flops(size: Size) -> int:
    return 2 * size.matrix**3
