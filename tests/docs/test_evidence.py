"""The page of our own runs is made from the table beside it, and says of it what is true."""

from __future__ import annotations

import math

import polars as pl
import pytest
from scripts import evidence

from kstep.analysis.tables import Row
from kstep.report import paper
from kstep.sweep import store


def test_pages_are_what_the_script_makes_of_the_table() -> None:
    for path, text in evidence.pages(store.read(evidence.TABLE)).items():
        assert path.read_text() == text, f"{path.name} is old: python scripts/evidence.py"


def test_runs_from_before_the_table_are_in_it_with_their_commits() -> None:
    table = store.read(evidence.TABLE)
    early = table.filter(pl.col("processor") == evidence.EARLIER_PROCESSOR)
    assert set(early["commit"]) <= {
        c for named in evidence.EARLIER.values() for c in named.values()
    }
    assert early.filter(pl.col("mark") == evidence.BUDGET)["digest"].n_unique() >= 1


@pytest.mark.parametrize(
    ("ours", "where"), [(9.9, "below"), (10.0, "inside"), (30.0, "inside"), (30.1, "above")]
)
def test_where_a_mean_lies(ours: float, where: str) -> None:
    assert evidence.band(ours, 20.0, 10.0) == where


def cell(label: str, mean: float, std: float, runs: int) -> Row:
    of: Row = {"task": "cartpole_swingup", "label": label, "env_steps": evidence.BUDGET}
    return {**of, "mean": mean, "std": std, "runs": runs}


@pytest.mark.parametrize(
    ("ksl", "drq", "verdict"),
    [
        ((800.0, 10.0, 3), (600.0, 10.0, 3), "supported (800 ± 10 (3) and 600 ± 10 (3), p ="),
        ((600.0, 10.0, 3), (800.0, 10.0, 3), "contradicted ("),
        ((800.0, 90.0, 3), (790.0, 90.0, 3), "not supported, no difference is shown"),
        ((800.0, math.nan, 1), (600.0, 10.0, 3), "untested"),
    ],
)
def test_verdicts(
    ksl: tuple[float, float, int], drq: tuple[float, float, int], verdict: str
) -> None:
    found = evidence.claims([cell("ksl-cpu", *ksl), cell("drq-cpu", *drq)])
    (sentence,) = (s for s in found if s.startswith("`ksl` above `drq`"))
    assert f": {verdict}" in sentence


def test_readings_are_compared_where_both_sides_have_two_seeds() -> None:
    theirs: Row = {"paper_mean": 841.0, "paper_std": 33.0, "paper_runs": 10}
    text = {**cell("ksl-cpu", 841.0, 10.0, 3), **theirs}
    figure = {**cell("ksl-results-cpu", 641.0, 10.0, 3), **theirs}
    lines = evidence.readings([text, figure]).splitlines()[2:]
    same, apart, each = (line.strip("| ").split(" | ")[-1] for line in lines)
    assert same == "1"
    assert max(float(apart), float(each)) < 1e-3
    assert "20,000" in evidence.readings([])
    alone = evidence.readings([{**text, "runs": 1}, figure]).splitlines()[2:]
    assert alone[0].strip("| ").split(" | ")[-1] == "-"
    assert alone[2].strip("| ").split(" | ")[-1] == "-"


def test_the_average_improvement_needs_both_methods_on_all_six_tasks() -> None:
    ksl = [
        {**cell("ksl-cpu", 150.0, 1.0, 3), "task": task} for task in paper.cells("main", 100_000)
    ]
    drq: list[Row] = [{**row, "label": "drq-cpu", "mean": 100.0} for row in ksl]
    (partly,) = (s for s in evidence.claims([*ksl, *drq[1:]]) if "average improvement" in s)
    (whole,) = (s for s in evidence.claims([*ksl, *drq]) if "average improvement" in s)
    assert partly.endswith(": untested.")
    assert whole.endswith(": 50.0 % in ours.")
