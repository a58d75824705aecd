"""How much of the source a reader needs to follow one method's update, from observation to weights.

Traces `act` and one `update` in which every part has its turn, at debug size, and counts what runs
inside the package: functions, calls, changes from one file to another, and the length of every file
that something ran in, with the method's own declaration. The native library is left out: it
computes what the NumPy and PyTorch code beside it computes.

    python scripts/reading_path.py [METHOD]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import kstep
from kstep.agent import Agent
from kstep.config import resolve
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.methods import METHODS
from kstep.rng import Streams
from kstep.types import EnvSpec

ROOT = Path(kstep.__file__).parent
EPISODE = 12


def trace(method: str) -> list[tuple[Path, str]]:
    """Return (file, function) of every call inside the package, in order."""
    experiment = resolve(method, "toy_reach", preset="debug")
    size = experiment.env.size
    shape = (size, size, 3) if experiment.method.observation == "pixels" else (5,)
    spec = EnvSpec(experiment.method.observation, shape, 2, 1, EPISODE)
    replay = Replay(ReplayConfig(capacity=500), spec, experiment.method.stack)
    for _ in range(3):
        replay.begin(np.zeros(shape, spec.frame_dtype))
        for t in range(EPISODE):
            last = t == EPISODE - 1
            replay.add(np.zeros(2, np.float32), 0.0, False, last, np.ones(shape, spec.frame_dtype))
    agent = Agent(experiment.method, spec, Streams(0))
    for _ in range(2):
        agent.update(replay)  # optimizers make their moments; the next update has every part
    observation = replay.newest_stack()[None]
    calls: list[tuple[Path, str]] = []

    def record(frame: FrameType, event: str, argument: Any) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        inside = ROOT in path.parents and ROOT / "native" not in path.parents
        if event == "call" and inside and not name.endswith(">"):  # no comprehensions
            calls.append((path, name))

    sys.setprofile(record)
    agent.act(observation, explore=True)
    agent.update(replay)
    sys.setprofile(None)
    return calls


def declaration(method: str) -> Path:
    """The file in which the method is declared."""
    for path in sorted((ROOT / "methods").glob("*.py")):
        module = sys.modules.get(f"kstep.methods.{path.stem}")
        if METHODS[method] in vars(module or object).values() and path.stem in method:
            return path
    return ROOT / "methods" / "__init__.py"


def main(method: str = "ksl") -> None:
    """Print the counts."""
    calls = trace(method)
    files = sorted({path for path, _ in calls} | {declaration(method)})
    lengths = {path: len(path.read_text().splitlines()) for path in files}
    for path, lines in lengths.items():
        print(f"{lines:5} {path.relative_to(ROOT)}")
    changes = sum(before[0] != after[0] for before, after in pairwise(calls))
    print(f"{len(files)} files, {sum(lengths.values()):,} lines")
    print(f"{len(set(calls))} functions, {len(calls)} calls, {changes} changes of file")


if __name__ == "__main__":
    main(*sys.argv[1:])
