"""The paper's own numbers in, the paper's own statements out: bold, stars, improvements."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from kstep.analysis.tables import Row
from kstep.envs import tasks
from kstep.report import paper, scores
from kstep.report import statistics as s
from kstep.report.comparisons import COMPARISONS, cell
from kstep.report.paper import PaperCell
from kstep.report.statistics import Summary
from kstep.types import KstepError


def spread_out(mean: float, sd: float, n: int) -> Iterator[float]:
    """Numbers that have exactly this mean and deviation."""
    pattern = np.linspace(-1.0, 1.0, n)
    yield from mean + sd * pattern / pattern.std(ddof=1)


def as_if_run(table: str, mark: int, methods: dict[str, str] | None = None) -> list[Row]:
    """Rows of runs whose means, deviations and number are the paper's; `methods`: as which of
    ours."""
    return [
        {
            "label": label,
            "method": label,
            "task": task,
            "seed": seed,
            "exploration": 0,
            "env_steps": mark,
            "score": score,
        }
        for task, row in paper.cells(table, mark).items()
        for name, theirs in row.items()
        for label in [(methods or {}).get(name, name)]
        for seed, score in enumerate(spread_out(theirs.mean, theirs.sd, theirs.n))
    ]


DISAGREES = ("tangential", 500_000, "ball_in_cup_catch")
"""Printed with two stars. KSL against Proto-RL (949 +- 25) is p = 0.015, one star; against PI-SAC,
the runner-up, it would be two."""


@pytest.mark.parametrize(("table", "mark"), paper.BOLD)
def test_verdicts_from_the_papers_numbers_are_the_papers(table: str, mark: int) -> None:
    found = scores.summary(as_if_run(table, mark), [mark], COMPARISONS[table].beside)
    assert {row["task"] for row in found} == set(paper.cells(table, mark))
    for row in found:
        assert (row["mean"], row["std"]) == pytest.approx((row["paper_mean"], row["paper_std"]))
        assert row["runs"] == row["paper_runs"]
        assert row["place"] == "none shown"
        assert row["best"] == row["paper_best"], row
        if (table, mark, row["task"]) == DISAGREES and row["best"]:
            assert (row["stars"], row["paper_stars"]) == ("*", "**")
        else:
            assert row["stars"] == row["paper_stars"], row


def test_the_one_cell_that_disagrees() -> None:
    row = paper.cells(*DISAGREES[:2])[DISAGREES[2]]
    best = paper.contest(row, {name: name for name in row})
    assert best is not None
    assert (best.name, best.closest) == ("ksl", "proto_rl")
    assert best.p["proto_rl"] == pytest.approx(0.0153, abs=1e-4)
    assert s.stars(best.p["pi_sac"]) == "**"


def test_holm_would_take_three_stars_of_table_1() -> None:
    changed = []
    for mark in paper.MARKS:
        for task, row in paper.cells("main", mark).items():
            best = paper.contest(row, {name: name for name in row})
            assert best is not None
            corrected = s.stars(max(best.corrected.values()))
            if corrected != best.stars:
                changed.append((task, best.stars, corrected))
    assert changed == [
        ("finger_spin", "**", "*"),
        ("cartpole_swingup", "*", ""),
        ("ball_in_cup_catch", "*", ""),
    ]


def test_sac_from_state_is_no_rival_and_neither_is_another_variant() -> None:
    high, low = Summary(900.0, 10.0, 10), Summary(500.0, 10.0, 10)
    found = {"sac_state-cpu": high, "ksl-cpu": low, "ksl-results-cpu": low, "drq-cpu": low}
    methods = {label: label.removesuffix("-cpu") for label in found}
    best = paper.contest(found, methods)
    assert best is not None
    assert best.name == "ksl-cpu"
    assert set(best.p) == {"drq-cpu"}
    # Ablations and runs with settings of their own are rivals: to compare them is the point.
    found = {"ksl": high, "ksl-conv": low, "ksl-12ab34": low}
    best = paper.contest(found, {"ksl": "ksl", "ksl-conv": "ksl-conv", "ksl-12ab34": "ksl"})
    assert best is not None
    assert set(best.p) == {"ksl-conv", "ksl-12ab34"}
    assert paper.contest({"sac_state": high}, {"sac_state": "sac_state"}) is None
    # Another preset is another experiment.
    found = {"ksl": high, "drq": low, "drq-cpu": low, "proto_rl-cpu 50k/50k": low}
    best = paper.contest(found, dict.fromkeys(found, "ksl"))
    assert best is not None
    assert set(best.p) == {"drq"}


@pytest.mark.parametrize("reading", ["ksl", "ksl-results", "ksl-released"])
@pytest.mark.parametrize("suffix", ["", "-original"])
def test_improvements_from_the_papers_numbers_are_the_papers(reading: str, suffix: str) -> None:
    """46.9 and 14.5 % over DrQ, 58.1 and 21.6 % over RAD, whichever variant stands for each."""
    names = {"ksl": reading, "drq": f"drq{suffix}", "rad": f"rad{suffix}"}
    claims = paper.table("claims")
    for mark, data in paper.MARKS.items():
        table = scores.summary(as_if_run("main", mark, names), [mark], COMPARISONS["main"].beside)
        found = {row["over"]: row for row in scores.improvements(table)}
        assert set(found) == {names["drq"], names["rad"], "curl", "sac_ae", "sac_pixel"}
        for rival in ("drq", "rad"):
            row = found[names[rival]]
            claimed = claims[f"avg_improvement_over_{rival}_percent"][data]
            assert (row["label"], row["tasks"]) == (reading, 6)
            assert round(float(row["percent"]), 1) == claimed
            assert round(float(row["paper_percent"]), 1) == claimed
    assert math.isnan(scores.paper_improvement("ksl-conv", 100_000))


def test_improvements_are_of_one_preset_and_the_papers_over_the_same_tasks() -> None:
    tasks = ("cartpole_swingup", "cheetah_run")
    table: list[Row] = [
        {"label": label, "method": "ksl", "task": task, "env_steps": 100_000, "mean": 9.0}
        for label in ("ksl", "ksl-cpu", "drq-cpu")
        for task in tasks[: 1 + (label != "ksl")]
    ]
    (row,) = scores.improvements(table)
    assert (row["label"], row["over"], row["tasks"]) == ("ksl-cpu", "drq-cpu", 2)
    cells = [paper.cells("main", 100_000)[task] for task in tasks]
    expected = [100 * (cell["ksl"].mean / cell["drq"].mean - 1) for cell in cells]
    assert row["paper_percent"] == pytest.approx(sum(expected) / 2)
    elsewhere = [{**row, "task": f"toy_{row['task']}"} for row in table]
    assert math.isnan(float(scores.improvements(elsewhere)[0]["paper_percent"]))


def test_an_improvement_on_nothing_has_no_percentage() -> None:
    table: list[Row] = [
        {"label": name, "method": name, "task": task, "env_steps": 7, "mean": mean}
        for name, means in {"ksl": (2.0, 3.0), "drq": (1.0, 0.0), "rad": (1.0, 2.0)}.items()
        for task, mean in zip(("a", "b"), means, strict=True)
    ]
    found = {row["over"]: row["percent"] for row in scores.improvements(table)}
    assert math.isnan(float(found["drq"]))
    assert found["rad"] == pytest.approx((100.0 + 50.0) / 2)


@pytest.mark.parametrize(
    ("label", "theirs"),
    [
        ("ksl", "ksl"),
        ("ksl-results", "ksl"),
        ("ksl-released-cpu", "ksl"),
        ("drq-original", "drq"),
        ("sac_ae-original-debug", "sac_ae"),
        ("proto_rl 50k/50k", "proto_rl"),
        ("proto_rl-original-cpu 100/100", "proto_rl"),
        ("ksl-conv", ""),
        ("ksl-k1-l0", ""),
        ("ksl-cpu-12ab34", ""),
        ("drq (DrQ, authors' data)", ""),
    ],
)
def test_every_variant_stands_beside_the_papers_column(label: str, theirs: str) -> None:
    assert paper.name_of(label) == theirs
    row: Row = {"label": label, "task": "walker_walk"}
    found = paper.beside(row, 100_000, ["main", "tangential"])
    assert (found is not None) == bool(theirs)


def test_proto_rl_stands_beside_the_run_of_its_own_split() -> None:
    row: Row = {"label": "proto_rl 50k/50k", "task": "walker_walk", "exploration": 50_000}
    long: Row = {**row, "label": "proto_rl 250k/250k", "exploration": 250_000}
    assert paper.beside(row, 100_000, ["tangential"]) == PaperCell(332.0, 141.0, 10)
    assert paper.beside(long, 500_000, ["tangential"]) == PaperCell(755.0, 109.0, 10)
    assert paper.beside(row, 500_000, ["tangential"]) is None
    assert paper.beside(long, 100_000, ["tangential"]) is None


def test_printed_stars_are_those_of_the_reference_results() -> None:
    printed = paper.table("main")["ksl_significance_p"]
    for mark, name in paper.MARKS.items():
        expected = {task: {0.01: "**", 0.05: "*"}[p] for task, p in printed[name].items()}
        rows = paper.cells("main", mark)
        assert {
            task: row["ksl"].stars for task, row in rows.items() if row["ksl"].stars
        } == expected


def test_a_place_beside_the_paper() -> None:
    theirs = paper.cells("main", 100_000)["cartpole_swingup"]["ksl"]
    assert theirs == PaperCell(841.0, 33.0, 10, best=True, stars="**")
    assert paper.place(Summary(835.0, 30.0, 3), theirs) == "none shown"
    assert paper.place(Summary(400.0, 30.0, 5), theirs) == "below"
    assert paper.place(Summary(990.0, 5.0, 5), theirs) == "above"
    with pytest.raises(KstepError, match="has no table"):
        paper.cells("main", 7)


def test_cells_of_the_grid_and_of_generalization() -> None:
    assert paper.cells("k-l-grid", 100_000)["cheetah_run"]["k3-l0"] == PaperCell(
        575, 58, 5, best=True
    )
    carried = paper.cells("generalization", 100_000)["reacher_easy"]["ksl"]
    # Five source tasks, five seeds.
    assert carried == PaperCell(355, 189, 25, best=True, stars="**")


def test_the_papers_curves_are_known_by_our_names_and_pass_through_its_table() -> None:
    curves = paper.curves()
    assert {task for task, _ in curves} == set(tasks.PLANET)
    assert {method for _, method in curves} == {"ksl", "rad", "drq", "curl", "sac_ae"}
    for mark in paper.MARKS:
        for (task, method), curve in curves.items():
            printed = paper.cells("main", mark)[task][method]
            assert curve[mark].mean == pytest.approx(printed.mean, abs=25), (task, method, mark)
    row: Row = {"label": "ksl-results-cpu", "task": "finger_spin"}
    assert paper.beside(row, 20_000, ["main"]) == PaperCell(488.6, 192.1, 10)
    assert paper.beside(row, 12_345, ["main"]) is None
    assert paper.beside({**row, "task": "toy_reach"}, 100_000, ["main"]) is None


def test_a_cell_as_it_is_printed() -> None:
    row: Row = {"task": "cartpole_swingup", "mean": 841.3, "std": 32.9, "runs": 10, "stars": "**"}
    assert cell(row) == "841 ± 33** (n = 10)"
    assert (
        cell({**row, "task": "toy_reach", "mean": -7.18, "std": 1.2}) == "-7.18 ± 1.20** (n = 10)"
    )
    assert cell({**row, "std": math.nan, "runs": 1, "stars": ""}) == "841 (n = 1)"
