"""docs/scale.md: its table of experiments, its example file and its commands are live."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kstep.cli import main
from kstep.sweep.plan import plan, read, shipped
from kstep.sweep.store import COLUMNS, OPTIONAL, REQUIRED
from tests.docs.test_decisions import tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scale.md").read_text()


def test_the_table_of_experiments_is_what_is_planned() -> None:
    (table,) = (t for t in tables(TEXT) if t.head[0] == "name")
    assert sorted(row[0] for row in table.rows) == sorted(shipped())
    every = set()
    for name, _, methods, tasks, _, env_steps, runs in table.rows:
        specs = plan(read(name))
        every |= {spec.folder for spec in specs}
        assert len(specs) == int(runs)
        assert len({spec.method for spec in specs}) == int(methods)
        assert len({spec.task for spec in specs}) == int(tasks)
        assert max(spec.env_steps for spec in specs) == int(env_steps.replace(",", ""))
    total = sum(int(row[-1]) for row in table.rows)
    assert f"all eight are {len(every)} runs, not {total:,}" in TEXT


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
