"""Golden traces: a change that alters numbers must say so.

Each method, and each pair of a core and an auxiliary task (tests/pairs.py), twice: in double
precision, where rounding leaves ten digits to compare, and in single precision, as training
computes, where it leaves two.

`python -m tests.contract.test_golden NAME ...` adds traces of new ones to both files; without a
name it writes both from scratch. Do that only when the numbers were meant to change, and name the
reason in the commit.
"""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.methods import METHODS
from tests.authors.seams import double_precision
from tests.make import agent_and_replay
from tests.pairs import PAIRS, pair

UPDATES = 6
NAMES = [*METHODS, *PAIRS]
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Precision:
    """How a set of traces is computed, where it is stored and how closely it is compared."""

    dtype: torch.dtype
    file: Path
    rel: float
    abs: float

    def within(self) -> AbstractContextManager[None]:
        return double_precision() if self.dtype == torch.float64 else nullcontext()


PRECISIONS = {
    # Measured: with PyTorch, oneDNN and MKL limited to older instructions (AVX2 and none of the
    # vector sets), numbers differ by 7.5e-12 of their size, or of 0.1 where they are smaller
    # (pi_sac); all other methods by 1e-13. The tolerance is 13 times as wide.
    "double": Precision(torch.float64, FOLDER / "golden64.json", rel=1e-10, abs=1e-11),
    # Processors differ in the last bits, and Adam, whose first steps are signs, amplifies that: by
    # 0.3 % here between AVX2 and AVX-512.
    "single": Precision(torch.float32, FOLDER / "golden.json", rel=1e-2, abs=1e-4),
}


def made(name: str) -> tuple[Agent, Replay]:
    """An agent of debug size, and what it learns from."""
    return agent_and_replay(pair(name) if name in PAIRS else name)


def trace(agent: Agent, replay: Replay) -> dict[str, list[float]]:
    """Losses of the first updates and the norms of every network after them."""
    rows = [agent.update(replay).metrics for _ in range(UPDATES)]
    keys = sorted({key for row in rows for key in row})
    losses = {key: [float(row[key]) for row in rows if key in row] for key in keys}
    norms: dict[str, float] = {}
    for name, tensor in agent.state().items():
        if not name.startswith("optimizers/"):
            network = name.split("/")[0].replace("auxiliary", "task")  # as the files call it
            norms[network] = norms.get(network, 0.0) + float(tensor.double().square().sum())
    return losses | {f"norm of {name}": [value] for name, value in norms.items()}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NAMES)
def test_golden_trace(name: str, precision: str) -> None:
    chosen = PRECISIONS[precision]
    golden = json.loads(chosen.file.read_text())[name]
    with chosen.within():
        agent, replay = made(name)
        found = trace(agent, replay)
    assert found.keys() == golden.keys()
    for key, values in golden.items():
        assert found[key] == pytest.approx(values, rel=chosen.rel, abs=chosen.abs), key
    assert {t.dtype for t in agent.state().values() if t.is_floating_point() and t.ndim} == {
        chosen.dtype
    }


def test_double_precision_notices_a_millionth() -> None:
    golden = json.loads(PRECISIONS["double"].file.read_text())["ksl"]
    with double_precision():
        found = trace(*agent_and_replay("ksl", "method.encoder.ema_rate=0.05000005"))
    for key in ("critic/target", "auxiliary/loss"):
        assert found[key] != pytest.approx(golden[key], rel=1e-10, abs=1e-11), key
        assert found[key] == pytest.approx(golden[key], rel=1e-5), key


def write(chosen: Precision, names: list[str]) -> None:
    """Compute some traces of one precision and store them, the registry's first, in its order."""
    stored = json.loads(chosen.file.read_text())
    with chosen.within():
        stored |= {name: trace(*made(name)) for name in names}
    traces = {name: stored[name] for name in NAMES}
    chosen.file.write_text(json.dumps(traces, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in PRECISIONS.values():
        write(chosen, sys.argv[1:] or NAMES)
