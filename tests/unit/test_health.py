"""The watch on learning: names what broke, warns of what may pass, changes nothing."""

from __future__ import annotations

import math
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from kstep.agent import Agent
from kstep.errors import Fault
from kstep.run import checkpoint
from kstep.run.folder import Run
from kstep.run.health import PATIENCE, YOUNG, Health, spread_of
from kstep.types import Array
from tests.make import agent_and_replay, moved, snapshot
from tests.runs import experiment, go

SOUND = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
"""Latents that differ as they should."""


def watched(method: str = "ksl") -> tuple[Any, Any, Health, list[str]]:
    agent, replay = agent_and_replay(method)
    said: list[str] = []
    return agent, replay, Health(agent, replay, said.append), said


def values(metrics: dict[str, torch.Tensor]) -> dict[str, float]:
    return {path: float(value) for path, value in metrics.items()}


def test_spread_of_latents_computed_by_hand() -> None:
    # Two directions of equal strength: rank 2; the mean is 0 and every entry 1 or 0.
    cross = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    found = spread_of(cross)
    assert found["latent/rank"] == pytest.approx(2.0)
    assert found["latent/spread"] == pytest.approx(math.sqrt(0.5))
    assert found["latent/cosine"] == pytest.approx(0.0)
    # Shares 3/4 and 1/4 of the singular values: exp of their entropy.
    stretched = spread_of(cross * torch.tensor([3.0, 1.0]))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert stretched["latent/rank"] == pytest.approx(math.exp(entropy))
    line = spread_of(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]))
    assert line["latent/rank"] == pytest.approx(1.0, abs=1e-6)
    assert line["latent/cosine"] == pytest.approx(1.0)
    assert spread_of(torch.ones(4, 3))["latent/spread"] == 0.0


@pytest.mark.parametrize("method", ["ksl", "sac_pixel", "proto_rl", "drq", "sac_state"])
def test_looking_changes_nothing(method: str) -> None:
    agent, replay, health, said = watched(method)
    update = agent.update(replay)
    before, streams = snapshot(agent.state()), str(agent.streams.state())
    found = health.look(values(update.metrics), update.latent)
    health.refuse_broken()
    assert not moved(before, agent.state())
    assert str(agent.streams.state()) == streams
    assert set(found) == (
        set() if method == "sac_state" else {"latent/spread", "latent/rank", "latent/cosine"}
    )
    assert not said


def test_the_tensor_that_broke_is_named() -> None:
    agent, replay, health, _ = watched()
    with torch.no_grad():
        agent.core.critic.first_layers(1)[0][0].weight[0, :3] = float("nan")
    with (
        pytest.raises(
            Fault,
            match=r"at update 0: the loss of 'critic' is nan\. Non-finite: core/critic\.\S+ "
            r"\(3 of \S+ values\)\. The same",
        ),
        health.watching(),
    ):
        agent.update(replay)


def test_one_value_among_many_is_enough() -> None:
    agent, _, health, _ = watched()
    health.refuse_broken()
    with torch.no_grad():
        agent.encoder.convolutions[2].bias[3] = float("inf")
    with pytest.raises(Fault, match=r"Non-finite: encoder/convolutions\.2\.bias \(1 of 8 values\)"):
        health.refuse_broken()


def test_a_loss_may_break_before_any_weight() -> None:
    _, _, health, _ = watched()
    with pytest.raises(Fault, match=r"auxiliary/loss is inf\. All weights are finite"):
        health.look({"critic/loss": 1.0, "auxiliary/loss": math.inf}, SOUND)


def test_values_are_held_against_what_rewards_allow() -> None:
    agent, replay, health, said = watched()
    agent.update(replay)
    most = max(1.0, replay.largest_reward()) / (1 - agent.method.core.discount)
    assert most > 100.0
    for _ in range(2 * PATIENCE):
        health.look({"critic/q": 0.9 * most, "critic/target": -0.9 * most}, SOUND)
    assert not said
    for _ in range(2 * PATIENCE):
        health.look({"critic/q": -4 * most}, SOUND)
    assert len(said) == 1
    assert "critic/q" in said[0]
    assert "diverges" in said[0]
    with pytest.raises(Fault, match=r"learning broke at update 1: critic/target = .*learning_rate"):
        health.look({"critic/target": 2e4 * most}, SOUND)


def test_warnings_need_patience_and_come_again_only_after_recovery() -> None:
    agent, replay, health, said = watched()
    agent.update(replay)
    low = {"actor/entropy": agent.core.target_entropy - 9 * agent.spec.action_dim}
    for _ in range(PATIENCE - 1):
        health.look(low, SOUND)
    assert not said
    health.look(low, SOUND)
    health.look(low, SOUND)
    assert len(said) == 1
    assert "hardly explores" in said[0]
    health.look({"actor/entropy": 0.0}, SOUND)
    for _ in range(PATIENCE):
        health.look(low, SOUND)
    assert len(said) == 2


def test_a_collapsed_representation_is_noticed_and_a_sound_one_is_not() -> None:
    agent, replay, health, said = watched()
    latent = agent.update(replay).latent
    flat = torch.ones(8, 16) + 1e-4 * SOUND
    for _ in range(2 * PATIENCE):
        health.look({}, flat)
    assert not said  # a new encoder's latents may be flat
    agent.updates = YOUNG + 1
    for _ in range(2 * PATIENCE):
        health.look({}, latent)
    assert not said
    for _ in range(PATIENCE):
        health.look({}, flat)
    assert len(said) == 1
    assert "the representation has collapsed: latent/spread" in said[0]


def poison(monkeypatch: pytest.MonkeyPatch, decisions: int) -> None:
    """Make one weight of the actor NaN when it is asked for its next action after so many."""
    random_action, act, asked = Agent.random_action, Agent.act, count()

    def poisoned(agent: Agent) -> Agent:
        if next(asked) == decisions:
            with torch.no_grad():
                next(agent.core.actor.parameters()).view(-1)[0] = float("nan")  # type: ignore[union-attr]
        return agent

    def exploring(agent: Agent, observation: Array, *, explore: bool) -> Array:
        return act(poisoned(agent) if explore else agent, observation, explore=explore)

    monkeypatch.setattr(Agent, "random_action", lambda agent: random_action(poisoned(agent)))
    monkeypatch.setattr(Agent, "act", exploring)


@pytest.mark.parametrize("decisions", [20, 41])  # before and while it learns and acts by itself
def test_a_run_that_breaks_keeps_its_last_good_checkpoint(
    decisions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, decisions)
    match = r"core/actor\.\S+ \(1 of .*intact.*checkpoint is at"
    with pytest.raises(Fault, match=match):
        go(tmp_path / "run", experiment(env_steps=60), StringIO(), checkpoint_minutes=1e-9)
    run = Run.open(tmp_path / "run")
    folder, state = checkpoint.newest(run)
    assert state.counts.decisions == decisions

    assert all(
        tensor.isfinite().all() for tensor in load_file(folder / "agent.safetensors").values()
    )
