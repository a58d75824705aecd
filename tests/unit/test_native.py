"""The native kernels against float64, and everything around them: threads, bits, refusals."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from kstep import native
from kstep.agent import Agent
from kstep.config import resolve
from kstep.native import Shape, Unavailable, choice, layers, library
from kstep.native.choice import Trial
from kstep.native.library import Library, _floats, _pointer, plain
from kstep.nets.backends import NativeEncoder, make_native, native_shape
from kstep.nets.decoder import Decoder
from kstep.nets.encoder import PixelEncoder, PixelEncoderConfig
from kstep.optimizers import Ema, slow_copy
from kstep.rng import Streams
from kstep.run import train
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from kstep.types import KstepError
from tests.make import filled_replay, spec_for

TOLERANCE = 2e-5
"""Relative to a tensor's maximum, against float64."""
PAPER = Shape(3, 84, 84, 3, (2, 1, 1, 1))
COMPACT = Shape(3, 84, 84, 3, (2, 2, 1, 1))
SMALL = Shape(3, 24, 21, 3, (2, 2, 1))


@pytest.fixture(scope="module")
def kernels() -> Library:
    try:
        return native.kernels()
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))


def test_where_it_can_be_built_it_is() -> None:
    """Or a build that breaks would only be seen as tests that are skipped."""
    processor = Path("/proc/cpuinfo")
    if shutil.which("g++") is None or not processor.exists() or "avx2" not in processor.read_text():
        pytest.skip("there is no g++ or no AVX2 here: no kernels are expected")
    assert native.kernels() is native.load()  # raises with the reason where it is not


@pytest.fixture(scope="module", params=["avx2", "avx512"])
def each(request: pytest.FixtureRequest, kernels: Library) -> Any:
    if not kernels.use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield kernels
    kernels.use(None)


def error(found: Tensor, exact: Tensor) -> float:
    exact = exact.detach()
    return float((found.double() - exact).abs().max() / exact.abs().max().clamp_min(1e-9))


def distance(found: Tensor | None, expected: Tensor | None) -> float:
    """Relative, as vectors: one activation that falls to the other side of zero may show."""
    assert found is not None
    assert expected is not None
    return float((found - expected).norm() / expected.norm())


def draw_layer(seed: int, count: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, height, width, 32, generator=draw).relu()
    weight = plain(torch.randn(32, 32, 3, 3, generator=draw) / 17)
    return x, weight, torch.randn(32, generator=draw) / 10


def layer_forward(library: Library, stride: int, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One 32 -> 32 layer by itself; x is (B, H, W, 32)."""
    batch, height, width, _ = x.shape
    y = _floats(batch, *((side - 3) // stride + 1 for side in (height, width)), 32)
    pointers = map(_pointer, (x, weight, bias, y))
    library._call("layer_forward", batch, height, width, stride, *pointers)
    return y


def layer_backward(
    library: Library, stride: int, gradient: Tensor, y: Tensor | None, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias, masked where y is not positive."""
    gradients = torch.empty_like(x), torch.empty_like(weight), _floats(32)
    pointers = map(_pointer, (gradient, y, x, weight, *gradients))
    library._call("layer_backward", *x.shape[:3], stride, *pointers)
    return gradients


def exact_layer(stride: int, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, list[Any]]:
    """The output (B, H, W, 32) in float64 and what it can be differentiated by."""
    leaves = [tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    y = F.conv2d(leaves[0].permute(0, 3, 1, 2), leaves[1], leaves[2], stride)
    return torch.relu(y).permute(0, 2, 3, 1), leaves


sides = st.integers(3, 30)


@pytest.mark.parametrize("stride", [1, 2])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 4), height=sides, width=sides)
def test_a_layer_and_its_gradients_are_exact_to_float32(
    each: Library, stride: int, seed: int, count: int, height: int, width: int
) -> None:
    x, weight, bias = draw_layer(seed, count, height, width)
    exact, leaves = exact_layer(stride, x, weight, bias)
    assert error(layer_forward(each, stride, x, weight, bias), exact) < TOLERANCE
    gradient = torch.randn(exact.shape, generator=torch.Generator().manual_seed(seed))
    # The exact output masks: an entry within rounding of zero may fall either way.
    mask = exact.detach().float().contiguous()
    found = layer_backward(each, stride, gradient, mask, x, weight)
    expected = torch.autograd.grad(exact, leaves, gradient.double())
    for tensor, other in zip(found, expected, strict=True):
        assert error(tensor, other) < TOLERANCE


@pytest.mark.parametrize("stride", [1, 2])
def test_without_a_mask_every_gradient_counts(each: Library, stride: int) -> None:
    x, weight, _ = draw_layer(1, 2, 9, 11)
    leaves = [x.double().requires_grad_(), weight.double().requires_grad_()]
    y = F.conv2d(leaves[0].permute(0, 3, 1, 2), leaves[1], None, stride).permute(0, 2, 3, 1)
    gradient = torch.randn(y.shape)
    found = layer_backward(each, stride, gradient, None, x, weight)
    for tensor, other in zip(found, torch.autograd.grad(y, leaves, gradient.double())):  # noqa: B905
        assert error(tensor, other) < TOLERANCE
    assert error(found[2], gradient.double().sum((0, 1, 2))) < TOLERANCE


NAN = float("nan")


def nan_where(expected: Tensor, found: Tensor) -> bool:
    """A NaN may spread within a tile of Winograd's; none may vanish."""
    return bool(expected.isnan().any()) and bool(found[expected.isnan()].isnan().all())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("what", ["input", "weight", "bias"])
def test_nan_passes_through_a_layer_as_in_torch(each: Library, stride: int, what: str) -> None:
    x, weight, bias = draw_layer(3, 3, 13, 14)
    clean = layer_forward(each, stride, x, weight, bias)
    broken, index = {
        "input": (x, (1, 6, 6, 5)),
        "weight": (weight, (4, 5, 1, 1)),
        "bias": (bias, (4,)),
    }[what]
    broken[index] = NAN
    y = layer_forward(each, stride, x, weight, bias)
    expected = torch.relu(F.conv2d(x.permute(0, 3, 1, 2), weight, bias, stride))
    assert nan_where(expected.permute(0, 2, 3, 1), y)
    if what == "input":
        assert torch.equal(y[::2], clean[::2])
    else:
        others = torch.arange(32) != 4
        assert torch.equal(y[..., others], clean[..., others])


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("what", ["gradient", "output"])
def test_nan_passes_back_through_a_layer_as_in_torch(each: Library, stride: int, what: str) -> None:
    x, weight, bias = draw_layer(3, 3, 13, 14)
    y = layer_forward(each, stride, x, weight, bias)
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(y.shape, generator=draw)
    clean = layer_backward(each, stride, gradient, y, x, weight)
    at = (1, 2, 3, int(y[1, 2, 3].argmax()))
    if what == "gradient":
        gradient[at] = NAN
    else:  # where the output is NaN, PyTorch's ReLU passes the gradient on
        blocked = (1, 2, 3, int(y[1, 2, 3].argmin()))
        assert y[blocked] == 0
        y[blocked], at = NAN, blocked
    found = layer_backward(each, stride, gradient, y, x, weight)
    g = torch.where(y <= 0, 0, gradient).permute(0, 3, 1, 2)
    planes = x.permute(0, 3, 1, 2)
    gradient_of_weight = conv2d_weight(planes, weight.shape, g, stride)  # type: ignore[no-untyped-call]
    if what == "gradient":
        expected = conv2d_input(planes.shape, weight, g, stride).permute(0, 2, 3, 1)  # type: ignore[no-untyped-call]
        assert nan_where(expected, found[0])
        assert nan_where(gradient_of_weight, found[1])
        assert nan_where(g.sum((0, 2, 3)), found[2])
    else:
        assert error(found[1], gradient_of_weight.double()) < TOLERANCE
        assert error(found[2], g.sum((0, 2, 3)).double()) < TOLERANCE
        assert not torch.equal(found[2], clean[2])
    others = torch.arange(32) != at[-1]
    assert torch.equal(found[0][::2], clean[0][::2])  # images without NaN
    assert torch.equal(found[1][others], clean[1][others])
    assert torch.equal(found[2][others], clean[2][others])


@pytest.mark.parametrize("strides", [(2, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("what", ["weight", "bias", "gradient"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_nan_in_an_encoder_shows_where_torch_shows_it(
    each: Library, strides: tuple[int, ...], what: str, layer: int
) -> None:
    trial = Trial(replace(SMALL, strides=strides), batch=3)
    with torch.no_grad():
        if what == "gradient":
            trial.gradient[1, 32 * layer : 32 * layer + 32] = NAN
        else:
            {"weight": trial.weights, "bias": trial.biases}[what][layer][7] = NAN
    found, expected = (trial.both_ways(f) for f in (trial.by_native, trial.by_torch))
    assert any(tensor.isnan().any() for tensor in expected)
    for one, other in zip(found, expected, strict=True):
        assert one[other.isnan()].isnan().all()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 4),
    height=sides,
    width=sides,
    channels=st.sampled_from([(1, 1), (1, 3), (3, 3), (2, 5), (4, 1), (16, 1), (1, 16), (5, 3)]),
    stride=st.sampled_from([1, 2]),
)
def test_the_first_layer_is_exact_to_float32(
    each: Library,
    seed: int,
    count: int,
    height: int,
    width: int,
    channels: tuple[int, int],
    stride: int,
) -> None:
    frames, colours = channels
    draw = torch.Generator().manual_seed(seed)
    shape = Shape(frames, height, width, colours, (stride,))
    size = (count, frames, height, width, colours)
    stack = torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)
    weight = torch.randn(32, frames * colours, 3, 3, generator=draw)
    bias = torch.randn(32, generator=draw)
    x = stack.permute(0, 1, 4, 2, 3).flatten(1, 2).double() / 255
    leaves = [weight.double().requires_grad_(), bias.double().requires_grad_()]
    exact = torch.relu(F.conv2d(x, leaves[0], leaves[1], stride)).permute(0, 2, 3, 1)
    (found,) = each.forward(shape, stack, [plain(weight)], [bias], keep=True)
    assert found is not None
    assert error(found, exact) < TOLERANCE
    gradient = torch.randn(exact.shape, generator=draw)
    mask = exact.detach().float().contiguous()
    gradients = each.backward(shape, gradient, stack, [plain(weight)], [mask])
    expected = torch.autograd.grad(exact, leaves, gradient.double())
    assert error(gradients[0][0], expected[0]) < TOLERANCE
    assert error(gradients[1][0], expected[1]) < TOLERANCE


@pytest.mark.parametrize(
    "shape", [PAPER, COMPACT, SMALL, Shape(4, 33, 40, 1, (1, 2, 2, 1, 1))], ids=str
)
def test_a_whole_encoder_agrees_with_torch(each: Library, shape: Shape) -> None:
    assert Trial(shape, batch=3).error() < TOLERANCE


def test_a_batch_of_several_chunks_per_group_agrees_with_torch(each: Library) -> None:
    assert Trial(SMALL, batch=300).error() < TOLERANCE


def encoders(**options: Any) -> tuple[PixelEncoder, PixelEncoder]:
    """The same weights behind both backends."""
    torch.manual_seed(0)
    config = PixelEncoderConfig(init="default", **options)
    ours = config.build((40, 40, 3), 3, "native")
    theirs = config.build((40, 40, 3), 3)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def native_features(net: PixelEncoder, images: Tensor) -> Tensor:
    layers: Any = net.convolutions
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    return native.features(images, net.config.strides, weights, biases)


def stacks(number: int, size: int = 40) -> Tensor:
    draw = torch.Generator().manual_seed(5)
    shape = (number, 3, size, size, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("strides", [(2, 1, 1, 1), (2, 2, 1, 1)])
def test_gradients_flow_through_the_encoder_as_with_torch(
    kernels: Library, strides: tuple[int, ...], centred: bool
) -> None:
    ours, theirs = encoders(strides=strides, centred=centred)
    images = stacks(4)
    for net in (ours, theirs):
        net(images).square().sum().backward()
    for (name, one), two in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert distance(one.grad, two.grad) < 1e-3, name
        assert one.grad.stride() == one.stride(), name  # type: ignore[union-attr]  # for fused Adam
    with torch.no_grad():
        assert error(ours(images), theirs(images).double()) < TOLERANCE


def test_gradients_agree_with_finite_differences(kernels: Library) -> None:
    ours, _ = encoders()
    images = stacks(3)
    direction = [torch.randn_like(p) for p in ours.convolutions.parameters()]

    def loss() -> Tensor:
        return ours.features(images).square().mean()

    gradients = torch.autograd.grad(loss(), list(ours.convolutions.parameters()))
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True))
    step = 1e-3
    values = []
    with torch.no_grad():
        for sign in (1, -2):
            for p, d in zip(ours.convolutions.parameters(), direction, strict=True):
                p.add_(sign * step * d)
            values.append(float(loss().double()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=1e-2)


def test_weights_in_another_layout_get_gradients_in_theirs(kernels: Library) -> None:
    trial = Trial(SMALL, batch=2)
    expected = trial.both_ways(trial.by_native)
    trial.weights = [w.detach().contiguous().requires_grad_() for w in trial.weights]
    found = trial.both_ways(trial.by_native)
    assert found[1].stride() == trial.weights[0].stride() != expected[1].stride()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.fixture
def threads() -> Any:
    """Set the number of our pool's threads, as runs do: PyTorch keeps one, or products that are
    left to it would be divided among its own."""
    before = native.use_threads(1)
    yield native.use_threads
    native.use_threads(before)


@pytest.mark.parametrize(
    ("shape", "batch"),
    # More than 256: groups of several chunks.
    [(SMALL, 1), (SMALL, 5), (SMALL, 37), (SMALL, 300), (COMPACT, 1), (COMPACT, 37)],
    ids=lambda of: "x".join(map(str, of.strides)) if isinstance(of, Shape) else of,
)
def test_no_bit_depends_on_threads_repetition_or_instructions(
    kernels: Library, shape: Shape, batch: int, threads: Any
) -> None:
    trial = Trial(shape, batch)
    expected = trial.both_ways(trial.by_native)
    for number in (1, 2, 3, 3):
        threads(number)
        found = trial.both_ways(trial.by_native)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), number
    with torch.no_grad():  # other buffers, same numbers
        assert torch.equal(trial.by_native(), expected[0])
    try:
        for name in ("avx2", "avx512"):
            if kernels.use(name):
                found = trial.both_ways(trial.by_native)
                assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True)), name
    finally:
        kernels.use(None)


def test_no_bit_depends_on_threads_when_denormals_are_flushed(
    kernels: Library, threads: Any
) -> None:
    """How a processor rounds is a state of each thread: helpers take their caller's."""
    trial = Trial(SMALL, batch=37)
    with torch.no_grad():
        trial.weights[-1].mul_(1e-40)
        trial.biases[-1].zero_()

    def results(number: int) -> Sequence[Tensor]:
        threads(number)
        return trial.both_ways(trial.by_native)

    kept = results(1)
    try:
        assert torch.set_flush_denormal(True)
        flushed = results(1)
        assert flushed[0].count_nonzero() == 0
        found = [results(3) for _ in range(5)]
    finally:
        torch.set_flush_denormal(False)
    assert kept[0].count_nonzero() > 0
    for others in found:
        assert all(torch.equal(a, b) for a, b in zip(others, flushed, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(results(3), kept, strict=True))


def test_two_copies_in_one_process_share_nothing(
    kernels: Library, threads: Any, tmp_path: Path
) -> None:
    threads(3)
    trial, process = Trial(SMALL, batch=37), psutil.Process()
    weights, biases = ([p.detach() for p in many] for many in (trial.weights, trial.biases))
    expected = kernels.forward(SMALL, trial.observation, weights, biases, keep=False)[-1]
    for name in ("one.so", "two.so"):
        copy = Library(Path(shutil.copy(library.path(), tmp_path / name)))
        before = process.num_threads()
        found = copy.forward(SMALL, trial.observation, weights, biases, keep=False)[-1]
        assert torch.equal(found, expected)
        assert process.num_threads() == before + 2  # helpers of its own


# Rows, terms and columns: ragged everywhere, sums in one part and in several, and what heads have.
PRODUCTS = [(1, 1, 1), (7, 50, 33), (37, 5000, 50), (13, 4097, 3), (128, 130, 1030), (3, 9, 700)]


def products(rows: int, inner: int, columns: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """A layer's input, weight and bias; its output and the gradients of the first two."""
    draw = torch.Generator().manual_seed(rows + inner + columns)
    sizes = ((rows, inner), (columns, inner), (columns,), (rows, columns))
    x, weight, bias, gradient = (torch.randn(size, generator=draw) for size in sizes)
    kernels = native.kernels()
    found = [kernels.product(x, weight.t(), bias), kernels.product(gradient.t(), x)]
    found.append(kernels.product(gradient, weight))
    exact = F.linear(x.double(), weight.double(), bias.double())
    return found, exact, gradient.double().t() @ x.double()


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_products_are_exact_to_float32(each: Library, size: tuple[int, int, int]) -> None:
    (forward, weight, _), exact, exact_weight = products(*size)
    assert error(forward, exact) < TOLERANCE
    assert error(weight, exact_weight) < TOLERANCE


@pytest.mark.parametrize("size", PRODUCTS, ids=str)
def test_no_bit_of_a_product_depends_on_threads_or_instructions(
    kernels: Library, size: tuple[int, int, int], threads: Any
) -> None:
    expected, *_ = products(*size)
    for number in (1, 2, 4):
        threads(number)
        for name in ("avx2", "avx512", None):
            if kernels.use(name):
                for one, two in zip(products(*size)[0], expected, strict=True):
                    assert torch.equal(one, two), (number, name)


@pytest.mark.parametrize("bias", [True, False])
def test_a_native_layer_has_torchs_gradients(
    kernels: Library, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "LEAST", 1)
    torch.manual_seed(0)
    theirs = torch.nn.Linear(70, 20, bias=bias)
    ours = copy.deepcopy(theirs)
    make_native(ours)
    x = torch.randn(5, 70, requires_grad=True)
    found, expected = ((net(x), [x, *net.parameters()]) for net in (ours, theirs))
    assert torch.allclose(found[0], expected[0], atol=1e-5)
    one = torch.autograd.grad(found[0].square().sum(), found[1])
    two = torch.autograd.grad(expected[0].square().sum(), expected[1])
    for mine, other in zip(one, two, strict=True):
        assert error(mine, other.double()) < TOLERANCE
    with torch.no_grad():
        assert torch.equal(ours(x), found[0])
    assert torch.equal(ours.double()(x.double()), ours.double()(x.double()))  # by PyTorch


def test_weights_that_nobody_asks_for_get_no_gradient(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The actor's loss goes through the critic, but not to its weights."""
    monkeypatch.setattr(layers, "LEAST", 1)
    x, weight, bias = (torch.randn(s, requires_grad=True) for s in ((4, 6), (3, 6), (3,)))
    loss, asked = native.linear(x, weight, bias).sum(), 0

    def counted(self: Library, left: Tensor, right: Tensor, *rest: Any) -> Tensor:
        nonlocal asked
        asked += 1
        return original(self, left, right, *rest)

    original = Library.product
    monkeypatch.setattr(Library, "product", counted)
    torch.autograd.grad(loss, [x], retain_graph=True)
    assert asked == 1
    torch.autograd.grad(loss, [x, weight], retain_graph=True)
    assert asked == 3
    with pytest.raises(KstepError, match="no second derivative"):
        torch.autograd.grad(loss, [x], create_graph=True)


def nets(*, decay: float) -> tuple[torch.nn.Module, Any, torch.nn.Module, Any]:
    """The same network twice: with our Adam, with PyTorch's."""
    torch.manual_seed(1)
    one = torch.nn.Sequential(torch.nn.Linear(301, 259), torch.nn.Conv2d(3, 5, 3))
    one.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    two = copy.deepcopy(one)
    settings: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.99), "weight_decay": decay}
    ours = native.Adam(one.parameters(), fused=True, **settings)
    return one, ours, two, torch.optim.Adam(two.parameters(), fused=True, **settings)


def give_gradients(net: torch.nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for parameter in net.parameters():
        gradient = torch.randn(parameter.shape, generator=draw)
        parameter.grad = torch.empty_like(parameter).copy_(gradient)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_and_averages_follow_torch_with_any_number_of_threads(
    kernels: Library, threads: Any, decay: float
) -> None:
    runs = []
    for number, name in ((1, "avx2"), (4, None)):
        threads(number)
        assert kernels.use(name)
        one, ours, two, theirs = nets(decay=decay)
        slow_one, slow_two = slow_copy(one), slow_copy(two)
        for step in range(4):
            for net, optimizer in ((one, ours), (two, theirs)):
                give_gradients(net, step)
                optimizer.step()
            for rate in (0.05, 0.7):
                Ema("net", slow_one, one, rate).step("native")
                Ema("net", slow_two, two, rate).step()
        for mine, other in ((one, two), (slow_one, slow_two)):
            for p, q in zip(mine.parameters(), other.parameters(), strict=True):
                assert error(p.detach(), q.detach().double()) < 1e-6
        for p, q in zip(one.parameters(), two.parameters(), strict=True):
            state, expected = ours.state[p], theirs.state[q]
            assert float(state["step"]) == float(expected["step"]) == 4
            for moment in ("exp_avg", "exp_avg_sq"):
                assert error(state[moment], expected[moment].double()) < 1e-6
        runs.append([p.detach() for net in (one, slow_one) for p in net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_what_the_kernels_cannot_move_torch_moves(kernels: Library) -> None:
    one, ours, two, theirs = nets(decay=0.0)
    slow_one, slow_two = slow_copy(one), slow_copy(two)
    for net in (one, two, slow_one, slow_two):
        net.double()
    for net, optimizer, slow in ((one, ours, slow_one), (two, theirs, slow_two)):
        give_gradients(net.float().double(), 0)
        optimizer.step()
        Ema("net", slow, net, 0.3).step("native")
    for mine, other in ((one, two), (slow_one, slow_two)):
        for p, q in zip(mine.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)


# Strides 1 and 2, output padding, few and many channels, one layer and four.
DECODERS = {
    "paper": (((20, 19, 32), (18, 17, 32), (16, 15, 32)), (3, 42, 40, 3)),
    "compact": (((20, 20, 32), (9, 9, 32), (7, 7, 32)), (3, 42, 41, 3)),
    "one layer": (((3, 4, 32),), (1, 8, 9, 1)),
    "many channels": (((6, 5, 32), (4, 3, 32)), (16, 8, 7, 2)),
}


def decoders(name: str) -> tuple[Decoder, Decoder]:
    """The same weights: ours, and PyTorch's in float64."""
    torch.manual_seed(3)
    exact = Decoder(10, *DECODERS[name], "default")
    ours = copy.deepcopy(exact)
    make_native(ours)
    return ours, exact.double()


def decoded(net: Decoder, batch: int) -> list[Tensor]:
    """Its output and all of its gradients."""
    draw = torch.Generator().manual_seed(4)
    dtype = net.linear.weight.dtype
    latent = torch.randn(batch, 10, generator=draw).to(dtype).requires_grad_()
    pixels = net(latent)
    gradient = torch.randn(pixels.shape, generator=draw).to(dtype)
    return [pixels, *torch.autograd.grad(pixels, [latent, *net.parameters()], gradient)]


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_and_its_gradients_are_exact_to_float32(each: Library, name: str) -> None:
    ours, exact = decoders(name)
    for one, two in zip(decoded(ours, 5), decoded(exact, 5), strict=True):
        assert error(one.detach(), two) < TOLERANCE
    for parameter, gradient in zip(ours.parameters(), decoded(ours, 3)[2:], strict=True):
        assert gradient.stride() == parameter.stride()  # for Adam
    assert torch.equal(ours.double()(torch.ones(1, 10).double()), exact(torch.ones(1, 10).double()))


@pytest.mark.parametrize("batch", [1, 37, 300])
def test_no_bit_of_a_decoder_depends_on_threads_or_instructions(
    kernels: Library, threads: Any, batch: int
) -> None:
    ours, _ = decoders("compact" if batch < 300 else "one layer")
    expected = decoded(ours, batch)
    for number in (1, 2, 4):
        threads(number)
        for name in ("avx2", "avx512", None):
            if kernels.use(name):
                for one, two in zip(decoded(ours, batch), expected, strict=True):
                    assert torch.equal(one, two), (number, name)


def test_a_reconstruction_is_that_of_torch(kernels: Library, threads: Any) -> None:
    torch.manual_seed(2)
    prediction = torch.randn(6, 11, 9, 6, requires_grad=True)
    stacks = torch.randint(0, 256, (6, 2, 13, 9, 3), dtype=torch.uint8)
    found = []
    for number in (1, 3):
        threads(number)
        loss = native.reconstruction(prediction, stacks, 5, torch.Generator().manual_seed(9))
        assert loss is not None
        found.append([loss, *torch.autograd.grad(3 * loss, prediction)])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    pixels = torch.cat(stacks[:, :, :11].unbind(1), dim=-1)
    target = torch.rand(pixels.shape, generator=torch.Generator().manual_seed(9))
    target = target.add_(pixels >> 3).div_(32).sub_(0.5)
    expected = F.mse_loss(prediction.double(), target.double())
    assert error(found[0][0].detach(), expected) < 1e-6
    gradient = torch.autograd.grad(3 * expected, prediction)[0]
    assert error(found[0][1], gradient.double()) < 1e-6


def test_our_draws_are_torchs(kernels: Library) -> None:
    for seed in (0, 2**31 + 5, 2**40 + 7):
        draw = torch.Generator().manual_seed(seed)
        assert torch.equal(kernels.uniform(seed, 7, 999), torch.rand(7, 999, generator=draw))


@contextmanager
def default_of_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("other", [default_of_float64, lambda: torch.device("meta")])
def test_torchs_defaults_of_type_and_device_change_nothing(kernels: Library, other: Any) -> None:
    def results() -> list[Tensor]:
        trial = Trial(SMALL, batch=3)
        assert trial.error() < TOLERANCE
        found = [*trial.both_ways(trial.by_native)]
        trial.weights = [w.detach().contiguous().requires_grad_() for w in trial.weights]
        found += trial.both_ways(trial.by_native)
        y = layer_forward(kernels, 1, *layer)
        return [*found, y, *layer_backward(kernels, 1, y, y, *layer[:2])]

    layer = draw_layer(0, 2, 8, 9)
    expected = results()
    with other():
        found = results()
    for one, two in zip(found, expected, strict=True):
        assert (one.dtype, one.device.type) == (torch.float32, "cpu")
        assert torch.equal(one, two)


def test_a_batch_of_nothing(kernels: Library) -> None:
    trial = Trial(SMALL, batch=0)
    found, *gradients = trial.both_ways(trial.by_native)
    assert found.shape == (0, 32 * 3 * 2)
    assert all(float(g.abs().sum()) == 0 for g in gradients)


def test_a_forked_process_computes_too(kernels: Library, threads: Any) -> None:
    """It inherits the pool but not its threads."""
    trial = Trial(SMALL, batch=8)
    threads(2)
    with torch.no_grad():
        expected = trial.by_native()
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(trial.by_native(), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_views_of_a_larger_batch(kernels: Library) -> None:
    ours, theirs = encoders()
    images = stacks(8)[::2].transpose(2, 3)
    with torch.no_grad():
        assert error(ours(images), theirs(images).double()) < TOLERANCE


def test_a_slow_copy_is_native_and_has_no_gradient(kernels: Library) -> None:
    ours, _ = encoders()
    slow = slow_copy(ours)
    assert type(slow) is NativeEncoder
    features = slow.features(stacks(2))
    assert not features.requires_grad
    assert torch.equal(features, ours.features(stacks(2)).detach())


def test_part_of_the_parameters_may_learn(kernels: Library) -> None:
    ours, theirs = encoders()
    for net in (ours, theirs):
        net.convolutions[0].requires_grad_(False)
        net.features(stacks(2)).sum().backward()  # type: ignore[no-untyped-call]
        assert net.convolutions[0].weight.grad is None
    one, two = (net.convolutions[1].weight.grad for net in (ours, theirs))
    assert distance(one, two) < 1e-3  # type: ignore[arg-type]


def test_second_derivatives_are_refused(kernels: Library) -> None:
    ours, _ = encoders()
    loss = ours(stacks(2)).square().sum()
    with pytest.raises(KstepError, match=r"no second derivative .* encoder_backend=torch"):
        torch.autograd.grad(loss, list(ours.convolutions.parameters()), create_graph=True)


def test_features_changed_in_place_are_noticed(kernels: Library) -> None:
    ours, _ = encoders()
    features = ours.features(stacks(2))
    features.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        features.sum().backward()  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_other_types_go_through_torch(kernels: Library) -> None:
    ours, theirs = encoders()
    images = stacks(2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ours(images), theirs(images))
    assert torch.equal(ours(images.float()), theirs(images.float()))
    # A traced encoder goes to other machines: it must hold PyTorch's own operations.
    traced = torch.jit.trace(ours, images)  # type: ignore[no-untyped-call]
    assert torch.equal(traced(images), theirs(images))
    parameters = list(ours.convolutions.parameters())
    assert native.usable(images, parameters)
    assert not native.usable(images, [*parameters, parameters[0].double()])
    assert not native.usable(images.to("meta"), parameters)


@pytest.mark.parametrize(
    ("options", "stack", "reason"),
    [
        ({"channels": 16}, 3, "has 32 channels, not 16"),
        ({"strides": (3, 1)}, 3, r"strides 1 or 2, not \(3, 1\)"),
        ({}, 6, "at most 16 input channels, not 6 frames of 3"),
        ({"activation": "frn"}, 3, "convolutions of pixels with ReLU"),
    ],
)
def test_encoders_without_kernels_are_refused_or_left_to_torch(
    options: Any, stack: int, reason: str
) -> None:
    config = PixelEncoderConfig(**options)
    with pytest.raises(Unavailable, match=reason):
        config.build((40, 40, 3), stack, "native")
    shape = native_shape(config, (40, 40, 3), stack)
    assert native.choose("auto", shape).backend == "torch"
    with pytest.raises(Unavailable, match=reason):
        native.choose("native", shape)


def test_bad_arguments_are_refused_before_memory_is_touched(kernels: Library) -> None:
    stack = stacks(1, 24)[:, :, :, :21].contiguous()
    trial = Trial(SMALL, 1)
    weights = [w.detach() for w in trial.weights]
    for wrong, reason in (
        (replace(SMALL, strides=(2, 3, 1)), "strides 1 or 2"),
        (replace(SMALL, strides=()), "1 to 8 layers"),
        (replace(SMALL, frames=6), "at most 16 input channels"),
        (replace(SMALL, height=25), "expected frames"),
        (replace(SMALL, strides=(2, 1)), "expected weights of shape"),
    ):
        with pytest.raises(KstepError, match=reason):
            kernels.forward(wrong, stack, weights, trial.biases, keep=False)
    with pytest.raises(KstepError, match="expected weights of shape"):
        kernels.forward(SMALL, stack, weights[::-1], trial.biases, keep=False)
    square = replace(SMALL, width=24)
    with pytest.raises(KstepError, match="contiguous memory"):
        kernels.forward(square, stacks(1, 24).transpose(2, 3), weights, trial.biases, keep=False)
    tiny = replace(SMALL, height=6, width=6)
    with pytest.raises(Unavailable, match="frames of 6x6 are too small for strides"):
        kernels.forward(tiny, stacks(1, 6), weights, trial.biases, keep=False)
    with pytest.raises(KstepError, match="needs tensors on the CPU, not on meta"):
        kernels.forward(SMALL, stack.to("meta"), weights, trial.biases, keep=False)
    ours, _ = encoders()
    with pytest.raises(KstepError, match="expected weights of shape"):
        ours.features(stacks(2)[:, :2])


def test_a_layer_that_does_not_fit_into_memory_is_refused(kernels: Library) -> None:
    size = (0, 2**22, 2**22, 1)
    assert kernels._c.kstep_layer_forward(*size, *[None] * 4) == b"more memory"
    assert kernels._c.kstep_layer_backward(*size, *[None] * 7) == b"more memory"


def test_gradients_and_maps_of_another_shape_are_refused(kernels: Library) -> None:
    trial = Trial(SMALL, 2)
    weights = [w.detach() for w in trial.weights]
    biases = [b.detach() for b in trial.biases]
    maps: Any = kernels.forward(SMALL, trial.observation, weights, biases, keep=True)
    gradient = trial.gradient.view(maps[-1].shape)

    def backward(gradient: Tensor, maps: list[Tensor]) -> None:
        kernels.backward(SMALL, gradient, trial.observation, weights, maps)

    backward(gradient, maps)
    turned = maps[0].view(maps[0].shape[0], *maps[0].shape[2:0:-1], 32)
    for wrong in (turned, maps[0][:1], maps[0].flatten(1)):
        with pytest.raises(KstepError, match="expected maps of shape"):
            backward(gradient, [wrong, *maps[1:]])
    with pytest.raises(KstepError, match="expected a gradient of shape"):
        backward(trial.gradient, maps)
    with pytest.raises(KstepError, match="expected maps of shape"):
        backward(gradient, maps[1:])
    with pytest.raises(KstepError, match=r"needs torch.float32, not torch.float64"):
        backward(gradient.double(), maps)


def test_an_observation_made_for_inference_learns_through_torch(kernels: Library) -> None:
    ours, theirs = encoders()
    with torch.inference_mode():
        images = stacks(2)
        assert torch.equal(ours.features(images), native_features(ours, stacks(2)))
    for net in (ours, theirs):
        net.features(images).sum().backward()  # type: ignore[no-untyped-call]
    for one, two in zip(
        ours.convolutions.parameters(), theirs.convolutions.parameters(), strict=True
    ):
        assert torch.equal(one.grad, two.grad)  # type: ignore[arg-type]
    # Without gradients nothing is saved, and the kernels serve.
    with torch.no_grad():
        assert native.usable(images, list(ours.convolutions.parameters()))


def test_auto_takes_what_is_faster(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    for times, expected in (((2.0, 1.0), "native"), ((1.0, 2.0), "torch")):
        monkeypatch.setattr(Trial, "milliseconds", lambda _, times=times: times)
        chosen = native.choose("auto", SMALL)
        assert chosen.backend == expected
        assert "native {1} ms, torch {0} ms".format(*times) in chosen.reason
        assert native.choose("native", SMALL).backend == "native"
        assert native.choose("torch", SMALL).backend == "torch"
    assert native.choose("auto", SMALL, "cuda").backend == "torch"


def test_what_is_expected_needs_no_trial(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trial, "milliseconds")
    assert native.expected("auto") == native.expected("native") == "native"
    assert native.expected("torch") == native.expected("auto", "cuda") == "torch"
    assert native.expected("compiled", "cuda") == "compiled"


@pytest.mark.parametrize("by", [NAN, 1.0])
@pytest.mark.parametrize(
    "what", ["forward", "forward, kept", "backward, weights", "backward, biases"]
)
def test_wrong_kernels_are_never_used(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, what: str, by: float
) -> None:
    forward, backward = Library.forward, Library.backward

    def wrong_forward(self: Library, *arguments: Any, keep: bool) -> Any:
        maps = forward(self, *arguments, keep=keep)
        if what == ("forward, kept" if keep else "forward"):
            assert maps[-1] is not None
            maps[-1][0, 0, 0, 0] += by * maps[-1].max()
        return maps

    def wrong_backward(self: Library, *arguments: Any) -> Any:
        weights, biases = backward(self, *arguments)
        if what == "backward, weights":
            weights[1][3, 2, 1, 0] += by * weights[1].max()
        if what == "backward, biases":
            biases[0][5] += by * biases[0].max()
        return weights, biases

    monkeypatch.setattr(Library, "forward", wrong_forward)
    monkeypatch.setattr(Library, "backward", wrong_backward)
    assert "wrong on this machine" in native.choose("auto", SMALL).reason
    with pytest.raises(Unavailable, match="wrong on this machine"):
        native.choose("native", SMALL)


def test_wrong_views_are_never_used(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = Library.stacks
    library._load.cache_clear()
    for wrong in (False, True):

        def views(
            self: Library, *arguments: Any, black: bool, wrong: bool = wrong, **o: Any
        ) -> Any:
            found = stacks(self, *arguments, black=black, **o)
            found[0, 0, 0, 0] += black == wrong
            return found

        monkeypatch.setattr(Library, "stacks", views)
        with pytest.raises(Unavailable, match="views are wrong on this machine"):
            native.load()
    monkeypatch.undo()
    native.load()


@pytest.mark.parametrize("call", ["forward", "backward"])
def test_a_refusal_of_the_library_leaves_it_to_torch(
    kernels: Library, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise KstepError("the native library needs more memory")

    monkeypatch.setattr(Library, call, refuse)
    chosen = native.choose("auto", SMALL)
    assert (chosen.backend, chosen.reason) == ("torch", "the native library needs more memory")
    with pytest.raises(Unavailable, match="needs more memory"):
        native.choose("native", SMALL)


def test_frames_beyond_the_largest_are_left_to_torch() -> None:
    long = Shape(1, 5000, 10, 1, (2,))
    assert "up to 4096x4096, not 5000x10" in native.choose("auto", long).reason
    with pytest.raises(Unavailable, match="up to 4096x4096, not 5000x10"):
        native.choose("native", long)


def test_without_a_library_everything_goes_through_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "path", lambda: tmp_path / "missing.so")
    assert native.expected("auto") == "torch"
    assert "was not built" in native.choose("auto", SMALL).reason
    with pytest.raises(Unavailable, match="was not built"):
        native.choose("native", SMALL)
    strange = tmp_path / "strange.so"
    strange.write_bytes(b"not a library")
    monkeypatch.setattr(library, "path", lambda: strange)
    assert "cannot be loaded" in native.choose("auto", SMALL).reason


def test_a_library_of_other_sources_is_refused(
    kernels: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = Path(shutil.copy(library.path(), tmp_path))
    Library(where)  # without sources beside it there is nothing to compare
    for file in library.path().parent.iterdir():
        if file.suffix in (".cpp", ".h"):
            shutil.copy(file, tmp_path)
    Library(where)
    with (tmp_path / "winograd.h").open("a") as header:
        header.write("// faster\n")
    with pytest.raises(Unavailable, match=r"built from other sources .* `make test`"):
        Library(where)
    monkeypatch.setattr(library, "path", lambda: where)
    chosen = native.choose("auto", SMALL)
    assert chosen.backend == "torch"
    assert "built from other sources" in chosen.reason


def test_a_failed_build_leaves_no_library_of_an_earlier_one(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    project = Path(__file__).parents[2]
    folder = tmp_path / "src/kstep/native"
    shutil.copytree(project / "src/kstep/native", folder, ignore=shutil.ignore_patterns("*.so"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "src/kstep/__init__.py"):
        shutil.copy(project / name, tmp_path / name)
    left = folder / library.path().name
    built = tmp_path / "build/lib" / left.relative_to(tmp_path / "src")
    built.parent.mkdir(parents=True)
    for file in (left, built):
        file.write_bytes(b"of an earlier build")
    command = [sys.executable, "setup.py", "build_ext", "--inplace", "--build-lib", "build/lib"]
    environment = {**os.environ, "CC": "false", "CXX": "false"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "failed" in done.stderr
    assert not left.exists()
    assert not built.exists()


def test_another_version_or_processor_is_refused(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = library.path()
    with monkeypatch.context() as patch:
        patch.setattr(library, "INTERFACE", 0)
        with pytest.raises(Unavailable, match="another version"):
            Library(where)
    monkeypatch.setattr(Library, "instructions", "")
    with pytest.raises(Unavailable, match="AVX2 or AVX-512"):
        library.kernels()


def test_the_instruction_set_can_be_limited(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(library.LIMIT, "avx2")
    assert kernels.use(None)
    assert kernels.instructions == "avx2"
    monkeypatch.setenv(library.LIMIT, "avx3")
    with pytest.raises(Unavailable, match=r"avx3: this processor has no such kernels"):
        library._load.__wrapped__(library.path())
    monkeypatch.undo()
    assert kernels.use(None)


def test_calls_leak_nothing(kernels: Library) -> None:
    trial = Trial(SMALL, batch=2)
    process = psutil.Process()

    def calls(number: int) -> int:
        for _ in range(number):
            trial.both_ways(trial.by_native)
        return int(process.memory_info().rss)

    before = calls(200)
    assert calls(1000) - before < 4_000_000  # 4 kB per call would be enough to notice


def pixels(**changes: Any) -> Any:
    """A tiny experiment whose encoder has native kernels."""
    overrides = [
        "method.encoder.channels=32",
        "method.learning.initial_decisions=30",
        "method.learning.batch_size=4",
    ]
    small = resolve("ksl", "toy_reach", preset="debug", env_steps=45, overrides=overrides)
    return replace(small, **changes)


def test_learning_steps_agree_with_torch(kernels: Library) -> None:
    experiment = pixels()
    spec = spec_for(experiment)
    losses = {}
    for backend in ("torch", "native"):
        agent = Agent(experiment.method, spec, Streams(3), "cpu", backend)
        replay = filled_replay(spec, experiment.method.stack)
        losses[backend] = [float(agent.update(replay).metrics["critic/loss"]) for _ in range(4)]
    assert losses["native"] == pytest.approx(losses["torch"], rel=1e-2)


def go(folder: Path, what: Any, backend: Any = "auto") -> tuple[Run, str]:
    said = StringIO()
    run = Run.prepare(folder, what)
    runtime = Runtime(threads=1, log_every=5, encoder_backend=backend)
    train.train(run, runtime, Console(file=said, width=200))
    return run, said.getvalue()


def test_a_run_keeps_what_it_began_with(
    kernels: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    run, said = go(folder, pixels(), "native")
    assert "encoder: native" in said
    assert json.loads((folder / "config.json").read_text())["encoder_backend"] == "native"
    longer = pixels(env_steps=60)
    with pytest.raises(KstepError, match="was begun with encoder_backend=native, not torch"):
        go(folder, longer, "torch")
    # Slower than PyTorch or not: it continues as it began.
    monkeypatch.setattr(Trial, "milliseconds", lambda _: (1.0, 2.0))
    go(folder, longer)
    whole, _ = go(tmp_path / "whole", longer, "native")
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    monkeypatch.setattr(library, "path", lambda: tmp_path / "missing.so")
    with pytest.raises(KstepError, match=r"native, which cannot be used here: .* was not built"):
        go(folder, pixels(env_steps=70))


def test_a_run_of_torch_stays_with_torch(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    go(folder, pixels(), "torch")
    _, said = go(folder, pixels(env_steps=50))
    assert "encoder: torch (as the run began)" in said
    with pytest.raises(KstepError, match="was begun with encoder_backend=torch, not native"):
        go(folder, pixels(env_steps=60), "native")
    # Runs from before there was a choice.
    config = json.loads((folder / "config.json").read_text())
    del config["encoder_backend"]
    (folder / "config.json").write_text(json.dumps(config))
    assert Run.open(folder).encoder_backend == "torch"


def test_native_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    what = resolve("ksl", "toy_reach", preset="debug", env_steps=45)  # 8 channels
    with pytest.raises(KstepError, match="has 32 channels, not 8"):
        go(tmp_path / "run", what, "native")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(tmp_path: Path, sanitizers: str) -> None:
    """A small program that goes through every kernel, compiled with the compiler's checks."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile it with")
    folder = Path(library.__file__).parent
    program = tmp_path / "driver"
    sources = sorted(folder.glob("*.cpp"))
    driver = Path(__file__).with_name("native_driver.cpp")
    options = [
        "-std=c++17",
        "-ffp-contract=off",
        "-O1",
        "-g",
        "-pthread",
        f"-fsanitize={sanitizers}",
    ]
    options += ["-fno-sanitize-recover=all", "-w"]
    subprocess.run(["g++", *options, driver, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this processor has no kernels: only the views were tested")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "avx2" in done.stdout


@pytest.mark.slow
def test_ten_thousand_calls_leak_nothing(kernels: Library) -> None:
    trial = Trial(SMALL, batch=2)
    process = psutil.Process()
    for count in range(10_000):
        trial.both_ways(trial.by_native)
        if count == 1_000:
            before = process.memory_info().rss
    assert process.memory_info().rss - before < 4_000_000


def test_the_choice_is_printed() -> None:
    assert str(choice.BackendChoice("torch", "as requested")) == "encoder: torch (as requested)"
