"""Any encoder of images, for observations that have numbers beside their image (packing.py).

    image   -> encoder -> features, latent
    vector  -> normalized by running mean and deviation -> beside both

The latent is the encoder's own with the normalized numbers of all stacked frames behind it. The
statistics are buffers of the encoder: checkpoints, policies and exports have them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from kstep import packing
from kstep.nets.base import Encoder

FARTHEST = 10.0
"""Deviations from the mean at which normalized numbers are cut off."""


class WithVector(Encoder):
    """An encoder of packed observations (B, S, H + R, W, C) uint8."""

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(
        self, images: Encoder, image_shape: tuple[int, ...], stack: int, numbers: int
    ) -> None:
        """`image_shape`: (H, W, C) as the encoder of images sees it."""
        super().__init__()
        self.images, self.height, self.numbers = images, image_shape[0], numbers
        self.image_features = math.prod(images.feature_shape)
        self.feature_shape = (self.image_features + stack * numbers,)
        self.map_shapes = images.map_shapes
        self.latent_dim = images.latent_dim + stack * numbers
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(numbers))
        self.register_buffer("squares", torch.zeros(numbers))

    @property
    def image_part(self) -> Encoder:
        return self.images

    def stages(self) -> dict[str, nn.Module]:
        return self.images.stages()

    def another_head(self) -> nn.Module:
        return HeadBeside(self.images.another_head(), self.image_features)

    def features(self, observation: Tensor) -> Tensor:
        image = observation[:, :, : self.height].contiguous()
        return self.features_of(image, self.vector(observation))

    def features_of(self, image: Tensor, vector: Tensor) -> Tensor:
        """Images (B, S, H, W, C) and vectors (B, S, V) to features (B, F)."""
        features = self.images.features(image)
        return torch.cat((features, self.normalized(vector).flatten(1).to(features.dtype)), dim=1)

    def latent(self, features: Tensor) -> Tensor:
        image, vector = features.tensor_split([self.image_features], dim=1)
        return torch.cat((self.images.latent(image), vector), dim=1)

    def vector(self, observation: Tensor) -> Tensor:
        """Return the numbers (B, S, V) of packed observations, as they are."""
        below = observation[:, :, self.height :].flatten(2)[..., : packing.SIZE * self.numbers]
        # A new tensor: bytes can be taken for floats only where they begin at a multiple of four.
        return below.clone(memory_format=torch.contiguous_format).view(torch.float32)

    def normalized(self, vector: Tensor) -> Tensor:
        """Return numbers (..., V) in deviations from their mean; a constant one is 0."""
        deviation = (self.squares / self.count.clamp_min(1)).sqrt()
        # Before anything was seen, they are taken as they are.
        deviation = torch.where(self.count > 0, deviation, torch.ones_like(deviation))
        return ((vector - self.mean) / deviation.clamp_min(1e-6)).clamp(-FARTHEST, FARTHEST)

    @torch.no_grad()
    def adapt(self, observation: Tensor) -> None:
        """Take a batch into the running statistics (Chan, Golub, LeVeque 1983)."""
        seen = self.vector(observation).flatten(0, 1)
        both = self.count + len(seen)
        away = seen.mean(0) - self.mean
        spread = (seen - seen.mean(0)).square().sum(0)
        self.squares += spread + away.square() * (self.count * len(seen) / both)
        self.mean += away * (len(seen) / both)
        self.count.copy_(both)


class HeadBeside(nn.Module):
    """A second stage of an encoder's image, with the numbers behind its output."""

    def __init__(self, head: nn.Module, image_features: int) -> None:
        super().__init__()
        self.head, self.image_features = head, image_features

    def forward(self, features: Tensor) -> Tensor:
        image, vector = features.tensor_split([self.image_features], dim=1)
        return torch.cat((self.head(image), vector), dim=1)
