"""Encoder, initialization, policy and critic against what the paper and its code say of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from kstep.nets.encoder import PixelEncoder, PixelEncoderConfig
from kstep.nets.heads import Actor, SquashedGaussian
from kstep.nets.init import initialize
from kstep.types import KstepError
from tests.authors.seams import Noise
from tests.make import expect, paper_agent


def encoder(**options: object) -> PixelEncoder:
    return PixelEncoder(PixelEncoderConfig(**options), (84, 84, 3), 3)  # type: ignore[arg-type]


def test_the_encoder_has_the_papers_size() -> None:
    net = encoder()
    assert sum(p.numel() for p in net.parameters()) == 1_990_518
    assert net.feature_shape == (35, 35, 32)
    assert net(torch.zeros(2, 3, 84, 84, 3, dtype=torch.uint8)).shape == (2, 50)


def test_the_compact_encoder_does_less_than_a_third_of_the_arithmetic() -> None:
    def products(strides: tuple[int, ...]) -> int:
        side, total, channels = 84, 0, 9
        for stride in strides:
            side = (side - 3) // stride + 1
            total += side * side * 9 * channels * 32
            channels = 32
        return total + side * side * 32 * 50

    assert products((2, 1, 1, 1)) == pytest.approx(44.24e6, rel=1e-3)
    assert products((2, 2, 1, 1)) / products((2, 1, 1, 1)) < 1 / 3
    assert encoder(strides=(2, 2, 1, 1)).feature_shape == (16, 16, 32)


@pytest.mark.parametrize("centred", [False, True])
def test_features_equal_a_plain_convolution_stack(centred: bool) -> None:
    """The layout tricks change nothing: compare with textbook NCHW code on float64."""
    torch.manual_seed(0)
    net = encoder(init="default", tanh=False, centred=centred).double()
    images = torch.randint(0, 256, (2, 3, 84, 84, 3), dtype=torch.uint8)
    x = images.permute(0, 1, 4, 2, 3).reshape(2, 9, 84, 84).double() / 255 - 0.5 * centred
    for layer in net.convolutions:
        layer = expect(nn.Conv2d, layer)
        x = torch.relu(nn.functional.conv2d(x, layer.weight, layer.bias, layer.stride))
    linear = expect(nn.Linear, net.head[0])
    # (H, W, C) is the order of the linear layer's inputs.
    expected = x.permute(0, 2, 3, 1).reshape(2, -1) @ linear.weight.T + linear.bias
    expected = net.head[1](expected)
    assert torch.allclose(net.float()(images).double(), expected, atol=2e-5)


def test_frames_keep_their_places_in_the_stack() -> None:
    """Oldest frame first, its colours together: channel = 3 * frame + colour."""
    net = encoder(init="default")
    seen: list[torch.Tensor] = []
    net.convolutions[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.zeros(1, 3, 84, 84, 3, dtype=torch.uint8)
    for frame in range(3):
        for colour in range(3):
            images[0, frame, :, :, colour] = 10 * frame + colour
    net(images)
    assert (seen[0][0, :, 5, 7] * 255).round().tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_latents_are_normalized_at_the_start() -> None:
    net = encoder(tanh=False)
    images = torch.randint(0, 256, (4, 3, 84, 84, 3), dtype=torch.uint8)
    latents = net(images)
    assert torch.allclose(latents.mean(1), torch.zeros(4), atol=1e-5)
    assert torch.allclose(latents.var(1, unbiased=False), torch.ones(4), atol=1e-3)
    assert latents.abs().max() > 1  # not squashed
    assert net(torch.zeros(1, 3, 84, 84, 3, dtype=torch.uint8)).abs().max() == 0
    assert encoder(tanh=True)(images).abs().max() < 1


def test_delta_orthogonal_convolutions() -> None:
    for layer in encoder(init="delta_orthogonal").convolutions:
        weight = layer.get_parameter("weight").detach().clone()
        centre = weight[:, :, 1, 1].clone()
        weight[:, :, 1, 1] = 0
        assert weight.abs().max() == 0
        gram = centre.T @ centre
        assert torch.allclose(gram, 2 * torch.eye(centre.shape[1]), atol=1e-5)
        assert layer.get_parameter("bias").abs().max() == 0


def test_orthogonal_convolutions_use_the_flattened_kernel() -> None:
    layer = torch.nn.Conv2d(9, 32, 3)
    initialize(layer, "orthogonal")
    flat = layer.weight.detach().flatten(1)
    assert torch.allclose(flat @ flat.T, 2 * torch.eye(32), atol=1e-5)


def test_frames_too_small_for_the_encoder_are_refused() -> None:
    with pytest.raises(KstepError, match="8x8 are too small"):
        PixelEncoder(PixelEncoderConfig(), (8, 8, 3), 3)


def log_probability(
    policy: SquashedGaussian, unsquashed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The policy's own action and log-probability where its draw gives `unsquashed`."""
    noise = Noise()
    noise.normal.append((unsquashed - policy.mean) / policy.log_std.exp())
    with noise:
        return policy.sample(torch.Generator())


def test_log_probability_agrees_with_the_formula_of_the_other_code_bases() -> None:
    u = torch.linspace(-2, 2, 81)[:, None]
    wide = torch.zeros_like(u)
    _, exact = log_probability(SquashedGaussian(wide, wide), u)
    _, approximate = log_probability(SquashedGaussian(wide, wide, exact=False), u)
    assert torch.allclose(exact, approximate, atol=1e-4)
    assert not torch.equal(exact, approximate)
    gaussian = -0.5 * u.square() - 0.5 * math.log(2 * math.pi)
    by_hand = gaussian - torch.log(1 - torch.tanh(u).square() + 1e-6)
    assert torch.allclose(approximate, by_hand.squeeze(1), atol=1e-6)
    far = torch.tensor([[50.0], [-50.0]])
    _, exact = log_probability(SquashedGaussian(far, torch.zeros_like(far)), far)
    assert torch.isfinite(exact).all()


def test_log_probability_integrates_to_one() -> None:
    """The density of tanh(u) over actions in (-1, 1), by quadrature."""
    actions = torch.linspace(-0.999999, 0.999999, 200_001, dtype=torch.float64)[:, None]
    policy = SquashedGaussian(torch.full_like(actions, 0.3), torch.full_like(actions, -0.4))
    again, log_prob = log_probability(policy, torch.atanh(actions))
    assert torch.allclose(again, actions)
    total = torch.trapezoid(log_prob.exp(), actions.squeeze(1))
    assert total.item() == pytest.approx(1.0, abs=1e-4)


def test_samples_follow_the_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    policy = SquashedGaussian(torch.full((20_000, 1), 0.4), torch.full((20_000, 1), -1.0))
    actions, log_prob = policy.sample(generator)
    u = torch.atanh(actions)
    assert u.mean().item() == pytest.approx(0.4, abs=0.01)
    assert u.std().item() == pytest.approx(math.exp(-1), abs=0.01)
    by_hand = (
        -0.5 * ((u - 0.4) / math.exp(-1)) ** 2
        + 1.0
        - 0.5 * math.log(2 * math.pi)
        - torch.log(1 - actions**2)
    ).squeeze(1)
    assert torch.allclose(log_prob, by_hand, atol=1e-3)
    assert policy.mode[0].item() == pytest.approx(math.tanh(0.4))


def test_log_std_stays_within_its_bounds() -> None:
    actor = Actor(4, 2, 8, (-10.0, 2.0))
    with torch.no_grad():
        wide = actor(1e4 * torch.randn(64, 4)).log_std
        actor.body[-1].get_parameter("weight").zero_()
        actor.body[-1].get_parameter("bias").zero_()
        still = actor(torch.randn(1, 4)).log_std
    assert wide.min() >= -10
    assert wide.max() <= 2
    assert still[0, 0].item() == pytest.approx(-4.0)  # a standard deviation of 0.018


@pytest.mark.parametrize(
    ("method", "network", "parameters"),
    [
        ("ksl-released", "transition", 668_210),
        ("ksl-released", "projector", 52_786),
        ("ksl", "predictor", 2_500),
        ("ksl", "critic", 2 * 1_108_993),
        ("ksl", "actor", 1_114_124),
    ],
)
def test_networks_have_the_sizes_of_the_released_code(
    method: str, network: str, parameters: int
) -> None:
    agent = paper_agent(method, action_dim=6)
    found = {
        key: parameter.numel()
        for group in agent.optimizers.groups.values()
        for key, parameter in group.named_parameters()
    }
    assert sum(size for key, size in found.items() if key.split(".")[0] == network) == parameters


def test_the_first_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    before = torch.random.get_rng_state()
    one = paper_agent("ksl").state()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    two = paper_agent("ksl").state()
    assert all(torch.equal(one[key], two[key]) for key in one)
