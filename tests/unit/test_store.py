"""The table of evaluations: complete, idempotent, readable by others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kstep.config import resolve
from kstep.run.folder import Run
from kstep.types import KstepError

pl = pytest.importorskip("polars")

from kstep.sweep import store  # noqa: E402


def pretend(root: Path, method: str, seed: int, evaluations: int = 2, *overrides: str) -> Run:
    """Write a run folder as training would."""
    experiment = resolve(method, "toy_reach", preset="debug", seed=seed, overrides=overrides)
    run = Run(Run.default_folder(root, experiment, bool(overrides)), experiment)
    with run.locked():
        run.begin()
        pass
    (run.folder / "system.json").write_text(
        json.dumps(
            [{"rendering": "painted", "commit": "abc"}, {"rendering": "painted", "commit": "abe"}]
        )
    )
    with run.evaluations_file.open("w") as file:
        for index in range(evaluations):
            row = {
                "mark": 800 * index,
                "env_steps": 801 * index,
                "decisions": 801 * index,
                "updates": 10 * index,
                "episodes": index,
                "lengths": [5, 5],
                "returns": [seed + index + 0.5, seed - 0.5 + index],
            }
            file.write(json.dumps(row) + "\n")
    return run


def test_a_row_per_episode_with_every_column(tmp_path: Path) -> None:
    run = pretend(tmp_path / "runs", "ksl-released", 3)
    gathered = store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    assert (gathered.runs, gathered.rows) == (1, 4)
    frame = store.read(tmp_path / "all.parquet")
    assert frame.row(-1, named=True) == {
        "source": "runs",
        "method": "ksl",
        "variant": "released",
        "preset": "debug",
        "renderer": "painted",
        "task": "toy_reach",
        "seed": 3,
        "mark": 800,
        "env_steps": 801,
        "decisions": 801,
        "updates": 10,
        "episode": 1,
        "return": 3.5,
        "setting": frame["setting"][0],
        "digest": run.digest,
        "commit": "abc then abe",
    }


def test_collecting_again_changes_no_byte_and_growth_replaces(tmp_path: Path) -> None:
    runs, table = tmp_path / "runs", tmp_path / "all.parquet"
    for seed in (1, 2):
        pretend(runs, "ksl", seed)
    pretend(runs, "drq", 1)
    store.collect(runs, table)
    before = table.read_bytes()
    assert store.collect(runs, table).rows == 12
    assert table.read_bytes() == before
    pretend(runs, "ksl", 2, evaluations=3)
    assert store.collect(runs, table).rows == 14
    # What is gone from the disk stays in the table.
    shutil.rmtree(runs / "toy_reach" / "drq-debug")
    assert store.collect(runs, table).rows == 14


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    run = pretend(tmp_path / "runs", "ksl", 1, 3)
    shutil.copytree(run.folder, tmp_path / "runs" / "copy")
    (tmp_path / "runs" / "copy" / "evaluations.jsonl").write_text("")
    gathered = store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    assert (gathered.runs, gathered.rows) == (1, 6)


def test_seeds_of_one_setting_share_it_and_overrides_do_not(tmp_path: Path) -> None:
    for seed in (1, 2):
        pretend(tmp_path, "ksl", seed)
    pretend(tmp_path, "ksl", 1, 2, "method.learning.batch_size=9")
    store.collect(tmp_path, tmp_path / "all.parquet")
    frame = store.read(tmp_path / "all.parquet")
    assert frame["setting"].n_unique() == 2
    assert frame["digest"].n_unique() == 3


def test_scores_are_one_number_per_seed(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        pretend(tmp_path, "ksl", seed)
    store.collect(tmp_path, tmp_path / "all.parquet")
    scores = store.scores(store.read(tmp_path / "all.parquet").filter(pl.col("mark") == 800))
    assert scores["score"].to_list() == [2.0, 3.0, 4.0]
    assert scores["episodes"].to_list() == [2, 2, 2]


def test_both_phases_of_a_method_are_in_the_table(tmp_path: Path) -> None:
    pretend(tmp_path, "proto_rl", 1)
    store.collect(tmp_path, tmp_path / "all.parquet")
    frame = store.read(tmp_path / "all.parquet")
    budget = resolve("proto_rl", "toy_reach", preset="debug").env_steps
    assert set(frame["method"]) == {"proto_rl"}
    assert set(frame["variant"]) == {f"{budget // 2}/{budget // 2}"}


def test_damaged_runs_are_named_and_left_out(tmp_path: Path) -> None:
    pretend(tmp_path, "ksl", 1)
    run = pretend(tmp_path, "ksl", 2)
    (run.folder / "config.json").write_text("{")
    gathered = store.collect(tmp_path, tmp_path / "all.parquet")
    assert gathered.runs == 1
    assert "seed2" in gathered.problems[0]


def test_results_of_others_stand_beside_ours(tmp_path: Path) -> None:
    pretend(tmp_path / "runs", "ksl", 1)
    table, file = tmp_path / "all.parquet", tmp_path / "drq.csv"
    store.collect(tmp_path / "runs", table)
    file.write_text(
        "method,task,seed,env_steps,return\n"
        "drq,toy_reach,1,100000,759.5\ndrq,toy_reach,2,100000,801\n"
    )
    for _ in range(2):
        gathered = store.import_csv(file, "authors", table)
        assert (gathered.runs, gathered.rows) == (2, 6)
    theirs = store.read(table).filter(pl.col("source") == "authors")
    assert theirs["return"].to_list() == [759.5, 801.0]
    assert set(theirs["variant"]) == {"published"}
    assert store.scores(theirs)["score"].to_list() == [759.5, 801.0]
    assert store.collect(tmp_path / "runs", table).rows == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method,task,seed,return\nx,y,1,2\n", "lacks env_steps"),
        ("method,task,seed,env_steps,return,colour\nx,y,1,2,3,red\n", "unknown colour"),
        ("method,task,seed,env_steps,return\nx,y,one,2,3\n", "line 2"),
        ("method,task,seed,env_steps,return\nx,y,1,2,\n", "return is empty"),
        ("method,task,seed,env_steps,return\nx,y,1,2,3\nx,y,1,2,4\n", "1 rows with the same"),
    ],
)
def test_mistakes_in_csv_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(KstepError, match=message):
        store.import_csv(file, "them", tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()
