"""Every reinforcement-learning core beside every auxiliary task.

The registered methods are some of these pairs; the seam between the two is meant to hold for all.
Their golden traces are with those of the methods (test_golden.py), and they are killed and resumed
with them (tests/faults/test_kill.py).
"""

from __future__ import annotations

import pytest
import torch

from kstep.auxiliary.base import AuxiliaryConfig
from kstep.rl.core import CoreConfig
from tests.make import agent_and_replay, moved, snapshot
from tests.pairs import CORES, PAIRS, TASKS, pair

every_pair = pytest.mark.parametrize("name", PAIRS)


def test_no_kind_is_left_out() -> None:
    assert set(CORES) == set(CoreConfig.kinds)
    assert set(TASKS) <= set(AuxiliaryConfig.kinds)
    own = {
        kind for kind, cls in AuxiliaryConfig.kinds.items() if cls.__module__.startswith("kstep")
    }
    assert own <= set(TASKS)


@every_pair
def test_an_update_moves_both(name: str) -> None:
    agent, replay = agent_and_replay(pair(name))
    before = snapshot(agent.state())
    for _ in range(4):
        update = agent.update(replay)
        assert all(torch.isfinite(value) for value in update.metrics.values())
    found = moved(before, agent.state())
    assert agent.auxiliary is not None
    for part, head in agent.auxiliary.learned().items():
        places = {key for key in found if key.startswith(f"auxiliary/{part}")}
        parameters = 1 if isinstance(head, torch.nn.Parameter) else len([*head.parameters()])
        assert len(places) >= parameters, part
    for part in ("encoder/convolutions", "encoder/head", "core/critic", "core/slow_critic"):
        assert any(key.startswith(part) for key in found), part


@every_pair
def test_a_loaded_pair_continues_bit_for_bit(name: str) -> None:
    agent, replay = agent_and_replay(pair(name))
    for _ in range(2):
        agent.update(replay)
    saved = {key: tensor.detach().contiguous().clone() for key, tensor in agent.state().items()}
    streams, updates = agent.streams.state(), agent.updates
    agent.update(replay)
    again, _ = agent_and_replay(pair(name), seed=99)
    again.load_state(saved, updates=updates, phase=0)
    again.streams.load_state(streams)
    again.update(replay)
    assert not moved(agent.state(), again.state())


@every_pair
def test_the_task_sees_single_decisions(name: str) -> None:
    """Whatever returns the core learns from: none of its discounts is in them."""
    agent, replay = agent_and_replay(pair(name))
    drawn = agent.batches.draw(replay, sequences=True).sequences
    assert drawn is not None
    assert (drawn.bootstrap == 1.0).all()
    horizon = max(1, agent.method.auxiliary.horizon) if agent.method.auxiliary else 0
    assert drawn.observation.shape[1] == horizon + 1
