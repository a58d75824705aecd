"""Ownership, isolation and averaging."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kstep.optimizers import Ema, Group, Optimizers, slow_copy
from kstep.ownership import owners, refuse_undeclared_sharing


def linear(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(3, 2)


def test_minimize_steps_its_own_group_only() -> None:
    mine, other = linear(), linear(1)
    before = [p.clone() for p in (*mine.parameters(), *other.parameters())]
    optimizers = Optimizers({"a": Group({"mine": mine}, 0.1), "b": Group({"other": other}, 0.1)})
    loss = other(mine(torch.ones(1, 3)).repeat(1, 2)[:, :3]).sum()
    optimizers.minimize("a", loss)
    after = [*mine.parameters(), *other.parameters()]
    same = [torch.equal(x, y) for x, y in zip(before, after, strict=True)]
    assert same == [False, False, True, True]
    assert all(p.grad is None for p in after)


def test_a_parameter_the_loss_does_not_reach_is_an_error() -> None:
    mine, other = linear(), linear(1)
    optimizers = Optimizers({"a": Group({"mine": mine, "other": other}, 0.1)})
    with pytest.raises(RuntimeError, match="not have been used"):
        optimizers.minimize("a", mine(torch.ones(1, 3)).sum())


def test_sharing_must_be_declared() -> None:
    encoder = linear()
    groups = {"a": Group({"head": encoder}, 0.1), "b": Group({"head": encoder}, 0.1)}
    with pytest.raises(ValueError, match=r"b: head.weight is also stepped as a: head.weight"):
        refuse_undeclared_sharing(groups)
    groups = {"a": Group({"encoder": encoder}, 0.1), "b": Group({"encoder": encoder}, 0.1)}
    refuse_undeclared_sharing(groups)
    assert owners(groups) == {"encoder": ["a", "b"]}


def test_two_adams_on_one_gradient_equal_one_with_the_summed_rate() -> None:
    """The equivalence behind encoder_double_step (D05)."""
    one, two = linear(), linear()
    both = Optimizers({"a": Group({"net": two}, 1e-3), "b": Group({"net": two}, 1e-4)})
    single = Optimizers({"a": Group({"net": one}, 1e-3 + 1e-4)})
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        x = torch.randn(8, 3, generator=generator)
        single.minimize("a", one(x).square().mean())
        # Both Adams see the gradient at the same parameters, as in the released code.
        gradients = torch.autograd.grad(two(x).square().mean(), list(two.parameters()))
        for name in ("a", "b"):
            for parameter, gradient in zip(two.parameters(), gradients, strict=True):
                parameter.grad = gradient
            both._adams[name].step()
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_rates_may_differ_within_a_group() -> None:
    slow, fast = linear(), linear()
    group = Group({"slow": slow, "fast": fast}, 1e-3, learning_rates={"fast": 1e-1})
    optimizers = Optimizers({"a": group})
    before = slow.weight.clone(), fast.weight.clone()
    optimizers.minimize("a", (slow(torch.ones(1, 3)) + fast(torch.ones(1, 3))).sum())
    # Adam's first step is as long as its learning rate.
    assert torch.allclose((slow.weight - before[0]).abs(), torch.full((2, 3), 1e-3), rtol=1e-3)
    assert torch.allclose((fast.weight - before[1]).abs(), torch.full((2, 3), 1e-1), rtol=1e-3)


def test_state_round_trip_continues_bit_for_bit() -> None:
    def steps(net: nn.Linear, optimizers: Optimizers, n: int) -> None:
        for i in range(n):
            optimizers.minimize("a", net(torch.full((1, 3), float(i))).square().sum())

    net = linear()
    optimizers = Optimizers({"a": Group({"net": net}, 0.01)})
    steps(net, optimizers, 3)
    saved = {key: value.clone() for key, value in optimizers.state().items()}
    weights = {key: value.clone() for key, value in net.state_dict().items()}
    steps(net, optimizers, 3)

    again = linear(5)
    again.load_state_dict(weights)
    restored = Optimizers({"a": Group({"net": again}, 0.01)})
    restored.load_state(saved)
    steps(again, restored, 3)
    assert torch.equal(again.weight, net.weight)


def test_ema_moves_by_its_rate_towards_the_online_copy() -> None:
    online = linear()
    slow = slow_copy(online)
    old = slow.weight.clone()
    with torch.no_grad():
        online.weight.add_(1.0)
    Ema("net", slow, online, 0.05).step()
    assert torch.allclose(slow.weight, 0.95 * old + 0.05 * online.weight)
    assert not any(p.requires_grad for p in slow.parameters())
    frozen = slow.weight.clone()
    Ema("net", slow, online, 0.0).step()
    assert torch.equal(slow.weight, frozen)
