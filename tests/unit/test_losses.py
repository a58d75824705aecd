"""Every loss against numbers computed by hand or by plain code written for the test."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from kstep.auxiliary.base import Shapes
from kstep.auxiliary.ksl import KSL, DenseTransitionConfig, KSLConfig, Transition
from kstep.nets.base import Encoder
from kstep.nets.heads import Actor
from kstep.nets.state import StateEncoder, StateEncoderConfig
from kstep.rl.core import Encoded
from kstep.rl.sac import SAC, SACConfig
from kstep.types import KstepError, SequenceBatch, TransitionBatch
from kstep.values import check
from tests.make import ACTIONS, agent_and_replay, expect

SMALL = KSLConfig(k=3, transition=DenseTransitionConfig(hidden=(8, 8)), projection_hidden=8)
SHAPES = Shapes(4, (4,), 2, (1, 4), ema_rate=0.05)


class Fixed(nn.Module):
    """A critic that returns two given values whatever it sees, plus the sum of the actions."""

    def __init__(self, q1: float, q2: float) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.tensor([q1, q2]))

    def forward(self, latent: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        zero = 0 * latent.sum(-1) + action.sum(-1)
        return self.q[0] + zero, self.q[1] + zero


def sac(views: int = 1) -> tuple[SAC, Encoder]:
    encoder = StateEncoder((3,), 1)
    core = SAC(SACConfig(hidden=4, critic_views=views), encoder, StateEncoderConfig(), 1)
    # A policy that always answers tanh(0.5), with nearly no spread: log_std = -10.
    for parameter in core.actor.parameters():
        nn.init.zeros_(parameter)
    core.actor.body[-1].bias.data = torch.tensor([0.5, -40.0])
    return core, encoder


def batch(reward: list[float], bootstrap: list[float]) -> TransitionBatch:
    n = len(reward)
    return TransitionBatch(
        observation=torch.zeros(n, 1, 3),
        action=torch.zeros(n, 1),
        reward=torch.tensor(reward),
        next_observation=torch.ones(n, 1, 3),
        bootstrap=torch.tensor(bootstrap),
    )


def test_value_target_by_hand() -> None:
    core, encoder = sac()
    core.slow_critic = Fixed(3.0, 5.0)  # type: ignore[assignment]
    core.log_temperature.data.fill_(math.log(0.2))
    generator = torch.Generator().manual_seed(4)
    noise = torch.randn(2, 1, generator=generator).squeeze(1)
    generator.manual_seed(4)
    target = core.value_target(encoder, encoder, batch([1.0, 2.0], [1.0, 0.0]), generator)

    std = math.exp(-10)
    u = 0.5 + std * noise[0].item()
    log_prob = -0.5 * noise[0].item() ** 2 + 10 - 0.5 * math.log(2 * math.pi)
    log_prob -= math.log(1 - math.tanh(u) ** 2)
    value = 3.0 + math.tanh(u) - 0.2 * log_prob
    assert target[0].item() == pytest.approx(1.0 + 0.99 * value, rel=1e-5)
    # A terminal state has no future; a time limit (bootstrap 1) keeps it.
    assert target[1].item() == pytest.approx(2.0)


def test_critic_loss_by_hand() -> None:
    core, encoder = sac()
    core.slow_critic = Fixed(0.0, 0.0)  # type: ignore[assignment]
    core.critic = Fixed(1.0, 4.0)  # type: ignore[assignment]
    loss, _, metrics = core.critic_loss(
        encoder, encoder, batch([2.0, 5.0], [0.0, 0.0]), torch.Generator()
    )
    # ((1-2)^2 + (1-5)^2)/2 + ((4-2)^2 + (4-5)^2)/2, no factor 1/2 in front
    assert loss.item() == pytest.approx(17 / 2 + 5 / 2)
    assert metrics["critic/target"].item() == pytest.approx(3.5)


def test_two_views_average_their_targets_and_add_their_losses() -> None:
    core, encoder = sac(views=2)
    core.slow_critic = Fixed(0.0, 0.0)  # type: ignore[assignment]
    core.critic = Fixed(1.0, 1.0)  # type: ignore[assignment]
    # Rewards 2 and 4 stand for the targets of two views of one transition: both regress on 3.
    loss, _, _ = core.critic_loss(
        encoder, encoder, batch([2.0, 4.0], [0.0, 0.0]), torch.Generator()
    )
    assert loss.item() == pytest.approx(4 * (1 - 3) ** 2)


def test_actor_and_temperature_loss_by_hand() -> None:
    core, encoder = sac()
    core.critic = Fixed(3.0, 5.0)  # type: ignore[assignment]
    generator = torch.Generator().manual_seed(9)
    noise = torch.randn(1, 1, generator=generator).item()
    generator.manual_seed(9)
    observation = torch.zeros(1, 1, 3)
    seen = Encoded(encoder.features(observation), encoder(observation))
    losses = core.actor_losses(encoder, observation, seen, generator)
    (_, loss, metrics), (_, temperature_loss, _) = losses
    u = 0.5 + math.exp(-10) * noise
    log_prob = -0.5 * noise**2 + 10 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(u) ** 2)
    assert loss.item() == pytest.approx(0.1 * log_prob - (3.0 + math.tanh(u)), rel=1e-5)
    # target entropy: minus the number of action dimensions
    assert temperature_loss.item() == pytest.approx(0.1 * (-log_prob + 1.0), rel=1e-5)
    (gradient,) = torch.autograd.grad(temperature_loss, core.log_temperature)
    assert gradient.item() == pytest.approx(temperature_loss.item(), rel=1e-5)  # through exp
    assert metrics["actor/entropy"].item() == pytest.approx(-log_prob, rel=1e-5)


@pytest.mark.parametrize("sample", ["shared", "fresh"])
def test_the_temperature_looks_at_the_actor_before_or_after_its_step(sample: str) -> None:
    """PI-SAC's authors draw new actions of the updated actor; the others take the loss's (D52)."""
    agent, replay = agent_and_replay(
        "pi_sac-original",
        f"method.core.temperature_sample={sample}",
        "method.core.initial_temperature=0.5",
        "method.learning.learning_rate=0.05",  # so that the actor's step shows
    )
    core, shape = expect(SAC, agent.core), (agent.method.learning.batch_size, ACTIONS)
    old_actor = copy.deepcopy(core.actor)
    draws = torch.Generator()
    draws.set_state(agent.streams.learn.get_state())
    update = agent.update(replay)

    torch.randn(shape, generator=draws)  # the next actions of the critic's target
    if sample == "fresh":
        torch.randn(shape, generator=draws)  # the actions of the actor's loss
    noise = draws.get_state()

    def gradient(actor: Actor) -> float:
        """Of log-temperature * (entropy - its target), by that actor."""
        draws.set_state(noise)
        _, log_prob = actor.forward(update.latent).sample(draws)
        assert core.target_entropy is not None
        return (-log_prob - core.target_entropy).mean().item()

    right, wrong = core.actor, old_actor
    if sample == "shared":
        right, wrong = wrong, right
    # After one step, Adam's first moment is a tenth of the gradient.
    stepped = 10 * agent.optimizers.state()["temperature/temperature/exp_avg"].item()
    assert stepped == pytest.approx(gradient(right), rel=1e-4)
    assert abs(stepped - gradient(wrong)) > 0.1
    assert update.metrics["temperature/loss"].item() == pytest.approx(
        math.log(0.5) * stepped, rel=1e-4
    )


def flat(observation: Tensor) -> Tensor:
    """An encoder that passes small vectors through: any callable will do."""
    return observation.flatten(1)


def sequences(b: int, k: int, dim: int = 4) -> SequenceBatch:
    generator = torch.Generator().manual_seed(k)
    observation = torch.randn(b, k + 1, 1, dim, generator=generator)
    return SequenceBatch(
        observation=observation,
        action=torch.randn(b, k, 2, generator=generator),
        reward=torch.zeros(b, k),
        bootstrap=torch.ones(b, k),
        second_view=observation[:, 0],
    )


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ksl_loss_equals_the_papers_pseudocode(k: int) -> None:
    torch.manual_seed(0)
    task = KSL(replace(SMALL, k=k), SHAPES)
    nn.init.normal_(
        task.slow_projector.get_parameter("0.weight")
    )  # else it equals the online projector
    data = sequences(6, k)
    loss, metrics = task.loss(flat, lambda s: 2 * flat(s) + 1, data)

    z = flat(data.observation[:, 0])
    total = 0.0
    for j in range(k):
        y_m = task.slow_projector(2 * flat(data.observation[:, j + 1]) + 1)
        z = task.transition(z, data.action[:, j])
        y_o = task.predictor(task.projector(z))
        difference = y_o / y_o.norm(dim=1, keepdim=True) - y_m / y_m.norm(dim=1, keepdim=True)
        distance = difference.square().sum(1).mean().item()
        assert metrics[f"auxiliary/ksl_step{j + 1}"].item() == pytest.approx(distance, rel=1e-4)
        total += distance
    assert loss.item() == pytest.approx(total / k, rel=1e-4)


def test_ksl_loss_sums_where_the_released_code_does() -> None:
    torch.manual_seed(0)
    mean = KSL(SMALL, SHAPES)
    summed = KSL(replace(SMALL, reduce="sum"), SHAPES)
    summed.load_state_dict(mean.state_dict())
    data = sequences(5, 3)
    a, b = mean.loss(flat, flat, data)[0], summed.loss(flat, flat, data)[0]
    assert b.item() == pytest.approx(3 * a.item(), rel=1e-6)
    assert 0 <= b.item() <= 4 * 3


def test_ksl_gradients_flow_through_every_transition_but_never_into_the_targets() -> None:
    torch.manual_seed(0)
    task = KSL(SMALL, SHAPES)
    data = sequences(5, 3)
    first = data.observation[:, 0].clone().requires_grad_()
    future = data.observation[:, 1:].clone().requires_grad_()
    joined = torch.cat([first[:, None], future], dim=1)
    loss, _ = task.loss(flat, flat, replace(data, observation=joined))
    loss.backward()  # type: ignore[no-untyped-call]
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert future.grad is None or future.grad.abs().sum() == 0
    assert all(p.grad is None for p in task.slow_projector.parameters())
    learned = [expect(nn.Module, part) for part in task.learned().values()]
    assert all(p.grad is not None for part in learned for p in part.parameters())


def test_a_perfect_prediction_costs_nothing() -> None:
    """With a transition that returns the next latent and equal heads, the distance is zero."""
    task = KSL(replace(SMALL, k=2), SHAPES)
    task.predictor.weight.data = torch.eye(4)
    task.projector = nn.Identity()
    task.slow_projector = nn.Identity()

    class Shift(nn.Module):
        def forward(self, latent: Tensor, action: Tensor, layers: object) -> Tensor:
            return latent + action

    task.transition = Shift()
    start, actions = torch.randn(3, 4), torch.randn(3, 2, 4)
    states = torch.stack([start, start + actions[:, 0], start + actions.sum(1)], dim=1)
    data = SequenceBatch(
        states[:, :, None], actions, torch.zeros(3, 2), torch.ones(3, 2), start[:, None]
    )
    assert task.loss(flat, flat, data)[0].item() == pytest.approx(0, abs=1e-6)
    opposite = replace(data, observation=-states[:, :, None])
    loss, _ = task.loss(lambda s: -flat(s), flat, opposite)
    assert loss.item() == pytest.approx(4, abs=1e-5)


def test_k_steps_are_predicted() -> None:
    assert replace(SMALL, k=5).horizon == 5
    with pytest.raises(KstepError, match="k must be at least 1"):
        check(replace(SMALL, k=0))


def test_the_released_transition_averages_two_layers_without_relu() -> None:
    released = DenseTransitionConfig(inputs=2, relu=False, hidden=(8, 8))
    transition = expect(Transition, KSL(replace(SMALL, transition=released), SHAPES).transition)
    z, a = torch.randn(3, 4), torch.randn(3, 2)
    x = torch.cat((z, a), 1)
    hidden = (transition.inputs[0](x) + transition.inputs[1](x)) / 2
    assert torch.allclose(transition(z, a), transition.body(hidden), atol=1e-6)
