"""Latents back to observations: the encoder's convolutions in reverse.

The decoder of SAC-AE (Yarats et al. 2019, arXiv:1910.01741, appendix B): a linear layer with ReLU
to the shape of the encoder's features, then one transposed 3x3 convolution for each of its
convolutions, ReLU between them, the last one linear. At 84 pixels: 35, 37, 39, 41, 84.

Memory layout as in the encoder: channels last, features in (H, W, C) order, no copy at either end.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from kstep.nets.init import Init, initialize


class Decoder(nn.Module):
    """Latents (B, D) to real-valued pixels (B, H, W, S * C), oldest frame first."""

    def __init__(
        self,
        latent_dim: int,
        map_shapes: tuple[tuple[int, ...], ...],
        observation_shape: tuple[int, ...],
        init: Init = "delta_orthogonal",
    ) -> None:
        """Mirror an encoder by its `map_shapes`, (H, W, C) after each of its convolutions.

        `observation_shape` is (S, H, W, C).
        """
        super().__init__()
        stack, height, width, colours = observation_shape
        self.feature_shape = map_shapes[-1]
        self.linear = nn.Linear(latent_dim, math.prod(self.feature_shape))
        maps = ((height, width, stack * colours), *map_shapes)
        self.map_shapes = maps[-2::-1]
        """(H, W, C) after each transposed convolution."""
        self.convolutions = nn.ModuleList(
            _reverse(before, after) for after, before in pairwise(reversed(maps))
        )
        initialize(self, init)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, latent: Tensor) -> Tensor:
        return self.pixels(self.linear(latent))

    def pixels(self, features: Tensor) -> Tensor:
        """Features (B, F) before their ReLU to pixels."""
        x = torch.relu_(features)
        x = x.view(-1, *self.feature_shape).permute(0, 3, 1, 2)
        last = len(self.convolutions) - 1
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = x if i == last else torch.relu_(x)
        return x.permute(0, 2, 3, 1)


def _reverse(before: tuple[int, ...], after: tuple[int, ...]) -> nn.ConvTranspose2d:
    """Return the transposed convolution that leads from `after` back to `before`, both (H, W, C).

    A convolution with a 3x3 kernel and stride s leaves (before - 3) // s + 1 of `before` pixels.
    Several s may leave as much of a small map; the least of them does. The division drops up to
    s - 1 pixels at the far edge; output padding restores their number, and the bias is all that
    they ever show: the encoder did not see them either.
    """
    sides = list(zip(before[:2], after[:2], strict=True))
    stride = max((large - 3) // small + 1 for large, small in sides)
    height, width = (large - 3 - (small - 1) * stride for large, small in sides)
    return nn.ConvTranspose2d(
        after[2], before[2], kernel_size=3, stride=stride, output_padding=(height, width)
    )
