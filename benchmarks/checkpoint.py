"""What a checkpoint of a full replay costs, and how long a restart takes.

    python benchmarks/checkpoint.py [--decisions-per-second 10] [--folder DIR]

Fills the replay of KSL at the paper's sizes with 100,000 decisions of 84-pixel frames (2.1 GB on
disk), then saves at the default interval as a run of that speed would: each checkpoint writes the
frames that are new and the whole agent. Then it loads the last one in the same way a run does, up
to and with the first update. Frames are random bytes; nothing here compresses.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from kstep.agent import Agent
from kstep.config import resolve
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.envs import EnvConfig, make, spec_of
from kstep.rng import Streams
from kstep.run import checkpoint, system
from kstep.run.checkpoint import Session
from kstep.run.episode import Episode
from kstep.run.folder import Run
from kstep.run.health import Health
from kstep.run.provenance import Allowed, Provenance
from kstep.run.runtime import Runtime
from kstep.types import Counts

DECISIONS = 100_000


def session_of(run: Run, capacity: int = DECISIONS) -> Session:
    experiment = run.experiment
    env = make(EnvConfig("toy_reach", size=84), 0)
    spec = spec_of(env)
    agent = Agent(experiment.method, spec, Streams(1))
    replay = Replay(ReplayConfig(capacity), spec, 3, run.replay)
    return Session(agent, replay, Episode(env, 3), Counts(), Provenance())


def play(session: Session, decisions: int) -> None:
    """Add decisions as the loop does, with frames of random bytes but for the open episode's."""
    episode, replay, rng = session.episode, session.replay, np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 84, 84, 3)).astype(np.uint8)
    for number in range(decisions):
        action = np.zeros(2, np.float32)
        last = number == decisions - 1
        frame = episode.step(action).frame if last else noise[number % 64]
        replay.add(action, 0.0, False, False, frame)
    session.counts.decisions += decisions
    session.counts.env_steps += decisions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--decisions-per-second", type=float, default=10.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        measure(root, options.decisions_per_second)
    finally:
        shutil.rmtree(root)


def measure(root: Path, speed: float) -> None:
    interval = 60 * Runtime().checkpoint_minutes
    new = int(speed * interval)
    run = Run(root / "run", resolve("ksl", "toy_reach"))
    with run.locked():
        run.begin()
        session = session_of(run)
        session.replay.begin(session.episode.start(0))
        play(session, 1_000)
        session.agent.update(session.replay)  # so that there are moments to save
        costs = []
        while len(session.replay) < DECISIONS:
            play(session, min(new, DECISIONS - len(session.replay)))
            costs.append(save(run, session))
        full = [save_after(run, session, new) for _ in range(5)]
    size = sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    print(f"replay: {len(session.replay):,} decisions, run folder {size / 1e9:.2f} GB")
    print(f"new decisions in {interval:.0f} s at {speed:g}/s: {new:,}")
    print(f"checkpoints while filling: {summary(costs)}")
    share = statistics.mean(full) / interval
    print(f"checkpoints of a full replay: {summary(full)}: {share:.2%} of training time")
    print(f"watch on learning: {watch(session):.3f} ms per logged update (every 50)")
    del session
    started, cpu = time.perf_counter(), time.process_time()
    again = session_of(run)
    checkpoint.load(run, again, Allowed())
    loaded = time.perf_counter() - started
    again.agent.update(again.replay)
    total = time.perf_counter() - started
    used = time.process_time() - cpu
    print(
        f"restart: loaded after {loaded:.1f} s, first update after {total:.1f} s "
        f"({used:.1f} s on the processor), without imports"
    )


def save_after(run: Run, session: Session, decisions: int) -> float:
    play(session, decisions)
    return save(run, session)


def save(run: Run, session: Session) -> float:
    started = time.perf_counter()
    checkpoint.save(run, session, {})
    return time.perf_counter() - started


def watch(session: Session) -> float:
    health = Health(session.agent, session.replay, print)
    latent = session.agent.update(session.replay).latent
    started = time.perf_counter()
    for _ in range(100):
        health.look({"critic/q": 1.0, "actor/entropy": 0.0}, latent)
    return (time.perf_counter() - started) * 10


def summary(seconds: list[float]) -> str:
    return f"mean {statistics.mean(seconds):.2f} s, longest {max(seconds):.2f} s"


if __name__ == "__main__":
    system.keep_freed_memory()  # as the command does
    torch.set_num_threads(1)
    main()
