"""What a page shows, against the functions that compute it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kstep.config import resolve
from kstep.report import compare, paper, scales, scores, statistics
from kstep.report.comparisons import COMPARISONS, cell
from kstep.report.grid import Cell, Grid
from kstep.report.page import gather, records, returns
from kstep.report.page.data import Figure, Line, PageData, Section, plain
from kstep.run import health
from kstep.run.folder import Attempt, Evaluated, Run
from kstep.sweep import store
from kstep.types import KstepError

MARKS = (0, 50_000, 100_000)


def made(
    root: Path,
    method: str,
    task: str,
    seed: int,
    returns: Sequence[float],
    *,
    marks: Sequence[int] = MARKS,
    preset: str = "paper",
    overrides: Sequence[str] = (),
) -> Run:
    """A run folder as training leaves it, with these scores at these marks."""
    experiment = resolve(
        method, task, preset=preset, seed=seed, env_steps=100_000, overrides=overrides
    )
    run = Run.prepare(Run.default_folder(root, experiment, bool(overrides)), experiment)
    with run.locked():
        run.begin()
        rows = [
            Evaluated(mark, mark, mark // 4, mark // 4, 1, (score - 5.0, score + 5.0), (1, 1))
            for mark, score in zip(marks, map(float, returns), strict=False)
        ]
        run.evaluations_file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    return run


def section(data: PageData, name: str) -> Section:
    (found,) = (part for part in data.sections if part.name == name)
    return found


def lines(figure: Figure, kind: str, label: str = "") -> list[Line]:
    return [
        line for line in figure.lines if line.kind == kind and line.label in (label or line.label)
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(3)
    for method, level in (("ksl", 800), ("drq", 600), ("sac_state", 900)):
        for task in ("walker_walk", "cartpole_swingup"):
            for seed in (1, 2, 3, 4):
                made(root, method, task, seed, [20.0, *rng.normal((level / 2, level), 40)])
    return root


def test_a_line_ends_where_its_set_of_seeds_changes(tmp_path: Path) -> None:
    """The longer seed is far better: a mean over whoever is left would jump."""
    for seed, given in ((1, (10, 20, 30)), (2, (10, 20, 32)), (3, (100, 200))):
        made(tmp_path, "ksl", "walker_walk", seed, given)
    (figure,) = section(gather.gather([tmp_path]), "curves").figures
    (whole,), (rest,) = lines(figure, "mean"), lines(figure, "fewer")
    assert whole.x["env_steps"] == (0, 50_000)
    assert whole.y == (40.0, 80.0)
    assert whole.n == (3, 3)
    assert rest.x["env_steps"] == (100_000,)
    assert rest.y == (31.0,)
    assert rest.n == (2,)
    assert "seed 1, 2" in rest.name
    assert figure.usual_n == 3
    (iqm, *_) = section(gather.gather([tmp_path]), "aggregates").figures
    assert [(line.x["env_steps"], line.n, line.kind) for line in iqm.lines] == [
        ((0, 50_000), (3, 3), "mean"),
        ((100_000,), (2,), "fewer"),
    ]
    assert [line.y for line in lines(figure, "run")] == [(10, 20, 30), (10, 20, 32), (100, 200)]


def test_bands_are_those_of_the_statistics(runs: Path) -> None:
    found = section(gather.gather([runs]), "curves").figures
    for figure in found:
        for line in lines(figure, "mean"):
            seeds = [run.y for run in lines(figure, "run", line.label)]
            for index, values in enumerate(zip(*seeds, strict=True)):
                summary = statistics.summarize([float(value or 0.0) for value in values])
                assert line.y[index] == summary.mean
                low, high = (end[index] for end in line.bands["sd"])
                assert (low, high) == (summary.mean - summary.sd, summary.mean + summary.sd)
                inner = [float(end[index] or 0.0) for end in line.bands["interval"]]
                most = [*inner, *(float(value or 0.0) for value in values)]
                assert min(most) < inner[0] < summary.mean < inner[1] < max(most) or index == 0
    assert {figure.title for figure in found} == {"walker_walk", "cartpole_swingup"}


def test_two_seeds_have_no_interval_and_one_has_no_band(tmp_path: Path) -> None:
    made(tmp_path, "ksl", "walker_walk", 1, [1.0, 2.0, 3.0])
    made(tmp_path, "drq", "walker_walk", 1, [1.0, 2.0, 3.0])
    made(tmp_path, "drq", "walker_walk", 2, [2.0, 4.0, 5.0])
    (figure,) = section(gather.gather([tmp_path]), "curves").figures
    assert set(lines(figure, "mean", "ksl")[0].bands) == set()
    assert set(lines(figure, "mean", "drq")[0].bands) == {"sd"}


def test_the_papers_curves_are_beside_ours(runs: Path) -> None:
    figures = {figure.title: figure for figure in section(gather.gather([runs]), "curves").figures}
    (theirs,) = lines(figures["walker_walk"], "paper", "ksl")
    printed = paper.curves()["walker_walk", "ksl"]
    marks = [mark for mark in printed if mark <= 100_000]
    assert theirs.x["env_steps"] == tuple(marks)
    assert theirs.y == tuple(730 if mark == 100_000 else printed[mark].mean for mark in marks)
    assert theirs.x["decisions"] == tuple(mark / 2 for mark in marks)
    assert "hours" not in theirs.x


def test_tables_have_the_digits_of_the_statistics(runs: Path) -> None:
    data = gather.gather([runs])
    rows = [row for record in records.read([runs], pytest.fail) for row in record.rows()]
    here = scores.near(rows, 100_000)
    cells = scores.summary(here, [100_000], COMPARISONS["main"].beside)
    (shown,) = section(data, "returns").tables
    head = ("task", "KSL", "RAD", "DrQ", "CURL", "SAC-AE", "SAC State", "SAC Pixel")
    assert shown.head == head
    by_name = {"ksl": "KSL", "drq": "DrQ", "sac_state": "SAC State"}
    for row in cells:
        (line,) = (line for line in shown.rows if line[0].text == row["task"])
        found = line[head.index(by_name[str(row["label"])])]
        assert found.text == cell(row)
        assert found.text.endswith(f"{row['stars']} (n = 4)")
        assert found.bold == bool(row["best"])
        theirs = paper.cells("main", 100_000)[str(row["task"])][str(row["label"])]
        assert found.below == f"{theirs.mean:.0f} ± {theirs.sd:.0f}{theirs.stars}"
        assert found.below_bold == theirs.best
    assert {line[2].text for line in shown.rows} == {"-"}  # RAD: only the paper has it
    scaled = compare.at(here, 100_000, scales.scales(rows))
    tables = {grid.name: grid for grid in section(data, "aggregates").tables}
    draws = returns.DRAWS
    wanted = compare.aggregates(scaled, scales.scales(rows), **draws)
    assert set(tables["aggregates-100000"].rows) == set(wanted.rows)
    improvement = tables["improvement-100000"]
    for line in improvement.rows:
        for name, found in zip(improvement.head[1:], line[1:], strict=True):
            if line[0].text != name:
                pair = (compare.matrix(scaled, line[0].text), compare.matrix(scaled, name))
                again = statistics.improvement_interval(*pair, **draws)
                assert found.text == f"{again.value:.3f} [{again.low:.3f}, {again.high:.3f}]"


def test_only_the_suite_is_divided_by_a_thousand(tmp_path: Path) -> None:
    for seed, score in ((1, -4.0), (2, 6.0), (3, 1.0)):
        made(tmp_path, "ksl", "toy_reach", seed, [-4.0, 0.0, score], preset="debug")
        made(tmp_path, "ksl", "walker_walk", seed, [0.0, 0.0, 500.0], preset="debug")
    data = section(gather.gather([tmp_path]), "aggregates")
    (aggregates,) = (grid for grid in data.tables if grid.name == "aggregates-100000")
    # 0, 1 and 0.5 of the range of the toy's scores, and 0.5 three times.
    assert aggregates.rows[0][1].text.startswith("0.500 [")
    assert aggregates.rows[0][3].text == "0 of 3"  # nobody can say of the toy's
    assert any("toy_reach from -4 to 6" in remark for remark in data.remarks)


def test_a_table_of_evaluations_says_the_same(runs: Path, tmp_path: Path) -> None:
    made(tmp_path / "more", "proto_rl", "walker_walk", 1, [1.0, 2.0, 3.0])
    made(tmp_path / "more", "ksl", "walker_walk", 7, [5.0], overrides=["method.auxiliary.k=4"])
    store.collect(runs, tmp_path / "all.parquet")
    store.collect(tmp_path / "more", tmp_path / "all.parquet")
    one = gather.gather([runs, tmp_path / "more"])
    two = gather.gather([tmp_path / "all.parquet"])
    assert section(one, "curves") == section(two, "curves")
    assert section(one, "returns") == section(two, "returns")
    assert one.styles == two.styles
    assert len([label for label in one.styles if label.startswith("ksl-")]) == 1
    both = gather.gather([runs, tmp_path / "more", tmp_path / "all.parquet"])
    assert both.summary == one.summary  # copies of a run are the same run


def test_what_is_missing_failed_or_damaged_is_named(runs: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        run = made(tmp_path, "ksl", "walker_walk", seed, [1.0, 2.0, 3.0])
    made(tmp_path, "ksl", "cheetah_run", 1, [1.0, 2.0])
    attempt = Attempt("", 1.0, 1, "cpu", "here", 5, "failed", 1, "Traceback\nOut of memory")
    run.record_attempt(attempt)
    damaged = made(tmp_path, "ksl", "walker_walk", 9, [1.0])
    damaged.evaluations_file.write_text("{}\n")
    told: list[str] = []
    data = gather.gather([tmp_path], told.append)
    remarks = section(data, "runs").remarks
    assert "Failed: ksl on walker_walk, seed 2: Out of memory" in remarks
    assert "Missing: ksl on cheetah_run with seed 2." in remarks
    assert "Stopped before the budget: ksl on cheetah_run, seed 1." in remarks
    assert any("seed9" in text and "damaged" in text for text in told)
    assert any("seed9" in text for text in remarks)
    # The first run has no checkpoint any more, but all its evaluations.
    assert data.summary == "3 runs of 1 method on 2 tasks; 1 stopped early; 1 failed"
    assert not any("walker_walk, seed 1" in text for text in remarks)


def test_a_collapsed_representation_is_an_alarm(tmp_path: Path) -> None:
    def logged(run: Run, spread: float, newest: int = 5000) -> None:
        row = {"latent/spread": spread, "latent/rank": 9.0, "latent/cosine": 0.5, "critic/q": 1.0}
        rows = [{"env_steps": 10 * i, "updates": newest - 999 + i, **row} for i in range(1000)]
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    logged(made(tmp_path, "ksl", "walker_walk", 1, [1.0]), 1e-4)
    logged(made(tmp_path, "ksl", "walker_walk", 2, [1.0]), 0.5)
    logged(made(tmp_path, "ksl", "walker_walk", 3, [1.0]), 1e-4, newest=health.YOUNG)
    data = gather.gather([tmp_path])
    assert data.alarms == ("The representation has collapsed: ksl on walker_walk, seed 1.",)
    spread = next(f for f in section(data, "health").figures if f.name.endswith("latent-spread"))
    assert [line.name for line in spread.lines] == [f"ksl, seed {seed}" for seed in (1, 2, 3)]
    assert [len(line.y) for line in spread.lines] == [records.SAMPLED] * 3
    x = spread.lines[0].x["env_steps"]
    assert (x[0], x[-1]) == (0, 9990)  # from the first to the last


def test_a_diverging_q_is_an_alarm_where_the_rewards_are_bounded(tmp_path: Path) -> None:
    """On a task of the suite: 1 per env step, two of them per decision, for a hundred decisions."""

    def logged(task: str, seed: int, q: float) -> None:
        rows = [{"env_steps": 10 * i, "critic/q": q} for i in range(20)]
        run = made(tmp_path, "ksl", task, seed, [1.0])
        run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    logged("walker_walk", 1, 599.0)
    logged("walker_walk", 2, 601.0)
    logged("walker_walk", 3, -601.0)
    logged("toy_reach", 1, 1e9)
    data = gather.gather([tmp_path])
    assert data.alarms == ("Q diverges: ksl on walker_walk, seeds 2, 3.",)


def test_nothing_to_show_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="does not exist"):
        gather.gather([tmp_path / "nowhere"])
    with pytest.raises(KstepError, match="holds no run, no table of evaluations and no analysis"):
        gather.gather([tmp_path])
    made(tmp_path, "ksl", "walker_walk", 1, [])
    assert gather.gather([tmp_path]).summary == "1 run of 1 method on 1 task; 1 stopped early"


def test_what_analyze_wrote_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "temporal.csv").write_text(
        "label,task,seed,env_steps,distance,normalized\n"
        "ksl,walker_walk,1,0,1.0,0.5\nksl,walker_walk,1,5000,1.0,0.25\n"
        "ksl,walker_walk,2,0,1.0,0.7\nksl,walker_walk,2,5000,1.0,nan\n"
    )
    points = "".join(f"ksl,walker_walk,1,5000,{i},{i / 9},{i},0,-1\n" for i in range(2000))
    (tmp_path / "reward-pca-points.csv").write_text(
        f"label,task,seed,env_steps,state,reward,pc1,pc2,pc3\n{points}"
    )
    (tmp_path / "collapse.csv").write_text("label,task\nksl,walker_walk\n")
    told: list[str] = []
    found = section(gather.gather([tmp_path], told.append), "representations")
    (figure,) = found.figures
    assert [(line.kind, line.y, line.n) for line in figure.lines] == [
        ("mean", (0.6,), (2,)),
        ("fewer", (0.25,), (1,)),
    ]
    (cloud,) = found.clouds
    assert len(cloud.points) <= 800
    assert cloud.points[1] == (3.0, 0.0, -1.0, 3 / 9)
    assert len(told) == 1
    assert "collapse.csv" in told[0]


def test_json_holds_finite_numbers_to_six_digits() -> None:
    line = Line("a", "b", {"x": (1.0, None)}, (math.nan, 1 / 3), (1, 1))
    found: Any = plain(line)
    assert found["y"] == [None, 0.333333]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert plain(Cell("0.0", value=0.0)) == {"text": "0.0", "value": 0.0}  # nought is something


def test_a_table_is_latex_whatever_its_texts_are() -> None:
    grid = Grid.of(
        ("task", "a_b"),
        [["50 % \\input{x}", Cell("1 ± 2**", True, below="3\n& 4")]],
        title="t\n\\x",
    )
    assert grid.latex().splitlines() == [
        "% t \\x. ",
        "\\begin{tabular}{lr}",
        "\\toprule",
        "task & a\\_b \\\\",
        "\\midrule",
        "50 \\% \\textbackslash{}input\\{x\\} & \\textbf{1 $\\pm$ 2**} \\\\",
        " & 3 \\& 4 \\\\",
        "\\bottomrule",
        "\\end{tabular}",
    ]
