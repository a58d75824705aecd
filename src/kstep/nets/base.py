"""What an encoder is to the rest: two stages, and settings that come in kinds."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from kstep.native import Backend
from kstep.types import KstepError, ObservationKind
from kstep.values import Family

if TYPE_CHECKING:
    from kstep.methods.base import Method


class Encoder(nn.Module):
    """Something that turns observations (B, S, ...) into latents (B, D) in two stages."""

    feature_shape: tuple[int, ...]
    """Features before flattening: (H, W, C), or (D,) for a state vector."""
    map_shapes: tuple[tuple[int, ...], ...] = ()
    """(H, W, C) after each convolution."""
    latent_dim: int

    def stages(self) -> dict[str, nn.Module]:
        """Its two stages, `convolutions` and `head`, as optimizers own them; empty if there is
        nothing to learn."""
        return {}

    @property
    def image_part(self) -> Encoder:
        """The encoder of images alone: itself, unless it takes more."""
        return self

    def adapt(self, observation: Tensor) -> None:
        """Take observations (B, S, ...) into running statistics of what it sees, if it has any."""

    def another_head(self) -> nn.Module:
        """Return a second stage like its own, with weights from torch's current generator, for an
        actor that shares features only."""
        raise KstepError(
            f"{type(self).__name__} has no second stage of which another could be made: "
            "method.core.actor_encoder must be share_all"
        )

    def features(self, observation: Tensor) -> Tensor:
        """Observations (B, S, ...) to features (B, F)."""
        raise NotImplementedError

    def latent(self, features: Tensor) -> Tensor:
        """Features (B, F) to latents (B, D)."""
        raise NotImplementedError

    def forward(self, observation: Tensor) -> Tensor:
        """Observations (B, S, ...) to latents (B, D)."""
        return self.latent(self.features(observation))


@dataclass(frozen=True)
class EncoderConfig(Family):
    """Which encoder; its kind decides what of the environment it sees."""

    observation: ClassVar[ObservationKind]

    @property
    def image_size(self) -> int:
        """Height and width of what it sees; 0 for state vectors."""
        return 0

    @property
    def ema_rate(self) -> float:
        """Of the slow encoder; slow copies of auxiliary heads share it."""
        return 0.05

    @property
    def head_of_critic(self) -> bool:
        """Whether the slow copy of the head moves at the critic's rate."""
        return False

    @abc.abstractmethod
    def build(
        self, frame_shape: tuple[int, ...], stack: int, backend: Backend = "torch"
    ) -> Encoder:
        """Return the encoder of stacks of such frames, weights from torch's current generator."""

    def compact(self) -> EncoderConfig:
        """Return the encoder of the `cpu` preset."""
        return self

    def shrunk(self) -> EncoderConfig:
        """Return the encoder at the size of the `debug` preset."""
        return self

    def check(self, method: Method) -> None:
        """Refuse other parts of the method that this encoder cannot be combined with."""


class FixedFeatures(Encoder):
    """An encoder whose convolutions somebody else trains, or nobody: observations *are* features.

    It is borrowed, so it is kept out of the module tree.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        object.__setattr__(self, "_encoder", encoder)
        self.feature_shape, self.latent_dim = encoder.feature_shape, encoder.latent_dim

    def features(self, observation: Tensor) -> Tensor:
        return observation

    def latent(self, features: Tensor) -> Tensor:
        return self._encoder.latent(features)  # type: ignore[no-any-return, operator, union-attr]
