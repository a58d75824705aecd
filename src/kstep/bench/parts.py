"""What a learning step spends its time on, and how much it convolves.

The step itself knows nothing of being watched: while `measured` is open, the few functions that
every step goes through are wrapped. Time belongs to the innermost part that is open; what no part
claims is the heads' (everything behind the convolutions, forward and backward, and the losses).

Backward, the gradient's arrival tells the parts apart: it reaches the features when the heads are
done, and what follows until `torch.autograd` returns is the encoder's. It reaches a convolution's
output when that begins and its input when it is done.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kstep.data.augment import Augment
from kstep.data.replay import Replay
from kstep.nets.backends import NativeEncoder
from kstep.nets.encoder import PixelEncoder
from kstep.optimizers import Ema

PARTS = ("sample", "shift", "encode", "heads", "optimizer", "slow copies")
FORWARD, BACKWARD = "forward images", "backward images"


class Meter:
    """A clock that always runs for exactly one part."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.images = {FORWARD: 0, BACKWARD: 0}
        """Stacks that went through the convolutions, and whose gradient came back."""
        self._now = now
        self._open = ["heads"]
        self._since = now()

    @property
    def depth(self) -> int:
        return len(self._open)

    @property
    def part(self) -> str:
        return self._open[-1]

    def enter(self, part: str) -> None:
        self._turn()
        self._open.append(part)

    def leave(self) -> None:
        self._turn()
        self._open.pop()

    def leave_to(self, depth: int) -> None:
        """Close whatever was opened since."""
        self._turn()
        del self._open[depth:]

    def found(self) -> dict[str, float]:
        """Milliseconds by part, the convolutions among them by direction, and images."""
        self._turn()
        ms = {part: 1000 * seconds for part, seconds in self.seconds.items()}
        ways = ("forward", "backward")
        convolving = {f"convolve {way}": ms.pop(f"convolve {way}", 0.0) for way in ways}
        around = {f"encode {way}": ms.pop(f"encode {way}", 0.0) for way in ways}
        whole = {f"encode {w}": around[f"encode {w}"] + convolving[f"convolve {w}"] for w in ways}
        if not any(convolving.values()):
            # Our kernels do it all at once: conversion, convolution and ReLU cannot be told apart.
            convolving = {f"convolve {way}": whole[f"encode {way}"] for way in ways}
        parts = {part: ms.get(part, 0.0) for part in PARTS} | {"encode": sum(whole.values())}
        return {**parts, **whole, **convolving, **self.images}

    def _turn(self) -> None:
        now = self._now()
        self.seconds[self.part] += now - self._since
        self._since = now


@contextmanager
def measured() -> Iterator[Meter]:
    """Measure every learning step that is taken inside."""
    meter = Meter()
    wraps = [
        (Replay, "sequences", _timed(meter, "sample")),
        (Ema, "step", _timed(meter, "slow copies")),
        *((kind, "features", _encoding(meter)) for kind in (PixelEncoder, NativeEncoder)),
        (nn.Conv2d, "forward", _convolving(meter)),
        (torch.autograd, "grad", _returning(meter)),
        (torch.autograd, "backward", _returning(meter)),
        *((kind, "train_view", _timed(meter, "shift")) for kind in Augment.kinds.values()),
    ]
    with ExitStack() as stack:
        for owner, name, wrap in wraps:
            stack.enter_context(_replaced(owner, name, wrap))
        for handle in (
            register_optimizer_step_pre_hook(lambda *_: meter.enter("optimizer")),
            register_optimizer_step_post_hook(lambda *_: meter.leave()),
        ):
            stack.callback(handle.remove)
        yield meter


Function = Callable[..., Any]


@contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Function], Function]) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


def _timed(meter: Meter, part: str) -> Callable[[Function], Function]:
    def wrap(original: Function) -> Function:
        def call(*arguments: Any, **options: Any) -> Any:
            meter.enter(part)
            try:
                return original(*arguments, **options)
            finally:
                meter.leave()

        return call

    return wrap


def _encoding(meter: Meter) -> Callable[[Function], Function]:
    def wrap(original: Function) -> Function:
        timed = _timed(meter, "encode forward")(original)

        def call(self: PixelEncoder, observation: Tensor) -> Tensor:
            if meter.part == "encode forward":  # the kernels leave this call to PyTorch
                return original(self, observation)  # type: ignore[no-any-return]
            features: Tensor = timed(self, observation)
            meter.images[FORWARD] += len(observation)

            def arrived(gradient: Tensor) -> None:
                meter.images[BACKWARD] += len(observation)
                meter.enter("encode backward")

            if features.requires_grad:
                features.register_hook(arrived)  # type: ignore[no-untyped-call]
            return features

        return call

    return wrap


def _convolving(meter: Meter) -> Callable[[Function], Function]:
    def wrap(original: Function) -> Function:
        timed = _timed(meter, "convolve forward")(original)

        def call(self: nn.Conv2d, x: Tensor) -> Tensor:
            if meter.part != "encode forward":  # some head's convolution
                return original(self, x)  # type: ignore[no-any-return]
            y: Tensor = timed(self, x)
            if y.requires_grad:
                y.register_hook(lambda _: meter.enter("convolve backward"))  # type: ignore[no-untyped-call]
            if x.requires_grad:
                x.register_hook(lambda _: meter.leave())  # type: ignore[no-untyped-call]
            return y

        return call

    return wrap


def _returning(meter: Meter) -> Callable[[Function], Function]:
    def wrap(original: Function) -> Function:
        def call(*arguments: Any, **options: Any) -> Any:
            depth = meter.depth
            try:
                return original(*arguments, **options)
            finally:
                meter.leave_to(depth)

        return call

    return wrap


def convolution_flops(
    inputs: int, maps: Sequence[tuple[int, ...]], kernel: int = 3
) -> tuple[int, int]:
    """Arithmetic of one image, forward and backward, convolved directly.

    `inputs` channels lead to `maps`, (H, W, C) after each layer. A multiplication and an addition
    count as two. Backward every layer has a weight gradient, and all but the first, whose input is
    the image, an input gradient; each costs what the layer costs forward. However it is computed:
    by this count an algorithm with fewer multiplications is simply faster.
    """
    layers = []
    for height, width, channels in maps:
        layers.append(2 * kernel**2 * inputs * channels * height * width)
        inputs = channels
    return sum(layers), 2 * sum(layers) - layers[0]
