"""The paper's convolutional ablation of KSL: a transition model on feature maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from kstep.auxiliary.base import Shapes
from kstep.auxiliary.ksl import TransitionConfig
from kstep.nets.parts import ConvolutionalHead


@dataclass(frozen=True)
class ConvolutionalTransitionConfig(TransitionConfig):
    """T on feature maps (D46)."""

    kind: ClassVar[str] = "convolutional"
    sees: ClassVar[Literal["latent", "features"]] = "features"

    def build(self, shapes: Shapes) -> ConvolutionalTransition:
        return ConvolutionalTransition(shapes)


class ConvolutionalTransition(nn.Module):
    """Two convolutions, flattened, then the action joins in a linear layer.

    Its output is a vector, so it cannot be fed to the convolutions again; the paper does not say
    how the recurrence then continues. Here later predictions start from that vector (D46).
    """

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        width, action_dim = shapes.latent_dim, shapes.action_dim
        self.convolutions = ConvolutionalHead(shapes.feature_shape)
        self.first = nn.Sequential(
            nn.Linear(self.convolutions.outputs + action_dim, width), nn.LayerNorm(width)
        )
        self.later = nn.Sequential(nn.Linear(width + action_dim, width), nn.LayerNorm(width))
        self.latent_dim = width

    def forward(self, latent: Tensor, action: Tensor, layers: Sequence[nn.Module] = ()) -> Tensor:
        """From features (B, F) at first, from latents (B, D) later."""
        if latent.shape[1] == self.latent_dim:
            return self.later(torch.cat((latent, action), dim=-1))  # type: ignore[no-any-return]
        flat = self.convolutions(latent)
        return self.first(torch.cat((flat, action), dim=-1))  # type: ignore[no-any-return]
