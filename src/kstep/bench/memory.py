"""How much memory a full replay and a complete training process take.

Run as `python -m kstep.bench.memory`, in a process of its own: resident memory depends on
everything a process did before. It fills a replay completely, makes one environment for training
and one for evaluation, takes a few learning steps and prints the system's figures as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from kstep import envs
from kstep.agent import Agent
from kstep.bench.sizes import PAPER, QUICK, Size
from kstep.bench.steps import fill, spec_of
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.native import Backend
from kstep.rng import Streams
from kstep.run import system
from kstep.types import KstepError

STEPS = 4


def measure(size: Size, backend: Backend, threads: int) -> dict[str, Any]:
    """Measure in a separate process."""
    what = json.dumps([size.preset, backend, threads])
    command = [sys.executable, "-P", "-m", "kstep.bench.memory", what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise KstepError(f"the process that measures memory failed: {lines[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """Return the largest resident size so far.

    Not from getrusage, which includes that of the parent before this program began.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return resident()


def here(size: Size, backend: Backend, threads: int) -> dict[str, Any]:
    """Measure in this process."""
    system.keep_freed_memory()
    experiment = size.experiment("ksl")
    spec = spec_of(experiment)
    config = ReplayConfig(size.memory_decisions)
    before = resident()
    replay = Replay(config, spec, experiment.method.stack)
    fill(replay, size.memory_decisions)
    filled = resident() - before

    notice = ""
    try:
        for seed in (1, 2):
            env = envs.make(experiment.env, seed)
            env.reset(seed=seed)
    except KstepError as error:
        notice = f"without environments: {error}"
    agent = Agent(experiment.method, spec, Streams(0), "cpu", backend)
    with system.threads(threads, backend):
        for _ in range(STEPS):
            agent.update(replay)
    return {
        "decisions": len(replay),
        "replay_bytes": filled,
        "replay_bytes_computed": Replay.bytes_needed(config, spec, experiment.method.stack),
        "process_bytes": peak(),
        "notice": notice,
    }


if __name__ == "__main__":
    preset, backend, threads = json.loads(sys.argv[1])
    print(json.dumps(here(PAPER if preset == PAPER.preset else QUICK, backend, threads)))
