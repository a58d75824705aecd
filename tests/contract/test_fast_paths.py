"""Doing the same faster: after 20 updates nothing may differ but the last bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kstep import native
from kstep.data.augment import Padding, cut
from kstep.data.replay import Stacks
from kstep.native import Backend
from kstep.nets.encoder import PixelEncoder
from kstep.optimizers import Ema
from kstep.types import Metrics
from tests.make import agent_and_replay, expect

UPDATES = 20
TOLERANCE = 1e-5
"""Relative to the largest entry of each tensor."""

ADAM_STEP = 1e-3
Learned = tuple[list[Metrics], dict[str, torch.Tensor]]


def learned(method: str, *overrides: str) -> Learned:
    """Metrics of each update, and every weight and moment after the last."""
    agent, replay = agent_and_replay(method, *overrides)
    metrics = [agent.update(replay).metrics for _ in range(UPDATES)]
    return metrics, {key: value.clone() for key, value in agent.state().items()}


def assert_same(one: Learned, two: Learned, tolerance: float) -> None:
    for first, second in zip(one[0], two[0], strict=True):
        assert first.keys() == second.keys()
        for key, value in first.items():
            assert torch.allclose(value, second[key], rtol=tolerance, atol=tolerance), key
    assert one[1].keys() == two[1].keys()
    for key, value in one[1].items():
        scale = float(value.abs().max()) if value.numel() else 0.0
        if not key.startswith("optimizers/"):
            scale = max(scale, ADAM_STEP)  # what is smaller than one step is not settled yet
        worst = float((value - two[1][key]).abs().max()) if value.numel() else 0.0
        assert worst <= tolerance * scale, (key, worst / scale)


@pytest.mark.parametrize("method", ["ksl", "ksl-released", "rad", "drq", "curl", "sac_ae"])
def test_views_made_in_one_pass_are_the_same_bytes(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = learned(method)
    monkeypatch.setattr(native, "library_is_there", lambda: False)
    assert_same(fast, learned(method), 0.0)


class PlainAdam(torch.optim.Adam):
    """One parameter after the other, whatever was asked for."""

    def __init__(self, params: Any, *, fused: bool, **options: Any) -> None:
        assert fused
        super().__init__(params, foreach=False, fused=False, **options)


def plain_features(encoder: PixelEncoder, observation: torch.Tensor) -> torch.Tensor:
    """Planes of colours one after the other (NCHW), converted as one writes it first."""
    x = observation.permute(0, 1, 4, 2, 3).flatten(1, 2).contiguous() / 255.0
    for convolution in encoder.convolutions:
        convolution = expect(nn.Conv2d, convolution)
        weight = convolution.weight.contiguous()
        x = torch.relu(F.conv2d(x, weight, convolution.bias, convolution.stride))
    return x.permute(0, 2, 3, 1).flatten(1)


@torch.no_grad()
def plain_average(ema: Ema, backend: Backend = "torch") -> None:
    pairs = zip(ema.slow.parameters(), ema.online.parameters(), strict=True)
    for slow, online in pairs:
        slow.copy_(ema.rate * online + (1 - ema.rate) * slow)


# Not the layout for every method: an activation within rounding of zero may fall to either side of
# it, and from there on two runs are rightly two.
@pytest.mark.parametrize("piece", ["layout", "optimizer", "slow copies"])
@pytest.mark.parametrize("method", ["ksl", "sac_pixel", "drq", "curl"])
def test_each_fast_piece_computes_what_the_plain_one_does(
    method: str, piece: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = learned(method)
    if piece == "layout":
        monkeypatch.setattr(PixelEncoder, "features", plain_features)
    elif piece == "optimizer":
        monkeypatch.setattr(torch.optim, "Adam", PlainAdam)
    else:
        monkeypatch.setattr(Ema, "step", plain_average)
    assert_same(fast, learned(method), TOLERANCE)


@pytest.mark.parametrize("padding", ["replicate", "zero"])
@pytest.mark.parametrize("height", [7, 12])
def test_shifting_frames_of_a_ring(padding: Padding, height: int) -> None:
    rng = np.random.default_rng(1)
    ring = rng.integers(0, 256, (9, height, 10, 3), dtype=np.uint8)
    stacks = Stacks(ring, rng.integers(0, 9, (5, 4, 3)))
    offsets = rng.integers(0, 7, (5, 4, 2))
    options = {"height": height, "width": 10, "pad": 3, "padding": padding}
    expected = cut(stacks.together(), offsets, **options)  # type: ignore[arg-type]
    assert np.array_equal(cut(stacks, offsets, **options), expected)  # type: ignore[arg-type]


def test_cutting_frames_of_a_ring() -> None:
    rng = np.random.default_rng(1)
    ring = rng.integers(0, 256, (9, 11, 10, 3), dtype=np.uint8)
    stacks = Stacks(ring, rng.integers(0, 9, (5, 3)))
    offsets = rng.integers(0, 5, (5, 2))
    expected = cut(np.asarray(stacks.together()), offsets, 6, 5)
    assert np.array_equal(cut(stacks, offsets, 6, 5), expected)


def with_backend(method: str, backend: Backend, updates: int = UPDATES) -> Learned:
    agent, replay = agent_and_replay(method, "method.encoder.channels=32", backend=backend)
    metrics = [agent.update(replay).metrics for _ in range(updates)]
    return metrics, {key: value.clone() for key, value in agent.state().items()}


@pytest.mark.slow  # compiling takes half a minute
def test_compiled_convolutions_compute_the_same() -> None:
    assert_same(with_backend("ksl", "torch"), with_backend("ksl", "compiled"), TOLERANCE)


def test_bfloat16_is_close_and_stays_inside_the_encoder() -> None:
    (exact, *_), _ = learned("ksl")
    (rounded, *_), state = learned("ksl", "method.encoder.precision=bfloat16")
    assert all(value.dtype == torch.float32 for value in rounded.values())
    assert not any(value.dtype == torch.bfloat16 for value in state.values())
    assert torch.allclose(exact["critic/loss"], rounded["critic/loss"], rtol=0.05)
    assert not torch.equal(exact["critic/loss"], rounded["critic/loss"])


def test_gradients_that_come_in_another_memory_order_reach_their_own_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Convolutions behind channels-last features return such gradients for plain weights; fused
    Adam, which walks through memory side by side, once mixed them up."""
    fused = learned("ksl-conv")
    monkeypatch.setattr(torch.optim, "Adam", PlainAdam)
    assert_same(fused, learned("ksl-conv"), TOLERANCE)
