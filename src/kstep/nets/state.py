"""The encoder of methods that see the simulator's state: there is nothing to encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from kstep.native import Backend
from kstep.nets.base import Encoder, EncoderConfig
from kstep.types import KstepError, ObservationKind

if TYPE_CHECKING:
    from kstep.methods.base import Method


@dataclass(frozen=True)
class StateEncoderConfig(EncoderConfig):
    """State vectors as they are."""

    kind: ClassVar[str] = "state"
    observation: ClassVar[ObservationKind] = "state"

    def build(
        self, frame_shape: tuple[int, ...], stack: int, backend: Backend = "torch"
    ) -> StateEncoder:
        return StateEncoder(frame_shape, stack)

    def check(self, method: Method) -> None:
        if method.augment.kind != "none":
            raise KstepError("a state vector cannot be augmented: method.augment.kind must be none")
        if method.learning.critic_trains != "all":
            raise KstepError("a state vector has no encoder: method.learning.critic_trains=all")


class StateEncoder(Encoder):
    """State vectors as they are: nothing to learn, the same interface."""

    def __init__(self, frame_shape: tuple[int, ...], stack: int) -> None:
        super().__init__()
        self.feature_shape = (stack * frame_shape[0],)
        self.latent_dim = stack * frame_shape[0]

    def features(self, observation: Tensor) -> Tensor:
        # In the networks' precision, which is that of whatever is made by default.
        return observation.flatten(1).to(torch.get_default_dtype())

    def latent(self, features: Tensor) -> Tensor:
        return features
