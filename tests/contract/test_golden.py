"""Golden traces: a change that alters numbers must say so.

`python -m tests.contract.test_golden` writes tests/contract/golden.json anew. Do that only when the
numbers were meant to change, and name the reason in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kstep.methods import METHODS
from tests.make import agent_and_replay

FILE = Path(__file__).with_name("golden.json")
UPDATES = 6


def trace(method: str) -> dict[str, list[float]]:
    """Losses of the first updates and the norms of every network after them."""
    agent, replay = agent_and_replay(method)
    rows = [agent.update(replay) for _ in range(UPDATES)]
    keys = sorted({key for row in rows for key in row})
    losses = {key: [float(row[key]) for row in rows if key in row] for key in keys}
    norms: dict[str, float] = {}
    for name, tensor in agent.state().items():
        if not name.startswith("optimizers/"):
            network = name.split("/")[0]
            norms[network] = norms.get(network, 0.0) + float(tensor.double().square().sum())
    return losses | {f"norm of {name}": [value] for name, value in norms.items()}


@pytest.mark.parametrize("method", METHODS)
def test_golden_trace(method: str) -> None:
    golden = json.loads(FILE.read_text())[method]
    found = trace(method)
    assert found.keys() == golden.keys()
    for key, values in golden.items():
        # Processors differ in the last bits, and Adam, whose first steps are signs, amplifies that:
        # by 0.3 % here between AVX2 and AVX-512.
        assert found[key] == pytest.approx(values, rel=1e-2, abs=1e-4), key


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    FILE.write_text(json.dumps({method: trace(method) for method in METHODS}, indent=1) + "\n")
