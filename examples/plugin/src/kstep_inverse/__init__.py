"""A method of one's own in a package of one's own: an auxiliary task, an encoder, their method.

The task: from two consecutive latents, tell the action between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

import kstep
from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Shapes
from kstep.data.augment import Shift
from kstep.methods.sac import SAC_PIXEL
from kstep.types import Encode, Metrics, SequenceBatch
from kstep.values import Positive


@kstep.register_auxiliary
@dataclass(frozen=True)
class InverseConfig(AuxiliaryConfig):
    """Settings of the task, as in `--set method.auxiliary.hidden=256`."""

    kind: ClassVar[str] = "inverse"

    hidden: Positive = 512

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return Inverse(self, shapes)

    def shrunk(self) -> InverseConfig:
        return replace(self, hidden=32)


class Inverse(AuxiliaryTask):
    """The task with its head."""

    def __init__(self, config: InverseConfig, shapes: Shapes) -> None:
        super().__init__()
        self.guess = nn.Sequential(
            nn.Linear(2 * shapes.latent_dim, config.hidden),
            nn.ReLU(),
            nn.Linear(config.hidden, shapes.action_dim),
        )

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        return {"guess": self.guess}

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """Squared error of the guessed action; its gradient shapes the encoder."""
        latents = encode(batch.observation[:, :2].flatten(0, 1))
        guessed = self.guess(latents.reshape(len(batch.action), -1))
        loss = F.mse_loss(guessed, batch.action[:, 0])
        return loss, {"auxiliary/loss": loss.detach()}


def pooled(channels: int, height: int, width: int) -> nn.Module:
    """Three strided convolutions, averaged over the image."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=3),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
    )


Pooled = kstep.register_encoder("pooled", pooled)

INVERSE = replace(
    SAC_PIXEL,
    base="inverse",
    summary="Soft Actor-Critic, an inverse dynamics task and a small encoder",
    encoder=Pooled(),
    augment=Shift(),
    auxiliary=InverseConfig(),
)
"""The method; the entry point in pyproject.toml leads here."""
