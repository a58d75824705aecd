"""Small things that many tests need: tiny experiments, filled replays, states to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from kstep.agent import Agent
from kstep.config import Experiment, resolve
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig, Storage
from kstep.methods import METHODS
from kstep.methods.base import Method
from kstep.native import Backend
from kstep.rng import Streams
from kstep.types import EnvSpec

ACTIONS = 2

Kind = TypeVar("Kind")

HANGING = 1500.0
"""Seconds after which something that a test waits for is taken to hang; far beyond what it takes on
a machine whose cores are all busy."""


def expect(kind: type[Kind], thing: object) -> Kind:
    """The thing itself, if it is of that kind: PyTorch's containers do not say what they hold."""
    assert isinstance(thing, kind), f"{type(thing).__name__} is no {kind.__name__}"
    return thing


def toy(method: Method) -> str:
    """The toy task whose actions a method can choose."""
    return "toy_reach" if "box" in method.core.acts_in else "toy_arrows"


def tiny(method: str, *overrides: str) -> Experiment:
    """The debug size of a method on the toy task."""
    return resolve(method, toy(METHODS[method]), preset="debug", overrides=overrides)


def spec_for(experiment: Experiment, episode_decisions: int = 12) -> EnvSpec:
    size, method = experiment.env.size, experiment.method
    shape = (size, size, 3) if method.observation == "pixels" else (5,)
    actions = method.core.acts_in[0]
    return EnvSpec(method.observation, shape, ACTIONS, 1, episode_decisions, actions)


def filled_replay(
    spec: EnvSpec,
    stack: int,
    episodes: int = 6,
    length: int = 12,
    config: ReplayConfig | None = None,
) -> Replay:
    """Episodes of random frames; the same every time."""
    rng = np.random.default_rng(7)
    replay = Replay(config or ReplayConfig(capacity=500), spec, stack)

    def frame() -> np.ndarray:
        if spec.observation == "pixels":
            return rng.integers(0, 256, spec.frame_shape).astype(np.uint8)
        return rng.normal(size=spec.frame_shape).astype(np.float32)

    for _ in range(episodes):
        replay.begin(frame())
        for t in range(length):
            action = rng.uniform(-1, 1, spec.action_dim).astype(np.float32)
            if spec.actions == "discrete":
                action = np.eye(spec.action_dim, dtype=np.float32)[action.argmax()]
            replay.add(action, float(rng.normal()), False, t == length - 1, frame())
    return replay


def agent_and_replay(
    method: str | Method,
    *overrides: str,
    seed: int = 3,
    backend: Backend = "torch",
    device: str = "cpu",
    storage: Storage = "memory",
) -> tuple[Agent, Replay]:
    """Of a registered method at debug size, or of any as it is."""
    experiment = tiny(method if isinstance(method, str) else "ksl", *overrides)
    if not isinstance(method, str):
        experiment = replace(experiment, method=method)
    chosen, spec = experiment.method, spec_for(experiment)
    agent = Agent(chosen, spec, Streams(seed, device), device, backend)
    return agent, filled_replay(spec, chosen.stack, config=ReplayConfig(500, storage, device))


def paper_agent(method: str, action_dim: int = 6) -> Agent:
    """An agent of the paper's size."""
    declared = METHODS[method]
    shape = (84, 84, 3) if declared.observation == "pixels" else (17,)
    spec = EnvSpec(declared.observation, shape, action_dim, 4, 250, declared.core.acts_in[0])
    return Agent(declared, spec, Streams(0))


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> set[str]:
    """Names whose values differ, bit for bit."""
    return {name for name in before if not torch.equal(before[name], after[name])}
