"""The pages in docs/methods: values, metrics, sizes, gradients, costs and commands are live."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from kstep import cli, config, train
from kstep.agent import Agent
from kstep.methods import METHODS
from kstep.nets.encoder import Encoder
from kstep.rng import Streams
from kstep.types import EnvSpec
from tests.docs.test_decisions import TASK, Table, assert_live, live, tables
from tests.make import agent_and_replay

PAGES = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parents[2] / "docs" / "methods").glob("*.md"))
}


def columns(page: str, first: str) -> list[Table]:
    """Return the tables of a page whose first column has that head."""
    return [table for table in tables(PAGES[page]) if table.head[0] == first]


def described(page: str) -> list[str]:
    """Return the methods a page is about: one, or the readings of one."""
    (table,) = columns(page, "key")
    return [name for name in table.head if name in METHODS]


def test_every_method_has_a_page() -> None:
    assert {method for page in PAGES for method in described(page)} == set(METHODS)


@pytest.mark.parametrize("page", PAGES)
def test_hyperparameters_are_the_live_ones(page: str) -> None:
    (table,) = columns(page, "key")
    for key, *cells in table.rows:
        for method, value in zip(described(page), cells, strict=False):
            assert_live(method, key, value)
        assert cells[-1], f"{key} has no source"


@pytest.mark.parametrize("page", PAGES)
def test_every_hyperparameter_is_named(page: str) -> None:
    (table,) = columns(page, "key")
    tabulated = {row[0] for row in table.rows}
    _, _, unread = PAGES[page].partition("Not read by this method:")
    named = tabulated | set(re.findall(r"`(method\.[\w.]+)`", unread.partition(". ")[0]))
    for method in described(page):
        settings = {
            key
            for key, value in live(method).items()
            if key.startswith("method.") and not isinstance(value, dict)
        }
        assert settings - {"method.name", "method.summary"} == {
            key for key in named if key.startswith("method.")
        }


def documented_metrics(page: str, k: int) -> set[str]:
    (table,) = columns(page, "metric")
    names = set()
    for metric, *_ in table.rows:
        stem = metric.removesuffix("1..k")
        names |= {metric} if stem == metric else {f"{stem}{j + 1}" for j in range(k)}
    return names


@pytest.mark.parametrize("page", PAGES)
def test_metrics_are_those_that_are_written(page: str) -> None:
    of_the_loop = set(re.findall(r'"([a-z]+/[a-z]+)"', inspect.getsource(train)))
    assert {"train/return", "train/length", "replay/size"} <= of_the_loop
    for method in described(page):
        agent, replay = agent_and_replay(method)
        emitted = set(agent.update(replay)) | set(agent.update(replay))
        auxiliary = agent.method.auxiliary
        k = auxiliary.predictions if auxiliary else 0
        assert documented_metrics(page, k) == emitted | of_the_loop


@pytest.mark.parametrize("page", PAGES)
def test_losses_move_what_the_page_says(page: str) -> None:
    (table,) = columns(page, "loss")
    for method in described(page):
        agent, _ = agent_and_replay(method)
        groups = agent.optimizers.groups
        moved = {
            loss: {key.split(".")[0] for key, _ in group.named_parameters()}
            for loss, group in groups.items()
        }
        every = set().union(*moved.values())
        assert {loss: (words(moves), words(rest)) for loss, moves, rest in table.rows} == {
            loss: (moves, every - moves) for loss, moves in moved.items()
        }


def words(cell: str) -> set[str]:
    return set(re.findall(r"\w+", cell))


def test_networks_have_the_sizes_in_the_table() -> None:
    (table,) = columns("ksl", "network")
    for method in described("ksl"):
        # The first weights do not matter for their number, and PyTorch's own are quickest.
        plain = [f"method.{part}.init=default" for part in ("encoder", "sac", "auxiliary")]
        experiment = config.resolve(method, "cheetah_run", overrides=plain)
        agent = Agent(experiment.method, EnvSpec("pixels", (84, 84, 3), 6, 4, 250), Streams(0))
        sizes: dict[str, int] = {}
        for group in agent.optimizers.groups.values():
            counted: dict[str, int] = {}
            for key, parameter in group.named_parameters():
                module = key.split(".")[0]
                counted[module] = counted.get(module, 0) + parameter.numel()
            sizes |= counted
        column = table.head.index(method)
        for row in table.rows:
            assert int(row[column].replace(",", "")) == sizes[row[0]], (method, row[0])


def count_passes(encoder: Encoder, passes: dict[str, int]) -> None:
    """Count every image that goes through `encoder`, forward and backward."""
    features = encoder.features

    def counting(observation: Tensor) -> Tensor:
        def backward(gradient: Tensor) -> None:
            passes["backward"] += len(observation)

        passes["forward"] += len(observation)
        output = features(observation)
        if output.requires_grad:
            output.register_hook(backward)
        return output

    encoder.features = counting  # type: ignore[method-assign]


def costs() -> Iterator[tuple[str, str, str, str]]:
    for page in PAGES:
        for table in columns(page, "method"):
            for method, forward, backward in table.rows:
                yield page, method, forward, backward


@pytest.mark.parametrize(("page", "method", "forward", "backward"), [*costs()])
def test_encoder_passes_are_as_stated(page: str, method: str, forward: str, backward: str) -> None:
    agent, replay = agent_and_replay(method)
    passes = {"forward": 0, "backward": 0}
    count_passes(agent.encoder, passes)
    count_passes(agent.slow_encoder, passes)
    updates = 2 * agent.method.learning.actor_every
    for _ in range(updates):
        agent.update(replay)
    per_update = updates * agent.method.learning.batch_size
    assert passes["forward"] / per_update == float(forward)
    assert passes["backward"] / per_update == float(backward)


def commands() -> Iterator[str]:
    for text in PAGES.values():
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            yield from block.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("command", [*dict.fromkeys(commands())])
def test_commands_work(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolved_only(verb: cli.Train) -> None:
        config.resolve(verb.method, verb.task, preset=verb.preset, overrides=verb.set)
        print("resolved")

    monkeypatch.setattr(cli.Train, "__call__", resolved_only)
    program, *arguments = shlex.split(command)
    assert program == "kstep"
    cli.main(arguments)
    assert capsys.readouterr().out


def test_values_depend_on_the_task_as_stated() -> None:
    assert live("ksl", "cheetah_run")["method.learning.learning_rate"] == 2e-4
    assert live("ksl", TASK)["method.learning.learning_rate"] == 1e-3
