"""What moves parameters: optimizers, by a table of who steps what, and slow copies.

`minimize` computes gradients for the group's own parameters only, so that no loss can leak into
what it does not own; ownership.py says what each group owns.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kstep import native
from kstep.errors import KstepError
from kstep.types import Backend

M = TypeVar("M", bound=nn.Module)


class NonFinite(KstepError):
    """Non-finite loss; no optimizer step was taken."""


@dataclass(frozen=True)
class Group:
    """What one optimizer steps, by name, and how fast."""

    modules: Mapping[str, nn.Module | nn.Parameter]
    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    """Exceptions to `learning_rate`, by the names in `modules`."""
    weight_decays: Mapping[str, float] = field(default_factory=dict)
    """Adam's L2 penalty, by the names in `modules`; 0 where none is given."""

    def rate(self, name: str) -> float:
        return self.learning_rates.get(name, self.learning_rate)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, module in self.modules.items():
            if isinstance(module, nn.Parameter):
                yield name, module
            else:
                for inner, parameter in module.named_parameters():
                    yield f"{name}.{inner}", parameter


class Optimizers:
    """Named Adam optimizers over declared parameters."""

    def __init__(
        self, groups: Mapping[str, Group], backend: Backend = "torch", broken: Tensor | None = None
    ) -> None:
        """`broken`: 0.0 on a device that must not be waited for; see `minimize`."""
        self.groups, self.broken = dict(groups), broken
        self.parameters = {
            name: [parameter for _, parameter in group.named_parameters()]
            for name, group in self.groups.items()
        }
        self._adams = {name: _adam(group, backend) for name, group in self.groups.items()}
        for adam in self._adams.values():
            adam.found_inf = broken  # type: ignore[attr-defined]  # 1.0: its kernel steps nothing

    def minimize(self, name: str, loss: Tensor, *, partly: bool = False) -> None:
        """Take one step of the optimizer `name` on `loss`; nothing else moves.

        Raises if the loss does not depend on a parameter the group claims to own, unless the group
        serves several losses and this is one of them (`partly`). A non-finite loss is rejected;
        with `broken` it sets that to 1.0 instead, where the device sees it and nobody waits, and
        from then on no optimizer moves anything.
        """
        if self.broken is not None:
            self.broken.clamp_min_(1.0 - loss.detach().isfinite().float())
        elif not math.isfinite(value := loss.item()):
            raise NonFinite(f"the loss of '{name}' is {value}")
        parameters = self.parameters[name]
        gradients = torch.autograd.grad(loss, parameters, allow_unused=partly)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None and gradient.stride() != parameter.stride():
                gradient = laid_out_like(parameter, gradient)
            parameter.grad = gradient
        self._adams[name].step()
        for parameter in parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return every moment and step count by `optimizer/parameter/quantity`."""
        tensors: dict[str, Tensor] = {}
        for name, group in self.groups.items():
            state = self._adams[name].state
            for key, parameter in group.named_parameters():
                for quantity, value in state[parameter].items():
                    tensors[f"{name}/{key}/{quantity}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        for name, group in self.groups.items():
            state: Any = self._adams[name].state
            for key, parameter in group.named_parameters():
                saved, shape = below(tensors, f"{name}/{key}"), parameter.shape
                found = {k: v.shape for k, v in saved.items() if v.is_floating_point()}
                # Before the first step there are none.
                if saved and found != {"step": (), "exp_avg": shape, "exp_avg_sq": shape}:
                    raise KstepError(
                        f"the moments of {name}/{key} do not fit a parameter {tuple(shape)}"
                    )
                state[parameter] = {
                    k: laid_out_like(parameter, v.clone()) for k, v in saved.items()
                }


def below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return what is saved under `name/`, without that part of the path."""
    start = f"{name}/"
    return {k.removeprefix(start): value for k, value in tensors.items() if k.startswith(start)}


def slow_copy(online: M) -> M:
    """Return a copy that starts equal and never receives a gradient."""
    return copy.deepcopy(online).requires_grad_(False)


@dataclass(frozen=True)
class Ema:
    """One slow copy, what it follows and how fast: slow <- (1 - rate) * slow + rate * online.

    The paper prints the two factors the other way round, which its own rates (0.01, 0.05)
    contradict (D09).
    """

    name: str
    slow: nn.Module
    online: nn.Module
    rate: float

    @torch.no_grad()
    def step(self, backend: Backend = "torch") -> None:
        slow: list[Tensor] = list(self.slow.parameters())
        online: list[Tensor] = list(self.online.parameters())
        if slow:
            lerp_ = native.lerp_ if backend == "native" else torch._foreach_lerp_
            lerp_(slow, online, self.rate)


def laid_out_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """Return a gradient or a moment in the parameter's memory layout.

    Fused Adam walks through memory side by side: what is stored in another order than a
    channels-last weight would silently belong to other entries.
    """
    if tensor.shape != parameter.shape:
        return tensor.to(parameter.device)  # the count of steps
    return torch.empty_like(parameter, requires_grad=False).copy_(tensor)


def _adam(group: Group, backend: Backend) -> torch.optim.Adam:
    by_rate: list[dict[str, Any]] = [
        {
            "params": [module] if isinstance(module, nn.Parameter) else list(module.parameters()),
            "lr": group.rate(name),
            "weight_decay": group.weight_decays.get(name, 0.0),
        }
        for name, module in group.modules.items()
    ]
    by_rate = [entry for entry in by_rate if entry["params"]]
    adam = native.Adam if backend == "native" else torch.optim.Adam
    return adam(by_rate, lr=group.learning_rate, betas=group.betas, fused=True)
