"""Linear layers and a decoder's transposed convolutions: functions that PyTorch differentiates.

PyTorch asks a function written in Python for all gradients of its inputs, wanted or not, and the
actor's loss wants none of the critic's weights. So a linear layer is two functions. `_Weights` has
weights and bias as inputs and computes nothing: its output, of the layer's shape, only leads the
layer's gradient back to them, if anybody asks.

    weight, bias -> _Weights -> token \\
                                       _Linear -> y
    x --------------------------------/
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kstep.errors import KstepError
from kstep.native.library import Decoding, kernels, plain

LEAST = 1 << 20
"""Multiplications below which calling us costs more than we save. A matter of shapes alone, so that
bits do not depend on anything else."""


def _plain_floats(*tensors: Tensor) -> bool:
    """Whether a call with these can be native: float32 on the CPU, no autocast, no tracing."""
    return (
        all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, N), weight (M, N), bias (M) to (B, M): ours where that is possible, or PyTorch's."""
    if (
        bias is None
        or x.dim() != 2
        or len(x) * weight.numel() < LEAST
        or not (x.is_contiguous() and weight.is_contiguous() and bias.is_contiguous())
        or not _plain_floats(x, weight, bias)
    ):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return kernels().product(x.detach(), weight.detach().t(), bias.detach())
    token = _Weights.apply(x.detach(), weight, bias)  # type: ignore[no-untyped-call]
    return _Linear.apply(x, token, weight.detach(), bias.detach())  # type: ignore[no-any-return, no-untyped-call]


class _Weights(torch.autograd.Function):
    """What leads to the weights' gradients; see above."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return weight.new_empty(()).expand(len(x), len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (x,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        weight = kernels().product(gradient.t(), x) if ctx.needs_input_grad[1] else None
        return None, weight, gradient.sum(0) if ctx.needs_input_grad[2] else None


class _Linear(torch.autograd.Function):
    """The layer, and the gradient of its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return kernels().product(x.detach(), weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        (weight,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        x = kernels().product(gradient, weight) if ctx.needs_input_grad[0] else None
        return x, gradient, None, None


def _refuse_second_derivative() -> None:
    if torch.is_grad_enabled():
        raise KstepError(
            "a native layer has no second derivative (create_graph=True): use encoder_backend=torch"
        )


def decodes(shape: Decoding, features: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether the kernels can compute this decoder in this call."""
    return shape.usable and _plain_floats(features, *parameters)


def decode(
    shape: Decoding, features: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> Tensor:
    """Features (B, h, w, 32) before their ReLU to pixels (B, H, W, C).

    Transposed 3x3 convolutions, ReLU after each but the last. Weights are PyTorch's (32, C, 3, 3).
    """
    return _Decode.apply(shape, features, *weights, *biases)  # type: ignore[no-any-return, no-untyped-call]


class _Decode(torch.autograd.Function):
    """Features to the last map."""

    @staticmethod
    def forward(ctx: Any, shape: Decoding, features: Tensor, *parameters: Tensor) -> Tensor:
        layers = len(shape.strides)
        features = features.detach().contiguous()
        weights = [plain(weight) for weight in parameters[:layers]]
        biases = [bias.detach().contiguous() for bias in parameters[layers:]]
        *maps, last = kernels().decode(shape, features, weights, biases)
        ctx.shape, ctx.layouts = shape, [weight.stride() for weight in parameters[:layers]]
        ctx.save_for_backward(features, *weights, *maps)
        return last

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        features, *rest = ctx.saved_tensors
        layers = len(ctx.shape.strides)
        found, weights, biases = kernels().decode_backward(
            ctx.shape, gradients[0].contiguous(), features, rest[:layers], rest[layers:]
        )
        # Adam reads weight and gradient in memory order: their layouts must agree.
        weights = [
            w if w.stride() == layout else w.new_empty_strided(w.shape, layout).copy_(w)
            for w, layout in zip(weights, ctx.layouts, strict=True)
        ]
        return None, found, *weights, *biases


def reconstruction(
    prediction: Tensor, observation: Tensor, bits: int, generator: torch.Generator
) -> Tensor | None:
    """The mean squared error of pixels (B, H, W, S * C) and dequantized observations.

    Observations (B, S, F, W, C) are bytes, of whose F rows the first H are seen. The noise is what
    torch.rand draws from the generator, right after its seed was set. None where PyTorch has to
    compute it.
    """
    if observation.dtype != torch.uint8 or not _plain_floats(prediction):
        return None
    return _Reconstruction.apply(prediction, observation, bits, _noise(prediction, generator))  # type: ignore[no-any-return, no-untyped-call]


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    if _draws_as_torch():
        return kernels().uniform(generator.initial_seed(), *like.shape)
    return torch.rand(like.shape, generator=generator, dtype=torch.float32, device="cpu")


@functools.cache
def _draws_as_torch() -> bool:
    """Whether this PyTorch draws as ours does; another one might not."""
    draw = torch.Generator("cpu").manual_seed(2021)
    expected = torch.rand(1300, generator=draw, dtype=torch.float32, device="cpu")
    return torch.equal(kernels().uniform(2021, 1300), expected)


class _Reconstruction(torch.autograd.Function):
    """The error; its gradient is made in the same pass, in the noise's memory."""

    @staticmethod
    def forward(
        ctx: Any, prediction: Tensor, observation: Tensor, bits: int, noise: Tensor
    ) -> Tensor:
        error = kernels().reconstruction(
            prediction.detach().contiguous(), observation.contiguous(), noise, bits
        )
        ctx.save_for_backward(noise)
        return prediction.new_tensor(error)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        (gradient,), scale = ctx.saved_tensors, float(gradients[0])
        return gradient if scale == 1.0 else gradient * scale, None, None, None
