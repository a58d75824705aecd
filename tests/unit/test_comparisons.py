"""The paper's tables and figures of returns, from runs whose returns are known."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from kstep import encoders, published
from kstep.analysis.comparisons import COMPARISONS, paper_return
from kstep.analysis.returns import summary, table_marks
from kstep.cli import main
from kstep.config import FrozenEncoder, resolve
from kstep.envs import tasks
from kstep.run import Run
from kstep.train import Runtime, train
from kstep.types import KstepError

TASKS = ("finger_spin", "cartpole_swingup", "reacher_easy", "cheetah_run", "walker_walk")
TASKS = (*TASKS, "ball_in_cup_catch")


def evaluated(
    folder: Path,
    method: str,
    task: str,
    seed: int,
    returns: dict[int, list[float]],
    source: str | None = None,
    preset: str = "paper",
    age: int = 100_000,
) -> Path:
    """A run folder as training would leave it, with these returns."""
    frozen = FrozenEncoder("0" * 64, "ksl", source, seed, age) if source else None
    experiment = resolve(
        method, task, preset=preset, seed=seed, env_steps=500_000, frozen_encoder=frozen
    )
    run = Run.prepare(folder, experiment)
    with run.being_written():
        rows = [{"mark": mark, "env_steps": mark, "returns": r} for mark, r in returns.items()]
        run.evaluations_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def asked(name: str, folders: list[Path], output: Path, *options: str) -> list[dict[str, str]]:
    main(["analyze", name, *map(str, folders), "--output", str(output), *options])
    assert (output / f"{name}.png").stat().st_size > 5_000
    with (output / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_grid_is_the_papers_table(tmp_path: Path) -> None:
    paper = published.table("ablation_k_l_cheetah_run")
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
        k, l = row["label"].split("-")  # noqa: E741
        mark = "steps_100k" if row["env_steps"] == "100000" else "steps_500k"
        assert [float(row["paper_mean"]), float(row["paper_std"])] == paper[mark][k][l]
        assert float(row["mean"]) == 10 * int(k[1:]) + int(l[1:]) + 2.5
        assert float(row["std"]) == pytest.approx(np.sqrt(0.5), abs=1e-5)
        assert (row["runs"], row["paper_runs"]) == ("2", "5")
    text = (tmp_path / "out" / "k-l-grid.md").read_text()
    assert "| 100,000 env_steps | l = 0 | l = 1 | l = 2 |" in text
    assert "| cheetah_run, k = 3 | 32 ± 1 (n = 2) [575 ± 58 (n = 5)] | 34 ± 1" in text


@pytest.mark.parametrize(
    ("name", "methods", "task"),
    [
        ("main", ("ksl", "drq", "sac_ae"), "ball_in_cup_catch"),
        ("tangential", ("ksl", "pi_sac", "proto_rl"), "walker_walk"),
        ("conv-transition", ("ksl", "ksl-conv"), "cheetah_run"),
        ("optimizers", ("ksl", "ksl-one-optimizer"), "walker_walk"),
    ],
)
def test_methods_stand_beside_the_papers(
    name: str, methods: tuple[str, ...], task: str, tmp_path: Path
) -> None:
    scores = {method: [500.0 + 100 * i, 540.0 + 100 * i] for i, method in enumerate(methods)}
    folders = [
        evaluated(tmp_path / f"{method}-{seed}", method, task, seed, {0: [1.0], 100_000: [score]})
        for method, both in scores.items()
        for seed, score in enumerate(both, start=1)
    ]
    rows = {row["label"]: row for row in asked(name, folders, tmp_path / "out")}
    assert list(rows) == list(methods)
    best = methods[-1]
    for method, row in rows.items():
        assert float(row["mean"]) == np.mean(scores[method])
        table = "tangential" if method in ("pi_sac", "proto_rl") else "main"
        theirs = published.table(table)["steps_100k"][task].get(
            {"proto_rl": "prl"}.get(method, method), {"mean": np.nan}
        )
        assert float(row["paper_mean"]) == pytest.approx(theirs["mean"], nan_ok=True)
        wanted = stats.ttest_ind(scores[method], scores[best], equal_var=False).pvalue
        assert float(row["p"]) == pytest.approx(
            np.nan if method == best else wanted, nan_ok=True, rel=1e-4
        )


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


def test_the_papers_curves_are_known_by_our_names() -> None:
    found = published.curves()
    assert {task for task, _ in found} == set(TASKS) <= set(tasks.names())
    assert {method for _, method in found} == {"ksl", "rad", "drq", "curl", "sac_ae"}
    point = paper_return("finger_spin", "ksl-cpu", 20_000)
    assert point is not None
    assert (point.mean, point.std, point.runs) == (488.6, 192.1, 10)
    assert paper_return("finger_spin", "ksl", 12_345) is None
    assert paper_return("toy_reach", "ksl", 100_000) is None


def test_marks_of_the_table() -> None:
    rows = [
        {"label": "a", "task": "t", "seed": seed, "env_steps": mark, "score": 1.0}
        for seed, last in ((1, 300), (2, 200))
        for mark in range(0, last + 1, 100)
    ]
    assert table_marks(rows, (), [100]) == [100]
    assert table_marks(rows, (), [1_000]) == [200]  # the last that both reached
    assert table_marks(rows, [300, 0], [100]) == [300, 0]
    with pytest.raises(KstepError, match=r"evaluated at 150 env steps, but at 0, 100, 200, 300"):
        table_marks(rows, [150], [])
    # A mark that one run did not reach is told from the others only.
    (line,) = summary(rows, [300], lambda *_: None)
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
    ):
        with pytest.raises(KstepError, match=complaint):
            COMPARISONS[name].write(folders, tmp_path / "out")
    assert not (tmp_path / "out").exists()


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
    assert [row["label"] for row in rows] == [f"{label}-debug" for label in labels]
    for folder, row in zip(folders, rows, strict=True):
        last = Run.open(folder).evaluations()[-1]
        assert float(row["mean"]) == pytest.approx(np.mean(last["returns"]), rel=1e-4)


def test_from_training_to_another_task_at_the_debug_size(
    debug_runs: Callable[..., Path], tmp_path: Path
) -> None:
    (*_, newest) = encoders.saved_in(debug_runs("ksl"))
    carried = debug_runs("sac_pixel", "toy_glide", newest)
    (row,) = asked("generalization", [carried], tmp_path)
    assert (row["label"], row["task"], row["runs"]) == ("ksl-debug", "toy_glide", "1")
    last = Run.open(carried).evaluations()[-1]
    assert float(row["mean"]) == pytest.approx(np.mean(last["returns"]), rel=1e-4)
