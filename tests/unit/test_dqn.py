"""Deep Q-learning: losses and choices by hand, lives in returns, the network for small images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from kstep.config import resolve
from kstep.data import n_step
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.nets.state import StateEncoder
from kstep.nets.trunks import MinAtarConfig
from kstep.rl.dqn import DQN, DQNConfig, QNetwork
from kstep.rl.n_step import Linear
from kstep.types import EnvSpec, KstepError, TransitionBatch
from tests.make import agent_and_replay


class Table(nn.Module):
    """Q-values that do not depend on the state, but for a parameter that the loss reaches."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, latent: Tensor) -> Tensor:
        return self.values.expand(len(latent), -1)


def core(**changes: object) -> tuple[DQN, StateEncoder]:
    encoder = StateEncoder((3,), 1)
    made = DQN(DQNConfig(hidden=4, **changes), 3, 3)  # type: ignore[arg-type]
    made.critic, made.slow_critic = Table(1.0, 4.0, 2.0), Table(5.0, 3.0, 0.5)  # type: ignore[assignment]
    return made, encoder


def batch() -> TransitionBatch:
    """The first and the last action; the second transition is terminal."""
    state = torch.zeros(2, 1, 3)
    action = torch.eye(3)[[0, 2]]
    bootstrap = torch.tensor([0.99**9, 0.0])
    return TransitionBatch(state, action, torch.tensor([1.0, 2.5]), state, bootstrap)


def huber(error: float) -> float:
    return error**2 / 2 if abs(error) <= 1 else abs(error) - 0.5


@pytest.mark.parametrize(("double", "value"), [(True, 3.0), (False, 5.0)])
def test_the_loss_by_hand(double: bool, value: float) -> None:
    """Double: the slow value of what the online network likes best; else the slow best."""
    made, encoder = core(double=double)
    chance = torch.Generator().manual_seed(0)
    loss, encoded, metrics = made.critic_loss(encoder, encoder, batch(), chance)
    targets = [1.0 + 0.99**10 * value, 2.5]
    wanted = (huber(1.0 - targets[0]) + huber(2.0 - targets[1])) / 2
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert metrics["critic/target"].item() == pytest.approx(sum(targets) / 2, rel=1e-5)
    assert metrics["critic/q"].item() == pytest.approx(1.5)
    assert metrics["actor/epsilon"].item() == 1.0
    # Only the values of the actions that were taken have a gradient, at most 1 of 2 samples each.
    (gradient,) = torch.autograd.grad(loss, [*made.critic.parameters()])
    assert gradient.tolist() == pytest.approx([-0.5, 0.0, -0.25])
    assert [*made.actor_losses(encoder, batch().observation, encoded, chance)] == []


def test_a_dueling_network_is_a_value_and_advantages_around_it() -> None:
    latent = torch.randn(5, 6)
    net = QNetwork(6, 8, 3, dueling=True)
    assert net.value is not None
    advantage = net.advantage(latent)
    assert torch.allclose(net(latent).mean(-1, keepdim=True), net.value(latent), atol=1e-6)
    assert torch.allclose(net(latent) - net(latent)[:, :1], advantage - advantage[:, :1], atol=1e-6)
    plain = QNetwork(6, 8, 3, dueling=False)
    assert torch.equal(plain(latent), plain.advantage(latent))


def test_choices_are_greedy_but_for_a_share_that_falls() -> None:
    made, encoder = core(epsilon=Linear(1.0, 0.1, 100))
    states, chance = torch.zeros(4000, 1, 3), torch.Generator().manual_seed(1)
    assert torch.equal(made.act(encoder, states[:2], None), torch.eye(3)[[1, 1]])
    for decisions, share in ((0, 1.0), (50, 0.55), (1000, 0.1)):
        made.decisions = decisions
        tried = made.act(encoder, states, chance)
        assert (tried.sum(-1) == 1).all()
        others = 1 - tried[:, 1].mean().item()  # a random action is the best one in three
        assert others == pytest.approx(share * 2 / 3, abs=0.03)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["method.core.epsilon.start=1.5"], "epsilon.start must be at most 1, not 1.5"),
        (["method.auxiliary.transition.kind=shared"], "see the latent alone"),
    ],
)
def test_what_cannot_work_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(KstepError, match=message):
        resolve("ksl_dqn", "toy_arrows", overrides=overrides)


def lives() -> Replay:
    """Six decisions with rewards 1, 2, 4, ...; the third costs a life, the last ends the game."""
    spec = EnvSpec("pixels", (4, 4, 1), 2, 1, 20, "discrete")
    replay = Replay(ReplayConfig(20), spec, 1)
    replay.begin(np.zeros((4, 4, 1), np.uint8))
    for t in range(6):
        frame = np.full((4, 4, 1), t + 1, np.uint8)
        replay.add(np.eye(2)[0], 2.0**t, t == 5, False, frame, life_lost=t == 2)
    return replay


def test_a_return_ends_with_a_life_and_an_episode_does_not() -> None:
    drawn = n_step.transitions(lives(), 300, 4, 0.5, np.random.default_rng(0))
    first, last = (drawn.observation.at(t).together()[:, 0, 0, 0, 0] for t in (0, 1))
    found = {
        int(start): (int(end), float(reward), float(value))
        for start, end, reward, value in zip(
            first, last, drawn.reward[:, 0], drawn.bootstrap[:, 0], strict=True
        )
    }
    assert found == {
        0: (3, 1 + 0.5 * 2 + 0.25 * 4, 0.0),
        1: (3, 2 + 0.5 * 4, 0.0),
        2: (3, 4, 0.0),
        3: (6, 8 + 0.5 * 16 + 0.25 * 32, 0.0),
        4: (6, 16 + 0.5 * 32, 0.0),
        5: (6, 32, 0.0),
    }
    # What is seen goes on: sequences cross the loss of a life, and say so.
    across = lives().sequences(200, 3, np.random.default_rng(0))
    starts = across.observation.at(0).together()[:, 0, 0, 0, 0]
    assert set(starts) == {0, 1, 2, 3}
    assert across.bootstrap[starts == 1][0].tolist() == [1.0, 0.0, 1.0]


def test_the_network_for_small_images_is_that_of_minatars_authors() -> None:
    experiment = resolve("ksl_dqn", "minatar:breakout")
    assert experiment.method.encoder == MinAtarConfig()
    assert experiment.env.size == 10
    encoder = MinAtarConfig().build((10, 10, 4), 1)
    assert encoder.feature_shape == (8, 8, 16)
    assert encoder(torch.zeros(2, 1, 10, 10, 4, dtype=torch.uint8)).shape == (2, 128)
    for preset in ("cpu", "debug"):
        assert resolve("dqn", "minatar:breakout", preset=preset).method.encoder.image_size == 10


def test_the_policy_is_taken_over_with_the_q_network() -> None:
    one, _ = agent_and_replay("dqn")
    two, _ = agent_and_replay("dqn", seed=5)
    two.core.keep_policy(one.core)
    latent = torch.randn(3, one.encoder.latent_dim)
    for name in ("critic", "slow_critic"):
        mine, theirs = (getattr(agent.core, name)(latent) for agent in (one, two))
        assert torch.equal(mine, theirs)
