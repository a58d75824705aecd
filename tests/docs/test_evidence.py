"""The page of our own runs is made from the table beside it, and says of it what is true."""

from __future__ import annotations

import math

import polars as pl
import pytest
from scripts import evidence

from kstep.analysis.tables import Row
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
