"""Encoders whose first stage is any module: a residual network, or a user's own.

    images (B, S * C, H, W) in [0, 1]  ->  trunk  ->  features (B, F)  ->  head  ->  latent (B, D)

The head is the paper's: linear, LayerNorm, tanh. Maps (B, C, H, W) that a trunk returns are
flattened in (H, W, C) order, as everywhere here.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import annotated_types as at
import torch
from torch import Tensor, nn

from kstep.native import Backend
from kstep.nets.base import Encoder, EncoderConfig
from kstep.nets.encoder import LatentHead
from kstep.types import KstepError, ObservationKind
from kstep.values import Count, Fraction, Positive


@dataclass(frozen=True)
class TrunkConfig(EncoderConfig):
    """Settings of every such encoder. A subclass names its `kind` and makes its trunk."""

    observation: ClassVar[ObservationKind] = "pixels"
    head: ClassVar[Literal["linear"]] = "linear"

    image_size: Positive = 84
    """Height and width of what it sees; the augmentation decides what is rendered."""
    latent_dim: Positive = 50
    tanh: bool = True
    """Whether the latent ends in tanh."""
    ema_rate: Fraction = 0.05
    """Of the slow encoder."""

    @abc.abstractmethod
    def trunk(self, channels: int, height: int, width: int) -> nn.Module:
        """Return a module from images (B, channels, height, width) in [0, 1] to vectors (B, F) or
        maps (B, C, H, W), its weights from torch's current generator."""

    def build(
        self, frame_shape: tuple[int, ...], stack: int, backend: Backend = "torch"
    ) -> TrunkEncoder:
        if backend == "compiled":
            raise KstepError(
                f"method.encoder.kind={self.kind} is computed by PyTorch as it is: "
                "--encoder-backend must be auto or torch"
            )
        return TrunkEncoder(self, frame_shape, stack)

    def shrunk(self) -> TrunkConfig:
        return replace(self, image_size=48, latent_dim=16)


_FICKLE = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)


class TrunkEncoder(Encoder):
    """Stacks of frames to latents by way of a trunk."""

    def __init__(self, config: TrunkConfig, frame_shape: tuple[int, ...], stack: int) -> None:
        super().__init__()
        self.config, self.frame_shape, self.stack = config, frame_shape, stack
        height, width, colours = frame_shape
        image = (stack * colours, height, width)
        try:
            self.trunk = config.trunk(*image)
            self.feature_shape = self._look(image)
        except (KstepError, MemoryError):
            raise
        except Exception as error:
            raise KstepError(
                f"the encoder '{config.kind}' raised {type(error).__name__} for images {image}: "
                f"{' '.join(str(error).split())}"
            ) from error
        self.latent_dim = config.latent_dim
        self.head = self.another_head()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def _look(self, image: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of features, refusing what is neither a vector nor a map."""
        name, example = f"the encoder '{self.config.kind}'", torch.zeros(1, *image)
        if any(isinstance(part, _FICKLE) for part in self.trunk.modules()):
            raise KstepError(
                f"{name} has dropout or batch normalization, so that it would see the same image "
                "differently while learning and while acting. GroupNorm and LayerNorm do not"
            )
        with torch.no_grad():
            found = self.trunk(example)
        if not isinstance(found, Tensor) or found.ndim not in (2, 4) or len(found) != 1:
            shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise KstepError(
                f"{name} made {shown} of images {(1, *image)}; needed are vectors (B, F) or maps "
                "(B, C, H, W)"
            )
        if found.ndim == 2:
            return (found.shape[1],)
        channels, height, width = found.shape[1:]
        return (height, width, channels)

    def another_head(self) -> LatentHead:
        return LatentHead(self.config, self.feature_shape)

    def stages(self) -> dict[str, nn.Module]:
        return {"convolutions": self.trunk, "head": self.head}

    def features(self, observation: Tensor) -> Tensor:
        dtype = next((weight.dtype for weight in self.parameters()), torch.get_default_dtype())
        x = torch.cat(observation.unbind(1), dim=-1).to(dtype).div_(255.0).permute(0, 3, 1, 2)
        found: Tensor = self.trunk(x)
        return found.permute(0, 2, 3, 1).flatten(1) if found.ndim == 4 else found

    def latent(self, features: Tensor) -> Tensor:
        return self.head(features)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class MinAtarConfig(TrunkConfig):
    """3x3 convolutions for tiny images, by default the network of MinAtar's authors (Young & Tian
    2019, arXiv:1903.03176): one convolution, then a linear layer."""

    kind: ClassVar[str] = "minatar"

    image_size: Positive = 10
    latent_dim: Positive = 128
    channels: Annotated[tuple[Positive, ...], at.MinLen(1), at.MaxLen(8)] = (16,)
    """Filters of each convolution."""

    def trunk(self, channels: int, height: int, width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, *self.channels)):
            layers += [nn.Conv2d(before, after, 3), nn.ReLU()]
        return nn.Sequential(*layers)

    def shrunk(self) -> MinAtarConfig:
        return replace(self, latent_dim=16, channels=(8,))


@dataclass(frozen=True)
class ImpalaConfig(TrunkConfig):
    """The residual network of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, figure 3).

    Sections of a convolution, a pooling that halves the map, and residual blocks.
    """

    kind: ClassVar[str] = "impala"

    channels: Annotated[tuple[Positive, ...], at.MinLen(1), at.MaxLen(8)] = (16, 32, 32)
    """Filters of each section."""
    blocks: Count = 2
    """Residual blocks in each section."""

    def trunk(self, channels: int, height: int, width: int) -> nn.Module:
        layers: list[nn.Module] = []
        for before, after in pairwise((channels, *self.channels)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(after) for _ in range(self.blocks)]
        return nn.Sequential(*layers, nn.ReLU())

    def compact(self) -> ImpalaConfig:
        """Half of the filters: about a third of the arithmetic."""
        return replace(self, channels=tuple(max(1, number // 2) for number in self.channels))

    def shrunk(self) -> ImpalaConfig:
        return replace(self, image_size=48, latent_dim=16, channels=(8, 8), blocks=1)


class Residual(nn.Module):
    """x + two 3x3 convolutions of it, each after a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(torch.relu(x))))
        return x + y
