"""SAC-AE: reconstruct the observation from its latent.

Yarats, Zhang, Kostrikov, Amos, Pineau, Fergus 2019, "Improving Sample Efficiency in Model-Free
Reinforcement Learning from Images", arXiv:1910.01741, section 5: a deterministic autoencoder with
an L2 penalty on the latent and weight decay on the decoder (Ghosh et al. 2019, arXiv:1903.12436).

    h = encode(s)
    target = floor(s / 8) / 32 + U[0, 1) / 32 - 1/2         pixels in 5 bits, dequantized
    loss = mean over pixels of (target - D(h))^2  +  1e-6 * mean over batch of ||h||^2 / 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import annotated_types as at
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep import native
from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Draws, Shapes
from kstep.nets.backends import NATIVE
from kstep.nets.decoder import Decoder
from kstep.nets.init import Init
from kstep.types import Encode, KstepError, Metrics, SequenceBatch
from kstep.values import Rate


@dataclass(frozen=True)
class AutoencoderConfig(AuxiliaryConfig):
    """SAC-AE's own choices; the defaults are the paper's."""

    kind: ClassVar[str] = "autoencoder"

    latent_penalty: Rate = 1e-6
    """Weight of half the latent's squared norm."""
    decoder_weight_decay: Rate = 1e-7
    """Adam's L2 penalty on the decoder."""
    bits: Annotated[int, at.Ge(1), at.Le(8)] = 5
    """How many bits of each pixel are to be reconstructed."""
    init: Init = "delta_orthogonal"

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return Autoencoder(self, shapes)

    def shrunk(self) -> AutoencoderConfig:
        """Return itself: the decoder mirrors the encoder, and shrinks with it."""
        return self


class Autoencoder(AuxiliaryTask):
    """The task with its head, the decoder D."""

    def __init__(self, config: AutoencoderConfig, shapes: Shapes) -> None:
        super().__init__()
        if not shapes.map_shapes:
            raise KstepError("an autoencoder mirrors a convolutional encoder; there is none")
        self.config, self.height = config, shapes.observation_shape[1]
        self.decoder = Decoder(
            shapes.latent_dim, shapes.map_shapes, shapes.observation_shape, config.init
        )
        self.draws = Draws()

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        return {"decoder": self.decoder}

    def weight_decays(self) -> dict[str, float]:
        return {"decoder": self.config.decoder_weight_decay}

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """The loss over the first of `batch.observation` (B, T + 1, S, H, W, C).

        Each call draws new noise. The logged penalty is half the squared norm before its weight.
        """
        observation = batch.observation[:, 0]
        latent = encode(observation)
        reconstruction = self.error(self.decoder(latent), observation)
        penalty = 0.5 * latent.square().sum(1).mean()
        loss = reconstruction + self.config.latent_penalty * penalty
        return loss, {
            "auxiliary/loss": loss.detach(),
            "auxiliary/reconstruction": reconstruction.detach(),
            "auxiliary/latent_penalty": penalty.detach(),
        }

    def error(self, prediction: Tensor, observation: Tensor) -> Tensor:
        """Mean squared error of pixels (B, H, W, S * C)."""
        return F.mse_loss(prediction, self.target(observation))

    def target(self, observation: Tensor, draw: torch.Generator | None = None) -> Tensor:
        """Reduce pixels (B, S, H, W, C) uint8 to a few bits and dequantize: (B, H, W, S * C).

        Values lie in [-1/2, 1/2), but for rounding. Without a generator, the next draw.
        """
        pixels = torch.cat(observation[:, :, : self.height].unbind(1), dim=-1)
        draw = draw or self.draws.next()
        target = torch.rand(pixels.shape, generator=draw, device=pixels.device)
        return target.add_(pixels >> (8 - self.config.bits)).div_(2**self.config.bits).sub_(0.5)


class NativeAutoencoder(Autoencoder):
    """Target, error and gradient in one pass of `kstep.native`, where the very call allows it."""

    def error(self, prediction: Tensor, observation: Tensor) -> Tensor:
        draw = self.draws.next()
        found = native.reconstruction(prediction, observation, self.config.bits, draw)
        return F.mse_loss(prediction, self.target(observation, draw)) if found is None else found


NATIVE[Autoencoder] = NativeAutoencoder
