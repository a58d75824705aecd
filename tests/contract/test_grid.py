"""Every reinforcement-learning core beside every auxiliary task.

The registered methods are some of these pairs; the seam between the two is meant to hold for all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kstep.auxiliary.base import AuxiliaryConfig
from kstep.methods.base import Method
from kstep.rl.core import CoreConfig
from tests.make import agent_and_replay, moved, snapshot, tiny

CORES = {"sac": "sac_pixel", "ddpg": "drq_v2", "dqn": "dqn"}
TASKS = {
    "ksl": "ksl",
    "curl": "curl",
    "autoencoder": "sac_ae",
    "ceb": "pi_sac",
    "proto": "proto_rl",
}
every_pair = pytest.mark.parametrize(
    ("core", "task"), [(core, task) for core in CORES for task in TASKS]
)


def pair(core: str, task: str) -> Method:
    """A method with this core, and this task as its own method has it; debug size."""
    auxiliary = tiny(TASKS[task]).method.auxiliary
    method = replace(tiny(CORES[core]).method, base="pair", auxiliary=auxiliary)
    method.check()
    return method


def test_no_kind_is_left_out() -> None:
    assert set(CORES) == set(CoreConfig.kinds)
    assert set(TASKS) <= set(AuxiliaryConfig.kinds)
    own = {
        kind for kind, cls in AuxiliaryConfig.kinds.items() if cls.__module__.startswith("kstep")
    }
    assert own <= set(TASKS)


@every_pair
def test_an_update_moves_both(core: str, task: str) -> None:
    agent, replay = agent_and_replay(pair(core, task))
    before = snapshot(agent.state())
    for _ in range(4):
        update = agent.update(replay)
        assert all(torch.isfinite(value) for value in update.metrics.values())
    found = moved(before, agent.state())
    assert agent.auxiliary is not None
    for name, head in agent.auxiliary.learned().items():
        places = {key for key in found if key.startswith(f"auxiliary/{name}")}
        parameters = 1 if isinstance(head, torch.nn.Parameter) else len([*head.parameters()])
        assert len(places) >= parameters, name
    for part in ("encoder/convolutions", "encoder/head", "core/critic", "core/slow_critic"):
        assert any(key.startswith(part) for key in found), part


@every_pair
def test_a_loaded_pair_continues_bit_for_bit(core: str, task: str) -> None:
    agent, replay = agent_and_replay(pair(core, task))
    for _ in range(2):
        agent.update(replay)
    saved = {name: tensor.detach().contiguous().clone() for name, tensor in agent.state().items()}
    streams, updates = agent.streams.state(), agent.updates
    agent.update(replay)
    again, _ = agent_and_replay(pair(core, task), seed=99)
    again.load_state(saved, updates=updates, phase=0)
    again.streams.load_state(streams)
    again.update(replay)
    assert not moved(agent.state(), again.state())


@every_pair
def test_the_task_sees_single_decisions(core: str, task: str) -> None:
    """Whatever returns the core learns from: none of its discounts is in them."""
    agent, replay = agent_and_replay(pair(core, task))
    drawn = agent.batches.draw(replay, sequences=True).sequences
    assert drawn is not None
    assert (drawn.bootstrap == 1.0).all()
    horizon = max(1, agent.method.auxiliary.horizon) if agent.method.auxiliary else 0
    assert drawn.observation.shape[1] == horizon + 1
