"""How much memory a full replay and a whole training process really take.

Run as `python -m kstep.bench.memory`, in a process of its own: what a process has resident depends
on all it ever did. It fills a replay to the last decision, makes an environment to train in and one
to evaluate in, takes a few learning steps and prints what the system says as JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from kstep.bench.sizes import PAPER, QUICK, Size
from kstep.native import Backend
from kstep.types import KstepError

STEPS = 4


def measure(size: Size, backend: Backend, threads: int) -> dict[str, Any]:
    """Let a process of its own find out."""
    command = [sys.executable, "-m", "kstep.bench.memory"]
    command += ["--size", size.name, "--backend", backend, "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise KstepError(f"the process that measures memory failed: {said[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def resident() -> int:
    return int(psutil.Process().memory_info().rss)


def peak() -> int:
    """The most that was ever resident.

    Not from getrusage, which counts what the parent had before this program began.
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
    import torch

    from kstep import envs
    from kstep.agent import Agent
    from kstep.bench.steps import fill, spec_of
    from kstep.data.replay import Replay
    from kstep.data.ring import ReplayConfig
    from kstep.rng import Streams
    from kstep.run import system

    system.keep_freed_memory()
    torch.set_num_threads(threads)
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
    for _ in range(STEPS):
        agent.update(replay)
    return {
        "decisions": len(replay),
        "replay_bytes": filled,
        "replay_bytes_computed": Replay.bytes_needed(config, spec, experiment.method.stack),
        "process_bytes": peak(),
        "notice": notice,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=[PAPER.name, QUICK.name], required=True)
    parser.add_argument("--backend", choices=["torch", "native"], required=True)
    parser.add_argument("--threads", type=int, required=True)
    asked = parser.parse_args()
    size = PAPER if asked.size == PAPER.name else QUICK
    print(json.dumps(here(size, asked.backend, asked.threads)))


if __name__ == "__main__":
    main()
