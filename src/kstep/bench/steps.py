"""Learning steps to time: agents of every method, replays filled with random frames.

In: a workload. Out: candidates that call `Agent.update`, nothing else. One agent serves every
number of threads.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import kstep
from kstep import reading
from kstep.agent import Agent
from kstep.auxiliary.base import OwnSequences
from kstep.bench.parts import measured
from kstep.bench.sizes import ACTIONS, EPISODE, REPEAT, STATE, Size
from kstep.bench.timing import Candidate, name_of
from kstep.config import Experiment
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.native import Backend
from kstep.rng import Streams
from kstep.types import EnvSpec


@dataclass(frozen=True)
class Workload:
    """A method, perhaps with changed settings, by its name in tables."""

    name: str
    method: str
    overrides: tuple[str, ...] = ()


KSL = Workload("ksl", "ksl")
RELEASED = Workload("ksl-released", "ksl-released")
SAC_PIXEL = Workload("sac_pixel", "sac_pixel")
COMPACT = Workload("ksl compact", "ksl", ("method.encoder.strides=[2,2,1,1]",))
METHODS = [
    Workload(name, name)
    for name in (
        *("sac_state", "sac_pixel", "rad", "drq", "curl", "sac_ae", "pi_sac", "proto_rl"),
        *("ksl", "ksl-results", "ksl-released"),
    )
]
"""The rows of the table of methods."""


def cost_cases(size: Size) -> dict[str, dict[int, Workload]]:
    """Return KSL with every k and every batch size, by what varies and its value."""
    usual = size.experiment("ksl").method.learning.batch_size
    settings = (
        ("k", "auxiliary.k", size.ks, 3),
        ("batch", "learning.batch_size", size.batches, usual),
    )
    cases = {}
    for what, key, values, own in settings:
        cases[what] = {
            value: Workload(f"ksl {what}={value}", "ksl", (f"method.{key}={value}",))
            for value in values
        }
        cases[what][own] = KSL
    return cases


def paper_table() -> dict[str, float]:
    """Return the KSL paper's training times, normalized to SAC from pixels (appendix)."""
    path = Path(str(files("kstep").joinpath("paper_data/reference_results.json")))
    table: dict[str, float] = reading.json_file(path)["wall_clock_normalised"]
    return table


def spec_of(experiment: Experiment) -> EnvSpec:
    """Return the task's shapes without making the environment."""
    size, kind = experiment.env.size, experiment.method.observation
    shape = (size, size, 3) if kind == "pixels" else (STATE,)
    return EnvSpec(kind, shape, ACTIONS, REPEAT, EPISODE)


def fill(replay: Replay, decisions: int) -> None:
    """Store complete episodes of random frames."""
    rng = np.random.default_rng(0)
    shape, pixels = replay.spec.frame_shape, replay.spec.observation == "pixels"

    def frame() -> Any:
        if pixels:
            return rng.integers(0, 256, shape, dtype=np.uint8)
        return rng.standard_normal(shape, dtype=np.float32)

    for t in range(decisions):
        if t % EPISODE == 0:
            replay.begin(frame())
        action = rng.uniform(-1, 1, replay.spec.action_dim).astype(np.float32)
        replay.add(action, float(rng.random()), False, t % EPISODE == EPISODE - 1, frame())


class Steps:
    """Agents and replays, made when first needed and then shared."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._agents: dict[tuple[Workload, Backend], Agent] = {}
        self._replays: dict[tuple[int, ...], Replay] = {}

    def agent(self, workload: Workload, backend: Backend = "torch") -> Agent:
        """The agent that computes with this backend, if it has anything to convolve."""
        experiment = self.size.experiment(workload.method, workload.overrides)
        if experiment.method.observation == "state":
            backend = "torch"
        if (workload, backend) not in self._agents:
            agent = Agent(experiment.method, spec_of(experiment), Streams(0), "cpu", backend)
            self._agents[workload, backend] = agent
        return self._agents[workload, backend]

    def replay(self, agent: Agent) -> Replay:
        shape = agent.spec.frame_shape
        if shape not in self._replays:
            replay = Replay(ReplayConfig(self.size.decisions), agent.spec, agent.method.stack)
            fill(replay, self.size.decisions)
            self._replays[shape] = replay
        return self._replays[shape]

    def step(self, workload: Workload, backend: Backend, threads: int) -> Candidate:
        """Learning steps until every part was due; results are per step."""
        work, count, used = self._updates(workload, backend)
        return Candidate(step_name(workload, backend, threads), work, count, threads, used)

    def beside(self, workload: Workload, backend: Backend, threads: int) -> Candidate:
        """The same while another process keeps a core busy."""
        alone = self.step(workload, backend, threads)
        return replace(alone, name=busy_name(workload, backend, threads), beside=True)

    def split(self, workload: Workload, backend: Backend, threads: int) -> Candidate:
        """The same, with the time of each part."""
        updates, count, used = self._updates(workload, backend)

        def work() -> dict[str, float]:
            with measured() as meter:
                updates()
            return meter.results()

        return Candidate(split_name(workload, backend), work, count, threads, used)

    def _updates(
        self, workload: Workload, backend: Backend
    ) -> tuple[Callable[[], None], int, Backend]:
        agent = self.agent(workload, backend)
        replay, count = self.replay(agent), period(agent)

        def work() -> None:
            for _ in range(count):
                agent.update(replay)

        return work, count, agent.encoder_backend

    def sequences(self, workload: Workload, threads: int) -> Candidate:
        """Sample and shift what the auxiliary task learns from."""
        agent = self.agent(workload)
        replay, streams, own = self.replay(agent), agent.streams, agent.method.auxiliary
        assert isinstance(own, OwnSequences)
        size = agent.method.learning.batch_size

        def work() -> None:
            sampled = replay.sequences(size, own.horizon, streams.replay, rule=own.sampling)
            own.augment.train_view(sampled.observation, streams.augment)

        return Candidate(SEQUENCES, work, 1, threads)

    def plain(self, workload: Workload, threads: int) -> Candidate | None:
        """The plain reference of a workload; None without a checkout of the sources."""
        module = plain_module()
        if module is None:
            return None
        agent = self.agent(workload)
        learner, count = module.Learner(agent.method, agent.spec), period(agent)
        learner.fill(self.size.decisions)

        def work() -> None:
            for _ in range(count):
                learner.update()

        return Candidate(plain_name(workload), work, count, threads)


SEQUENCES = "sequences drawn and shifted"


def step_name(workload: Workload, backend: Backend, threads: int) -> str:
    return name_of(f"step {workload.name}", backend, threads)


def busy_name(workload: Workload, backend: Backend, threads: int) -> str:
    return f"{step_name(workload, backend, threads)}, busy"


def split_name(workload: Workload, backend: Backend) -> str:
    return f"split {workload.name}/{backend}"


def plain_name(workload: Workload) -> str:
    return f"plain {workload.name}"


def period(agent: Agent) -> int:
    """Updates until every part was due: the actor learns in every second one."""
    method = agent.method
    every = [method.core.actor_every, method.learning.ema_every]
    return math.lcm(*every, method.auxiliary.every if method.auxiliary is not None else 1)


@functools.cache
def plain_module() -> ModuleType | None:
    """benchmarks/plain.py of a checkout; it is not part of the installed package."""
    path = Path(kstep.__file__).parents[2] / "benchmarks" / "plain.py"
    if not path.exists():
        return None
    found = importlib.util.spec_from_file_location("kstep_plain", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # where dataclasses look up their names
    found.loader.exec_module(module)
    return module
