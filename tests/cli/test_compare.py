"""kstep compare, from a table of made-up seeds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kstep.cli import main

pytest.importorskip("polars")

TASKS = ("cartpole_swingup", "walker_walk")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five seeds of two methods: one as good as the paper's KSL, one far below its DrQ."""
    rng = np.random.default_rng(0)
    rows = ["method,task,seed,env_steps,return,flavour,preset"]
    for method, mean in (("ksl", {"cartpole_swingup": 841, "walker_walk": 730}), ("drq", {})):
        for task in TASKS:
            for seed in range(1, 6):
                value = rng.normal(mean.get(task, 50), 20)
                rows.append(f"{method},{task},{seed},100000,{value},controlled,paper")
    file, table = tmp_path / "rows.csv", tmp_path / "results.parquet"
    file.write_text("\n".join(rows) + "\n")
    main(["import", str(file), "--source", "made up", "--output", str(table)])
    import polars as pl

    pl.read_parquet(table).with_columns(source=pl.lit("runs")).write_parquet(table)
    return table


def test_compare_shows_cells_aggregates_and_the_paper(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'tasks = ["walker_walk"]\nmarks = [100_000]\npaper = "main"\n'
        '[[group]]\nmethods = ["ksl", "drq"]\nseeds = "1-5"\nenv_steps = 100_000\n'
    )
    arguments = ["compare", str(file), "--table", str(table), "--repetitions", "200"]
    main([*arguments, "--paper"])
    out = capsys.readouterr().out
    assert "100,000 env steps" in out
    assert "(n = 5)" in out
    assert "**, Holm" in out
    assert "10 of 10" in out  # the weak method's seeds all failed
    beside = out[out.index("the paper") :]
    beside, _, along = beside.partition("along the paper's curves")
    assert ["walker_walk", "ksl", "1", "0", "0", "0"] in [x.split() for x in along.splitlines()]
    assert ["walker_walk", "drq", "0", "0", "1", "0"] in [x.split() for x in along.splitlines()]
    words = {tuple(line.split()[:2]): line.split()[-1] for line in beside.splitlines()[1:] if line}
    assert words[("walker_walk", "ksl")] == "inside"
    assert words[("walker_walk", "drq")] == "below"
    main([*arguments, "--paper"])
    assert capsys.readouterr().out == out  # every draw is seeded


def test_a_mark_nobody_reached(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "main", "--scale", "debug", "--table", str(table)])
    assert "nothing was evaluated at 200 env steps" in capsys.readouterr().err
