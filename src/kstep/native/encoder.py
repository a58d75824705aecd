"""From stacks of frames to features: one function that PyTorch differentiates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kstep.errors import KstepError
from kstep.native.library import Shape, kernels, plain


def usable(observation: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Whether this call can be native: bytes and float32 on the CPU, no autocast, no tracing.

    An observation made under `torch.inference_mode` cannot be saved for the backward pass; PyTorch
    converts it to floats first and saves those.
    """
    return (
        observation.dtype == torch.uint8
        and observation.device.type == "cpu"
        and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
        and not (observation.is_inference() and _learns(parameters))
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch._C._is_tracing()
    )


def features(
    observation: Tensor,
    strides: tuple[int, ...],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
) -> Tensor:
    """Observations (B, S, H, W, C) uint8 to features (B, F), flattened from (H, W, 32).

    3x3 convolutions of 32 filters, ReLU after each, of the stack divided by 255. Weights are
    PyTorch's (32, inputs, 3, 3).

    The observation is saved for the backward pass without a copy. PyTorch notices if a tensor is
    changed in between, but not if a NumPy array that shares its memory is: the gradients would
    then be those of other frames.
    """
    learns = _learns((*weights, *biases))
    last = _Features.apply(observation, strides, learns, *weights, *biases)  # type: ignore[no-untyped-call]
    return last.flatten(1)  # type: ignore[no-any-return]


def _learns(parameters: Sequence[Tensor]) -> bool:
    return torch.is_grad_enabled() and any(p.requires_grad for p in parameters)


class _Features(torch.autograd.Function):
    """Observations to the last map (B, H, W, 32)."""

    @staticmethod
    def forward(
        ctx: Any, observation: Tensor, strides: tuple[int, ...], learns: bool, *parameters: Tensor
    ) -> Tensor:
        layers = len(strides)
        weights = [plain(weight) for weight in parameters[:layers]]
        biases = [bias.detach().contiguous() for bias in parameters[layers:]]
        observation = observation.contiguous()
        frames, height, width, colours = observation.shape[1:]
        shape = Shape(frames, height, width, colours, strides)
        maps = kernels().forward(shape, observation, weights, biases, keep=learns)
        if learns:
            ctx.shape = shape
            ctx.layouts = [weight.stride() for weight in parameters[:layers]]
            ctx.save_for_backward(observation, *weights, *maps)
        return maps[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise KstepError(
                "the native encoder has no second derivative (create_graph=True): use "
                "encoder_backend=torch"
            )
        observation, *rest = ctx.saved_tensors
        layers = len(ctx.shape.strides)
        gradient = gradients[0].contiguous()
        weights, biases = kernels().backward(
            ctx.shape, gradient, observation, rest[:layers], rest[layers:]
        )
        # Fused Adam reads weight and gradient in memory order: their layouts must agree.
        weights = [
            w if w.stride() == layout else w.new_empty_strided(w.shape, layout).copy_(w)
            for w, layout in zip(weights, ctx.layouts, strict=True)
        ]
        wanted = zip((*weights, *biases), ctx.needs_input_grad[3:], strict=True)
        return (None, None, None, *(tensor if needed else None for tensor, needed in wanted))
