"""docs/ksl_anywhere.md: what is on the page is short, runs and learns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.make import moved, snapshot

TEXT = (Path(__file__).parents[2] / "docs" / "ksl_anywhere.md").read_text()
PLAIN, SB3, TORCHRL = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_loop_is_fifteen_lines_besides_its_imports() -> None:
    lines = [line for line in PLAIN.splitlines() if line and not re.match("import|from", line)]
    assert len(lines) <= 15


def test_the_loop_runs_and_moves_encoder_heads_and_slow_copies() -> None:
    torch.manual_seed(0)
    setup, loop = PLAIN.split("\n\nfor ")
    names: dict[str, Any] = {}
    exec(setup, names)
    encoder, ksl = names["encoder"], names["ksl"]
    before = snapshot(encoder.state_dict()), snapshot(ksl.state_dict())
    exec(f"for {loop}", names)
    assert moved(before[0], encoder.state_dict()) == set(before[0])
    assert moved(before[1], ksl.state_dict()) == set(before[1])
    assert 0 < names["loss"].item() < 4


def test_the_lines_for_stable_baselines3_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(SB3, names)
    assert names["ksl"].updates == names["model"]._n_updates > 0
    assert {path.name for path in tmp_path.iterdir()} == {"reach.zip", "reach_ksl.safetensors"}


def test_the_lines_for_torchrl_run() -> None:
    pytest.importorskip("torchrl")
    names: dict[str, Any] = {}
    exec(TORCHRL, names)
    assert 0 < names["value"].item() < 4
