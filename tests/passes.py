"""Passes through the convolutions of encoders, counted while something learns.

The one place where they are counted; whatever states a cost is tested with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from tests.make import agent_and_replay


@dataclass
class Passes:
    """How many observations went through the convolutions, and gradients of how many came back."""

    forward: int = 0
    backward: int = 0


@contextmanager
def counting(encoders: Iterable[nn.Module]) -> Iterator[Passes]:
    """Count the passes through these networks, together, as their first convolutions see them."""
    count = Passes()

    def forward(module: nn.Module, inputs: Any, output: Tensor) -> None:
        count.forward += len(output)
        if output.requires_grad:
            output.register_hook(backward)  # type: ignore[no-untyped-call]

    def backward(gradient: Tensor) -> None:
        count.backward += len(gradient)

    hooks = [_first_convolution(encoder).register_forward_hook(forward) for encoder in encoders]
    try:
        yield count
    finally:
        for hook in hooks:
            hook.remove()


@cache
def per_update(method: str, *overrides: str, phase: int = 0) -> tuple[float, float]:
    """Mean passes forward and backward per learning step of a method, in units of one batch."""
    agent, replay = agent_and_replay(method, *overrides)
    if phase > 0:
        agent.begin_task()
    auxiliary = agent.method.auxiliary
    # Whole cycles, so that every part has had its turns.
    updates = 2 * agent.method.core.actor_every * (auxiliary.every if auxiliary else 1)
    with counting({agent.encoder, agent.slow_encoder, agent.auxiliary_slow_encoder}) as count:
        for _ in range(updates):
            agent.update(replay)
    unit = agent.method.learning.batch_size * updates
    return count.forward / unit, count.backward / unit


def _first_convolution(encoder: nn.Module) -> nn.Module:
    return next(module for module in encoder.modules() if isinstance(module, nn.Conv2d))
