"""PI-SAC's predictive information against plain loops, and which data enter it where."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kstep.auxiliary.base import Shapes
from kstep.auxiliary.ceb import CEB, CEBConfig, GaussianHead, log_density
from kstep.types import KstepError, SequenceBatch
from kstep.values import check
from tests.make import expect

B, LATENT, ACTION = 7, 5, 2
SMALL = CEBConfig(hidden=8)


def task(config: CEBConfig = SMALL) -> CEB:
    torch.manual_seed(0)
    built = CEB(config, LATENT, ACTION)
    # As initialized, the means are nearly 0 and tell little; grow them.
    for head in (built.forward_head, built.backward_head):
        expect(nn.Linear, head[4]).weight.data.mul_(300)
    return built


def batch(config: CEBConfig = SMALL) -> SequenceBatch:
    generator = torch.Generator().manual_seed(1)
    steps = config.future + 1
    observation = torch.randn(B, steps + 1, 1, LATENT, generator=generator)
    return SequenceBatch(
        observation=observation,
        action=torch.rand(B, steps, ACTION, generator=generator) * 2 - 1,
        reward=torch.rand(B, steps, generator=generator),
        bootstrap=torch.ones(B, steps),
        second_view=observation[:, 0],
    )


def flat(observation: Tensor) -> Tensor:
    return observation.flatten(1)


def double(observation: Tensor) -> Tensor:
    """A slow encoder that differs from the online one."""
    return 2 * observation.flatten(1)


def value(of: CEB, data: SequenceBatch) -> float:
    """The loss, leaving the task as it was."""
    return copy.deepcopy(of).loss(flat, double, data)[0].item()


def changed(data: SequenceBatch, field: str, at: int) -> SequenceBatch:
    """The same batch with other numbers at one time."""
    tensor = getattr(data, field).clone()
    tensor[:, at] += torch.linspace(0.5, 1.5, B).view(-1, *[1] * (tensor.ndim - 2))
    return replace(data, **{field: tensor})


def gaussian(z: Tensor, mean: Tensor) -> float:
    """Log density of N(mean, I), one dimension after the other."""
    return sum(
        -0.5 * math.log(2 * math.pi) - 0.5 * (z[d].item() - mean[d].item()) ** 2
        for d in range(len(z))
    )


def test_loss_by_plain_loops() -> None:
    ceb, data = task(), batch()
    plain = copy.deepcopy(ceb)
    loss, metrics = ceb.loss(flat, double, data)

    observation, action, reward = data.observation, data.action, data.reward
    x = torch.stack(
        [
            torch.cat((observation[i, 0, 0], action[i, 0], action[i, 1], action[i, 2]))
            for i in range(B)
        ]
    )
    y0 = torch.stack([torch.cat((2 * observation[i, 3, 0], reward[i, 0:3])) for i in range(B)])
    y1 = torch.stack([torch.cat((2 * observation[i, 4, 0], reward[i, 1:4])) for i in range(B)])
    mean, mean0, mean1 = plain.forward_head(x), plain.backward_head(y0), plain.backward_head(y1)
    z = mean + torch.randn(
        B, 50, generator=torch.Generator().manual_seed(int(plain.draws.count) + 1)
    )

    total, information, residuals = 0.0, 0.0, [0.0, 0.0]
    for i in range(B):
        e = gaussian(z[i], mean[i])
        b = [gaussian(z[i], mean0[j]) for j in range(B)]
        largest = max(b)
        i_y = b[i] - largest - math.log(sum(math.exp(v - largest) for v in b)) + math.log(B)
        r0, r1 = e - b[i], e - gaussian(z[i], mean1[i])
        total += (0.01 * r0 - i_y + 0.6 * 0.01 * r1) / B
        information += i_y / B
        residuals[0] += r0 / B
        residuals[1] += r1 / B
    assert loss.item() == pytest.approx(total, rel=1e-4)
    assert metrics["auxiliary/loss"].item() == loss.item()
    assert metrics["auxiliary/ceb_information"].item() == pytest.approx(information, rel=1e-4)
    assert metrics["auxiliary/ceb_residual0"].item() == pytest.approx(residuals[0], rel=1e-4)
    assert metrics["auxiliary/ceb_residual1"].item() == pytest.approx(residuals[1], rel=1e-4)
    assert not any(value.requires_grad for value in metrics.values())


def test_log_density_agrees_with_torch() -> None:
    z, mean = torch.randn(4, 50), torch.randn(4, 50)
    expected = torch.distributions.Normal(mean, torch.ones(50)).log_prob(z).sum(-1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_density(z, mean), expected)


def test_information_is_at_most_log_batch_and_reaches_it() -> None:
    ceb, data = task(), batch()
    _, metrics = ceb.loss(flat, double, data)
    assert metrics["auxiliary/ceb_information"] <= math.log(B) + 1e-5

    # Both heads say the same, and samples lie far apart: which future it is could not be clearer.
    means = 100 * torch.eye(B, 50)
    ceb.forward_head = ceb.backward_head = Says(means)  # type: ignore[assignment]
    _, metrics = ceb.loss(flat, double, data)
    assert metrics["auxiliary/ceb_information"].item() == pytest.approx(math.log(B), rel=1e-6)
    assert metrics["auxiliary/ceb_residual0"].item() == pytest.approx(0, abs=1e-4)

    # Every future looks the same: z says nothing of it.
    ceb.forward_head = ceb.backward_head = Says(torch.zeros(B, 50))  # type: ignore[assignment]
    _, metrics = ceb.loss(flat, double, data)
    assert metrics["auxiliary/ceb_information"].item() == pytest.approx(0, abs=1e-5)


class Says(nn.Module):
    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.means = means

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.means


ENTERS = {
    "observation": (True, False, False, True, True),
    "action": (True, True, True, False),
    "reward": (True, True, True, True),
    "bootstrap": (False, False, False, False),
}


@pytest.mark.parametrize(("field", "at"), [(f, t) for f in ENTERS for t in range(len(ENTERS[f]))])
def test_what_enters(field: str, at: int) -> None:
    ceb, data = task(), batch()
    moved = value(ceb, data) != value(ceb, changed(data, field, at))
    assert moved == ENTERS[field][at]


@pytest.mark.parametrize(
    ("field", "at", "first", "second"),
    [
        ("observation", 3, True, False),
        ("observation", 4, False, True),
        ("reward", 0, True, False),
        ("reward", 1, True, True),
        ("reward", 2, True, True),
        ("reward", 3, False, True),
    ],
)
def test_which_future_it_enters(field: str, at: int, first: bool, second: bool) -> None:
    """Each future is normalized on its own, so what belongs to one leaves the other alone."""
    ceb, data = task(), batch()
    before = copy.deepcopy(ceb).loss(flat, double, data)[1]
    after = ceb.loss(flat, double, changed(data, field, at))[1]
    assert (before["auxiliary/ceb_residual0"] != after["auxiliary/ceb_residual0"]) == first
    assert (before["auxiliary/ceb_information"] != after["auxiliary/ceb_information"]) == first
    assert (before["auxiliary/ceb_residual1"] != after["auxiliary/ceb_residual1"]) == second


def test_order_of_actions_and_samples_matters() -> None:
    ceb, data = task(), batch()
    swapped = data.action[:, [1, 0, 2, 3]]
    assert value(ceb, data) != value(ceb, replace(data, action=swapped))
    # Another sample's future is not one's own.
    rolled = data.observation.clone()
    rolled[:, 3:] = rolled[:, 3:].roll(1, dims=0)
    assert value(ceb, data) != value(ceb, replace(data, observation=rolled))


def test_future_sets_horizon_and_inputs() -> None:
    config = replace(SMALL, future=2)
    ceb = task(config)
    assert config.horizon == 3
    assert SMALL.horizon == 4
    assert value(ceb, batch(config)) == value(ceb, batch(config))
    with pytest.raises(KstepError, match="future must be at least 1"):
        check(replace(SMALL, future=0))


def test_gradients_reach_encoder_and_heads_but_not_the_backward_encoder() -> None:
    ceb, data = task(), batch()
    online, slow = nn.Linear(LATENT, LATENT), nn.Linear(LATENT, LATENT)
    loss, _ = ceb.loss(lambda o: online(o.flatten(1)), lambda o: slow(o.flatten(1)), data)
    owned = [*online.parameters(), *ceb.parameters()]
    heads = ceb.learned()
    assert set(heads) == {"forward_head", "backward_head"}
    assert {id(p) for head in heads.values() for p in head.parameters()} == {  # type: ignore[union-attr]
        id(p) for p in ceb.parameters()
    }
    # As the optimizers do: every parameter must take part.
    for gradient in torch.autograd.grad(loss, owned, retain_graph=True):
        assert gradient.abs().max() > 1e-6
    gradients = torch.autograd.grad(loss, list(slow.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in gradients)


def test_the_second_half_of_the_released_head_changes_nothing() -> None:
    """The released head has 100 outputs and biases; its first 50 are ours."""
    torch.manual_seed(0)
    head = GaussianHead(CEBConfig(hidden=8, z_dim=50), 6)
    released = nn.Sequential(
        *copy.deepcopy(list(head)[:4]), nn.Linear(8, 100), nn.BatchNorm1d(100, eps=1e-3)
    )
    expect(nn.Linear, released[4]).weight.data[:50] = expect(nn.Linear, head[4]).weight.data
    x = torch.randn(B, 6)
    torch.testing.assert_close(head(x), released(x)[:, :50], rtol=1e-4, atol=1e-5)


def test_head_as_initialized() -> None:
    torch.manual_seed(0)
    head = GaussianHead(CEBConfig(), 59)
    first, last = expect(nn.Linear, head[0]), expect(nn.Linear, head[4]).weight
    norm = expect(nn.BatchNorm1d, head[5])
    assert last.shape == (50, 128)
    assert last.std().item() == pytest.approx(math.sqrt(1e-4 / 128), rel=0.03)
    assert last.abs().max() <= 2 * math.sqrt(1e-4 / 128) / 0.87
    bound = math.sqrt(6 / (59 + 128))
    assert 0.98 * bound < first.weight.abs().max() <= bound
    assert not first.bias.any()
    assert (norm.eps, norm.momentum, norm.num_features) == (1e-3, 0.01, 50)


def test_draws_differ_and_survive_a_round_trip() -> None:
    ceb, data = task(), batch()
    first, second = (ceb.loss(flat, double, data)[0].item() for _ in range(2))
    assert first != second
    torch.manual_seed(5)
    resumed = CEB(SMALL, LATENT, ACTION)
    resumed.load_state_dict(ceb.state_dict())
    state = torch.get_rng_state()
    for _ in range(3):
        assert resumed.loss(flat, double, data)[0].equal(ceb.loss(flat, double, data)[0])
    assert torch.get_rng_state().equal(state)  # no use of the global generator


def test_another_seed_draws_other_noise() -> None:
    torch.manual_seed(0)
    one, other = CEB(SMALL, LATENT, ACTION), CEB(SMALL, LATENT, ACTION)
    assert not one.noise(torch.zeros(2, 50)).equal(other.noise(torch.zeros(2, 50)))


def test_build() -> None:
    shapes = Shapes(LATENT, (3, 3, 4), ACTION, (3, 9, 9, 3), ema_rate=0.01)
    built = CEBConfig().build(shapes)
    assert isinstance(built, CEB)
    assert (built.sees, built.slow_encoder_rate) == ("latent", 0.05)
    assert CEBConfig().shares_windows
    assert built.forward_head[0].in_features == LATENT + 3 * ACTION
    assert built.backward_head[0].in_features == LATENT + 3
    assert CEBConfig().shrunk() == CEBConfig(hidden=16)


def test_learning_raises_the_information() -> None:
    torch.manual_seed(0)
    ceb, encoder = CEB(SMALL, LATENT, ACTION), nn.Linear(LATENT, LATENT)
    # The future is the past plus the actions' sum: predictable.
    data = batch()
    observation = data.observation.clone()
    for t in range(4):
        observation[:, t + 1] = observation[:, t] + data.action[:, t].sum(-1)[:, None, None]
    data = replace(data, observation=observation)
    adam = torch.optim.Adam([*ceb.parameters(), *encoder.parameters()], lr=3e-3)
    seen = []
    for _ in range(300):
        loss, metrics = ceb.loss(lambda o: encoder(o.flatten(1)), flat, data)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        seen.append(metrics["auxiliary/ceb_information"].item())
    assert sum(seen[:10]) / 10 < 0.3
    assert sum(seen[-10:]) / 10 > 0.8 * math.log(B)
