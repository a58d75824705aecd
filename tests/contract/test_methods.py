"""What every method in the registry promises, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kstep.agent import Agent
from kstep.methods import METHODS
from kstep.rng import Streams
from tests.make import agent_and_replay, filled_replay, moved, snapshot, spec_for, tiny

every_method = pytest.mark.parametrize("method", METHODS)
with_task = pytest.mark.parametrize(
    "method", [name for name, method in METHODS.items() if method.auxiliary]
)


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    return snapshot({k: v for k, v in agent.state().items() if not k.startswith("optimizers/")})


OWNED = {
    "critic": {"encoder", "core/critic"},
    "actor": {"core/actor"},
    "temperature": {"core/log_temperature"},
    "auxiliary": {"encoder", "task/transition", "task/projector", "task/predictor"},
}


def owner(name: str) -> str:
    """encoder/convolutions.0.weight -> encoder; core/critic.q1.0.bias -> core/critic."""
    module, rest = name.split("/", 1)
    return module if module in ("encoder", "slow_encoder") else f"{module}/{rest.split('.')[0]}"


@every_method
def test_each_loss_moves_what_it_owns_and_nothing_else(method: str) -> None:
    agent, replay = agent_and_replay(method)
    batch = agent._transitions(replay)
    parts = {
        "critic": lambda: agent._update_critic(batch),
        "actor+temperature": lambda: agent._update_actor(batch),
    }
    if agent.task is not None:
        task = agent.task
        parts["auxiliary"] = lambda: agent._update_auxiliary(task, replay)
    for name, update in parts.items():
        before = weights(agent)
        update()
        found = {owner(key) for key in moved(before, weights(agent))}
        declared = set().union(*(OWNED[part] for part in name.split("+")))
        if METHODS[method].observation == "state":
            declared.discard("encoder")  # it has nothing to learn
        assert found == declared, name
        # The live optimizer says the same; `kstep show` prints it.
        shown = {m for part in name.split("+") for m in agent.optimizers.groups[part].modules}
        assert {d.split("/")[-1].removeprefix("log_") for d in declared} <= shown


@every_method
def test_training_moves_every_parameter(method: str) -> None:
    agent, replay = agent_and_replay(method)
    before = weights(agent)
    for _ in range(6):
        agent.update(replay)
    still = set(before) - moved(before, weights(agent))
    # A bias before LayerNorm's mean, or dead units of a tiny net, may stand still; tensors may not.
    assert not still


@every_method
def test_slow_copies_move_on_even_updates_by_their_rate(method: str) -> None:
    agent, replay = agent_and_replay(method)
    for number in range(4):
        before = weights(agent)
        agent.update(replay)
        after = weights(agent)
        for prefix, online, rate in (
            ("slow_encoder/", "encoder/", 0.05),
            ("core/slow_critic.", "core/critic.", 0.01),
            ("task/slow_projector.", "task/projector.", 0.05),
        ):
            for key in (key for key in before if key.startswith(prefix)):
                target = after[key.replace(prefix, online)]
                expected = torch.lerp(before[key], target, rate) if number % 2 == 0 else before[key]
                assert torch.allclose(after[key], expected, atol=1e-7), (number, key)


@every_method
def test_rate_zero_freezes_the_slow_copies(method: str) -> None:
    agent, replay = agent_and_replay(
        method,
        "method.learning.critic_ema_rate=0",
        "method.learning.encoder_ema_rate=0",
    )
    before = weights(agent)
    for _ in range(3):
        agent.update(replay)
    assert not {k for k in moved(before, weights(agent)) if "slow_" in k}


@every_method
def test_learning_rate_zero_moves_nothing(method: str) -> None:
    agent, replay = agent_and_replay(
        method,
        "method.learning.learning_rate=0",
        "method.learning.auxiliary_learning_rate=0",
    )
    before = weights(agent)
    for _ in range(3):
        agent.update(replay)
    after = weights(agent)
    assert not {k for k in moved(before, after) if "slow_" not in k}
    for key in before:  # a slow copy of something that stands still may only round
        assert torch.allclose(before[key], after[key], atol=1e-7)


@every_method
def test_actor_every_and_order_are_read(method: str) -> None:
    agent, replay = agent_and_replay(method)
    seen = ["actor/loss" in agent.update(replay) for _ in range(4)]
    assert seen == [True, False, True, False]


@every_method
def test_two_agents_of_one_seed_are_bit_identical(method: str) -> None:
    states = []
    for _ in range(2):
        agent, replay = agent_and_replay(method)
        for _ in range(5):
            agent.update(replay)
        states.append(snapshot(agent.state()))
    assert not moved(*states)
    other, replay = agent_and_replay(method, seed=4)
    other.update(replay)
    assert moved(states[0], other.state())


@every_method
def test_acting_greedily_changes_no_state(method: str) -> None:
    agent, replay = agent_and_replay(method)
    agent.update(replay)
    before, streams = snapshot(agent.state()), agent.streams.state()
    observation = replay.newest_stack()[None]
    one = agent.act(observation, explore=False)
    two = agent.act(observation, explore=False)
    assert np.array_equal(one, two)
    assert not moved(before, agent.state())
    assert agent.streams.state() == streams
    assert not np.array_equal(one, agent.act(observation, explore=True))
    assert not moved(before, agent.state())
    assert np.abs(one).max() <= 1


@every_method
def test_saved_and_loaded_agents_go_on_alike(method: str) -> None:
    agent, replay = agent_and_replay(method)
    for _ in range(3):
        agent.update(replay)
    # Contiguous, as files hold them; the live convolutions are laid out channels last.
    saved = {name: tensor.detach().contiguous().clone() for name, tensor in agent.state().items()}
    streams, updates = agent.streams.state(), agent.updates
    for _ in range(3):
        agent.update(replay)
    again, _ = agent_and_replay(method, seed=99)
    again.load_state(saved)
    again.streams.load_state(streams)
    again.updates = updates
    for _ in range(3):
        again.update(replay)
    assert not moved(agent.state(), again.state())


@every_method
def test_losses_return_finite_detached_scalars(method: str) -> None:
    agent, replay = agent_and_replay(method)
    for value in agent.update(replay).values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)


@with_task
def test_the_first_auxiliary_step_is_as_long_as_the_encoders_rate(method: str) -> None:
    """Adam's first step is its learning rate; with the double step, the sum of two (D05)."""
    agent, replay = agent_and_replay(method)
    assert agent.task is not None
    before = agent.encoder.head[0].weight.detach().clone()  # type: ignore[index]
    agent._update_auxiliary(agent.task, replay)
    step = (agent.encoder.head[0].weight - before).abs().max().item()  # type: ignore[index]
    expected = {"ksl": 1e-3, "ksl-results": 1.1e-3, "ksl-released": 2e-3}[method]
    assert step == pytest.approx(expected, rel=1e-2)
    rates = agent.optimizers.groups["auxiliary"]
    assert rates.rate("transition") == {"ksl-results": 1e-4}.get(method, 1e-3)


def test_the_actors_share_what_they_declare() -> None:
    agent, _ = agent_and_replay("ksl")
    assert agent.core.actor.head is None
    released, replay = agent_and_replay("ksl-released")
    head = released.core.actor.head
    assert head is not None
    assert not torch.equal(head[0].weight, released.encoder.head[0].weight)  # type: ignore[index]
    # One actor update leaves every convolution and every critic weight as it was (facts 17.4).
    batch = released._transitions(replay)
    before = weights(released)
    released._update_actor(batch)
    changed = moved(before, weights(released))
    assert all(key.startswith(("core/actor", "core/log_temperature")) for key in changed)


def test_the_momentum_encoder_is_the_target_critics_encoder() -> None:
    """One slow encoder serves both, so it is averaged once per even update (D10)."""
    agent, replay = agent_and_replay("ksl")
    seen: list[int] = []
    agent.slow_encoder.register_forward_hook(lambda *_: seen.append(1))
    agent.update(replay)
    assert len(seen) == 2  # the critic's target and the auxiliary targets, each in one batch
    assert sum(ema.slow is agent.slow_encoder for ema in agent.slow_copies) == 1


def passes(method: str, updates: int = 10) -> tuple[float, float]:
    """Mean passes through the convolutions per learning step, in units of one batch."""
    agent, replay = agent_and_replay(method)
    count = {"forward": 0, "backward": 0}

    def counted(features: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def wrapper(observation: Tensor) -> Tensor:
            output = features(observation)
            count["forward"] += len(output)
            if output.requires_grad:
                output.register_hook(
                    lambda grad: count.update(backward=count["backward"] + len(grad))
                )
            return output

        return wrapper

    for encoder in (agent.encoder, agent.slow_encoder):
        encoder.features = counted(encoder.features)  # type: ignore[method-assign]
    for _ in range(updates):
        agent.update(replay)
    unit = agent.method.learning.batch_size * updates
    return count["forward"] / unit, count["backward"] / unit


@pytest.mark.parametrize(
    ("method", "forward", "backward"),
    [("ksl", 7.5, 2), ("ksl-results", 10.5, 3), ("ksl-released", 10.5, 3), ("sac_pixel", 3.5, 1)],
)
def test_encoder_passes_per_learning_step(method: str, forward: float, backward: float) -> None:
    assert passes(method) == (forward, backward)


@every_method
def test_every_setting_changes_the_method_or_is_refused(method: str) -> None:
    """A value that nothing reads would be a lie; the digest at least must see every field."""
    from kstep.config import digest

    experiment = tiny(method)
    seen = {digest(experiment)}
    for name, value in vars(experiment.method.learning).items():
        if isinstance(value, bool):
            other: object = not value
        elif isinstance(value, int | float):
            other = value * 2
        elif value is None:
            other = 0.5
        elif isinstance(value, tuple):
            other = value[::-1]
        else:
            other = "env_steps"
        changed = replace(
            experiment.method, learning=replace(experiment.method.learning, **{name: other})
        )
        mark = digest(replace(experiment, method=changed))
        assert mark not in seen, name
        seen.add(mark)


def test_order_of_an_update_matters_and_is_followed() -> None:
    calls: list[str] = []
    for method, expected in (("ksl", "CA"), ("ksl-results", "CA"), ("ksl-released", "AC")):
        agent, replay = agent_and_replay(method)
        calls.clear()
        critic, auxiliary = agent._update_critic, agent._update_auxiliary
        agent._update_critic = lambda *a, f=critic: (calls.append("C"), f(*a))[1]  # type: ignore
        agent._update_auxiliary = lambda *a, f=auxiliary: (calls.append("A"), f(*a))[1]  # type: ignore
        agent.update(replay)
        assert "".join(calls) == expected


def test_a_state_method_takes_state_vectors() -> None:
    experiment = tiny("sac_state")
    spec = spec_for(experiment)
    agent = Agent(experiment.method, spec, Streams(0))
    assert spec.frame_shape == (5,)
    agent.update(filled_replay(spec, 1))
