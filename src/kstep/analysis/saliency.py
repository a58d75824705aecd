"""Where does the encoder look?

Beyond the paper. Two maps per state, both at the size of the image:

- attention: mean square of the last convolution's activations, each at the centre of its receptive
  field (Zagoruyko & Komodakis 2017, arXiv:1612.03928): where features are active;
- sensitivity: the norm of the Jacobian's columns, estimated (its square without bias) by a few
  random projections of the latent: which pixels would move the latent. Frames of a stack and
  colours are summed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kstep.analysis.curves import Figure, canvas
from kstep.nets.base import Encoder
from kstep.types import Array, Encode

PROJECTIONS = 8


def attention(maps: Array, strides: Sequence[int], height: int, width: int) -> Array:
    """Turn activations (N, h, w, C) of 3x3 convolutions with these strides, without padding, into
    attention (N, height, width)."""
    power = np.mean(np.square(np.asarray(maps, np.float32)), axis=-1)
    down = _interpolation(power.shape[1], strides, height)
    across = _interpolation(power.shape[2], strides, width)
    enlarged: Array = down @ power @ across.T
    return enlarged


def attention_of(encoder: Encoder, strides: Sequence[int], views: Array) -> Array:
    """Return the attention (N, H, W) of an encoder over what it sees (N, S, H, W, C)."""
    with torch.no_grad():
        active = encoder.features(torch.from_numpy(views).to(next(encoder.parameters()).device))
    maps = active.view(-1, *encoder.feature_shape).cpu().numpy()
    return attention(maps, strides, *views.shape[2:4])


def _interpolation(units: int, strides: Sequence[int], pixels: int) -> Array:
    """Return weights (pixels, units) that interpolate between units, each at the centre of its
    receptive field; they fade out beyond the outermost."""
    step, middle = 1, 0
    for stride in strides:
        middle += step  # one pixel of a 3x3 kernel's margin, at this layer's scale
        step *= stride
    position = (np.arange(pixels) - middle) / step
    distance = np.abs(position[:, None] - np.arange(units))
    return np.maximum(0.0, 1.0 - distance).astype(np.float32)


def sensitivity(encode: Encode, stacks: Array, generator: torch.Generator) -> Array:
    """Return the norm of d latent / d pixel (N, H, W), per unit of a byte, of stacks
    (N, S, H, W, C)."""
    pixels = torch.from_numpy(np.asarray(stacks, np.float32)).requires_grad_()
    latent = encode(pixels)
    total = torch.zeros(len(stacks), *stacks.shape[2:4])
    for _ in range(PROJECTIONS):
        signs = torch.randint(0, 2, latent.shape, generator=generator) * 2.0 - 1.0
        (gradient,) = torch.autograd.grad((latent * signs).sum(), pixels, retain_graph=True)
        total += gradient.square().sum(dim=(1, 4))
    return (total / PROJECTIONS).sqrt().numpy()


def overlay(frames: Array, maps: Array, scale: int) -> Array:
    """Overlay maps (N, H, W) on frames (N, H, W, 3) uint8 as a heat map, enlarged by `scale`."""
    from matplotlib import colormaps

    brightest = np.quantile(maps, 0.99, axis=(1, 2), keepdims=True)
    level = np.clip(maps / np.where(brightest > 0.0, brightest, 1.0), 0.0, 1.0)
    heat = colormaps["inferno"](level)[..., :3] * 255.0
    weight = 0.25 + 0.6 * level[..., None]
    mixed = np.rint((1.0 - weight) * frames + weight * heat).astype(np.uint8)
    return enlarged(mixed, scale)


def enlarged(frames: Array, scale: int) -> Array:
    """Repeat every pixel `scale` times along both sides."""
    return frames.repeat(scale, axis=1).repeat(scale, axis=2)


def side_by_side(frames: Array, maps: Sequence[Array], scale: int) -> Array:
    """Return frames of a video: the images (N, H, W, 3) and every map (N, H, W) over them."""
    overlays = [overlay(frames, each, scale) for each in maps]
    return np.concatenate([enlarged(frames, scale), *overlays], axis=2)


def figure(pictures: Sequence[tuple[str, Array]]) -> Figure:
    """Draw three frames of each video, one row per encoder."""
    shown = canvas(12.0, 1.7 * len(pictures) + 0.3)
    grid = shown.subplots(len(pictures), 3, squeeze=False)
    for (title, frames), line in zip(pictures, grid, strict=True):
        chosen = np.linspace(0, len(frames) - 1, 3).astype(int)
        for index, axes in zip(chosen, line, strict=True):
            axes.imshow(frames[index])
            axes.set(xticks=[], yticks=[])
        line[0].set_title(f"{title}: image, attention, sensitivity", fontsize=8, loc="left")
    return shown


def focus(maps: Array) -> float:
    """Return the share of the brightest tenth of pixels in maps (N, H, W); 0.1 if uniform."""
    flat = np.sort(maps.reshape(len(maps), -1), axis=1)
    most = flat[:, -max(1, flat.shape[1] // 10) :].sum(axis=1)
    total = flat.sum(axis=1)
    return float(np.mean(most / np.where(total > 0.0, total, np.nan)))
