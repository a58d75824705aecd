"""How weights start."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from torch import nn

Init: TypeAlias = Literal["default", "orthogonal", "delta_orthogonal", "glorot"]
"""The paper does not say how weights start; its code used two schemes (D03).

`default`: PyTorch's own. `orthogonal`: linear layers with gain 1, convolutions on the flattened
kernel with gain sqrt(2). `delta_orthogonal`: convolutions start as an orthogonal matrix at the
kernel's centre tap and zero elsewhere (Xiao et al. 2018), linear layers as before. `glorot`:
uniform, scaled by fan-in and fan-out, as Keras starts every layer."""


def initialize(module: nn.Module, scheme: Init) -> None:
    """Re-initialize every linear and convolutional layer inside `module`, biases to zero."""
    if scheme == "default":
        return
    for layer in module.modules():
        if not isinstance(layer, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            continue
        if scheme == "glorot":
            nn.init.xavier_uniform_(layer.weight)
        elif isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight)
        elif scheme == "delta_orthogonal":
            height, width = layer.weight.shape[2:]
            nn.init.zeros_(layer.weight)
            centre = layer.weight.data[:, :, height // 2, width // 2]
            # ReLU halves the second moment, hence the gain sqrt(2).
            nn.init.orthogonal_(centre, gain=math.sqrt(2))
        else:
            nn.init.orthogonal_(layer.weight, gain=math.sqrt(2))
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
