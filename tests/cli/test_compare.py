"""kstep compare, from a table of made-up seeds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kstep.cli import main
from kstep.report.compare import meant_for
from kstep.sweep import store
from kstep.sweep.plan import plan, read

FILE = (
    'tasks = ["cartpole_swingup", "walker_walk"]\nmarks = [100_000]\npaper = "main"\n'
    '[[group]]\nmethods = ["ksl", "drq"]\nseeds = "1-6"\nenv_steps = 100_000\n'
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    return file


@pytest.fixture
def table(tmp_path: Path, experiment: Path) -> Path:
    """Five of six seeds of two methods: one as good as the paper's KSL, one far below its DrQ."""
    import polars as pl

    rng = np.random.default_rng(0)
    good = {"cartpole_swingup": 841, "walker_walk": 730}
    rows = []
    for spec in plan(read(str(experiment))):
        for mark in (0, 100_000) if spec.seed < 6 else ():
            middle = good[spec.task] if spec.method == "ksl" and mark else 50
            row = {"source": "runs", "flavour": "controlled", "preset": "paper", "mark": mark}
            row |= {name: getattr(spec, name) for name in ("method", "task", "seed")}
            row |= {"env_steps": mark, "episode": 0, "return": rng.normal(middle, 20)}
            rows.append(row | {"setting": spec.setting, "digest": spec.digest})
    # Another setting of a method, which belongs to no experiment.
    rows.append({**rows[-1], "setting": "other", "digest": "other", "return": 1000.0})
    schema = {name: getattr(pl, kind) for name, kind in store.COLUMNS.items()}
    file = tmp_path / "results.parquet"
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(file)
    return file


def test_compare_shows_cells_aggregates_and_the_paper(
    table: Path, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", str(experiment), "--table", str(table), "--repetitions", "200"]
    main([*arguments, "--paper"])
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert "100,000 env steps" in out
    assert "(n = 5)" in out
    assert "**, Holm" in out
    assert "10 of 10" in out  # the weak method's seeds all failed
    assert "4 of 24 planned runs are not in the table: cartpole_swingup ksl-paper seed 6" in out
    # Profiles: every run of the good one is above 0.6, none of the weak one above 0.1.
    assert ["0.6", "0.000", "[0.000,", "0.000]", "1.000", "[1.000,", "1.000]"] in lines
    curve = out[out.index("IQM along the curve") :].partition("along the paper's curves")[0]
    first, last = (line.split() for line in curve.splitlines()[2:4])
    assert (first[0], last[0]) == ("0", "100,000")
    assert curve.count("(n = 5)") == 4
    header = curve.splitlines()[1].split()
    assert header == ["env", "steps", "drq", "ksl"]
    (weak_start, good_start), (weak, good) = (
        [float(word) for word in re.findall(r"(?<= )0\.\d+(?= \[)", line)]
        for line in curve.splitlines()[2:4]
    )
    assert max(weak_start, good_start, weak) < 0.1 < 0.7 < good
    beside = out[out.index("the paper") :]
    beside, _, along = beside.partition("along the paper's curves")
    assert ["walker_walk", "ksl", "1", "0", "0", "0"] in [x.split() for x in along.splitlines()]
    assert ["walker_walk", "drq", "0", "0", "1", "0"] in [x.split() for x in along.splitlines()]
    words = {tuple(line.split()[:2]): line.split()[-1] for line in beside.splitlines()[1:] if line}
    assert words[("walker_walk", "ksl")] == "inside"
    assert words[("walker_walk", "drq")] == "below"
    main([*arguments, "--paper"])
    assert capsys.readouterr().out == out  # every draw is seeded


def test_runs_made_for_another_mark_are_not_mixed_in() -> None:
    specs = plan(read("tangential"), tasks=["walker_walk"])
    for mark, half in ((100_000, 50_000), (500_000, 250_000)):
        meant = [s for s in meant_for(specs, mark) if s.method == "proto_rl"]
        assert len(meant) == 10
        assert {s.overrides for s in meant} == {(f"method.exploration.env_steps={half}",)}
    assert len([s for s in meant_for(specs, 100_000) if s.method == "ksl"]) == 10


def test_a_mark_nobody_reached(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "main", "--scale", "debug", "--table", str(table)])
    assert "nothing was evaluated at 200 env steps" in capsys.readouterr().err
