"""Observations to latents.

The encoder of SAC-AE (Yarats et al. 2019, arXiv:1910.01741) that every pixel method here shares:
3x3 convolutions with ReLU, a linear layer, LayerNorm and, in some readings, tanh. It has two
stages because some methods let the actor share only the first: `features` (convolutions,
flattened) and `latent` (what follows).

Memory layout: frames arrive as (B, S, H, W, C) uint8. For PyTorch one conversion makes them float
in its channels-last format, in which oneDNN and cuDNN compute; the native kernels read the bytes as
they are. Features are flattened in (H, W, C) order so that this costs no copy either. That order is
part of the weights' meaning on every device.

Here the convolutions are PyTorch's; backends.py computes the same in other ways.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from kstep.native import Backend
from kstep.nets.base import Encoder, EncoderConfig
from kstep.nets.init import Init, initialize
from kstep.nets.parts import ConvolutionalHead, FilterResponseNorm
from kstep.types import KstepError, ObservationKind
from kstep.values import LATER, Fraction, Positive

if TYPE_CHECKING:
    from kstep.nets.trunks import TrunkConfig


@dataclass(frozen=True)
class PixelEncoderConfig(EncoderConfig):
    """The convolutional encoder; the defaults are the paper's."""

    kind: ClassVar[str] = "convolutional"
    observation: ClassVar[ObservationKind] = "pixels"

    image_size: Positive = 84
    """Height and width of what it sees; the augmentation decides what is rendered."""
    channels: Positive = 32
    """Filters of every convolution."""
    strides: tuple[Positive, ...] = (2, 1, 1, 1)
    """One convolution per entry. (2, 2, 1, 1) is the compact encoder of the `cpu` preset."""
    latent_dim: Positive = 50
    tanh: bool = True
    """Whether the latent ends in tanh: the paper's text says so, its code does not (D02)."""
    centred: bool = field(default=False, metadata=LATER)
    """Whether pixels lie in [-0.5, 0.5], as in DrQ-v2, instead of [0, 1]."""
    activation: Literal["relu", "frn"] = "relu"
    """After each convolution: ReLU, or PI-SAC's filter response normalization."""
    head: Literal["linear", "convolutional"] = "linear"
    """What turns features into the latent: one linear layer, or the two convolutions and the linear
    layer of the paper's convolutional ablation."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of the encoder's products; sums, all else and what is stored stay float32. tf32 is for CUDA
    and concerns every matrix product there."""
    ema_rate: Fraction = 0.05
    """Of the slow encoder."""
    init: Init = "delta_orthogonal"

    def build(
        self, frame_shape: tuple[int, ...], stack: int, backend: Backend = "torch"
    ) -> PixelEncoder:
        from kstep.nets.backends import encoder_class

        return encoder_class(self, frame_shape, stack, backend)(self, frame_shape, stack)

    @property
    def head_of_critic(self) -> bool:
        return self.head == "convolutional"

    def compact(self) -> PixelEncoderConfig:
        """A second stride of 2: about a third of the arithmetic."""
        return replace(self, strides=(2, 2, 1, 1))

    def shrunk(self) -> PixelEncoderConfig:
        return replace(self, image_size=48, channels=8, strides=(2, 2, 1, 1), latent_dim=16)


EncoderConfig.named["compact"] = PixelEncoderConfig().compact()


class LatentHead(nn.Sequential):
    """Linear, LayerNorm and possibly tanh: the second stage of the encoder."""

    def __init__(
        self, config: PixelEncoderConfig | TrunkConfig, feature_shape: tuple[int, ...]
    ) -> None:
        layers: list[nn.Module] = []
        inputs = math.prod(feature_shape)
        if config.head == "convolutional":
            layers.append(ConvolutionalHead(feature_shape))
            inputs = layers[0].outputs  # type: ignore[assignment]
        layers += [nn.Linear(inputs, config.latent_dim), nn.LayerNorm(config.latent_dim)]
        super().__init__(*layers, *([nn.Tanh()] if config.tanh else []))


class PixelEncoder(Encoder):
    """Stacks of frames to latents."""

    def __init__(
        self, config: PixelEncoderConfig, frame_shape: tuple[int, ...], stack: int
    ) -> None:
        super().__init__()
        self.config, self.frame_shape, self.stack = config, frame_shape, stack
        height, width, colours = frame_shape
        maps = []
        for stride in config.strides:
            height, width = (height - 3) // stride + 1, (width - 3) // stride + 1
            if min(height, width) < 1:
                raise KstepError(
                    f"frames of {frame_shape[0]}x{frame_shape[1]} are too small for "
                    f"{len(config.strides)} convolutions with strides {config.strides}"
                )
            maps.append((height, width, config.channels))
        channels = [stack * colours] + [config.channels] * len(config.strides)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, kernel_size=3, stride=stride)
            for (before, after), stride in zip(pairwise(channels), config.strides, strict=True)
        )
        self.feature_shape = (height, width, config.channels)
        self.map_shapes = tuple(maps)
        self.latent_dim = config.latent_dim
        norms = len(config.strides) if config.activation == "frn" else 0
        self.norms = nn.ModuleList(FilterResponseNorm(config.channels) for _ in range(norms))
        self.head = self.another_head()
        initialize(self, config.init)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def another_head(self) -> LatentHead:
        return LatentHead(self.config, self.feature_shape)

    def stages(self) -> dict[str, nn.Module]:
        trunk = nn.ModuleList([self.convolutions, self.norms]) if self.norms else self.convolutions
        return {"convolutions": trunk, "head": self.head}

    def features(self, observation: Tensor) -> Tensor:
        # (B, S, H, W, C) uint8 -> (B, S*C, H, W) float, channels last. Interleaving the bytes first
        # and converting after is 2.5 times as fast as one strided converting copy.
        dtype = cast(nn.Conv2d, self.convolutions[0]).weight.dtype
        x = torch.cat(observation.unbind(1), dim=-1).to(dtype).div_(255.0).permute(0, 3, 1, 2)
        x = x - 0.5 if self.config.centred else x
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = self.norms[i](x) if self.norms else torch.relu_(x)
        return x.permute(0, 2, 3, 1).flatten(1)

    def latent(self, features: Tensor) -> Tensor:
        return self.head(features)  # type: ignore[no-any-return]

    def forward(self, observation: Tensor) -> Tensor:
        return self.latent(self.features(observation))
