"""Small stacks of layers."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Two hidden ReLU layers: the body of every actor and critic in this family."""
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )
