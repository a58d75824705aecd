"""docs/scale.md: its table of experiments, its example file and its commands are live."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kstep.cli import main
from kstep.native import Backend
from kstep.sweep.cost import estimate
from kstep.sweep.experiments import read, shipped
from kstep.sweep.plan import RunSpec, Status, plan
from kstep.sweep.store import COLUMNS, OPTIONAL, REQUIRED
from tests.docs.test_decisions import tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scale.md").read_text()
OF_THE_PAPER = [name for name in shipped() if name != "evidence"]


def test_the_table_of_experiments_is_what_is_planned() -> None:
    (table,) = (t for t in tables(TEXT) if t.head[0] == "name")
    assert sorted(row[0] for row in table.rows) == sorted(OF_THE_PAPER)
    every = set()
    for name, _, methods, tasks, _, env_steps, runs in table.rows:
        specs = plan(read(name))
        every |= {spec.folder for spec in specs}
        assert len(specs) == number(runs)
        assert len({spec.method for spec in specs}) == int(methods)
        assert len({spec.task for spec in specs}) == int(tasks)
        assert max(spec.env_steps for spec in specs) == int(env_steps.replace(",", ""))
    total = sum(int(row[-1]) for row in table.rows)
    assert f"all nine are {len(every):,} runs, not {total:,}" in TEXT


def test_the_example_is_an_experiment(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, flags=re.DOTALL)
    file = tmp_path / "mine.toml"
    file.write_text(block)
    assert len(plan(read(str(file)))) == 2 * 2 * 5
    assert len(plan(read(str(file), "cpu"))) == 2 * 2 * 3


def test_every_column_is_explained() -> None:
    (table,) = (t for t in tables(TEXT) if t.head[0] == "column")
    named = [name for row in table.rows for name in re.findall(r"\w+", row[0].replace("`", ""))]
    assert sorted(named) == sorted(COLUMNS)
    _, _, form = TEXT.partition("Required columns:")
    for name in (*REQUIRED, *OPTIONAL):
        assert f"`{name}`" in form


def test_the_commands_that_plan_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block, *_) = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    for words in lines:
        assert words[0] == "kstep"
        if words[1] == "list" or "--plan" in words:
            main(words[1:])
    assert "21 runs: 21 missing" in capsys.readouterr().out


@pytest.mark.parametrize(("backend", "named"), [("native", "native"), ("torch", "PyTorch's")])
def test_the_costs_are_what_the_plan_says(backend: Backend, named: str) -> None:
    """Core-hours, longest run and wall time, to the two digits the page gives."""
    (table,) = (t for t in tables(TEXT) if t.head[0] == f"{named} convolutions")
    assert len(table.rows) == 3
    for what, runs, core_hours, longest, disk, *nodes in table.rows:
        name, scale = what.replace("`", "").split(", ")
        specs: dict[Path, RunSpec] = {}
        for experiment in OF_THE_PAPER if name == "everything" else [name]:
            for spec in plan(read(experiment, scale)):
                other = specs.get(spec.folder, spec)
                specs[spec.folder] = max(spec, other, key=lambda s: s.env_steps)
        left = estimate([*specs.values()], [Status("missing")] * len(specs), backend=backend)
        assert len(specs) == number(runs)
        assert number(core_hours) == pytest.approx(left.core_hours, rel=0.02)
        assert number(longest) == pytest.approx(left.longest_core_hours, rel=0.02)
        assert number(disk) == pytest.approx(left.disk_gb / 1000, abs=0.05)
        for count, text, threads in zip((1, 10, 100), nodes, (1, 1, 4), strict=True):
            hours = number(text) * (24 if text.endswith("days") else 1)
            assert hours == pytest.approx(left.hours(16 * count, threads), rel=0.02), (what, count)


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))
