"""What moves parameters, by the kernels: Adam and moving averages.

Every element is computed by itself, so nothing depends on how they are divided among threads. What
is not float32 in dense memory on the CPU goes through PyTorch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kstep.native.library import AdamStep, AverageStep, kernels


class Adam(torch.optim.Adam):
    """PyTorch's Adam with another step: the same state, the same settings."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        steps: list[AdamStep] = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.float32)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
                if not _alike(parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]):
                    super().step(closure)  # nothing was written yet
                    return
                steps.append(_step(group, parameter, state, float(state["step"]) + 1))
        kernels().adam(steps)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.state[parameter]["step"] += 1
                    torch.autograd.graph.increment_version(parameter)  # autograd sees the change


def _step(group: dict[str, Any], parameter: Tensor, state: Any, number: float) -> AdamStep:
    """The coefficients of Adam's step `number`, in double precision until here."""
    first, second = group["betas"]
    return AdamStep(
        parameter.data_ptr(),
        parameter.grad.data_ptr(),  # type: ignore[union-attr]
        state["exp_avg"].data_ptr(),
        state["exp_avg_sq"].data_ptr(),
        parameter.numel(),
        1 - first,
        1 - second,
        second,
        group["lr"] / (1 - first**number),
        math.sqrt(1 - second**number),
        group["eps"],
        group["weight_decay"],
    )


def lerp_(slow: list[Tensor], online: list[Tensor], rate: float) -> None:
    """slow <- slow + rate * (online - slow), in place."""
    if not all(_alike(*pair) for pair in zip(slow, online, strict=True)):
        torch._foreach_lerp_(slow, online, rate)
        return
    kernels().average(
        [
            AverageStep(to.data_ptr(), by.data_ptr(), to.numel(), rate)
            for to, by in zip(slow, online, strict=True)
        ]
    )
    for tensor in slow:
        torch.autograd.graph.increment_version(tensor)


def _alike(*tensors: Tensor) -> bool:
    """Whether these are float32 on the CPU, the same elements in the same dense memory order."""
    first = tensors[0]
    dense = first.is_contiguous() or (
        first.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
    )
    return dense and all(
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.shape == first.shape
        and tensor.stride() == first.stride()
        for tensor in tensors
    )
