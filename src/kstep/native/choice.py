"""Which backend computes the encoder's convolutions: decided by a trial before a run starts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from kstep.errors import KstepError
from kstep.native import encoder
from kstep.native.library import Shape, Unavailable, kernels
from kstep.types import Backend, BackendRequest

NOTHING_TO_DO = "the native encoder is for convolutions of pixels with ReLU, in float32"
TOLERANCE = 1e-4
"""Of a trial's outputs, relative to their maximum: ten times the usual error of float32. A wrong
kernel is off by about 1."""
TRIAL_BATCH = 32
TRIALS = 5


@dataclass(frozen=True)
class BackendChoice:
    """What computes the convolutions, and why."""

    backend: Backend
    reason: str

    def __str__(self) -> str:
        return f"encoder: {self.backend} ({self.reason})"


def choose(request: BackendRequest, shape: Shape | None, device: str = "cpu") -> BackendChoice:
    """Return what to use for encoders of this shape (None: there is nothing to convolve).

    `native` raises with the reason where it cannot be used; `auto` takes it where it is correct and
    faster. `compiled`, by PyTorch's compiler, is used only on request.
    """
    if request in ("torch", "compiled"):
        return BackendChoice(request, "as requested")
    try:
        if shape is None:
            raise Unavailable(NOTHING_TO_DO)
        if device != "cpu":
            raise Unavailable(f"the native encoder runs on the CPU, not on {device}")
        shape.require()
        name = kernels().instructions
        trial = Trial(shape)
        if not (off := trial.error()) <= TOLERANCE:  # NaN as well
            raise Unavailable(f"the native encoder is wrong on this machine: off by {off:.1e}")
        torch_ms, native_ms = trial.milliseconds()
    except KstepError as error:  # also from the library: memory or threads it could not get
        if request == "native":
            raise Unavailable(str(error)) from error
        return BackendChoice("torch", str(error))
    reason = (
        f"{name}, {TRIAL_BATCH} stacks forward and backward: native {native_ms:.1f} ms, "
        f"torch {torch_ms:.1f} ms"
    )
    faster = native_ms < torch_ms or request == "native"
    return BackendChoice("native" if faster else "torch", reason)


def expected(request: BackendRequest, device: str = "cpu") -> Backend:
    """Return what `choose` is likely to take for pixels, without a trial: for estimates of time."""
    if request in ("torch", "compiled"):
        return request
    if device != "cpu":
        return "torch"
    try:
        kernels()
    except KstepError:
        return "torch"
    return "native"


class Trial:
    """A random batch through random weights, by both backends."""

    def __init__(self, shape: Shape, batch: int = TRIAL_BATCH) -> None:
        self.shape = shape
        draw = torch.Generator("cpu").manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(size, generator=draw, dtype=torch.float32, device="cpu")

        size = (batch, shape.frames, shape.height, shape.width, shape.colours)
        self.observation = torch.randint(
            0, 256, size, generator=draw, dtype=torch.uint8, device="cpu"
        )
        self.weights, self.biases = [], []
        inputs = shape.frames * shape.colours
        for _ in shape.strides:
            weight = normal(32, inputs, 3, 3) * (2 / (9 * inputs)) ** 0.5
            self.weights.append(weight.contiguous(memory_format=torch.channels_last))
            self.biases.append(normal(32) / 10)
            inputs = 32
        height, width, channels = shape.maps()[-1]
        self.gradient = normal(batch, height * width * channels)
        for parameter in self.parameters:
            parameter.requires_grad_()

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def by_torch(self) -> Tensor:
        """As `PixelEncoder.features` does it."""
        x = self._floats()
        for weight, bias, stride in zip(self.weights, self.biases, self.shape.strides, strict=True):
            x = torch.relu_(F.conv2d(x, weight, bias, stride))
        return x.permute(0, 2, 3, 1).flatten(1)

    def _floats(self) -> Tensor:
        x = torch.cat(self.observation.unbind(1), dim=-1)
        return x.float().div_(255.0).permute(0, 3, 1, 2)

    def by_native(self) -> Tensor:
        return encoder.features(self.observation, self.shape.strides, self.weights, self.biases)

    def both_ways(self, features: Callable[[], Tensor]) -> Sequence[Tensor]:
        with torch.enable_grad():
            outputs = features()
            return [outputs, *torch.autograd.grad(outputs, self.parameters, self.gradient)]

    @torch.no_grad()
    def error(self) -> float:
        """The largest disagreement of a map or a gradient, relative to its maximum.

        Each layer is compared on the kernels' own output of the previous one: an activation within
        rounding of zero may fall to either side, and then whole gradients would rightly differ.
        """
        library, strides = kernels(), self.shape.strides
        arguments = (self.shape, self.observation, self.weights, self.biases)
        maps = library.forward(*arguments, keep=True)
        alone = library.forward(*arguments, keep=False)[-1]
        gradient = self.gradient.view(len(self.observation), *self.shape.maps()[-1])
        gradients = library.backward(self.shape, gradient, self.observation, self.weights, maps)
        outputs = [tensor.permute(0, 3, 1, 2) for tensor in maps]
        inputs = [self._floats(), *outputs]
        g = gradient.permute(0, 3, 1, 2)
        errors = [_error(alone.permute(0, 3, 1, 2), outputs[-1])]
        for i in reversed(range(len(strides))):
            x, weight, stride = inputs[i], self.weights[i], strides[i]
            errors.append(
                _error(outputs[i], torch.relu_(F.conv2d(x, weight, self.biases[i], stride)))
            )
            g = g * (outputs[i] > 0)
            exact = conv2d_weight(x, list(weight.shape), g, stride)  # type: ignore[no-untyped-call]
            errors.append(_error(gradients[0][i], exact))
            errors.append(_error(gradients[1][i], g.sum((0, 2, 3))))
            if i > 0:
                g = conv2d_input(list(x.shape), weight, g, stride)  # type: ignore[no-untyped-call]
        return float(torch.stack(errors).max())

    def milliseconds(self) -> tuple[float, float]:
        """Medians of PyTorch and native, timed alternately."""
        times: dict[str, list[float]] = {"torch": [], "native": []}
        for _ in range(TRIALS):
            for name, features in (("torch", self.by_torch), ("native", self.by_native)):
                started = time.perf_counter()
                self.both_ways(features)
                times[name].append(1000 * (time.perf_counter() - started))
        return statistics.median(times["torch"]), statistics.median(times["native"])


def _error(computed: Tensor, expected: Tensor) -> Tensor:
    return (computed - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
