"""n-step returns: against a slow model of painted episodes, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kstep.data import n_step
from kstep.data.replay import Replay, ReplayUnderfilled
from kstep.data.ring import ReplayConfig
from kstep.nets.state import StateEncoder, StateEncoderConfig
from kstep.rl.core import Encoded
from kstep.rl.ddpg import DDPG, INSIDE, DDPGConfig
from kstep.rl.n_step import Linear
from tests.make import agent_and_replay
from tests.unit.test_losses import Fixed, batch
from tests.unit.test_replay import Recorder, action_of, pixel_spec, reward_of, start_of

DISCOUNT = 0.9


def expected(recorder: Recorder, episode: int, start: int, n: int) -> tuple[int, float, float]:
    """Where a return ends, what it is, and the factor on the value there but for one discount."""
    played = recorder.episodes[episode]
    end = min(start + n, played.decisions)
    rewards = [reward_of(episode, step) for step in range(start, end)]
    total = sum(DISCOUNT**i * reward for i, reward in enumerate(rewards))
    terminal = played.terminated and end == played.decisions
    return end, total, 0.0 if terminal else DISCOUNT ** (len(rewards) - 1)


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.integers(1, 25),
    stack=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    endings=st.lists(
        st.sampled_from(["terminated", "truncated", "none"]), min_size=14, max_size=14
    ),
    n=st.integers(1, 6),
)
def test_returns_are_exactly_the_models(
    capacity: int, stack: int, lengths: list[int], endings: list[str], n: int
) -> None:
    """Every start with at least one decision; cut at a terminal state, a time limit, the newest
    frame; also once the ring has wrapped around."""
    recorder = Recorder(Replay(ReplayConfig(capacity), pixel_spec(4), stack))
    for length, ending in zip(lengths, endings, strict=False):
        recorder.episode(length, ending)
    starts, rng = recorder.starts(1, "any"), np.random.default_rng(0)
    if not starts:
        with pytest.raises(ReplayUnderfilled):
            n_step.transitions(recorder.replay, 1, n, DISCOUNT, rng)
        return
    drawn = n_step.transitions(recorder.replay, 1500, n, DISCOUNT, rng)
    first, last = (drawn.observation.at(t).together() for t in (0, 1))
    found = {start_of(stacks): b for b, stacks in enumerate(first)}
    assert set(found) == starts
    for (episode, start), b in found.items():
        end, total, bootstrap = expected(recorder, episode, start, n)
        assert np.array_equal(first[b], recorder.stack_array(episode, start))
        assert np.array_equal(last[b], recorder.stack_array(episode, end))
        assert np.array_equal(drawn.action[b, 0], action_of(episode, start))
        assert drawn.reward[b, 0] == pytest.approx(total, rel=1e-5)
        assert drawn.bootstrap[b, 0] == pytest.approx(bootstrap, rel=1e-6)


def test_a_time_limit_keeps_the_value_and_a_terminal_state_ends_it() -> None:
    recorder = Recorder(Replay(ReplayConfig(50), pixel_spec(8), 1))
    recorder.episode(4, "truncated")
    recorder.episode(4, "terminated")
    drawn = n_step.transitions(recorder.replay, 400, 3, DISCOUNT, np.random.default_rng(1))
    stacks = drawn.observation.at(0).together()
    weights = {start_of(s): float(b) for s, b in zip(stacks, drawn.bootstrap[:, 0], strict=True)}
    # Over three decisions, two and one: the core multiplies by one discount more.
    limit = [weights[0, step] for step in range(4)]
    assert limit == pytest.approx([0.81, 0.81, 0.9, 1.0])
    assert [weights[1, step] for step in range(4)] == pytest.approx([0.81, 0.0, 0.0, 0.0])


def test_one_decision_is_the_usual_transition() -> None:
    recorder = Recorder(Replay(ReplayConfig(50), pixel_spec(8), 2))
    recorder.episode(5, "terminated")
    recorder.episode(6, "none")
    usual = recorder.replay.sequences(40, 1, np.random.default_rng(2))
    drawn = n_step.transitions(recorder.replay, 40, 1, DISCOUNT, np.random.default_rng(2))
    assert np.array_equal(usual.observation.slots, drawn.observation.slots)
    for name in ("action", "reward", "bootstrap"):
        assert np.array_equal(getattr(usual, name), getattr(drawn, name))


def test_schedules_are_linear_and_then_stay() -> None:
    noise = Linear(1.0, 0.1, 100)
    found = [noise.at(decisions) for decisions in (0, 50, 100, 1000)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


def ddpg(**changes: float) -> tuple[DDPG, StateEncoder]:
    encoder = StateEncoder((3,), 1)
    core = DDPG(DDPGConfig(hidden=4, **changes), encoder, StateEncoderConfig(), 1)  # type: ignore[arg-type]
    for parameter in core.actor.parameters():
        nn.init.zeros_(parameter)
    core.actor.body[-1].bias.data = torch.tensor([0.5])
    core.critic, core.slow_critic = Fixed(1.0, 4.0), Fixed(3.0, 5.0)  # type: ignore[assignment]
    return core, encoder


MEAN = math.tanh(0.5)


def test_ddpg_losses_by_hand() -> None:
    core, encoder = ddpg()
    core.decisions = 50_000  # half of the way from 1.0 to 0.1
    chance = torch.Generator().manual_seed(4)
    noise = 0.55 * torch.randn(2, 1, generator=chance).clamp(-0.3 / 0.55, 0.3 / 0.55)
    assert noise.abs().max() == pytest.approx(0.3)  # one of the two is clipped
    action = (MEAN + noise).clamp(-1, 1)[0].item()
    chance.manual_seed(4)
    seen = batch([1.0, 2.0], [0.81, 0.0])
    loss, encoded, metrics = core.critic_loss(encoder, encoder, seen, chance)
    # Over three decisions, the value at 0.99 times the 0.81 that came with it; then a terminal one.
    targets = [1.0 + 0.81 * 0.99 * (3.0 + action), 2.0]
    wanted = sum((1.0 - y) ** 2 + (4.0 - y) ** 2 for y in targets) / 2
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert metrics["critic/target"].item() == pytest.approx(sum(targets) / 2, rel=1e-5)

    chance.manual_seed(4)
    ((name, loss, metrics),) = core.actor_losses(encoder, seen.observation, encoded, chance)
    assert name == "actor"
    assert loss.item() == pytest.approx(-(1.0 + (MEAN + noise).mean().item()), rel=1e-5)
    assert metrics["actor/noise"].item() == pytest.approx(0.55)


def test_actions_stay_inside_and_the_gradient_passes_the_bounds() -> None:
    core, encoder = ddpg()
    observation = torch.zeros(500, 1, 3)
    assert core.act(encoder, observation, None)[0].item() == pytest.approx(MEAN)
    tried = core.act(encoder, observation, torch.Generator().manual_seed(0)).detach()
    # Unclipped when acting: with a standard deviation of 1 many actions meet their bounds.
    assert tried.max() == pytest.approx(1.0 - INSIDE)
    assert tried.min() == pytest.approx(-1.0 + INSIDE)
    encoded = Encoded(torch.zeros(8, 3), torch.zeros(8, 3))
    core.actor.body[-1].bias.data = torch.tensor([2.0])  # tanh(2) plus noise is often above 1
    chance = torch.Generator().manual_seed(0)
    ((_, loss, _),) = core.actor_losses(encoder, observation[:8], encoded, chance)
    (gradient,) = torch.autograd.grad(loss, core.actor.get_parameter("body.4.bias"))
    assert gradient.item() == pytest.approx(-(1 - math.tanh(2.0) ** 2), rel=1e-4)


def test_the_target_uses_the_online_convolutions_and_the_slow_head() -> None:
    agent, replay = agent_and_replay("drq_v2")
    slow = agent.slow_encoder
    drawn = agent.batches.draw(replay, sequences=False).transitions

    def target() -> float:
        chance = torch.Generator().manual_seed(0)
        core = agent.core
        _, _, metrics = core.critic_loss(agent.core_encoder, agent.core_slow_encoder, drawn, chance)
        return metrics["critic/target"].item()

    before = target()
    slow.get_parameter("convolutions.0.weight").data.mul_(2.0)
    assert target() == before
    slow.get_parameter("head.0.weight").data.neg_()
    assert target() != before


@pytest.mark.parametrize("method", ["drq_v2", "ksl_drq_v2"])
def test_the_auxiliary_task_learns_from_single_decisions(method: str) -> None:
    agent, replay = agent_and_replay(method)
    drawn = agent.batches.draw(replay, sequences=True)
    assert drawn.transitions.bootstrap.min() == pytest.approx(0.99**2)
    if drawn.sequences is not None:
        assert (drawn.sequences.bootstrap == 1.0).all()
        assert drawn.sequences.action.shape[1] == 3
