"""The plain reference computes what the project computes; only then is comparing them fair."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kstep.agent import Agent
from kstep.auxiliary.ksl import KSL
from kstep.bench.steps import plain_module
from kstep.data.augment import Padding, cut
from kstep.data.batches import Batch
from kstep.data.replay import Replay
from kstep.rl.sac import SAC
from tests.make import agent_and_replay
from tests.passes import counting

plain: Any = plain_module()

BATCH = 16
"""torch.randn fills blocks of 16: two draws of that many are one of twice as many."""


def planes(stacks: Tensor) -> Tensor:
    """(B, S, H, W, C) to (B, S*C, H, W), contiguous."""
    return stacks.permute(0, 1, 4, 2, 3).flatten(1, 2).contiguous()


def in_its_order(linear: nn.Linear, encoder: Any) -> dict[str, Tensor]:
    """A linear layer on features flattened from (H, W, C), for those from (C, H, W)."""
    channels, height, width = encoder.map
    weight = linear.weight.detach().unflatten(1, (height, width, channels))  # type: ignore[no-untyped-call]
    return {"weight": weight.permute(0, 3, 1, 2).flatten(1), "bias": linear.bias.detach()}


def give(agent: Agent, learner: Any) -> None:
    """Copy all weights."""
    core, task = agent.core, agent.auxiliary
    assert isinstance(core, SAC)
    assert isinstance(task, KSL)
    for ours, its in (
        (agent.encoder, learner.critic.encoder),
        (agent.slow_encoder, learner.critic_target.encoder),
    ):
        its.convs.load_state_dict(ours.get_submodule("convolutions").state_dict())
        give_head(ours.get_submodule("head"), its)
    if core.actor.head is not None:
        give_head(core.actor.head, learner.actor.encoder)
    for module, its in (
        (core.actor.body, learner.actor.body),
        (core.critic.q1, learner.critic.q1),
        (core.critic.q2, learner.critic.q2),
        (core.slow_critic.q1, learner.critic_target.q1),
        (core.slow_critic.q2, learner.critic_target.q2),
        (task.transition, learner.transition),
        (task.projector, learner.projector),
        (task.slow_projector, learner.projector_target),
        (task.predictor, learner.predictor),
    ):
        its.load_state_dict(module.state_dict())


def give_head(head: Any, encoder: Any) -> None:
    encoder.fc.load_state_dict(in_its_order(head[0], encoder))
    encoder.ln.load_state_dict(head[1].state_dict())


class Recorded:
    """What an agent's updates draw, in the plain reference's form."""

    def __init__(self, agent: Agent) -> None:
        self.views = agent.method.core.critic_views
        self.draw = agent.batches.draw
        agent.batches.draw = self._draw  # type: ignore[method-assign]

    def _draw(self, replay: Replay, *, sequences: bool) -> Batch:
        self.drawn = self.draw(replay, sequences=sequences)
        return self.drawn

    def batch(self) -> Any:
        one, several = self.drawn.transitions, self.drawn.sequences
        assert several is not None
        pairs = zip(
            planes(one.observation).chunk(self.views),
            planes(one.next_observation).chunk(self.views),
            strict=True,
        )
        return plain.Batch(
            views=list(pairs),
            action=one.action[:BATCH],
            reward=one.reward[:BATCH, None],
            not_done=one.bootstrap[:BATCH, None],
            trajectory=[planes(stack) for stack in several.observation.unbind(1)],
            trajectory_actions=several.action,
        )


@pytest.mark.parametrize("method", ["ksl", "ksl-released"])
def test_same_losses_and_weights_on_the_same_batches(method: str) -> None:
    agent, replay = agent_and_replay(
        method, f"method.learning.batch_size={BATCH}", "method.learning.learning_rate=1e-4"
    )
    learner = plain.Learner(agent.method, agent.spec)
    give(agent, learner)
    learner.generator.set_state(agent.streams.learn.get_state())
    recorded = Recorded(agent)
    kinds = set()
    for _ in range(6):
        ours = agent.update(replay).metrics
        losses = learner.learn(recorded.batch())
        kinds |= losses.keys()
        for key, value in losses.items():
            assert value == pytest.approx(float(ours[key]), rel=1e-4, abs=1e-6), key
    assert kinds == {"critic/loss", "auxiliary/loss", "actor/loss", "temperature/loss"}

    head = agent.encoder.stages()["head"]
    assert isinstance(head, nn.Sequential)
    assert isinstance(head[0], nn.Linear)
    close(in_its_order(head[0], learner.critic.encoder)["weight"], learner.critic.encoder.fc.weight)
    for ours_, its in (
        (agent.encoder.stages()["convolutions"], learner.critic.encoder.convs),
        (agent.slow_encoder.stages()["convolutions"], learner.critic_target.encoder.convs),
        (agent.core.get_submodule("slow_critic.q2"), learner.critic_target.q2),
        (agent.core.get_submodule("actor.body"), learner.actor.body),
    ):
        for name, weight in ours_.named_parameters():
            close(weight, its.get_parameter(name))


def close(ours: Tensor, its: Tensor) -> None:
    # Where a gradient is nearly zero, Adam's first steps are its sign, which rounding decides.
    apart = (ours - its).detach().abs() > 1e-5
    assert apart.float().mean() < 1e-2
    assert float((ours - its).detach().norm() / its.detach().norm()) < 1e-3


@pytest.mark.parametrize(
    ("method", "forward", "mean_cost"), [("ksl", (9, 7), 12), ("ksl-released", (12, 10), 17)]
)
def test_passes_are_those_of_such_code(
    method: str, forward: tuple[int, int], mean_cost: int
) -> None:
    """In units of one pass over a batch; backward counts double."""
    agent, _ = agent_and_replay(method)
    learner = plain.Learner(agent.method, agent.spec)
    learner.fill(60)
    unit = agent.method.learning.batch_size
    with counting((learner.critic.encoder, learner.critic_target.encoder)) as passes:
        each = []
        for _ in range(2):
            before = passes.forward
            learner.update()
            each.append((passes.forward - before) / unit)
    assert tuple(each) == forward
    assert sum(each) / 2 + 2 * passes.backward / unit / 2 == mean_cost


@pytest.mark.parametrize("padding", ["replicate", "zero"])
def test_same_shift(padding: Padding) -> None:
    rng = np.random.default_rng(0)
    stacks = rng.integers(0, 256, (5, 3, 12, 12, 3), dtype=np.uint8)
    offsets = rng.integers(0, 9, (5, 2))
    ours = cut(stacks, offsets, 12, 12, pad=4, padding=padding)
    as_planes = planes(torch.from_numpy(stacks)).numpy()
    its = plain.random_shift(as_planes, 4, padding, rng, offsets)
    assert np.array_equal(planes(torch.from_numpy(ours)).numpy(), its)


def test_trajectories_follow_each_other() -> None:
    agent, _ = agent_and_replay("ksl")
    learner = plain.Learner(agent.method, agent.spec)
    learner.fill(60)
    stacks, actions = learner.replay.sample_trajectories(50, 3, np.random.default_rng(0))
    assert len(stacks) == 4
    assert actions.shape == (50, 3, agent.spec.action_dim)
    for before, after in pairwise(stacks):
        assert np.array_equal(before[:, 3:], after[:, :-3])
