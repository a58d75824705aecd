"""CURL's loss against plain code and numbers computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryConfig, Shapes
from kstep.auxiliary.curl import CURL, CURLConfig
from kstep.types import SequenceBatch


def batch(anchor: Tensor, positive: Tensor) -> SequenceBatch:
    """Views (B, S, D) as a sequence of one transition, whose end the task must not look at."""
    nothing = torch.full_like(anchor, math.nan)
    number = len(anchor)
    return SequenceBatch(
        observation=torch.stack((anchor, nothing), dim=1),
        action=torch.zeros(number, 1, 2),
        reward=torch.zeros(number, 1),
        bootstrap=torch.ones(number, 1),
        second_view=positive,
    )


def flat(observation: Tensor) -> Tensor:
    return observation.flatten(1)


def task(bilinear: Tensor) -> CURL:
    curl = CURL(len(bilinear))
    with torch.no_grad():
        curl.bilinear.copy_(bilinear)
    return curl


def naive(anchor: Tensor, positive: Tensor, bilinear: Tensor) -> float:
    """InfoNCE as a double loop over pairs."""
    total = 0.0
    for i in range(len(anchor)):
        scores = [
            sum(
                float(anchor[i, m]) * float(bilinear[m, n]) * float(positive[j, n])
                for m in range(anchor.shape[1])
                for n in range(positive.shape[1])
            )
            for j in range(len(positive))
        ]
        total += math.log(sum(math.exp(score) for score in scores)) - scores[i]
    return total / len(anchor)


def test_the_loss_equals_a_double_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    anchor = torch.randn(4, 1, 3, generator=generator)
    positive = torch.randn(4, 1, 3, generator=generator)
    bilinear = torch.rand(3, 3, generator=generator)
    loss, metrics = task(bilinear).loss(flat, flat, batch(anchor, positive))
    expected = naive(anchor.squeeze(1), positive.squeeze(1), bilinear)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert metrics["auxiliary/loss"].item() == loss.item()


def test_the_loss_by_hand() -> None:
    """W maps the second axis of the positive to the first of the anchor, and not back."""
    anchor = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    positive = torch.tensor([[[0.0, 2.0]], [[3.0, 0.0]]])
    curl = task(torch.tensor([[0.0, 1.0], [0.0, 0.0]]))
    assert torch.equal(
        curl.logits(flat(anchor), flat(positive)), torch.tensor([[0.0, -2.0], [0.0, 0.0]])
    )
    loss, _ = curl.loss(flat, flat, batch(anchor, positive))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-2)) + math.log(2)) / 2)


def test_the_largest_logit_of_a_row_is_zero() -> None:
    curl = CURL(50)
    logits = curl.logits(100 * torch.randn(16, 50), 100 * torch.randn(16, 50))
    assert torch.equal(logits.amax(1), torch.zeros(16))
    loss, _ = curl.loss(
        flat, flat, batch(100 * torch.randn(16, 1, 50), 100 * torch.randn(16, 1, 50))
    )
    assert torch.isfinite(loss)


def test_subtracting_the_maximum_leaves_the_gradient_alone() -> None:
    torch.manual_seed(0)
    anchor, positive = torch.randn(5, 1, 4), torch.randn(5, 1, 4)
    curl = CURL(4)
    loss, _ = curl.loss(flat, flat, batch(anchor, positive))
    (gradient,) = torch.autograd.grad(loss, curl.bilinear)
    # d loss / d W = mean over rows of z_a (softmax-weighted positives - own positive)^T
    a, p = flat(anchor), flat(positive)
    weights = torch.softmax(a @ curl.bilinear.detach() @ p.T, dim=1) - torch.eye(5)
    assert torch.allclose(gradient, a.T @ weights @ p / 5, atol=1e-6)


def test_accuracy_counts_the_rows_that_find_their_own_view() -> None:
    aligned = 3 * torch.eye(4).unsqueeze(1)
    curl = task(torch.eye(4))
    _, metrics = curl.loss(flat, flat, batch(aligned, aligned))
    assert metrics["auxiliary/curl_accuracy"].item() == 1.0
    _, metrics = curl.loss(flat, flat, batch(aligned, aligned[[0, 1, 3, 2]]))
    assert metrics["auxiliary/curl_accuracy"].item() == 0.5
    _, metrics = curl.loss(flat, flat, batch(aligned, aligned.roll(1, 0)))
    assert metrics["auxiliary/curl_accuracy"].item() == 0.0


def test_the_bilinear_matrix_starts_uniform_in_zero_one() -> None:
    torch.manual_seed(0)
    bilinear = CURL(50).bilinear.detach()
    assert bilinear.shape == (50, 50)
    assert bilinear.min() >= 0
    assert bilinear.max() < 1
    assert bilinear.mean().item() == pytest.approx(0.5, abs=0.02)
    assert bilinear.var().item() == pytest.approx(1 / 12, abs=0.005)


def test_the_anchor_and_the_matrix_learn_and_the_slow_side_does_not() -> None:
    torch.manual_seed(0)
    online, slow, curl = nn.Linear(6, 4), nn.Linear(6, 4), CURL(4)
    seen: dict[str, Tensor] = {}

    def encode(observation: Tensor) -> Tensor:
        seen["anchor"] = observation
        return online(flat(observation))  # type: ignore[no-any-return]

    def encode_slow(observation: Tensor) -> Tensor:
        seen["positive"] = observation
        return slow(flat(observation))  # type: ignore[no-any-return]

    anchor, positive = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    loss, metrics = curl.loss(encode, encode_slow, batch(anchor, positive))
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.equal(seen["anchor"], anchor)
    assert torch.equal(seen["positive"], positive)
    assert all(p.grad is None for p in slow.parameters())
    for parameter in (online.weight, curl.bilinear):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() > 0
    assert not any(value.requires_grad for value in metrics.values())


def test_what_the_task_tells_the_agent() -> None:
    shapes = Shapes(
        latent_dim=7,
        feature_shape=(35, 35, 32),
        action_dim=2,
        observation_shape=(3, 84, 84, 3),
        ema_rate=0.05,
    )
    curl = CURLConfig().build(shapes)
    assert (CURLConfig().horizon, CURLConfig().second_view, curl.sees) == (0, True, "latent")
    assert list(curl.learned()) == ["bilinear"]
    assert [tuple(p.shape) for p in curl.parameters()] == [(7, 7)]
    assert curl.slow_copies() == ()
    assert AuxiliaryConfig.kinds["curl"] is CURLConfig
    assert CURLConfig().shrunk() == CURLConfig()
