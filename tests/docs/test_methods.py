"""The pages in docs/methods: values, metrics, sizes, gradients, costs and commands are live.

Three kinds of tables hold settings. "key" and one method, or three: all of its settings. "key" and
two methods: exactly what sets the second apart from the first. "METHOD on" and keys: values that
depend on the task. The ablations have one table of their own, the index another.

What every auxiliary task has (its turn, its rates) is complete in the table of KSL; a comparison
with a method that has no such task lists of these only what is not as it is there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kstep import cli
from kstep.agent import Agent
from kstep.auxiliary.base import AuxiliaryConfig
from kstep.cli.training import Train
from kstep.config import resolve
from kstep.methods import METHODS
from kstep.methods.ablations import ABLATIONS
from kstep.rng import Streams
from kstep.run.health import Health
from kstep.types import EnvSpec, KstepError
from kstep.values import difference
from tests.docs.test_decisions import KEY, NAMES, TASK, Table, assert_live, live, tables
from tests.make import agent_and_replay
from tests.passes import per_update

TEXTS = {
    path.stem: path.read_text()
    for path in sorted((Path(__file__).parents[2] / "docs" / "methods").glob("*.md"))
}
PAGES = {name: text for name, text in TEXTS.items() if name not in ("README", "ablations")}
COMMON = {f"method.auxiliary.{field.name}" for field in fields(AuxiliaryConfig)}
"""Settings of every auxiliary task."""

every_page = pytest.mark.parametrize("page", PAGES)


def columns(page: str, first: str) -> list[Table]:
    """Return the tables of a page whose first column has that head."""
    return [table for table in tables(TEXTS[page]) if table.head[0] == first]


def methods_in(table: Table) -> list[str]:
    return [name for name in table.head if name in METHODS]


def complete(page: str) -> list[Table]:
    """Tables with all settings of one method, or of the three readings of one."""
    return [table for table in columns(page, "key") if len(methods_in(table)) != 2]


def comparisons(page: str) -> list[Table]:
    """Tables with what sets a second method apart from a first."""
    return [table for table in columns(page, "key") if len(methods_in(table)) == 2]


def described(page: str) -> list[str]:
    """Return the methods a page is about."""
    whole = [method for table in complete(page) for method in methods_in(table)]
    return whole + [methods_in(table)[1] for table in comparisons(page)]


def what_differs(left: str, right: str) -> dict[str, tuple[Any, Any]]:
    """What a comparison of the two must list, and nothing else."""
    return {
        key: (one, other)
        for key, one, other in difference(resolve(left, TASK), resolve(right, TASK))
        if key not in NAMES
        if key in live(left) or key not in COMMON or other != live("ksl")[key]
    }


def value_of(cell: str) -> Any:
    """Read a cell: "-" is no value, JSON is what it says, all else a word."""
    if cell in ("-", "null"):
        return None
    try:
        return json.loads(cell)
    except json.JSONDecodeError:
        return cell


def words(cell: str) -> set[str]:
    return set(re.findall(r"\w+", cell))


def test_every_method_is_documented_once() -> None:
    documented = [method for page in PAGES for method in described(page)]
    documented += [method.name for method in ABLATIONS]
    assert sorted(documented) == sorted(METHODS)
    (table,) = columns("ablations", "name")
    assert [row[0] for row in table.rows] == [method.name for method in ABLATIONS]


@every_page
def test_complete_tables_have_the_live_values(page: str) -> None:
    for table in complete(page):
        for key, *cells in table.rows:
            for method, value in zip(methods_in(table), cells, strict=False):
                assert_live(method, key, value)
            assert cells[-1], f"{key} has no source"


@every_page
def test_complete_tables_name_every_setting(page: str) -> None:
    for table in complete(page):
        named = {row[0] for row in table.rows if row[0].startswith("method.")}
        for method in methods_in(table):
            settings = {
                key
                for key, value in live(method).items()
                if key.startswith("method.") and not isinstance(value, dict)
            }
            assert named == settings - set(NAMES)


@every_page
def test_comparisons_list_exactly_what_differs(page: str) -> None:
    for table in comparisons(page):
        left, right = methods_in(table)
        listed = {row[0]: (value_of(row[1]), value_of(row[2])) for row in table.rows}
        live_values = {
            # JSON has lists where the configuration has tuples, and the same numbers.
            key: tuple(json.loads(json.dumps(value)) for value in pair)
            for key, pair in what_differs(left, right).items()
        }
        assert listed == live_values, f"{left} and {right}"
        assert all(row[-1] for row in table.rows), "a value has no source"


@every_page
def test_values_per_task_are_the_live_ones(page: str) -> None:
    for table in tables(PAGES[page]):
        method, on, rest = table.head[0].partition(" on")
        if on and not rest and method in METHODS:
            for task, *cells in table.rows:
                for key, cell in zip(table.head[1:], cells, strict=True):
                    assert live(method, task)[key] == value_of(cell), f"{method} on {task}: {key}"


def depends_on_the_task() -> Iterator[tuple[str, str]]:
    for name in METHODS:
        if name.endswith("-original"):
            for task in ("finger_spin", "cheetah_run", "walker_walk", "ball_in_cup_catch"):
                yield name, task


@pytest.mark.parametrize(("method", "task"), [*depends_on_the_task()])
def test_whatever_the_task_changes_in_an_original_is_on_its_page(method: str, task: str) -> None:
    page, rate = method.removesuffix("-original"), "method.learning.learning_rate"
    own = {
        key
        for key, value in live(method).items()
        if not isinstance(value, dict) and value != live(method, task)[key]
    }
    # An original that keeps a rate which the controlled setting lowers says so as well.
    if live(method, task)[rate] == live(page)[rate] != live(page, task)[rate]:
        own.add(rate)
    heads = {
        key: {row[0] for row in table.rows}
        for table in tables(PAGES[page])
        if table.head[0] == f"{method} on"
        for key in table.head[1:]
    }
    for key in own - {"env.task"}:
        assert task in heads.get(key, set()), f"{key} of {method} depends on {task}"


def test_ablations_list_exactly_what_differs() -> None:
    """With all of the listed settings `ksl` is the ablation; without any one of them it is not."""
    (table,) = columns("ablations", "name")
    for name, what, settings, where in table.rows:
        overrides = [f"{key}={value}" for key, value in KEY.findall(f"`{settings}`")]
        assert is_same_as(name, overrides), name
        for i, needed in enumerate(overrides):
            assert not is_same_as(name, overrides[:i] + overrides[i + 1 :]), (name, needed)
        assert what
        assert where


def is_same_as(name: str, overrides: list[str]) -> bool:
    """Whether `ksl` with these settings is the method of that name."""
    try:
        changed = resolve("ksl", TASK, overrides=overrides)
    except KstepError:  # a key of a kind that was not chosen
        return False
    return not {key for key, _, _ in difference(changed, resolve(name, TASK))} - set(NAMES)


def documented_metrics(page: str, k: int) -> set[str]:
    """The metrics of a page's table; a page that adds to sac_pixel's lists only its own."""
    found = columns(page, "metric")
    if "Those of [sac_pixel](sac_pixel.md#metrics)" in TEXTS[page]:
        found += columns("sac_pixel", "metric")
    names = set()
    for table in found:
        for metric, *_ in table.rows:
            stem = metric.removesuffix("1..k")
            names |= {metric} if stem == metric else {f"{stem}{j + 1}" for j in range(k)}
    return names


def emitted(method: str) -> tuple[set[str], int]:
    """What two updates log, and how many decisions the auxiliary task looks ahead."""
    agent, replay = agent_and_replay(method)
    updates = [agent.update(replay) for _ in range(2)]
    metrics = {name for update in updates for name in update.metrics}
    metrics |= set(Health(agent, replay, print).look({}, updates[-1].latent))
    auxiliary = agent.method.auxiliary
    return metrics, auxiliary.horizon if auxiliary is not None else 0


class Scalars:
    """Stands in for TensorBoard and keeps the names of what it is given."""

    names: ClassVar[set[str]] = set()

    def __init__(self, folder: str, purge_step: int | None) -> None:
        pass

    def add_scalar(self, path: str, value: float, env_steps: int) -> None:
        self.names.add(path)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def of_the_loop(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What a run logs beside what its updates do: of episodes, the replay, evaluations."""
    folder = tmp_path_factory.mktemp("logged") / "run"
    options = ["--preset", "debug", "--env-steps", "200", "--threads", "1", "--tensorboard"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.utils.tensorboard.SummaryWriter", Scalars)
        cli.main(["train", "sac_state", "toy_reach", *options, "--folder", str(folder)])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    written = {key for line in lines for key in json.loads(line) if "/" in key}
    assert written <= Scalars.names
    metrics, _ = emitted("sac_state")
    assert metrics <= written
    return Scalars.names - metrics


@every_page
def test_metrics_are_those_that_are_written(page: str, of_the_loop: set[str]) -> None:
    assert {"train/return", "replay/size", "evaluation/return"} <= of_the_loop
    for method in described(page):
        metrics, k = emitted(method)
        assert documented_metrics(page, k) == metrics | of_the_loop


@pytest.mark.parametrize("method", [method.name for method in ABLATIONS])
def test_ablations_write_the_metrics_of_ksl(method: str, of_the_loop: set[str]) -> None:
    metrics, k = emitted(method)
    assert documented_metrics("ksl", k) == metrics | of_the_loop


@every_page
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


def test_networks_have_the_sizes_in_the_table() -> None:
    (table,) = columns("ksl", "network")
    for method in described("ksl"):
        # The first weights do not matter for their number, and PyTorch's own are quickest.
        plain = [f"method.{part}.init=default" for part in ("encoder", "core", "auxiliary")]
        experiment = resolve(method, "cheetah_run", overrides=plain)
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


def costs() -> Iterator[tuple[str, str, str, str]]:
    for page in PAGES:
        for table in columns(page, "method"):
            for method, forward, backward in table.rows:
                yield page, method, forward, backward


@pytest.mark.parametrize(("page", "method", "forward", "backward"), [*costs()])
def test_encoder_passes_are_as_stated(page: str, method: str, forward: str, backward: str) -> None:
    assert per_update(method) == (float(forward), float(backward))


def test_the_second_phase_costs_what_its_page_says() -> None:
    assert "phase only the first 2 are left" in PAGES["proto_rl"]
    assert per_update("proto_rl", phase=1) == (2, 0)


def index_row(method: str) -> list[str]:
    """What the index says of a method, but for its name and page."""
    declared = METHODS[method]
    task = declared.auxiliary
    if declared.observation == "state":
        learns, cost = "-", "-"
    else:
        learns = "critic"
        if task is not None:
            learns = "critic, auxiliary"
        if declared.learning.critic_trains == "head":
            learns = "auxiliary"
        cost = " + ".join(f"{number:g}" for number in per_update(method))
    pixels = declared.observation == "pixels"
    seen = f"{declared.encoder.image_size} px" if pixels else "state"
    return [
        seen,
        declared.augment.kind,
        str(declared.core.critic_views),
        task.kind if task else "-",
        learns,
        cost,
    ]


def test_index_lists_every_method_as_it_is() -> None:
    (table,) = columns("README", "name")
    assert [row[0] for row in table.rows] == list(METHODS)
    for name, *cells, page in table.rows:
        assert cells == index_row(name), name
        stem = re.fullmatch(r"\[(\w+)\]\(\1\.md\)", page)
        assert stem is not None, page
        ablation = name in {method.name for method in ABLATIONS}
        assert stem[1] == "ablations" if ablation else name in described(stem[1]), name


def commands() -> Iterator[str]:
    for text in TEXTS.values():
        for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
            yield from block.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("command", [*dict.fromkeys(commands())])
def test_commands_work(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolved_only(verb: Train) -> None:
        resolve(
            verb.method,
            verb.task,
            preset=verb.preset,
            env_steps=verb.env_steps,
            overrides=verb.set,
        )
        print("resolved")

    monkeypatch.setattr(Train, "__call__", resolved_only)
    program, *arguments = shlex.split(command)
    assert program == "kstep"
    cli.main(arguments)
    assert capsys.readouterr().out


def test_values_depend_on_the_task_as_stated() -> None:
    assert live("ksl", "cheetah_run")["method.learning.learning_rate"] == 2e-4
    assert live("ksl", TASK)["method.learning.learning_rate"] == 1e-3
