"""What every method in the registry promises, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kstep.agent import Agent
from kstep.data.batches import Batch
from kstep.methods import METHODS
from kstep.optimizers import Ema, Optimizers
from kstep.rl.core import Encoded
from kstep.rl.sac import SAC
from kstep.rng import Streams
from kstep.types import Backend, TransitionBatch
from tests.make import agent_and_replay, expect, filled_replay, moved, snapshot, spec_for, tiny
from tests.passes import per_update

every_method = pytest.mark.parametrize("method", METHODS)


def weights(agent: Agent) -> dict[str, torch.Tensor]:
    return snapshot({k: v for k, v in agent.state().items() if not k.startswith("optimizers/")})


def parameters(agent: Agent) -> dict[str, torch.Tensor]:
    return snapshot(
        {
            f"{module}/{name}": parameter
            for module, network in agent.modules().items()
            for name, parameter in network.named_parameters()
        }
    )


PLACES = {
    "critic": "core/critic",
    "actor": "core/actor",
    "temperature": "core/log_temperature",
    "borrowed": "core/critic",
    "head": "encoder/head",
}
"""Where a module that an optimizer names is found in the agent's state; else it is the task's."""


def places(agent: Agent, module: str) -> set[str]:
    stages = {f"encoder/{name}" for name in agent.encoder._modules}
    if not any(True for _ in agent.encoder.parameters()):
        stages = set()  # a state vector: nothing to learn
    if not getattr(agent.encoder, "norms", None):
        stages -= {"encoder/norms"}
    if module == "encoder":
        return stages
    if module == "convolutions":
        return stages - {"encoder/head"}
    return {PLACES.get(module, f"auxiliary/{module}")}


def place(name: str) -> str:
    """encoder/convolutions.0.weight -> encoder/convolutions; core/log_temperature stays."""
    return name.split(".")[0]


def prepared(agent: Agent, drawn: Batch) -> TransitionBatch:
    """What critic and actor look at in an update."""
    if agent.method.learning.critic_trains == "all":
        return drawn.transitions
    return agent.with_features(drawn.transitions)[0]


@torch.no_grad()
def encoded(agent: Agent, transitions: TransitionBatch) -> Encoded:
    features = agent.core_encoder.features(transitions.observation)
    return Encoded(features, agent.core_encoder.latent(features))


def actor_groups(agent: Agent) -> list[str]:
    """What is stepped beside the critic; nothing where the critic is the policy."""
    return list(agent.core.groups(agent.method.learning))


@every_method
def test_each_loss_moves_what_it_owns_and_nothing_else(method: str) -> None:
    agent, replay = agent_and_replay(method)
    drawn = agent.batches.draw(replay, sequences=True)
    transitions = prepared(agent, drawn)
    seen = encoded(agent, transitions)
    parts: dict[str, Callable[[], object]] = {
        "critic": lambda: agent.update_critic(transitions),
    }
    if others := actor_groups(agent):
        parts["+".join(others)] = lambda: agent.update_actor(transitions, seen)
    one = agent.one_optimizer
    if agent.auxiliary is not None and not one:
        parts["auxiliary"] = lambda: agent.pretrain(replay)
    for name, update in parts.items():
        before = weights(agent)
        update()
        found = {place(key) for key in moved(before, weights(agent))}
        modules = {m for part in name.split("+") for m in agent.optimizers.groups[part].modules}
        if one and name == "critic":
            modules = {"encoder", "critic"}  # the one optimizer serves two losses
        declared = set().union(*(places(agent, module) for module in modules))
        # What a task keeps beside its weights: its random stream, its own slow encoder.
        passed_by = {"auxiliary/draws", *(p for p in found if p.startswith("auxiliary_encoder/"))}
        assert declared <= found, name
        assert found - declared <= (passed_by if name == "auxiliary" else set()), name


EXPECTED_FLOW = {
    "ksl": {"encoder", "transition", "projector", "predictor"},
    "ksl-conv": {"convolutions", "transition", "projector", "predictor"},
    "ksl-k3-l1": {"encoder", "borrowed", "transition", "projector", "predictor"},
    "ksl-no-projection": {"encoder", "transition", "predictor"},
    "curl": {"encoder", "bilinear"},
    "sac_ae": {"encoder", "decoder"},
    "pi_sac": {"encoder", "forward_head", "backward_head"},
    "proto_rl": {"convolutions", "projector", "predictor", "prototypes"},
    "ksl_drq_v2": {"encoder", "transition", "projector", "predictor"},
    "ksl_dqn": {"encoder", "transition", "projector", "predictor"},
}


@pytest.mark.parametrize("method", EXPECTED_FLOW)
def test_the_auxiliary_loss_moves_what_the_literature_says(method: str) -> None:
    agent, _ = agent_and_replay(method)
    assert set(agent.optimizers.groups["auxiliary"].modules) == EXPECTED_FLOW[method]
    critic = {"head", "critic"} if method == "proto_rl" else {"encoder", "critic"}
    assert set(agent.optimizers.groups["critic"].modules) == critic


@every_method
def test_training_moves_every_parameter(method: str) -> None:
    agent, replay = agent_and_replay(method)
    before = weights(agent)
    for _ in range(6):
        agent.update(replay)
    still = set(before) - moved(before, weights(agent))
    # The queue of an exploring task is as long as it likes; everything with a gradient moves.
    assert not {name for name in still if not name.startswith("auxiliary/queue")}


@every_method
def test_slow_copies_move_in_their_turn_and_by_their_rate(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, replay = agent_and_replay(method)
    steps: list[str] = []
    original = Ema.step

    def step(self: Ema, backend: Backend = "torch") -> None:
        before = snapshot(dict(self.slow.named_parameters()))
        original(self, backend)
        for name, parameter in self.slow.named_parameters():
            online = dict(self.online.named_parameters())[name]
            expected = (1 - self.rate) * before[name] + self.rate * online
            assert torch.allclose(parameter, expected, atol=1e-6)
        steps.append(self.name)

    monkeypatch.setattr(Ema, "step", step)
    every = agent.method.learning.ema_every
    for number in range(4):
        steps.clear()
        agent.update(replay)
        names = [ema.name for ema in agent.slow_copies] if number % every == 0 else []
        assert [name for name in steps if name != "auxiliary encoder"] == names
        own = agent.auxiliary is not None and agent.auxiliary.slow_encoder_rate is not None
        assert ("auxiliary encoder" in steps) == own
    rates = {ema.name: ema.rate for ema in agent.slow_copies}
    assert rates["critic"] == agent.method.core.ema_rate
    assert rates.get("encoder", rates.get("convolutions")) == agent.method.encoder.ema_rate
    # Layers that the authors count among the critic's follow at the critic's rate.
    assert rates.get("head", agent.method.core.ema_rate) == agent.method.core.ema_rate
    of_critic = method == "ksl-conv" or agent.method.core.head_of_critic  # D46, D55
    assert ("head" in rates) == (of_critic or method.startswith("proto_rl"))


@every_method
def test_rate_zero_freezes_the_slow_copies(method: str) -> None:
    pixels = METHODS[method].observation == "pixels"
    rates = ["core.ema_rate", *(["encoder.ema_rate"] if pixels else [])]
    agent, replay = agent_and_replay(method, *(f"method.{rate}=0" for rate in rates))
    before = weights(agent)
    for _ in range(3):
        agent.update(replay)
    assert not {k for k in moved(before, weights(agent)) if "slow_" in k}
    assert agent.slow_copies


@every_method
def test_learning_rate_zero_moves_nothing(method: str) -> None:
    auxiliary = METHODS[method].auxiliary
    rates = ["learning.learning_rate"]
    if METHODS[method].core.kind == "sac":
        rates.append("core.temperature_learning_rate")
    if auxiliary is not None:
        rates.append("auxiliary.learning_rate")
        if not auxiliary.one_optimizer:  # there the encoder has but one
            rates.append("auxiliary.encoder_learning_rate")
    agent, replay = agent_and_replay(method, *(f"method.{rate}=0" for rate in rates))
    before = weights(agent)
    for _ in range(3):
        agent.update(replay)
    after = weights(agent)
    slow = ("slow_", "auxiliary_encoder")
    learned = {k for k in moved(before, after) if not any(word in k for word in slow)}
    # Left: counters, queues and running statistics, and prototypes kept at unit length.
    heads = {f"auxiliary/{name}" for name in ("draws", "queue", "enqueued", "prototypes")}
    kept = (*heads, "running_", "num_batch")
    assert not {k for k in learned if not any(word in k for word in kept)}
    for key in before:  # a slow copy of something that stands still may only round
        if "slow_" in key:
            assert torch.allclose(before[key], after[key], atol=1e-6)


@every_method
def test_every_part_has_its_turns(method: str) -> None:
    agent, replay = agent_and_replay(method)
    every, auxiliary = agent.method.core.actor_every, agent.method.auxiliary
    rows = [agent.update(replay).metrics for _ in range(4)]
    acts = bool(actor_groups(agent))
    assert ["actor/loss" in row for row in rows] == [acts and i % every == 0 for i in range(4)]
    if auxiliary is not None:
        turns = [i % auxiliary.every == 0 for i in range(4)]
        assert ["auxiliary/loss" in row for row in rows] == turns
    agent.update(replay)
    forced = agent.update(replay, every_part=True).metrics
    assert ("actor/loss" in forced) == acts
    assert ("auxiliary/loss" in forced) == (auxiliary is not None)


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
    # Several times the same: a random choice may be the greedy one.
    observation = np.stack([replay.newest_stack()] * 20)
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
    again.load_state(saved, updates=updates, phase=0)
    again.streams.load_state(streams)
    for _ in range(3):
        again.update(replay)
    assert not moved(agent.state(), again.state())


@every_method
def test_losses_return_finite_detached_scalars(method: str) -> None:
    agent, replay = agent_and_replay(method)
    update = agent.update(replay)
    for value in update.metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad
        assert torch.isfinite(value)
    views = agent.method.core.critic_views
    assert update.latent.shape == (8 * views, agent.encoder.latent_dim)
    assert not update.latent.requires_grad


FIRST_STEP = {
    "ksl": 1e-3,
    "ksl-results": 1.1e-3,
    "ksl-released": 2e-3,
    "curl": 1e-3,
    "curl-original": 2e-3,
    "sac_ae": 1e-3,
    "pi_sac-original": 3e-4,
}


@pytest.mark.parametrize(("method", "expected"), FIRST_STEP.items())
def test_the_first_auxiliary_step_is_as_long_as_the_encoders_rate(
    method: str, expected: float
) -> None:
    """Adam's first step is its learning rate; with the double step, the sum of two (D05)."""
    agent, replay = agent_and_replay(method)
    assert agent.auxiliary is not None
    before = agent.encoder.get_parameter("head.0.weight").detach().clone()
    agent.pretrain(replay)
    step = (agent.encoder.get_parameter("head.0.weight") - before).abs().max().item()
    assert step == pytest.approx(expected, rel=1e-2)


def test_the_actors_share_what_they_declare() -> None:
    agent, _ = agent_and_replay("ksl")
    assert expect(SAC, agent.core).actor.head is None
    released, replay = agent_and_replay("ksl-released")
    own = released.core.get_parameter("actor.head.0.weight")
    assert not torch.equal(own, released.encoder.get_parameter("head.0.weight"))
    # One actor update leaves every convolution and every critic weight as it was (facts 17.4).
    batch = released.batches.draw(replay, sequences=False).transitions
    before = weights(released)
    released.update_actor(batch, encoded(released, batch))
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


PASSES = {
    # method: forward and backward passes on average, and the family's own code for comparison
    "ksl": (7.5, 2, 8, 2),
    "ksl-results": (10.5, 3, 11, 3),
    "ksl-released": (10.5, 3, 11, 3),
    "sac_pixel": (3.5, 1, 4, 1),
    "rad": (3.5, 1, 4, 1),
    "drq": (6.5, 2, 7, 2),
    "curl": (5.5, 2, 6, 2),
    "sac_ae": (4.5, 2, 5, 2),
    "pi_sac-original": (6, 2, 6, 2),
    "proto_rl": (3, 0.5, 4, 0.5),
    "drq_v2": (2, 1, 2, 1),
    "ksl_drq_v2": (6, 2, 6, 2),
    "dqn": (3, 1, 3, 1),
    "ksl_dqn": (7, 2, 7, 2),
}


@pytest.mark.parametrize("method", PASSES)
def test_encoder_passes_per_learning_step(method: str) -> None:
    forward, backward, their_forward, their_backward = PASSES[method]
    assert per_update(method) == (forward, backward)
    assert forward <= their_forward
    assert backward <= their_backward


@pytest.mark.parametrize("method", ["proto_rl", "proto_rl-original"])
def test_the_second_phase_keeps_the_encoder_and_the_actor(method: str) -> None:
    agent, replay = agent_and_replay(method)
    for _ in range(4):
        agent.update(replay)
    assert agent.auxiliary is not None
    lengths = agent.auxiliary.get_parameter("prototypes.weight").norm(dim=1).detach()
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    before = weights(agent)
    agent.begin_task()
    after = weights(agent)
    fresh = {place(key) for key in moved(before, after)}
    assert fresh == {
        "core/critic",
        "core/slow_critic",
        "core/log_temperature",
        "encoder/head",
        "slow_encoder/head",
    }
    assert not agent.optimizers.state()  # every moment starts from scratch
    assert "auxiliary" not in agent.optimizers.groups
    rows = [agent.update(replay).metrics for _ in range(4)]
    assert not any("auxiliary/loss" in row for row in rows)
    later = {place(key) for key in moved(after, weights(agent))}
    assert "encoder/convolutions" not in later
    assert "slow_encoder/convolutions" not in later
    # The intrinsic reward, where the second phase has one, remembers places; nothing else moves.
    memory = {"auxiliary/queue", "auxiliary/enqueued", "auxiliary/draws"}
    assert {p for p in later if p.startswith("auxiliary/")} <= memory
    assert "core/actor" in later


@every_method
def test_no_loss_and_no_reward_writes_weights(method: str) -> None:
    agent, replay = agent_and_replay(method)
    for _ in range(2):
        agent.update(replay)  # an optimizer has moved what must then be constrained again
    before = parameters(agent)
    drawn = agent.batches.draw(replay, sequences=True)
    batch, encoder, learn = prepared(agent, drawn), agent.core_encoder, agent.streams.learn
    losses = ["critic"]
    _, seen, _ = agent.core.critic_loss(encoder, agent.core_slow_encoder, batch, learn)
    for name, _, _ in agent.core.actor_losses(encoder, batch.observation, seen, learn):
        losses.append(name)
    assert losses == ["critic", *actor_groups(agent)]
    if task := agent.auxiliary:
        assert drawn.sequences is not None
        encode = agent.encoder.features if task.sees == "features" else agent.encoder
        slow = agent.auxiliary_slow_encoder
        encode_slow = slow.features if task.sees_slow == "features" else slow
        task.loss(encode, encode_slow, drawn.sequences, agent.borrowed)
    assert moved(before, parameters(agent)) == set()


def test_the_reward_of_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, replay = agent_and_replay("proto_rl-original")
    monkeypatch.setattr(agent.auxiliary, "reward", lambda encoded: torch.full((len(encoded),), 7.0))
    drawn = agent.batches.draw(replay, sequences=False).transitions
    batch, metrics = agent.with_features(drawn)
    assert torch.equal(batch.reward, torch.full((8,), 7.0))
    assert metrics["reward/bonus"] == 7.0
    agent.begin_task()
    batch, _ = agent.with_features(drawn)
    assert torch.allclose(batch.reward, drawn.reward + 0.2 * 7.0)


def test_shared_windows_show_both_losses_the_same_view() -> None:
    agent, replay = agent_and_replay("pi_sac")
    drawn = agent.batches.draw(replay, sequences=True)
    assert drawn.sequences is not None
    assert torch.equal(drawn.transitions.observation, drawn.sequences.observation[:, 0])
    assert torch.equal(drawn.transitions.next_observation, drawn.sequences.observation[:, 1])
    assert torch.equal(drawn.transitions.reward, drawn.sequences.reward[:, 0])


def test_curl_contrasts_the_critics_own_view_with_another() -> None:
    agent, replay = agent_and_replay("curl")
    drawn = agent.batches.draw(replay, sequences=True)
    batch = drawn.sequences
    assert batch is not None
    assert torch.equal(batch.observation[:, 0], drawn.transitions.observation)
    assert batch.second_view.shape == drawn.transitions.observation.shape
    assert not torch.equal(batch.second_view, drawn.transitions.observation)


def test_borrowed_layers_are_the_critics_own() -> None:
    agent, replay = agent_and_replay("ksl-k3-l2")
    (first, second) = agent.borrowed
    assert [type(m).__name__ for m in first.children()] == ["Linear", "ReLU", "Linear", "ReLU"]
    assert first.get_parameter("0.weight") is agent.core.get_parameter("critic.q1.0.weight")
    assert second.get_parameter("2.weight") is agent.core.get_parameter("critic.q2.2.weight")
    before = first.get_parameter("2.weight").clone()
    agent.pretrain(replay)
    assert not torch.equal(before, agent.core.get_parameter("critic.q1.2.weight"))


def test_one_optimizer_has_one_set_of_moments() -> None:
    agent, replay = agent_and_replay("ksl-one-optimizer")
    assert "auxiliary" not in agent.optimizers.groups
    agent.update(replay)
    counts = {
        key: float(value)
        for key, value in agent.optimizers.state().items()
        if key.startswith("critic/") and key.endswith("/step")
    }
    encoder = {v for k, v in counts.items() if k.startswith("critic/encoder")}
    heads = {v for k, v in counts.items() if not k.startswith("critic/encoder")}
    assert encoder == {2.0}  # both losses stepped it
    assert heads == {1.0}


ORDERS = {
    "ksl": ["critic", "auxiliary", "actor", "temperature", "slow"],
    "ksl-results": ["critic", "auxiliary", "actor", "temperature", "slow"],
    "ksl-released": ["auxiliary", "critic", "actor", "temperature", "slow"],
    "curl": ["critic", "actor", "temperature", "slow", "auxiliary"],
    "ksl-one-optimizer": ["critic", "critic", "actor", "temperature", "slow"],
    "proto_rl": ["auxiliary", "critic", "actor", "temperature", "slow"],
    "sac_state": ["critic", "actor", "temperature", "slow"],
    "ksl_drq_v2": ["critic", "auxiliary", "actor", "slow"],
    "dqn": ["critic", "slow"],
    "ksl_dqn": ["critic", "auxiliary", "slow"],
}


@pytest.mark.parametrize("method", ORDERS)
def test_the_order_of_an_update(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the optimizers and the slow copies see it."""
    agent, replay = agent_and_replay(method)
    steps: list[str] = []
    minimize, step = Optimizers.minimize, Ema.step

    def listening(self: Optimizers, name: str, loss: Tensor, *, partly: bool = False) -> None:
        steps.append(name)
        minimize(self, name, loss, partly=partly)

    def averaging(self: Ema, backend: Backend = "torch") -> None:
        if steps[-1] != "slow":  # one entry for all of them
            steps.append("slow")
        step(self, backend)

    monkeypatch.setattr(Optimizers, "minimize", listening)
    monkeypatch.setattr(Ema, "step", averaging)
    agent.update(replay)
    assert steps == ORDERS[method]


def test_a_state_method_takes_state_vectors() -> None:
    experiment = tiny("sac_state")
    spec = spec_for(experiment)
    agent = Agent(experiment.method, spec, Streams(0))
    assert spec.frame_shape == (5,)
    agent.update(filled_replay(spec, 1))


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].auxiliary])
def test_auxiliary_tasks_learn_from_discrete_actions(method: str) -> None:
    """They see them as one-hot vectors, whatever the core."""
    experiment = tiny(method)
    spec = replace(spec_for(experiment), action_dim=3, actions="discrete")
    agent = Agent(experiment.method, spec, Streams(3))
    replay = filled_replay(spec, experiment.method.stack)
    before = parameters(agent)
    found = agent.pretrain(replay)
    assert all(torch.isfinite(value) for value in found.values())
    assert any(name.startswith("encoder/") for name in moved(before, parameters(agent)))
