"""The page of our own runs is made from the table beside it, and says of it what is true."""

from __future__ import annotations

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
        ((800.0, 10.0, 3), (600.0, 10.0, 3), "supported (ours 800 ± 10 (3) and 600 ± 10 (3), p ="),
        ((600.0, 10.0, 3), (800.0, 10.0, 3), "contradicted ("),
        ((800.0, 90.0, 3), (790.0, 90.0, 3), "not supported, no difference is shown"),
    ],
)
def test_verdicts(
    ksl: tuple[float, float, int], drq: tuple[float, float, int], verdict: str
) -> None:
    found = evidence.claims([cell("ksl-cpu", *ksl), cell("drq-cpu", *drq)])
    (sentence,) = (s for s in found if s.startswith("`ksl` above `drq`"))
    assert f": {verdict}" in sentence


@pytest.mark.parametrize("runs", [(2, 3), (3, 2)])
def test_pairs_with_few_seeds_are_untested_whatever_they_show(runs: tuple[int, int]) -> None:
    cells = [
        cell(label, mean, 1.0, n)
        for label, mean, n in zip(("ksl-cpu", "drq-cpu"), (900.0, 100.0), runs, strict=True)
    ]
    # Runs of the paper's size, and the paper's own rivals of two tables.
    cells += [cell("ksl", 1.0, 1.0, 9), cell("drq", 2.0, 1.0, 9)]
    sentences = [s for s in evidence.claims(cells) if s.startswith("`ksl")]
    assert sentences == [
        f"`ksl` (the paper 841, ours 900 ± 1 ({runs[0]})) above `rad` 620, `drq` 651 (ours so far "
        f"100 ± 1 ({runs[1]})), `curl` 274, `sac_ae` 278, `sac_pixel` 200, `pi_sac` 722, "
        "`proto_rl` 366 on cartpole_swingup: untested."
    ]


def test_both_phases_of_a_method_keep_its_name_and_preset() -> None:
    row: Row = {**cell("proto_rl-cpu 50k/50k", 300.0, 0.0, 1), "paper_runs": 0}
    assert "| `proto_rl 50k/50k` | cpu | 1 | 300 |" in evidence.readme_block([row])
    ksl = cell("ksl-cpu", 800.0, 10.0, 3)
    assert any("`proto_rl` 366 (ours so far 300 (1))" in s for s in evidence.claims([ksl, row]))


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


def test_the_average_improvement_needs_both_methods_on_all_six_tasks_with_three_seeds() -> None:
    ksl = [
        {**cell("ksl-cpu", 150.0, 1.0, 3), "task": task} for task in paper.cells("main", 100_000)
    ]
    drq: list[Row] = [{**row, "label": "drq-cpu", "mean": 100.0} for row in ksl]

    def said(cells: list[Row]) -> str:
        (sentence,) = (s for s in evidence.claims(cells) if "average improvement over DrQ" in s)
        return sentence.partition("%): ")[2]

    each = ", ".join(f"50.0 on {row['task']}" for row in ksl)
    assert said([*ksl, *drq]) == f"50.0 % in ours ({each}; seeds: 3), without a test."
    assert said([*ksl]) == "untested."
    partly = said([*ksl, *drq[1:]])
    assert partly.startswith("untested; so far, on 5 of them, 50.0 % in ours (50.0 on cartpole")
    assert "; seeds: 3) where" in partly
    few = said([*ksl, {**drq[0], "runs": 1}, *drq[1:]])
    assert few.startswith("untested; so far, on 6 of them, 50.0 % in ours (50.0 on finger_spin")
    assert few.endswith("; seeds: 1 to 3) where the paper has 46.9 %.")
    # Over a method that has learned nothing there is no such number.
    nothing = said([*ksl, {**drq[0], "mean": 0.0}, *drq[1:]])
    assert nothing == "undefined in ours, as `drq` has no positive return on finger_spin."


def test_constant_returns_are_not_tested() -> None:
    cells = [cell("ksl-cpu", 0.0, 0.0, 3), cell("drq-cpu", 0.0, 0.0, 3)]
    (sentence,) = (s for s in evidence.claims(cells) if s.startswith("`ksl` above `drq`"))
    assert sentence.endswith("not tested, both are constant (ours 0 ± 0 (3) and 0 ± 0 (3)).")


def test_other_attempts_are_left_out_where_their_runs_are_missing() -> None:
    assert evidence.with_other_attempts([]) == ""


def test_nothing_is_placed_before_anything_is_learned() -> None:
    theirs: Row = {"paper_mean": 0.0, "paper_std": 0.0, "paper_runs": 10, "env_steps": 0}
    table = evidence.tables_of("cheetah_run", [{**cell("drq-cpu", 0.4, 0.0, 1), **theirs}])
    assert "| 0 ± 0 |" in table
