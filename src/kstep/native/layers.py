"""A linear layer by our products of matrices: a function that PyTorch differentiates.

PyTorch asks a function written in Python for all gradients of its inputs, wanted or not, and the
actor's loss wants none of the critic's weights. So the layer is two functions. `_Weights` has
weights and bias as inputs and computes nothing: its output, of the layer's shape, only leads the
layer's gradient back to them, if anybody asks.

    weight, bias -> _Weights -> token \\
                                       _Linear -> y
    x --------------------------------/
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kstep.errors import KstepError
from kstep.native.library import kernels

LEAST = 1 << 20
"""Multiplications below which calling us costs more than we save. A matter of shapes alone, so that
bits do not depend on anything else."""


def usable(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """Whether this call can be native: large, float32 on the CPU, no autocast, no tracing."""
    return (
        x.dim() == 2
        and x.shape[0] * weight.numel() >= LEAST
        and all(
            tensor.dtype == torch.float32
            and tensor.device.type == "cpu"
            and tensor.is_contiguous()
            and tensor.layout == torch.strided
            for tensor in (x, weight, bias)
        )
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, N), weight (M, N), bias (M) to (B, M): ours where that is possible, or PyTorch's."""
    if bias is None or not usable(x, weight, bias):
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
        if torch.is_grad_enabled():
            raise KstepError(
                "a native layer has no second derivative (create_graph=True): use "
                "encoder_backend=torch"
            )
        (weight,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        x = kernels().product(gradient, weight) if ctx.needs_input_grad[0] else None
        return x, gradient, None, None
