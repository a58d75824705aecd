"""Proto-RL's loss and reward against plain loops, its queue, its chance."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.base import RewardSource, Shapes
from kstep.auxiliary.proto import Proto, ProtoConfig, sinkhorn
from kstep.types import KstepError, SequenceBatch
from tests.make import tiny

B, FEATURES = 6, 9
SMALL = ProtoConfig(projection_dim=4, predictor_hidden=8, prototypes=5, queue=12)


def task(config: ProtoConfig = SMALL) -> Proto:
    torch.manual_seed(0)
    built = Proto(config, FEATURES, ema_rate=0.1)
    # As after some training: the slow copy lags behind.
    for parameter in built.slow_projector.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def batch(times: int = 2) -> SequenceBatch:
    generator = torch.Generator().manual_seed(1)
    observation = torch.randn(B, times, 1, FEATURES, generator=generator)
    return SequenceBatch(
        observation=observation,
        action=torch.zeros(B, times - 1, 1),
        reward=torch.zeros(B, times - 1),
        bootstrap=torch.ones(B, times - 1),
        second_view=observation[:, 0],
    )


def flat(observation: Tensor) -> Tensor:
    return observation.flatten(1)


def double_and_one(observation: Tensor) -> Tensor:
    """A slow encoder that differs from the online one."""
    return 2 * observation.flatten(1) + 1


def unit(vector: Tensor) -> list[float]:
    values: list[float] = vector.tolist()
    length = math.sqrt(sum(v * v for v in values))
    return [v / length for v in values]


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def softmax(scores: list[float]) -> list[float]:
    exponents = [math.exp(s - max(scores)) for s in scores]
    return [e / sum(exponents) for e in exponents]


def plain_sinkhorn(scores: list[list[float]], iterations: int = 3) -> list[list[float]]:
    """Scores and result by sample, then prototype."""
    samples, prototypes = len(scores), len(scores[0])
    largest = max(max(row) for row in scores)
    q = [[math.exp(scores[b][k] - largest) for b in range(samples)] for k in range(prototypes)]
    total = sum(map(sum, q))
    q = [[v / total for v in row] for row in q]
    for _ in range(iterations):
        q = [[v / sum(row) / prototypes for v in row] for row in q]
        columns = [sum(row[b] for row in q) for b in range(samples)]
        q = [[row[b] / columns[b] / samples for b in range(samples)] for row in q]
    columns = [sum(row[b] for row in q) for b in range(samples)]
    return [[q[k][b] / columns[b] for k in range(prototypes)] for b in range(samples)]


def test_sinkhorn_by_plain_loops() -> None:
    scores = 4 * torch.randn(B, 5, generator=torch.Generator().manual_seed(2))
    given = scores.clone()
    q = sinkhorn(scores, 3)
    assert scores.equal(given)
    torch.testing.assert_close(q, torch.tensor(plain_sinkhorn(scores.tolist())))


def test_sinkhorn_shares_the_prototypes_out() -> None:
    prototypes = F.normalize(torch.randn(16, 8, generator=torch.Generator().manual_seed(3)), dim=1)
    v = F.normalize(torch.randn(64, 8, generator=torch.Generator().manual_seed(4)), dim=1)
    # A direction in common: without the constraint a few prototypes would take nearly all.
    v = F.normalize(v + 1.5 * prototypes[0], dim=1)
    scores = v @ prototypes.T / 0.1
    q, plain = sinkhorn(scores, 3), scores.softmax(1)
    torch.testing.assert_close(q.sum(1), torch.ones(64))
    assert plain.sum(0).max() > 20
    assert q.sum(0).max() < 1.5 * 64 / 16
    assert q.sum(0).min() > 0.5 * 64 / 16
    torch.testing.assert_close(
        sinkhorn(scores, 500).sum(0), torch.full((16,), 4.0), rtol=1e-2, atol=0.0
    )


def test_sinkhorn_survives_a_prototype_without_mass() -> None:
    scores = torch.zeros(4, 3)
    scores[:, 2] = -1000.0
    torch.testing.assert_close(sinkhorn(scores, 3), torch.tensor([[0.5, 0.5, 0.0]] * 4))


def test_loss_by_plain_loops() -> None:
    proto, data = task(), batch()
    loss, metrics = proto.loss(flat, double_and_one, data)

    rows = [unit(row) for row in task().prototypes.weight.detach()]
    with torch.no_grad():
        u = [unit(v) for v in proto.predictor(proto.projector(data.observation[:, 0, 0]))]
        v = [unit(v) for v in proto.slow_projector(2 * data.observation[:, 1, 0] + 1)]
    q = plain_sinkhorn([[dot(c, one) / 0.1 for c in rows] for one in v])
    p = [softmax([dot(c, one) / 0.1 for c in rows]) for one in u]
    expected = -sum(q[b][k] * math.log(p[b][k]) for b in range(B) for k in range(5)) / B
    entropy = -sum(p[b][k] * math.log(p[b][k]) for b in range(B) for k in range(5)) / B
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert metrics["auxiliary/loss"].item() == loss.item()
    assert metrics["auxiliary/proto_entropy"].item() == pytest.approx(entropy, rel=1e-4)
    assert not any(value.requires_grad for value in metrics.values())


def test_prototypes_are_unit_vectors_from_the_start_and_after_each_step() -> None:
    proto = task()
    weight = proto.prototypes.weight
    torch.testing.assert_close(weight.norm(dim=1).detach(), torch.ones(5))
    expected = weight.detach().clone()
    weight.data.mul_(torch.linspace(0.5, 3, 5)[:, None])  # as an optimizer might leave them
    proto.constrain()
    assert proto.prototypes.weight is weight
    torch.testing.assert_close(weight.detach(), expected)


def test_gradients_reach_encoder_and_heads_but_no_slow_copy() -> None:
    proto, data = task(), batch()
    online, slow = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
    loss, _ = proto.loss(lambda o: online(o.flatten(1)), lambda o: slow(o.flatten(1)), data)
    # Using the prototypes once more must not spoil the graph that is waiting.
    proto.reward(torch.randn(B, FEATURES))
    learned = [p for head in proto.learned().values() for p in head.parameters()]  # type: ignore[union-attr]
    trainable = [p for p in proto.parameters() if p.requires_grad]
    assert {id(p) for p in learned} == {id(p) for p in trainable}
    for gradient in torch.autograd.grad(loss, [*online.parameters(), *learned], retain_graph=True):
        assert gradient.abs().max() > 1e-6
    gradients = torch.autograd.grad(loss, list(slow.parameters()), allow_unused=True)
    assert all(gradient is None for gradient in gradients)


def test_the_target_is_no_way_to_move_the_prototypes() -> None:
    """Their gradient is the cross-entropy's alone, with the target held fixed."""
    proto, data = task(), batch()
    loss, _ = proto.loss(flat, double_and_one, data)
    (gradient,) = torch.autograd.grad(loss, [proto.prototypes.weight])
    with torch.no_grad():
        u = F.normalize(proto.predictor(proto.projector(flat(data.observation[:, 0]))), dim=1)
        v = F.normalize(proto.slow_projector(double_and_one(data.observation[:, 1])), dim=1)
        c = proto.prototypes.weight
        expected = ((u @ c.T / 0.1).softmax(1) - sinkhorn(v @ c.T / 0.1, 3)).T @ u / 0.1 / B
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


def test_slow_projector_follows() -> None:
    proto = task()
    (ema,) = proto.slow_copies()
    before = proto.slow_projector.weight.clone()
    ema.step()
    torch.testing.assert_close(
        proto.slow_projector.weight, 0.9 * before + 0.1 * proto.projector.weight.detach()
    )


def test_the_ring_wraps() -> None:
    proto = task()  # 12 places
    numbers = torch.arange(1.0, 31.0)[:, None].expand(30, 4)
    for first in range(0, 30, 5):
        proto.remember(numbers[first : first + 5])
        held = sorted(v for v in proto.queue[:, 0].tolist() if v)
        assert held == [float(v) for v in range(max(1, first + 5 - 11), first + 6)]
    assert int(proto.enqueued) == 30
    # 30 = 2 * 12 + 6: the newest, number 30, is in place 5, the oldest, 19, in place 6.
    assert proto.queue[:, 0].tolist() == [25, 26, 27, 28, 29, 30, 19, 20, 21, 22, 23, 24]


def test_reward_by_brute_force() -> None:
    proto = task()
    generator = torch.Generator().manual_seed(6)
    queue: list[list[float]] = []
    for call in range(5):
        features = torch.randn(B, FEATURES, generator=generator)
        seed = int(proto.draws.count) + 1
        reward = proto.reward(features)
        assert reward.shape == (B,)
        assert not reward.requires_grad

        z = F.normalize(proto.projector(features), dim=1).detach()
        p = (proto.prototypes.weight.detach() @ z.T).softmax(1)
        drawn = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(seed))
        queue = (queue + [z[int(i)].tolist() for i in drawn])[-12:]
        assert len(queue) == min(5 * (call + 1), 12)
        expected = [sorted(math.dist(one, other) for other in queue)[2] for one in z.tolist()]
        torch.testing.assert_close(reward, torch.tensor(expected))


def test_what_was_just_remembered_is_at_distance_zero() -> None:
    proto = task(replace(SMALL, neighbour=1))
    features = torch.randn(B, FEATURES)
    reward = proto.reward(features)
    z = F.normalize(proto.projector(features), dim=1)
    held = torch.cdist(z, proto.queue[:5]).min(1).values < 1e-3
    assert held.any()
    assert not held.all()
    assert (reward[held] == 0).all()
    assert (reward[~held] > 0.01).all()


def test_an_empty_queue_has_no_neighbours() -> None:
    """Zeros at distance 1 that nobody visited do not count."""
    proto = task(replace(SMALL, prototypes=3, queue=2000))
    features = torch.randn(B, FEATURES)
    z = F.normalize(proto.projector(features), dim=1)
    furthest = torch.cdist(z, z).max(1).values
    assert furthest.max() > 1
    reward = proto.reward(features)
    expected = torch.cdist(z, proto.queue[:3]).max(1).values
    torch.testing.assert_close(reward, expected.detach(), atol=1e-3, rtol=0.0)


def test_candidates_are_those_of_multinomial() -> None:
    proto = task()
    z = torch.nn.functional.normalize(torch.randn(9, 4), dim=1)
    chance = torch.Generator().manual_seed(int(proto.draws.count) + 1)
    probability = proto.prototypes(z).T.softmax(1)
    expected = torch.multinomial(probability, 1, generator=chance).squeeze(1)
    assert torch.equal(proto.candidates(z), expected)


def test_candidates_follow_the_softmax_over_the_batch() -> None:
    proto = task()
    z = F.normalize(torch.randn(B, 4, generator=torch.Generator().manual_seed(7)), dim=1)
    counts = torch.zeros(5, B)
    for _ in range(4000):
        counts[torch.arange(5), proto.candidates(z)] += 1
    with torch.no_grad():
        expected = (proto.prototypes.weight @ z.T).softmax(1)
    torch.testing.assert_close(counts / 4000, expected, atol=0.04, rtol=0.0)


def test_chance_and_memory_survive_a_round_trip() -> None:
    proto = task()
    features = [torch.randn(B, FEATURES) for _ in range(6)]
    for one in features[:3]:
        proto.reward(one)
    torch.manual_seed(8)
    resumed = Proto(SMALL, FEATURES, ema_rate=0.1)
    resumed.load_state_dict(copy.deepcopy(proto.state_dict()))
    state = torch.get_rng_state()
    for one in features[3:]:
        assert resumed.reward(one).equal(proto.reward(one))
    assert resumed.queue.equal(proto.queue)
    assert resumed.enqueued == proto.enqueued
    assert torch.get_rng_state().equal(state)  # no use of the global generator


def test_reward_learns_nothing() -> None:
    proto = task()
    before = copy.deepcopy(dict(proto.named_parameters()))
    proto.reward(torch.randn(B, FEATURES))
    for name, parameter in proto.named_parameters():
        assert parameter.equal(before[name]), name


def test_build() -> None:
    shapes = Shapes(50, (3, 3, 4), 2, (3, 9, 9, 3), ema_rate=0.02)
    built = ProtoConfig().build(shapes)
    assert isinstance(built, Proto)
    assert isinstance(built, RewardSource)
    assert (built.sees, built.slow_encoder_rate) == ("features", None)
    assert (ProtoConfig().horizon, ProtoConfig().rewards) == (0, True)
    assert built.projector.weight.shape == (128, 36)
    assert built.prototypes.weight.shape == (512, 128)
    assert built.queue.shape == (2048, 128)
    assert built.slow_copies()[0].rate == 0.02
    shrunk = ProtoConfig().shrunk()
    assert (shrunk.projection_dim, shrunk.predictor_hidden) == (16, 16)
    assert (shrunk.prototypes, shrunk.queue) == (16, 64)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("neighbour=0", "neighbour must be at least 1"),
        ("neighbour=17", "neighbour <= prototypes <= queue must hold, not 17, 16, 64"),
        ("queue=15", "neighbour <= prototypes <= queue must hold, not 3, 16, 15"),
    ],
)
def test_impossible_sizes_are_refused(wrong: str, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        tiny("proto_rl", f"method.auxiliary.{wrong}")
