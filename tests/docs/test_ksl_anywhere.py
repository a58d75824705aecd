"""docs/ksl_anywhere.md: the loop on the page is short, runs and learns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from tests.make import moved, snapshot

TEXT = (Path(__file__).parents[2] / "docs" / "ksl_anywhere.md").read_text()


def block() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    return str(code)


def test_the_loop_is_fifteen_lines_besides_its_imports() -> None:
    lines = [line for line in block().splitlines() if line and not re.match("import|from", line)]
    assert len(lines) <= 15


def test_the_loop_runs_and_moves_encoder_heads_and_slow_copies() -> None:
    torch.manual_seed(0)
    setup, loop = block().split("\n\nfor ")
    names: dict[str, Any] = {}
    exec(setup, names)
    encoder, ksl = names["encoder"], names["ksl"]
    before = snapshot(encoder.state_dict()), snapshot(ksl.state_dict())
    exec(f"for {loop}", names)
    assert moved(before[0], encoder.state_dict()) == set(before[0])
    assert moved(before[1], ksl.state_dict()) == set(before[1])
    assert 0 < names["loss"].item() < 4
