"""The paper's tables and figures of returns, from runs whose returns are known."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from kstep.analysis.tables import Row
from kstep.cli import main
from kstep.config import FrozenEncoder, resolve
from kstep.report import figures, paper, scores, wall_clock
from kstep.report.comparisons import COMPARISONS, cell
from kstep.run import health
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Attempt, Evaluated, Run, RunFolder
from kstep.run.runtime import Runtime
from kstep.run.train import train
from kstep.types import KstepError


def evaluated(
    folder: Path,
    method: str,
    task: str,
    seed: int,
    returns: dict[int, list[float]],
    source: str | None = None,
    preset: str = "paper",
    age: int = 100_000,
    env_steps: int = 500_000,
) -> Path:
    """A run folder as training would leave it, with these returns."""
    frozen = FrozenEncoder("0" * 64, "ksl", source, seed, age) if source else None
    experiment = resolve(
        method, task, preset=preset, seed=seed, env_steps=env_steps, frozen_encoder=frozen
    )
    run = Run.prepare(folder, experiment)
    with run.locked():
        run.begin()
        rows = [Evaluated(m, m, m, m, 1, tuple(r), (1,) * len(r)) for m, r in returns.items()]
        run.evaluations_file.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))
    return folder


def asked(name: str, folders: list[Path], output: Path, *options: str) -> list[dict[str, str]]:
    main(["analyze", name, *map(str, folders), "--output", str(output), *options])
    assert (output / f"{name}.png").stat().st_size > 5_000
    with (output / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_grid_is_the_papers_table(tmp_path: Path) -> None:
    printed = paper.table("ablation_k_l_cheetah_run")
    folders = []
    for k in (1, 3, 5):
        for l in (0, 1, 2):  # noqa: E741 - the paper's letter
            method = "ksl" if (k, l) == (3, 0) else f"ksl-k{k}-l{l}"
            for seed in (1, 2):
                returns = {
                    mark: [10.0 * k + l + seed, 10.0 * k + l + seed + 2.0]
                    for mark in (0, 100_000, 500_000)
                }
                folder = tmp_path / f"{method}-{seed}"
                folders.append(evaluated(folder, method, "cheetah_run", seed, returns))
    rows = asked("k-l-grid", folders, tmp_path / "out")
    assert len(rows) == 18
    for row in rows:
        with_k, with_l = row["label"].split("-")
        mark = "steps_100k" if row["env_steps"] == "100000" else "steps_500k"
        assert [float(row["paper_mean"]), float(row["paper_std"])] == printed[mark][with_k][with_l]
        assert float(row["mean"]) == 10 * int(with_k[1:]) + int(with_l[1:]) + 2.5
        assert float(row["std"]) == pytest.approx(np.sqrt(0.5), abs=1e-5)
        assert (row["runs"], row["paper_runs"]) == ("2", "5")
    text = (tmp_path / "out" / "k-l-grid.md").read_text()
    assert "| 100,000 env_steps | l = 0 | l = 1 | l = 2 |" in text
    assert "| cheetah_run, k = 3 | 32 ± 1 (n = 2) [**575 ± 58 (n = 5)**] | 34 ± 1" in text
    best = [row["label"] for row in rows if row["best"] == "1"]
    assert best == ["k5-l2", "k5-l2"]  # of the whole grid, as the paper's


@pytest.mark.parametrize(
    ("name", "methods", "task"),
    [
        ("main", ("ksl", "drq", "sac_ae"), "ball_in_cup_catch"),
        ("main", ("ksl-results", "ksl-released", "drq-original"), "ball_in_cup_catch"),
        ("tangential", ("ksl-results", "pi_sac"), "walker_walk"),
        ("conv-transition", ("ksl", "ksl-conv"), "cheetah_run"),
        ("optimizers", ("ksl", "ksl-one-optimizer"), "walker_walk"),
    ],
)
def test_methods_stand_beside_the_papers(
    name: str, methods: tuple[str, ...], task: str, tmp_path: Path
) -> None:
    given = {method: [500.0 + 100 * i, 540.0 + 100 * i] for i, method in enumerate(methods)}
    folders = [
        evaluated(tmp_path / f"{method}-{seed}", method, task, seed, {0: [1.0], 100_000: [score]})
        for method, both in given.items()
        for seed, score in enumerate(both, start=1)
    ]
    rows = {row["label"]: row for row in asked(name, folders, tmp_path / "out")}
    assert list(rows) == list(methods)
    best = methods[-1]
    for method, row in rows.items():
        assert float(row["mean"]) == np.mean(given[method])
        table = "tangential" if method == "pi_sac" else "main"
        theirs = paper.table(table)["steps_100k"][task].get(
            "ksl" if method in ("ksl-results", "ksl-released") else method.split("-original")[0],
            {"mean": np.nan},
        )
        assert float(row["paper_mean"]) == pytest.approx(theirs["mean"], nan_ok=True)
        wanted = stats.ttest_ind(given[method], given[best], equal_var=False).pvalue
        assert float(row["p"]) == pytest.approx(
            np.nan if method == best else wanted, nan_ok=True, rel=1e-4
        )
        assert row["best"] == str(int(method == best))


def test_table_1_has_the_papers_bold_and_stars(tmp_path: Path) -> None:
    """SAC from state is best on reacher_easy at 500k, in the paper as here, and is not bold."""
    folders = []
    for method, theirs in paper.cells("main", 500_000)["reacher_easy"].items():
        pattern = np.array([-1.0, 0.0, 1.0])
        for seed, score in enumerate(theirs.mean + theirs.sd * pattern, start=1):
            folder = tmp_path / f"{method}-{seed}"
            returns = {0: [1.0], 500_000: [float(score)]}
            folders.append(evaluated(folder, method, "reacher_easy", seed, returns))
    asked("main", folders, tmp_path / "out")
    (line,) = (
        line
        for line in (tmp_path / "out" / "main.md").read_text().splitlines()
        if line.startswith("| reacher_easy")
    )
    cells = line.strip("| ").split(" | ")[1:]
    assert cells[0] == "**963 ± 28 (n = 3)** [**963 ± 28 (n = 10)**]"
    assert [cell for cell in cells if "**" in cell] == cells[:1]
    assert "975 ± 5 (n = 3) [975 ± 5 (n = 10)]" in cells
    with (tmp_path / "out" / "main-improvement.csv").open() as file:
        improved = {row["over"]: row for row in csv.DictReader(file)}
    assert "sac_state" not in improved
    # Over the one task that there is, the paper's as ours.
    for name in ("percent", "paper_percent"):
        assert float(improved["drq"][name]) == pytest.approx(100 * (963 / 938 - 1), rel=1e-4)


def proto_runs(root: Path) -> list[Path]:
    """Both splits of Proto-RL and KSL, as the paper's figure has them."""
    marks = range(0, 500_001, 20_000)
    folders = [
        evaluated(
            root / f"{seed}", "ksl", "walker_walk", seed, {m: [seed + m / 600] for m in marks}
        )
        for seed in (1, 2)
    ]
    for budget in (100_000, 500_000):
        for seed in (1, 2):
            returns = {m: [seed + (m >= budget / 2) * m / 700] for m in marks if m <= budget}
            folder = root / f"proto-{budget}-{seed}"
            args = (folder, "proto_rl", "walker_walk", seed, returns)
            folders.append(evaluated(*args, env_steps=budget))
    return folders


def test_both_splits_of_proto_rl_are_told_apart(tmp_path: Path) -> None:
    rows = asked("tangential", proto_runs(tmp_path), tmp_path / "out")
    means = {(row["env_steps"], row["label"]): float(row["mean"]) for row in rows}
    # At 100,000 the longer run is in the middle of its exploration: no result of the method.
    assert means == {
        ("100000", "ksl"): pytest.approx(1.5 + 100_000 / 600, rel=1e-5),
        ("100000", "proto_rl 50k/50k"): pytest.approx(1.5 + 100_000 / 700, rel=1e-5),
        ("500000", "ksl"): pytest.approx(1.5 + 500_000 / 600, rel=1e-5),
        ("500000", "proto_rl 250k/250k"): pytest.approx(1.5 + 500_000 / 700, rel=1e-5),
    }
    beside = {(r["env_steps"], r["label"]): float(r["paper_mean"]) for r in rows}
    assert beside["100000", "proto_rl 50k/50k"] == 332
    assert beside["500000", "proto_rl 250k/250k"] == 755


def test_only_exploration_cannot_be_tabulated(tmp_path: Path) -> None:
    (*_, long, _) = proto_runs(tmp_path)
    with pytest.raises(KstepError, match="no run was evaluated at 100,000 env steps, but at 260,0"):
        COMPARISONS["tangential"].write([long], tmp_path / "out", at=[100_000])
    young = evaluated(tmp_path / "young", "proto_rl", "walker_walk", 1, {0: [1.0], 20_000: [2.0]})
    with pytest.raises(KstepError, match="no evaluation at a common mark"):
        COMPARISONS["tangential"].write([young], tmp_path / "out")


def test_the_figure_shows_where_each_split_begins_its_task(tmp_path: Path) -> None:
    comparison = COMPARISONS["tangential"]
    rows = scores.from_runs(proto_runs(tmp_path), comparison.identify)
    (axes,) = figures.curves(rows, comparison.layout, comparison.beside).axes
    lines = {line.get_label(): line for line in axes.lines}
    for label, switch in (("proto_rl 50k/50k", 50_000), ("proto_rl 250k/250k", 250_000)):
        curve = lines[label]
        drawn = np.asarray(curve.get_xdata())
        assert drawn.max() == 2 * switch  # exploration is drawn as well
        assert drawn.min() == 0
        (dotted,) = (
            line
            for line in axes.lines
            if line.get_linestyle() == ":" and line.get_color() == curve.get_color()
        )
        assert np.asarray(dotted.get_xdata()).tolist() == [switch, switch]


def test_collapsed_runs_are_counted_and_tested(tmp_path: Path) -> None:
    sound = {"latent/spread": 0.5, "latent/rank": 30.0, "latent/cosine": 0.3}
    flat = sound | {"latent/rank": 1.5}
    folders = []
    for method, collapsed in (("ksl", 0), ("ksl-conv", 4)):
        for seed in range(1, 6):
            folder = tmp_path / f"{method}-{seed}"
            folders.append(evaluated(folder, method, "walker_walk", seed, {100_000: [1.0 + seed]}))
            # One seed recovers; nine in a row are not enough.
            long = health.PATIENCE if seed <= collapsed else health.PATIENCE - 1
            young = [flat] * (2 * health.PATIENCE)  # which is no collapse
            rows = [*young, sound, *[flat] * long, *([sound] if seed != 2 else [])]
            updates = range(health.YOUNG - 50 * (len(young) - 1), 100_000, 50)
            counted = [{**row, "updates": at} for row, at in zip(rows, updates, strict=False)]
            text = "".join(json.dumps(row) + "\n" for row in counted) + '{"latent/rank": 1'
            (folder / "metrics.jsonl").write_text(text)
    asked("conv-transition", folders, tmp_path / "out")
    with (tmp_path / "out" / "conv-transition-collapse.csv").open() as file:
        plain, conv = csv.DictReader(file)
    assert (plain["label"], plain["runs"], plain["collapsed"]) == ("ksl", "5", "0")
    assert (conv["label"], conv["runs"], conv["collapsed"]) == ("ksl-conv", "5", "4")
    assert conv["collapsed_at_end"] == "1"
    assert float(conv["p"]) == pytest.approx(stats.fisher_exact([[4, 1], [0, 5]]).pvalue, rel=1e-4)


def test_encoders_are_judged_on_other_tasks_than_their_own(tmp_path: Path) -> None:
    folders = [
        evaluated(tmp_path / source, "sac_pixel", "walker_walk", 1, {100_000: [score]}, source)
        for source, score in (
            ("cheetah_run", 300.0),
            ("finger_spin", 100.0),
            ("walker_walk", 900.0),
        )
    ]
    (row,) = asked("generalization", folders, tmp_path / "out")
    assert (row["label"], float(row["mean"]), row["runs"]) == ("ksl", 200.0, "2")
    assert (float(row["paper_mean"]), float(row["paper_std"])) == (373, 85)
    assert row["paper_runs"] == "25"  # five source tasks, five seeds
    with pytest.raises(KstepError, match="of its own task"):
        COMPARISONS["generalization"].write([folders[-1]], tmp_path / "none")


def test_marks_of_the_table() -> None:
    rows: list[Row] = [
        {
            "label": "a",
            "method": "a",
            "task": "t",
            "seed": seed,
            "exploration": 0,
            "env_steps": mark,
            "score": 1.0,
        }
        for seed, last in ((1, 300), (2, 200))
        for mark in range(0, last + 1, 100)
    ]
    assert scores.table_marks(rows, ()) == [200]  # the last that both reached
    longer: list[Row] = [{**row, "env_steps": 1_000 * int(row["env_steps"])} for row in rows]
    assert scores.table_marks(longer, ()) == [100_000]  # the paper's, where they were reached
    assert scores.table_marks(rows, [300, 0]) == [300, 0]
    with pytest.raises(KstepError, match=r"evaluated at 150 env steps, but at 0, 100, 200, 300"):
        scores.table_marks(rows, [150])
    # A mark that one run did not reach is of the others only.
    (line,) = scores.summary(rows, [300], lambda *_: None)
    assert (line["runs"], line["paper_runs"]) == (1, 0)
    assert np.isnan(float(line["std"]))


def test_what_does_not_belong_is_refused(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", "ksl", "walker_walk", 1, {0: [1.0]})
    same = evaluated(tmp_path / "same", "ksl", "walker_walk", 1, {0: [2.0]})
    other = evaluated(tmp_path / "other", "drq", "walker_walk", 1, {0: [2.0]})
    none = evaluated(tmp_path / "none", "drq", "walker_walk", 2, {})
    conv = evaluated(tmp_path / "conv", "ksl-conv", "walker_walk", 1, {0: [2.0]})
    young, old, drq = (
        evaluated(tmp_path / name, method, "walker_walk", 1, {0: [1.0]}, source, age=age)
        for name, method, source, age in (
            ("young", "sac_pixel", "cheetah_run", 5_000),
            ("old", "sac_pixel", "finger_spin", 100_000),
            ("drq", "drq", "finger_spin", 100_000),
        )
    )
    for name, folders, complaint in (
        ("k-l-grid", [conv], "not ksl with another k and l: encoder.head is 'conv"),
        ("generalization", [young, old], "trained for 5,000 env steps, some for 100,000"),
        ("generalization", [drq], "has drq on its frozen encoder"),
        ("main", [one, same], "compare one of them"),
        ("main", [none], "not evaluated yet"),
        ("optimizers", [one, other], "this compares ksl, ksl-one-optimizer"),
        ("k-l-grid", [other], "no k and l"),
        ("generalization", [one], "no frozen encoder"),
        ("main", [young], "young has a frozen encoder"),
    ):
        with pytest.raises(KstepError, match=complaint):
            COMPARISONS[name].write(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def timed(folder: Path, method: str, seed: int, *attempts: tuple[str, float, int]) -> Path:
    """A run with a record of its attempts: outcome, seconds, decisions."""
    run = evaluated(folder, method, "cartpole_swingup", seed, {0: [1.0]})
    rows = [
        Attempt("then", seconds, 2, "cpu", "here", decisions, outcome, 0, "")  # type: ignore[arg-type]
        for outcome, seconds, decisions in attempts
    ]
    text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
    folder.with_name(f"{folder.name}.attempts.jsonl").write_text(text)
    return run


def test_times_are_those_of_whole_runs_over_sac_pixels(tmp_path: Path) -> None:
    folders = [
        timed(tmp_path / "pixel-1", "sac_pixel", 1, ("done", 100.0, 1_000)),
        timed(tmp_path / "pixel-2", "sac_pixel", 2, ("done", 300.0, 1_000)),
        # Stopped and continued; what an attempt that failed had done is done again.
        timed(
            *(tmp_path / "ksl", "ksl-results", 1),
            *(("stopped", 200.0, 400), ("failed", 9.0, 0), ("done", 400.0, 600)),
        ),
    ]
    main(["analyze", "wall-clock", *map(str, folders), "--output", str(tmp_path / "out")])
    with (tmp_path / "out" / "wall-clock.csv").open() as file:
        pixel, ksl = csv.DictReader(file)
    assert (pixel["label"], float(pixel["seconds_per_decision"])) == ("sac_pixel", 0.2)
    assert (float(pixel["normalized"]), float(pixel["paper"])) == (1.0, 1.0)
    assert (ksl["label"], float(ksl["normalized"]), ksl["paper"]) == ("ksl-results", 3.0, "3.9")
    text = (tmp_path / "out" / "wall-clock.md").read_text()
    assert "| ksl-results | 1 | 0.6 | - | 3 | 3.9 |" in text


def test_times_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    ksl = timed(tmp_path / "ksl", "ksl", 1, ("done", 1.0, 10))
    with pytest.raises(KstepError, match="relative to sac_pixel's"):
        wall_clock.write([ksl], tmp_path / "out")
    bare = evaluated(tmp_path / "bare", "sac_pixel", "cartpole_swingup", 1, {0: [1.0]})
    with pytest.raises(KstepError, match="no record of its time"):
        wall_clock.write([ksl, bare], tmp_path / "out")
    other = timed(tmp_path / "other", "sac_pixel", 1, ("done", 1.0, 10))
    record = tmp_path / "other.attempts.jsonl"
    record.write_text(record.read_text().replace("here", "there"))
    with pytest.raises(KstepError, match=r"2 threads of cpu on here; .* on there"):
        wall_clock.write([ksl, other], tmp_path / "out")


def test_without_folders_the_runs_of_the_experiment_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["analyze", "optimizers"])
    assert "none of the 20 runs of optimizers, scale paper" in capsys.readouterr().err
    for method in ("ksl", "ksl-results", "ksl-one-optimizer"):
        folder = tmp_path / "runs" / "walker_walk" / f"{method}-paper" / "seed1"
        evaluated(folder, method, "walker_walk", 1, {100_000: [5.0]})
    for name, labels in (
        ("optimizers", ["ksl", "ksl-one-optimizer"]),
        ("main", ["ksl", "ksl-results"]),
    ):
        assert [row["label"] for row in asked(name, [], tmp_path / "out")] == labels
    # Another experiment's, by name.
    rows = asked("main", [], tmp_path / "out", "--experiment", "conv-transition")
    assert [row["label"] for row in rows] == ["ksl", "ksl-results"]


@pytest.fixture(scope="module")
def debug_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Runs of the debug size, each trained when first asked for."""
    root = tmp_path_factory.mktemp("runs")

    def run_of(method: str, task: str = "toy_reach", frozen: Path | None = None) -> Path:
        folder = root / f"{method}-{task}-{frozen is not None}"
        if not folder.exists():
            about = None if frozen is None else encoders.frozen(frozen)
            experiment = resolve(
                method, task, preset="debug", seed=3, env_steps=60, frozen_encoder=about
            )
            runtime = Runtime(threads=1, save_encoders_every=60, frozen_encoder=frozen)
            train(Run.prepare(folder, experiment), runtime, Console(quiet=True))
        return folder

    return run_of


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("main", ("ksl", "drq")),
        ("tangential", ("ksl", "pi_sac", "proto_rl")),
        ("k-l-grid", ("ksl", "ksl-k1-l1")),
        ("conv-transition", ("ksl", "ksl-conv")),
        ("optimizers", ("ksl", "ksl-one-optimizer")),
    ],
)
def test_from_training_to_the_table_at_the_debug_size(
    name: str, methods: tuple[str, ...], debug_runs: Callable[..., Path], tmp_path: Path
) -> None:
    folders = [debug_runs(method) for method in methods]
    rows = asked(name, folders, tmp_path)
    labels = ("k3-l0", "k1-l1") if name == "k-l-grid" else methods
    named = [f"{label}-debug" + " 30/30" * (label == "proto_rl") for label in labels]
    assert [row["label"] for row in rows] == named
    for folder, row in zip(folders, rows, strict=True):
        last = Run.open(folder).evaluations()[-1]
        assert float(row["mean"]) == pytest.approx(last.mean, rel=1e-4)


def test_from_training_to_another_task_at_the_debug_size(
    debug_runs: Callable[..., Path], tmp_path: Path
) -> None:
    (*_, newest) = RunFolder(debug_runs("ksl")).saved_encoders()
    carried = debug_runs("sac_pixel", "toy_glide", newest)
    (row,) = asked("generalization", [carried], tmp_path)
    assert (row["label"], row["task"], row["runs"]) == ("ksl-debug", "toy_glide", "1")
    last = Run.open(carried).evaluations()[-1]
    assert float(row["mean"]) == pytest.approx(last.mean, rel=1e-4)


def test_returns_of_another_scale_than_the_suites_have_decimals() -> None:
    row: dict[str, Any] = {"mean": 6.1, "std": 0.32, "stars": "*", "runs": 3}
    assert cell({**row, "task": "minatar:breakout"}) == "6.10 ± 0.32* (n = 3)"
    assert cell({**row, "task": "walker_walk"}) == "6 ± 0* (n = 3)"  # as the paper prints them
    assert cell({**row, "task": "mine", "mean": 0.0, "std": float("nan")}) == "0* (n = 3)"
    assert cell({**row, "task": "mine", "mean": -1234.5}) == "-1234 ± 0* (n = 3)"
