"""KSL's other transition models: the paper's knowledge sharing and its convolutional ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import annotated_types as at
import torch
from torch import Tensor, nn

from kstep.auxiliary.base import Shapes
from kstep.auxiliary.ksl import Transition, TransitionConfig
from kstep.nets.parts import ConvolutionalHead
from kstep.types import KstepError
from kstep.values import Positive

if TYPE_CHECKING:
    from kstep.methods.base import Method


@dataclass(frozen=True)
class SharedTransitionConfig(TransitionConfig):
    """T whose first layers are the first layers of both Q-functions: knowledge sharing (D20)."""

    kind: ClassVar[str] = "shared"

    layers: Annotated[int, at.Ge(1), at.Le(2)] = 1
    """The paper's l."""
    hidden: tuple[Positive, Positive] = (1024, 512)
    """The first must be as wide as the critic."""

    @property
    def borrowed_layers(self) -> int:
        return self.layers

    def build(self, shapes: Shapes) -> Transition:
        return Transition(0, True, self.hidden, shapes)

    def shrunk(self) -> SharedTransitionConfig:
        return replace(self, hidden=(32, 32))

    def check(self, method: Method) -> None:
        width, critic = self.hidden[0], getattr(method.core, "hidden", None)
        if width != critic:
            raise KstepError(
                f"method.auxiliary.transition takes layers of the critic, so its hidden[0]={width} "
                f"must equal method.core.hidden={critic}"
            )


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
        if len(shapes.feature_shape) != 3:
            raise KstepError(
                "method.auxiliary.transition.kind=convolutional predicts maps of an image alone; "
                "numbers beside it are left out with --set env.vector=none"
            )
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
