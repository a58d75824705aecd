"""With the native backend no bit of a run depends on the number of its threads."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import Tensor

from kstep import native
from kstep.methods import METHODS
from kstep.native import Unavailable, layers
from kstep.nets.backends import native_shape
from kstep.run import checkpoint, system, train
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from tests.make import agent_and_replay, tiny

KERNELS = ("method.encoder.channels=32",)
"""At debug size encoders are narrower than the kernels."""


def has_kernels(method: str) -> bool:
    """Whether the kernels compute this method's convolutions; others are left to PyTorch."""
    if METHODS[method].observation == "state":
        return False
    chosen = tiny(method, *KERNELS).method
    frame = (chosen.encoder.image_size,) * 2 + (3,)
    return native_shape(chosen.encoder, frame, chosen.stack) is not None


@pytest.fixture(autouse=True)
def kernels() -> None:
    try:
        native.kernels()
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))


def learned(method: str, threads: int) -> dict[str, Tensor]:
    """Metrics of some updates, then every weight and moment, and an action."""
    with system.threads(threads, "native"):
        agent, replay = agent_and_replay(method, *KERNELS, backend="native")
        found: dict[str, Tensor] = {}
        for number in range(2):  # the second has every part that the first may not have
            metrics = agent.update(replay, every_part=number == 1).metrics
            found |= {f"{number} {name}": value for name, value in metrics.items()}
        found["action"] = torch.from_numpy(agent.act(replay.newest_stack()[None], explore=True))
    return found | {name: tensor.clone() for name, tensor in agent.state().items()}


@pytest.mark.parametrize("method", [name for name in METHODS if has_kernels(name)])
def test_no_bit_of_a_method_depends_on_threads(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "LEAST", 1)  # small layers through the kernels as well
    expected = learned(method, 1)
    for threads in (2, 4):
        found = learned(method, threads)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor), (name, threads)


def test_most_methods_have_kernels() -> None:
    without = {name for name in METHODS if not has_kernels(name)}
    assert without == {"sac_state", "sac_state-original", "pi_sac-original"}


def go(folder: Path, threads: int, env_steps: int) -> tuple[Run, str]:
    overrides = (*KERNELS, "method.learning.initial_decisions=30", "method.learning.batch_size=4")
    said = StringIO()
    run = Run.prepare(folder, replace(tiny("ksl", *overrides), env_steps=env_steps))
    runtime = Runtime(threads=threads, log_every=5, encoder_backend="native")
    train.train(run, runtime, Console(file=said, width=200))
    return run, said.getvalue()


def test_a_run_may_resume_with_another_number_of_threads(tmp_path: Path) -> None:
    whole, _ = go(tmp_path / "whole", 1, 60)
    run, _ = go(tmp_path / "run", 4, 45)
    _, said = go(tmp_path / "run", 2, 60)
    assert "threads was" not in said
    assert run.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    for one, two in zip(*(sorted(checkpoint.newest(r)[0].iterdir()) for r in (run, whole))):  # noqa: B905
        if one.suffix == ".safetensors":
            assert one.read_bytes() == two.read_bytes(), one.name
    used = [machine["threads"] for machine in json.loads(run.system_file.read_text())]
    assert used == [4, 2]


def test_with_the_native_backend_pytorch_has_one_thread() -> None:
    before = torch.get_num_threads(), native.threads()
    with system.threads(3, "native"):
        assert (torch.get_num_threads(), native.threads()) == (1, 3)
        with system.threads(2):
            assert (torch.get_num_threads(), native.threads()) == (2, 2)
        assert (torch.get_num_threads(), native.threads()) == (1, 3)
    assert (torch.get_num_threads(), native.threads()) == before
