"""Learning steps to be timed: agents of every reading, replays full of random frames.

In: a reading of a method. Out: candidates that call `Agent.update`, nothing else. One agent serves
every backend and number of threads, since neither changes what it holds.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import kstep
from kstep.agent import Agent
from kstep.auxiliary.base import OwnSequences
from kstep.bench.parts import measured
from kstep.bench.sizes import ACTIONS, EPISODE, REPEAT, STATE, Size
from kstep.bench.timing import Candidate
from kstep.config import Experiment
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.native import Backend
from kstep.nets.backends import encoder_class
from kstep.nets.encoder import PixelEncoder
from kstep.rng import Streams
from kstep.types import EnvSpec


@dataclass(frozen=True)
class Reading:
    """A method with some values changed, by the name it has in tables."""

    name: str
    method: str
    overrides: tuple[str, ...] = ()
    paper: str | None = None
    """Its row in the paper's wall-clock table."""


KSL = Reading("ksl", "ksl", paper="ksl")
RELEASED = Reading("ksl-released", "ksl-released", paper="ksl")
SAC_PIXEL = Reading("sac_pixel", "sac_pixel", paper="sac_pixel")
COMPACT = Reading("ksl compact", "ksl", ("method.encoder.strides=[2,2,1,1]",))


def readings() -> list[Reading]:
    """What the table of methods has in it."""
    names = ("rad", "drq", "curl", "sac_ae", "pi_sac", "proto_rl")
    paper = paper_table()
    return [
        Reading("sac_state", "sac_state"),
        SAC_PIXEL,
        *(Reading(name, name, paper=name if name in paper else None) for name in names),
        KSL,
        Reading("ksl-results", "ksl-results", paper="ksl"),
        RELEASED,
    ]


def with_k(k: int) -> Reading:
    return KSL if k == 3 else Reading(f"ksl k={k}", "ksl", (f"method.auxiliary.k={k}",))


def with_batch(size: int, usual: int) -> Reading:
    override = f"method.learning.batch_size={size}"
    return KSL if size == usual else Reading(f"ksl batch={size}", "ksl", (override,))


def paper_table() -> dict[str, float]:
    """Training time normalized to SAC from pixels, as the KSL paper gives it (appendix)."""
    text = files("kstep").joinpath("data/reference_results.json").read_text()
    table: dict[str, float] = json.loads(text)["wall_clock_normalised"]
    return table


def spec_of(experiment: Experiment) -> EnvSpec:
    """What the task shows, without making it."""
    size, kind = experiment.env.size, experiment.method.observation
    shape = (size, size, 3) if kind == "pixels" else (STATE,)
    return EnvSpec(kind, shape, ACTIONS, REPEAT, EPISODE)


def fill(replay: Replay, decisions: int) -> None:
    """Store whole episodes of random frames."""
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
    """Agents and replays, made when first asked for and then shared."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self._agents: dict[Reading, Agent] = {}
        self._replays: dict[tuple[int, ...], Replay] = {}

    def agent(self, reading: Reading) -> Agent:
        if reading not in self._agents:
            experiment = self.size.experiment(reading.method, reading.overrides)
            self._agents[reading] = Agent(experiment.method, spec_of(experiment), Streams(0))
        return self._agents[reading]

    def replay(self, agent: Agent) -> Replay:
        shape = agent.spec.frame_shape
        if shape not in self._replays:
            replay = Replay(ReplayConfig(self.size.decisions), agent.spec, agent.method.stack)
            fill(replay, self.size.decisions)
            self._replays[shape] = replay
        return self._replays[shape]

    def step(self, reading: Reading, backend: Backend, threads: int) -> Candidate:
        """Learning steps until every part had its turn; results are per step."""
        agent = self.agent(reading)
        replay, count = self.replay(agent), period(agent)

        def work() -> None:
            use(agent, backend)
            for _ in range(count):
                agent.update(replay)

        return Candidate(step_name(reading, backend, threads), work, count, threads)

    def split(self, reading: Reading, backend: Backend, threads: int) -> Candidate:
        """The same, measuring inside."""
        agent = self.agent(reading)
        replay, count = self.replay(agent), period(agent)

        def work() -> dict[str, float]:
            use(agent, backend)
            with measured() as meter:
                for _ in range(count):
                    agent.update(replay)
            return meter.found()

        return Candidate(f"split {reading.name}/{backend}", work, count, threads)

    def sequences(self, reading: Reading, threads: int) -> Candidate:
        """Draw and shift what the auxiliary task learns from."""
        agent = self.agent(reading)
        replay, streams, task = self.replay(agent), agent.streams, agent.method.auxiliary
        assert isinstance(task, OwnSequences)
        size = agent.method.learning.batch_size

        def work() -> None:
            drawn = replay.sequences(size, task.horizon, streams.replay, rule=task.sampling)
            task.augment.train_view(drawn.observation, streams.augment)

        return Candidate(SEQUENCES, work, 1, threads)

    def plain(self, reading: Reading, threads: int) -> Candidate | None:
        """The plain reference of a reading, or None where the sources are not at hand."""
        module = plain_module()
        if module is None:
            return None
        experiment = self.size.experiment(reading.method, reading.overrides)
        learner = module.Learner(experiment.method, spec_of(experiment))
        learner.fill(self.size.decisions)
        count = period(self.agent(reading))

        def work() -> None:
            for _ in range(count):
                learner.update()

        return Candidate(plain_name(reading), work, count, threads)


SEQUENCES = "sequences drawn and shifted"


def step_name(reading: Reading, backend: Backend, threads: int) -> str:
    return f"step {reading.name}/{backend}/{threads}"


def plain_name(reading: Reading) -> str:
    return f"plain {reading.name}"


def period(agent: Agent) -> int:
    """Updates until every part had its turn: the actor learns in every second one."""
    method = agent.method
    every = [method.core.actor_every, method.learning.ema_every]
    return math.lcm(*every, method.auxiliary.every if method.auxiliary is not None else 1)


def use(agent: Agent, backend: Backend) -> None:
    """Let another backend compute the agent's convolutions, where it has any."""
    for module in agent.modules().values():
        for part in module.modules():
            if isinstance(part, PixelEncoder):
                frames, channels = part.frame_shape, part.stack
                # The same weights under the same names: only the way of computing differs.
                part.__class__ = encoder_class(part.config, frames, channels, backend)


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
    sys.modules[found.name] = module  # where dataclasses look for their names
    found.loader.exec_module(module)
    return module
