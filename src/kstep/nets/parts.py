"""Layers that single methods put in place of a usual one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from kstep.errors import KstepError


class FilterResponseNorm(nn.Module):
    """PI-SAC's activation: FRN with its thresholded linear unit (Singh & Krishnan 2019,
    arXiv:1911.09737)."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(channels, 1, 1))
        self.shift = nn.Parameter(torch.zeros(channels, 1, 1))
        self.threshold = nn.Parameter(torch.zeros(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        power = x.square().mean(dim=(2, 3), keepdim=True)
        normalized = self.scale * (x * torch.rsqrt(power + self.eps)) + self.shift
        return torch.maximum(normalized, self.threshold)


class ConvolutionalHead(nn.Module):
    """Two 3x3 convolutions with stride 2 (32 and 16 filters), flattened: 1,024 at 84 pixels.

    Of the paper's convolutional ablation.
    """

    def __init__(self, feature_shape: tuple[int, ...]) -> None:
        super().__init__()
        height, width, channels = feature_shape
        self.feature_shape = feature_shape
        self.first = nn.Conv2d(channels, 32, 3, stride=2)
        self.second = nn.Conv2d(32, 16, 3, stride=2)
        for _ in range(2):
            height, width = (height - 3) // 2 + 1, (width - 3) // 2 + 1
        if min(height, width) < 1:
            raise KstepError(f"features of {feature_shape} are too small for two more convolutions")
        self.outputs = height * width * 16

    def forward(self, features: Tensor) -> Tensor:
        x = features.unflatten(1, self.feature_shape).permute(0, 3, 1, 2)  # type: ignore[no-untyped-call]
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return x.permute(0, 2, 3, 1).flatten(1)
