"""CONTRIBUTING.md: the method it walks through is taken from the page, run, tested and trained."""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from kstep import cli
from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Shapes
from kstep.config import resolve
from kstep.methods import METHODS, Method
from kstep.types import SequenceBatch
from kstep.values import decode, encode
from tests.contract import test_methods as contract
from tests.make import agent_and_replay, moved, snapshot, tiny

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
NAME = "contributing_example"


def example() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    return str(block)


@pytest.fixture
def method() -> Iterator[str]:
    """Run the page's code as a module; what it registers is gone afterwards."""
    methods, kinds = dict(METHODS), dict(AuxiliaryConfig.kinds)
    module = types.ModuleType(NAME)
    sys.modules[NAME] = module  # where dataclasses and type hints look for its names
    try:
        exec(compile(example(), "CONTRIBUTING.md", "exec"), module.__dict__)
        (added,) = METHODS.keys() - methods.keys()
        yield added
    finally:
        del sys.modules[NAME]
        METHODS.clear()
        METHODS.update(methods)
        AuxiliaryConfig.kinds.clear()
        AuxiliaryConfig.kinds.update(kinds)


def test_example_is_short_and_complete() -> None:
    assert len(example().splitlines()) < 85
    assert "..." not in example().replace("S, ...", "")


def test_it_becomes_an_experiment_like_any_other(method: str) -> None:
    experiment = resolve(method, "cartpole_swingup")
    assert decode(type(experiment), json.loads(json.dumps(encode(experiment)))) == experiment
    assert isinstance(experiment.method, Method)
    assert tiny(method).method.auxiliary != experiment.method.auxiliary  # `shrunk` is read
    wider = resolve(method, "cartpole_swingup", overrides=["method.auxiliary.hidden=256"])
    assert wider.method.auxiliary == decode(
        AuxiliaryConfig, {**encode(experiment.method.auxiliary), "hidden": 256}
    )


def promises() -> Iterator[Callable[..., None]]:
    """Every contract test that is run for each registered method."""
    for test in vars(contract).values():
        for mark in getattr(test, "pytestmark", ()):
            if mark.name == "parametrize" and mark.args == ("method", METHODS):
                yield test


@pytest.mark.parametrize("promise", [*promises()], ids=lambda promise: promise.__name__)
def test_it_keeps_every_promise_of_a_method(
    promise: Callable[..., None], method: str, request: pytest.FixtureRequest
) -> None:
    wanted = [name for name in inspect.signature(promise).parameters if name != "method"]
    promise(method=method, **{name: request.getfixturevalue(name) for name in wanted})


def test_the_promises_are_found() -> None:
    assert len([*promises()]) >= 9


def test_its_loss_moves_its_network_and_the_encoder_and_nothing_else(method: str) -> None:
    agent, replay = agent_and_replay(method)
    assert set(agent.optimizers.groups["auxiliary"].modules) == {"encoder", "inverse"}
    before = snapshot(agent.state())
    agent.pretrain(replay)
    assert {name.split("/")[0] for name in moved(before, agent.state())} == {"encoder", "auxiliary"}


def test_its_loss_is_what_its_docstring_says(method: str) -> None:
    config = METHODS[method].auxiliary
    assert config is not None
    torch.manual_seed(0)
    task = config.build(Shapes(3, (3,), 2, (1, 3), 0.05))
    assert isinstance(task, AuxiliaryTask)
    observation, action = torch.randn(5, 2, 1, 3), torch.rand(5, 1, 2) * 2 - 1
    zeros, ones = torch.zeros(5, 1), torch.ones(5, 1)
    batch = SequenceBatch(observation, action, zeros, ones, second_view=observation[:, 0])

    def encode_first(stack: torch.Tensor) -> torch.Tensor:
        return stack[:, 0]

    loss, metrics = task.loss(encode_first, encode_first, batch)
    (network,) = task.learned().values()
    pairs = torch.cat((observation[:, 0, 0], observation[:, 1, 0]), dim=1)
    guess = network(pairs)  # type: ignore[operator]
    assert torch.allclose(loss, F.mse_loss(guess, action[:, 0]))
    same = (guess.sign() == action[:, 0].sign()).float().mean()
    assert float(metrics["auxiliary/inverse_agreement"]) == pytest.approx(float(same))


def test_it_trains_from_the_command_line(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--preset", "debug", "--env-steps", "200", "--threads", "1"]
    cli.main(["train", method, "toy_reach", *options, "--folder", str(folder)])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    logged = {key for line in lines for key in json.loads(line)}
    assert {"auxiliary/loss", "auxiliary/inverse_agreement", "critic/loss"} <= logged
    marks = [json.loads(line)["env_steps"] for line in (folder / "evaluations.jsonl").open()]
    assert marks[0] == 0
    assert marks[-1] >= 200


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    mentioned = set(re.findall(r"make ([a-z-]+)", TEXT))
    assert mentioned
    assert mentioned <= targets


def test_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:tests|auxiliary)/[\w/]+(?:\.\w+)?)`", TEXT):
        here = ROOT / name if name.startswith("tests") else ROOT / "src" / "kstep" / name
        assert here.exists() or name == "auxiliary/inverse.py", name
