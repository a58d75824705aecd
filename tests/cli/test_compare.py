"""kstep compare, from a table of made-up seeds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kstep.cli import main
from kstep.report import paper
from kstep.sweep import store
from kstep.sweep.experiments import read, shipped
from kstep.sweep.plan import RunSpec, plan, with_variants

FILE = (
    'tasks = ["cartpole_swingup", "walker_walk"]\nmarks = [100_000]\npaper = "main"\n'
    '[[group]]\nmethods = ["ksl", "drq"]\nseeds = "1-6"\nenv_steps = 100_000\n'
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    file = tmp_path / "mine.toml"
    file.write_text(FILE)
    return file


def rows_of(spec: RunSpec, returns: dict[int, float]) -> list[dict[str, object]]:
    """What the table holds of a run with these scores."""
    method, _, variant = spec.method.partition("-")
    row: dict[str, object] = {
        "source": "runs",
        "method": method,
        "variant": variant,
        "preset": spec.preset,
    }
    row |= {"task": spec.task, "seed": spec.seed, "episode": 0}
    row |= {"setting": spec.setting, "digest": spec.digest}
    return [row | {"mark": m, "env_steps": m, "return": score} for m, score in returns.items()]


def written(rows: list[dict[str, object]], file: Path) -> Path:
    import polars as pl

    schema = store.COLUMNS
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(file)
    return file


@pytest.fixture
def table(tmp_path: Path, experiment: Path) -> Path:
    """Five of six seeds of two methods: one as good as the paper's KSL, one far below its DrQ."""
    rng = np.random.default_rng(0)
    good = {"cartpole_swingup": 841, "walker_walk": 730}
    rows: list[dict[str, object]] = []
    for spec in plan(read(str(experiment))):
        if spec.seed < 6:
            last = good[spec.task] if spec.method == "ksl" else 50
            rows += rows_of(spec, {0: rng.normal(50, 20), 100_000: rng.normal(last, 20)})
    # Another setting of a method, which belongs to no experiment.
    rows.append({**rows[-1], "setting": "other", "digest": "other", "return": 1000.0})
    return written(rows, tmp_path / "results.parquet")


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
    missing = "4 of 24 planned runs have no evaluation at this mark: cartpole_swingup"
    assert f"{missing} ksl-paper seed 6" in out
    # Profiles: every run of the good one is above 0.6, none of the weak one above 0.1.
    assert ["0.6", "1.000", "[1.000,", "1.000]", "0.000", "[0.000,", "0.000]"] in lines
    curve = out[out.index("IQM along the curve") :].partition("along the paper's curves")[0]
    first, last = (line.split() for line in curve.splitlines()[2:4])
    assert (first[0], last[0]) == ("0", "100,000")
    assert curve.count("(n = 5)") == 4
    header = curve.splitlines()[1].split()
    assert header == ["env", "steps", "ksl", "drq"]  # as the experiment lists them
    (good_start, weak_start), (good, weak) = (
        [float(word) for word in re.findall(r"(?<= )0\.\d+(?= \[)", line)]
        for line in curve.splitlines()[2:4]
    )
    assert max(weak_start, good_start, weak) < 0.1 < 0.7 < good
    beside = out[out.index("the paper") :]
    beside, _, along = beside.partition("along the paper's curves")
    assert ["walker_walk", "ksl", "1", "0", "0", "0"] in [x.split() for x in along.splitlines()]
    assert ["walker_walk", "drq", "0", "0", "1", "0"] in [x.split() for x in along.splitlines()]
    words = {
        tuple(line.split()[:2]): line.rpartition(")")[2].strip()
        for line in beside.splitlines()[1:]
        if line
    }
    assert words[("walker_walk", "ksl")] == "none shown"
    assert words[("walker_walk", "drq")] == "below"
    main([*arguments, "--paper"])
    assert capsys.readouterr().out == out  # every draw is seeded


def compared(capsys: pytest.CaptureFixture[str], name: str, file: Path, *options: str) -> list[str]:
    main(["compare", name, "--table", str(file), "--repetitions", "50", *options])
    return capsys.readouterr().out.splitlines()


def test_verdicts_are_the_papers_on_its_own_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table 1 through the whole command: SAC from state is often best and never bold."""
    pattern = np.linspace(-1.0, 1.0, 10)
    pattern /= pattern.std(ddof=1)
    rows: list[dict[str, object]] = []
    for spec in plan(read("main")):
        cells = {mark: paper.cells("main", mark)[spec.task][spec.method] for mark in paper.MARKS}
        shift = float(pattern[spec.seed - 1])
        rows += rows_of(spec, {m: cell.mean + shift * cell.sd for m, cell in cells.items()})
    lines = compared(capsys, "main", written(rows, tmp_path / "paper.parquet"), "--paper")
    verdicts = [line for line in lines if ", Holm" in line]
    assert len(verdicts) == 12
    printed = [row["ksl"] for mark in paper.MARKS for row in paper.cells("main", mark).values()]
    for line, ksl in zip(verdicts, printed, strict=True):
        assert f"{ksl.mean:.0f} ± {ksl.sd:.0f}{ksl.stars} (n = 10)" in line
        assert re.search(rf"p [\d.e-]+{re.escape(ksl.stars)}, Holm", line)
    improved = [line.split() for line in lines if line.strip().startswith("ksl ") and "%" in line]
    assert [row[2] for row in improved if row[1] == "drq"] == ["46.9", "14.5"]
    assert [row[2] for row in improved if row[1] == "rad"] == ["58.1", "21.6"]
    assert all(row[2] == row[4] for row in improved)


def test_other_readings_and_settings_stand_beside_the_paper(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("ksl", "ksl-results", "ksl-released", "drq-original", "sac_state-original")
    rows: list[dict[str, object]] = []
    for spec in plan(with_variants(read("main")), tasks=["walker_walk"], seeds=[1, 2, 3]):
        if spec.method in wanted:
            rows += rows_of(spec, {0: 1.0, 100_000: 700.0 + spec.seed})
    file = written(rows, tmp_path / "variants.parquet")
    lines = compared(capsys, "main", file, "--tasks", "walker_walk", "--paper")
    beside = {}
    for line in lines[lines.index(next(x for x in lines if "difference" in x)) + 1 :]:
        if not line.strip().startswith("walker_walk"):
            break
        name = line.split()[1]
        beside[name] = line
    assert sorted(beside) == sorted(wanted)
    for name in wanted:
        theirs = paper.cells("main", 100_000)["walker_walk"][name.split("-")[0]]
        assert f"{theirs.mean:.0f} ± {theirs.sd:.0f}" in beside[name]
    # The other mark was not reached; that is said, and what follows is not lost.
    assert "no evaluation at 500,000 env steps yet" in lines
    assert "along the paper's curves, marks by difference" in lines


def test_both_splits_of_proto_rl_have_their_own_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, object]] = []
    for spec in plan(read("tangential"), tasks=["walker_walk"], seeds=[1, 2, 3]):
        marks = [m for m in (0, 100_000, 500_000) if m <= spec.env_steps]
        rows += rows_of(spec, {mark: 500.0 + spec.seed + mark / 10_000 for mark in marks})
    file = written(rows, tmp_path / "proto.parquet")
    text = "\n".join(compared(capsys, "tangential", file, "--tasks", "walker_walk", "--paper"))
    early, late = text.split("500,000 env steps")[:2]
    assert "proto_rl 50k/50k" in early
    assert "250k" not in early
    assert "332 ± 141 (n = 10)" in early
    assert "proto_rl 250k/250k" in late.partition("IQM along")[0]
    assert "755 ± 109 (n = 10)" in late
    # Ten seeds are planned; a run that is for the other mark is not missed.
    for printed in (early, late):
        assert printed.count("21 of 30 planned runs have no evaluation at this mark") == 1


@pytest.mark.parametrize("name", shipped())
def test_every_experiment_stands_beside_the_paper(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, object]] = []
    for spec in plan(read(name), seeds=[1, 2, 3]):
        if spec.frozen_encoder is None:
            marks = [m for m in (20_000, 100_000, 500_000) if m <= spec.env_steps]
            rows += rows_of(spec, dict.fromkeys(marks, 300.0 + spec.seed))
    text = "\n".join(compared(capsys, name, written(rows, tmp_path / "all.parquet"), "--paper"))
    assert "difference" in text
    assert "along the paper's curves" in text
    assert re.search(r"\d+ ± \d+\** \(n = (10|5)\) +(none shown|above|below)", text)
    if name == "k-l-grid":
        assert "575 ± 58 (n = 5)" in text
        assert "566 ± 54" not in text


EVERY = {
    "finger_spin": 8_000,
    "cartpole_swingup": 10_000,
    "reacher_easy": 16_000,
    "cheetah_run": 16_000,
    "walker_walk": 8_000,
    "ball_in_cup_catch": 10_000,
}
"""env_steps between evaluations in a CSV as authors publish it: 100,000 is among them in two tasks
of six."""


def published(rows: list[tuple[str, str, int, int, float]], file: Path) -> Path:
    head = "method,task,seed,env_steps,return\n"
    file.write_text(head + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return file


def ours_and(theirs: Path, folder: Path) -> Path:
    """A table with three seeds of `ksl` on every task and somebody's published results."""
    rows: list[dict[str, object]] = []
    for spec in plan(read("main"), methods=["ksl"], seeds=[1, 2, 3]):
        rows += rows_of(spec, {mark: 10.0 * spec.seed + mark / 500 for mark in (0, 100_000)})
    table = written(rows, folder / "results.parquet")
    main(["import", str(theirs), "--source", "authors", "--output", str(table)])
    return table


def test_published_results_count_with_their_nearest_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = published(
        [
            ("drq", task, seed, step, seed + step / 200)
            for task, every in EVERY.items()
            for seed in (1, 2, 3, 4)
            for step in range(0, 504_001, every)
            if not (seed == 4 and step > 60_000)  # stopped early
        ],
        tmp_path / "drq.csv",
    )
    text = "\n".join(compared(capsys, "main", ours_and(theirs, tmp_path), "--paper"))
    early, _, late = text.partition("500,000 env steps, preset paper")
    for task, every in EVERY.items():
        (line,) = [x for x in early.splitlines() if x.split()[:1] == [task] and "Holm" in x]
        at = 100_000 if 100_000 % every == 0 else 96_000
        assert f"{2 + at / 200:.0f} ± 1" in line
        assert "(n = 3)" in line
        assert (f"drq (authors) on {task} at {at:,}" in early) == (at != 100_000)
        assert f"drq (authors) on {task} with seed 4 (nearest evaluation at" in early
    assert (
        "the nearest counts, at most a tenth of the mark and half an evaluation interval" in early
    )
    # All tasks are there, so it is in the aggregates.
    assert re.search(r"drq \(authors\) +0\.\d+ \[", early)
    assert "left out of the aggregates" not in early
    # Of two that are equally near, the earlier: 496,000, not 504,000.
    assert "drq (authors) on walker_walk at 496,000" in late
    assert "drq (authors) on cheetah_run at 496,000" in late
    # Ours is at exactly the mark or not there.
    assert "left out at this mark: ksl on finger_spin (nearest evaluation at 100,000)" in late
    # Along the curve it stands where all its tasks have an evaluation.
    assert re.search(r"^ 80,000 .*\(n = 3\)", late, flags=re.MULTILINE)
    assert "left out, no evaluation of all tasks at one mark" not in late


def test_what_is_too_far_from_a_mark_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {
        # Beyond a tenth of the mark; within it, but short of the mark by more than half an
        # interval; a single evaluation, which has no interval.
        "finger_spin": range(0, 80_001, 40_000),
        "walker_walk": range(0, 95_001, 5_000),
        "cheetah_run": [91_000],
        "reacher_easy": [89_999],
    }
    theirs = published(
        [
            ("rad", task, seed, step, 1.0)
            for task, own in steps.items()
            for seed in (1, 2)
            for step in own
        ],
        tmp_path / "rad.csv",
    )
    text = "\n".join(compared(capsys, "main", ours_and(theirs, tmp_path)))
    (left,) = [line for line in text.splitlines() if line.startswith("left out at this mark")]
    assert left == (
        "left out at this mark: rad (authors) on finger_spin (nearest evaluation at 80,000), "
        "rad (authors) on reacher_easy (nearest evaluation at 89,999), "
        "rad (authors) on walker_walk (nearest evaluation at 95,000)"
    )
    assert "rad (authors) on cheetah_run at 91,000" in text
    assert "left out, no evaluation of all tasks at one mark: rad (authors)" in text
    assert (
        "left out of the aggregates: rad (authors) (nothing on finger_spin, cartpole_swingup, "
        "reacher_easy, walker_walk, ball_in_cup_catch)"
    ) in text


def test_runs_of_other_settings_are_named(
    table: Path, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = compared(capsys, str(experiment), table)
    assert lines[-1] == ("left out, not runs of this experiment: 1 of drq  paper on walker_walk")
    lines = compared(capsys, str(experiment), table, "--tasks", "cartpole_swingup")
    assert "5 of ksl  paper on walker_walk" in lines[-1]


def test_an_experiment_that_names_no_comparison(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.toml"
    file.write_text(FILE.replace('"main"', '"mian"'))  # codespell:ignore mian
    with pytest.raises(SystemExit):
        main(["compare", str(file), "--table", str(table)])
    assert "paper = 'mian' is none of main, tangential" in capsys.readouterr().err


def test_a_mark_nobody_reached(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "main", "--scale", "debug", "--table", str(table)])
    assert "no evaluation at 200 env steps" in capsys.readouterr().err
