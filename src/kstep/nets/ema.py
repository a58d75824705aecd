"""Slow copies: exponential moving averages of networks.

slow <- (1 - rate) * slow + rate * online. The paper prints the two factors the other way round,
which its own rates (0.01, 0.05) contradict (docs/decisions/D09).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


def slow_copy(online: M) -> M:
    """Return a copy that starts equal and never receives a gradient."""
    return copy.deepcopy(online).requires_grad_(False)


@dataclass(frozen=True)
class Ema:
    """One slow copy, what it follows and how fast."""

    name: str
    slow: nn.Module
    online: nn.Module
    rate: float

    @torch.no_grad()
    def step(self) -> None:
        slow: list[torch.Tensor] = list(self.slow.parameters())
        online: list[torch.Tensor] = list(self.online.parameters())
        if slow:
            torch._foreach_lerp_(slow, online, self.rate)
