"""The pixel encoder computed in other ways: by our kernels, compiled, in lower precision.

The same weights under the same names, and the same numbers up to rounding. Which one it is decides
the last bits, so a run keeps what it began with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from kstep import native
from kstep.native import Backend
from kstep.nets.base import EncoderConfig
from kstep.nets.decoder import Decoder
from kstep.nets.encoder import PixelEncoder, PixelEncoderConfig


class NativeEncoder(PixelEncoder):
    """Convolutions by the kernels of `kstep.native`, where the very call allows it."""

    def features(self, observation: Tensor) -> Tensor:
        layers = cast(Sequence[nn.Conv2d], self.convolutions)
        weights = [layer.weight for layer in layers]
        biases = [cast(Tensor, layer.bias) for layer in layers]
        if self.config.centred:  # the kernels read [0, 1]: what that adds is taken off again
            biases[0] = biases[0] - 0.5 * weights[0].sum((1, 2, 3))
        if native.usable(observation, [*weights, *biases]):
            return native.features(observation, self.config.strides, weights, biases)
        return super().features(observation)


class NativeLinear(nn.Linear):
    """A linear layer by the kernels of `kstep.native`, where the very call allows it."""

    def forward(self, x: Tensor) -> Tensor:
        return native.linear(x, self.weight, self.bias)


class NativeDecoder(Decoder):
    """Transposed convolutions by the kernels of `kstep.native`, where the very call allows it."""

    def pixels(self, features: Tensor) -> Tensor:
        layers = cast(Sequence[nn.ConvTranspose2d], self.convolutions)
        weights = [layer.weight for layer in layers]
        biases = [cast(Tensor, layer.bias) for layer in layers]
        strides = tuple(layer.stride[0] for layer in layers)
        shape = native.Decoding(self.feature_shape[:2], strides, self.map_shapes)
        if not native.decodes(shape, features, [*weights, *biases]):
            return super().pixels(features)
        return native.decode(shape, features.view(-1, *self.feature_shape), weights, biases)


NATIVE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NativeLinear,
    Decoder: NativeDecoder,
}
"""What `make_native` makes of a part of an agent; whoever defines a part may add to it."""


def make_native(network: nn.Module) -> None:
    """Let our kernels compute whatever of a network is not the encoder's convolutions.

    The same weights under the same names: only the class of a part changes.
    """
    for layer in network.modules():
        if type(layer) in NATIVE:
            layer.__class__ = NATIVE[type(layer)]


class CompiledEncoder(PixelEncoder):
    """Convolutions by PyTorch's compiler."""

    def features(self, observation: Tensor) -> Tensor:
        return _compiled()(self, observation)


class BFloat16Encoder(PixelEncoder):
    """Products in bfloat16; sums and what is stored stay float32."""

    def features(self, observation: Tensor) -> Tensor:
        with torch.autocast(observation.device.type, torch.bfloat16):
            return super().features(observation).float()

    def latent(self, features: Tensor) -> Tensor:
        with torch.autocast(features.device.type, torch.bfloat16):
            return super().latent(features).float()


class CompiledBFloat16Encoder(BFloat16Encoder, CompiledEncoder):
    """Both."""


def encoder_class(
    config: PixelEncoderConfig, frame_shape: tuple[int, ...], stack: int, backend: Backend
) -> type[PixelEncoder]:
    """Return what computes this encoder; raise `Unavailable` where it cannot be native."""
    if backend == "native":
        require_native(config, frame_shape, stack)
        return NativeEncoder
    lower, compiled = config.precision == "bfloat16", backend == "compiled"
    if lower:
        return CompiledBFloat16Encoder if compiled else BFloat16Encoder
    return CompiledEncoder if compiled else PixelEncoder


@functools.cache
def _compiled() -> Callable[[PixelEncoder, Tensor], Tensor]:
    """The same by PyTorch's compiler; on CUDA, where starting a kernel costs, captured as a graph.

    A function of the encoder, not of one encoder: a slow copy must not compute with its original.
    """
    mode = "reduce-overhead" if torch.cuda.is_available() else "default"
    return torch.compile(PixelEncoder.features, mode=mode)


def native_shape(
    config: EncoderConfig, frame_shape: tuple[int, ...], stack: int
) -> native.Shape | None:
    """What the native kernels would compute; None where the encoder has other parts than theirs."""
    if not isinstance(config, PixelEncoderConfig) or config.activation != "relu":
        return None
    if config.precision == "bfloat16":
        return None
    height, width, colours = frame_shape
    return native.Shape(stack, height, width, colours, config.strides, config.channels)


def require_native(config: EncoderConfig, frame_shape: tuple[int, ...], stack: int) -> None:
    """Raise `Unavailable` where this encoder cannot be native."""
    shape = native_shape(config, frame_shape, stack)
    if shape is None:
        raise native.Unavailable(native.NOTHING_TO_DO)
    shape.require()
    native.kernels()
