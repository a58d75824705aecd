"""What a learning step spends its time on, and how much it convolves.

The step itself is not changed: inside `measured`, the few functions that every step calls are
wrapped. Time is attributed to the innermost open part; what no part claims belongs to the heads
(everything behind the convolutions, forward and backward, and the losses).

In the backward pass the arrival of gradients separates the parts: the gradient reaches the features
when the heads are done, and what follows until `torch.autograd` returns is the encoder's. It
reaches a convolution's output when that begins and its input when it is done.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from kstep import native
from kstep.data.augment import Augment
from kstep.data.replay import Replay
from kstep.nets.backends import BFloat16Encoder, CompiledEncoder, NativeEncoder
from kstep.nets.encoder import PixelEncoder
from kstep.optimizers import Ema

PARTS = ("sample", "shift", "encode", "heads", "optimizer", "slow copies")
FORWARD, BACKWARD = "forward images", "backward images"


class Meter:
    """A clock that runs for exactly one part at any time."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.images = {FORWARD: 0, BACKWARD: 0}
        """Stacks that went through the convolutions, and those with a gradient."""
        self._now = now
        self._open = ["heads"]
        self._since = now()

    @property
    def part(self) -> str:
        return self._open[-1]

    @contextmanager
    def during(self, part: str | None = None) -> Iterator[None]:
        """Attribute time to a part, or still to the open one, and close what was opened inside."""
        depth = len(self._open)
        self.enter(part or self.part)
        try:
            yield
        finally:
            self._turn()
            del self._open[depth:]

    def enter(self, part: str) -> None:
        self._turn()
        self._open.append(part)

    def leave(self) -> None:
        self._turn()
        self._open.pop()

    def results(self) -> dict[str, float]:
        """Return milliseconds by part, of the convolutions by direction, and images."""
        self._turn()
        ms = defaultdict(float, {part: 1000 * spent for part, spent in self.seconds.items()})
        found = {part: ms[part] for part in PARTS} | self.images
        for way in ("forward", "backward"):
            found[f"encode {way}"] = ms[f"encode {way}"] + ms[f"convolve {way}"]
            found["encode"] += found[f"encode {way}"]
            # Our kernels are one call: conversion, convolution and ReLU cannot be timed separately.
            found[f"convolve {way}"] = ms[f"convolve {way}"] or found[f"encode {way}"]
        return found

    def _turn(self) -> None:
        now = self._now()
        self.seconds[self.part] += now - self._since
        self._since = now


@contextmanager
def measured() -> Iterator[Meter]:
    """Measure every learning step inside the block."""
    meter = Meter()
    wraps: list[tuple[Any, str, Callable[[Function], Function]]] = [
        (Replay, "sequences", meter.during("sample")),
        (Ema, "step", meter.during("slow copies")),
        (nn.Conv2d, "forward", partial(_convolving, meter)),
        (torch.autograd, "grad", meter.during()),
        (torch.autograd, "backward", meter.during()),
    ]
    for encoder in (PixelEncoder, NativeEncoder, CompiledEncoder, BFloat16Encoder):
        wraps.append((encoder, "features", partial(_encoding, meter)))
    for augment in (Augment, *Augment.__subclasses__()):
        if "train_view" in vars(augment):
            wraps.append((augment, "train_view", meter.during("shift")))
    with ExitStack() as stack:
        for owner, name, wrap in wraps:
            original = vars(owner)[name]
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, wrap(original))
        for handle in (
            register_optimizer_step_pre_hook(lambda *_: meter.enter("optimizer")),
            register_optimizer_step_post_hook(lambda *_: meter.leave()),
        ):
            stack.callback(handle.remove)
        yield meter


Function = Callable[..., Any]


def _encoding(meter: Meter, original: Function) -> Function:
    timed = meter.during("encode forward")(original)

    def call(self: PixelEncoder, observation: Tensor) -> Tensor:
        if meter.part == "encode forward":  # one way to compute features calls another
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


def _convolving(meter: Meter, original: Function) -> Function:
    timed = meter.during("convolve forward")(original)

    def call(self: nn.Conv2d, x: Tensor) -> Tensor:
        if meter.part != "encode forward":  # a head's convolution
            return original(self, x)  # type: ignore[no-any-return]
        y: Tensor = timed(self, x)
        if y.requires_grad:
            y.register_hook(lambda _: meter.enter("convolve backward"))  # type: ignore[no-untyped-call]
        if x.requires_grad:
            x.register_hook(lambda _: meter.leave())  # type: ignore[no-untyped-call]
        return y

    return call


def convolution_flops(shape: native.Shape) -> tuple[int, int]:
    """Arithmetic of one image, forward and backward, of direct 3x3 convolutions.

    A multiplication and an addition count as two. Backward, every layer has a weight gradient and
    all but the first, whose input is the image, an input gradient; each costs what the layer costs
    forward. The count does not depend on the algorithm: one with fewer multiplications is faster.
    """
    layers, inputs = [], shape.frames * shape.colours
    for height, width, channels in shape.maps():
        layers.append(2 * 3**2 * inputs * channels * height * width)
        inputs = channels
    return sum(layers), 2 * sum(layers) - layers[0]
