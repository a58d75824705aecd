"""The table of evaluations: complete, idempotent, readable by others."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kstep.config import resolve, setting
from kstep.files import fingerprint
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
        "processor": "",
        "seconds": None,
        "core_seconds": None,
    }


def test_times_are_those_of_the_clock_and_processors_those_of_the_machines(tmp_path: Path) -> None:
    run = pretend(tmp_path / "runs", "ksl", 1)
    machines = [{"processor": name} for name in ("one", "one", "two")]
    run.system_file.write_text(json.dumps(machines))
    lines = [("a", 0, 2.0), ("a", 700, 10.0), ("b", 600, 1.0), ("b", 801, 5.0), ("b", 900, 9.0)]
    with run.clock_file.open("w") as file:
        for process, decisions, seconds in lines:
            row = {"process": process, "decisions": decisions, "env_steps": decisions}
            file.write(json.dumps({**row, "seconds": seconds, "core_seconds": seconds / 2}) + "\n")
    store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    frame = store.read(tmp_path / "all.parquet")
    assert frame["processor"].unique().to_list() == ["one then two"]
    times = frame.select("mark", "seconds", "core_seconds").unique().sort("mark").rows()
    assert times == [(0, 2.0, 1.0), (800, 15.0, 7.5)]
    assert store.core_seconds(frame) == {setting(run.experiment): 7.5 / 801}
    assert store.core_seconds(frame.with_columns(source=pl.lit("somebody"))) == {}


@pytest.mark.parametrize("seconds", [1e300, 1e11])
def test_times_that_no_run_can_take_are_left_out(seconds: float, tmp_path: Path) -> None:
    run = pretend(tmp_path / "runs", "ksl", 1)
    row = {"process": "a", "decisions": 800, "env_steps": 800}
    run.clock_file.write_text(json.dumps({**row, "seconds": seconds, "core_seconds": 1.0}) + "\n")
    store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    frame = store.read(tmp_path / "all.parquet")
    assert frame["seconds"].null_count() == frame.height
    assert store.core_seconds(frame) == {}


def test_a_table_without_times_is_read(tmp_path: Path) -> None:
    pretend(tmp_path / "runs", "ksl", 1)
    table = tmp_path / "all.parquet"
    store.collect(tmp_path / "runs", table)
    complete = store.read(table)
    complete.drop("processor", "seconds", "core_seconds").write_parquet(table)
    assert store.read(table)["seconds"].null_count() == complete.height
    assert store.collect(tmp_path / "runs", table).rows == complete.height
    assert store.read(table).equals(complete)


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


def test_an_attempt_that_got_further_is_kept_and_another_is_not_replaced_silently(
    tmp_path: Path,
) -> None:
    runs, table = tmp_path / "runs", tmp_path / "all.parquet"
    pretend(runs, "ksl", 1, evaluations=3)
    run = pretend(runs, "drq", 2, evaluations=2)
    store.collect(runs, table)
    before = store.read(table)
    # Begun again: the first has not got as far yet, the second further, with other returns.
    pretend(runs, "ksl", 1, evaluations=2)
    pretend(runs, "drq", 2, evaluations=3)
    changed = run.evaluations_file.read_text().replace("3.5", "3.25")
    run.evaluations_file.write_text(changed)
    update = store.collect(runs, table)
    replaced, kept = update.problems
    assert kept.startswith("left as it is in the table: toy_reach ksl controlled debug seed 1:")
    assert "up to 1,600 env steps (commit abc then abe); the folder has one up to 800" in kept
    assert replaced.startswith("replaced in the table: toy_reach drq controlled debug seed 2:")
    after = store.read(table)
    assert after.filter(pl.col("method") == "ksl").equals(before.filter(pl.col("method") == "ksl"))
    assert after.filter(pl.col("method") == "drq").height == 6
    assert 3.25 in after["return"]
    # The run that went on as it had begun is no other attempt.
    pretend(runs, "ksl", 1, evaluations=4)
    assert store.collect(runs, table).problems == ()


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


@pytest.mark.parametrize("kind", ["pipe", "folder", "dangling", "device", "loop"])
@pytest.mark.parametrize("name", ["config.json", "evaluations.jsonl", "system.json"])
def test_what_is_no_file_is_left_out_and_named_without_waiting(
    name: str, kind: str, tmp_path: Path
) -> None:
    pretend(tmp_path, "ksl", 1)
    path = pretend(tmp_path, "ksl", 2).folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"dangling": "nowhere", "device": "/dev/zero", "loop": name}[kind])
    gathered = store.collect(tmp_path, tmp_path / "all.parquet")
    if kind == "dangling" and name != "config.json":
        assert not gathered.problems  # as before the first evaluation
        return
    (problem,) = gathered.problems
    assert f"seed2/{name}" in problem or "seed2 is not a run" in problem
    # Where it was computed is not what was computed.
    assert gathered.runs == (2 if name == "system.json" else 1)


GOOD: dict[str, Any] = {"mark": 0, "env_steps": 0, "decisions": 0, "updates": 0, "episodes": 0}
GOOD |= {"returns": [1.0], "lengths": [5]}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (json.dumps([1]), "line 1: it must be a group of settings"),
        (json.dumps({**GOOD, "returns": 5}), "returns must be a list"),
        (json.dumps({**GOOD, "returns": []}), "returns must not be empty"),
        (json.dumps({**GOOD, "returns": ["1"]}), r"returns\[0\] must be a number"),
        (json.dumps({**GOOD, "returns": [math.nan]}), "NaN is not a finite number"),
        (json.dumps({**GOOD, "returns": [1e300]}), r"returns\[0\] must be at most 1e\+50"),
        (json.dumps({**GOOD, "mark": -1}), "mark must be at least 0"),
        (json.dumps({**GOOD, "env_steps": 2**63}), "env_steps must be at most 9223372036854775807"),
        (json.dumps({**GOOD, "updates": 1.5}), "updates must be a whole number"),
        ("[" * 5_000 + "]" * 5_000, "nested more than 32 deep"),
        (json.dumps(GOOD) + "\n" + json.dumps(GOOD), "two evaluations at 0"),
    ],
)
def test_odd_evaluations_are_named_and_left_out(line: str, complaint: str, tmp_path: Path) -> None:
    pretend(tmp_path, "ksl", 1)
    run = pretend(tmp_path, "ksl", 2)
    run.evaluations_file.write_text(line + "\n")
    gathered = store.collect(tmp_path, tmp_path / "all.parquet")
    assert (gathered.runs, gathered.rows) == (1, 4)
    (problem,) = gathered.problems
    assert re.search(f"left out: .*seed2/evaluations.jsonl .*{complaint}", problem)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"experiment": []}, "experiment must be a group of settings"),
        ({"experiment": None}, "experiment must be a group of settings"),
        ({"encoder_backend": ["x"]}, "encoder_backend must be one of"),
        ({"digest": {}}, "digest must be a text"),
        ({"format": [[]]}, "format"),
        ({"format": None}, "settings of the first format"),
        ({"experiment": {"method": "\x1b[31m"}}, "experiment lacks env"),
    ],
)
def test_odd_settings_are_named_and_left_out(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    pretend(tmp_path, "ksl", 1)
    run = pretend(tmp_path, "ksl", 2)
    data = json.loads(run.config_file.read_text())
    run.config_file.write_text(json.dumps(data | changes))
    gathered = store.collect(tmp_path, tmp_path / "all.parquet")
    assert gathered.runs == 1
    assert re.search(f"left out: .*seed2/config.json cannot be read: .*{complaint}", str(gathered))


def test_settings_that_cannot_work_are_left_out_even_with_the_right_digest(tmp_path: Path) -> None:
    run = pretend(tmp_path, "ksl", 1)
    data = json.loads(run.config_file.read_text())
    data["experiment"]["env"]["task"] = "no_such_task"
    rest = {key: value for key, value in data["experiment"].items() if key != "env_steps"}
    data["digest"] = fingerprint(rest)[:16]
    run.config_file.write_text(json.dumps(data))
    gathered = store.collect(tmp_path, tmp_path / "all.parquet")
    assert "unknown task 'no_such_task'" in str(gathered)


def test_folders_are_looked_through_however_deep_and_whatever_their_names(tmp_path: Path) -> None:
    run = pretend(tmp_path / "runs", "ksl", 1)
    deep = tmp_path / "runs"
    for _ in range(1_200):  # deeper than Python's stack
        deep = deep / "d"
        deep.mkdir()
    odd = tmp_path / "runs" / os.fsdecode(b"\xff [/bold]")
    shutil.copytree(run.folder, odd)
    (odd / "config.json").write_text("{")
    gathered = store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    assert gathered.runs == 1
    assert "[/bold]" in gathered.problems[0]
    subprocess.run(["rm", "-r", tmp_path / "runs" / "d"], check=True)  # too deep for pytest too


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


HEAD = "method,task,seed,env_steps,return\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method,task,seed,return\nx,y,1,2\n", "lacks env_steps"),
        ("method,task,seed,env_steps,return,colour\nx,y,1,2,3,red\n", "unknown colour"),
        ("method,task,seed,env_steps,return\nx,y,one,2,3\n", "line 2"),
        ("method,task,seed,env_steps,return\nx,y,1,2,\n", "return is empty"),
        ("method,task,seed,env_steps,return\nx,y,1,2,3\nx,y,1,2,4\n", "1 rows with the same"),
        (HEAD + "x,y,1,2,3\nx,y,1,4,nan\n", "line 3: return must be a finite number, not nan"),
        (HEAD + "x,y,1,2,inf\n", "line 2: return must be a finite number, not inf"),
        (HEAD + "x,y,1,2,1e400\n", "line 2: return must be a finite number"),
        (HEAD + "x,y,1,2,1e60\n", r"line 2: return must be at most 1e\+50"),
        (HEAD + "x,y,1.5,2,3\n", "line 2: seed must be a whole number such as 100000, not '1.5'"),
        (HEAD + "x,y,-1,2,3\n", "line 2: seed must be at least 0, not -1"),
        (HEAD + "x,y,1,nan,3\n", "line 2: env_steps must be a whole number"),
        (HEAD + "x,y,1,1e300,3\n", "line 2: env_steps must be at most 9223372036854775807"),
        (HEAD + f"x,y,1,{'9' * 5_000},3\n", "line 2: env_steps must be a whole number"),
        (HEAD + f"{'x' * 101},y,1,2,3\n", "line 2: method must have at most 100 characters"),
        (HEAD + "x\x1b[31m,y,1,2,3\n", "line 2: method must be printable text"),
        (HEAD + 'x,"a\nb",1,2,3\n', "line 3: task must be printable text"),
        (HEAD + "x,y,1,2\n", "line 2: it has 4 cells, the first line has 5"),
        (HEAD + 'x,y,"1,2,3\n', "line 2: it is not valid CSV"),
        (HEAD, "no line but the first"),
        ("", "lacks method, task"),
        ("method,task,seed,env_steps,return,seed\nx,y,1,2,3,4\n", "names a column twice"),
    ],
)
def test_mistakes_in_csv_are_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(KstepError, match=message):
        store.import_csv(file, "them", tmp_path / "all.parquet")
    assert not (tmp_path / "all.parquet").exists()


def test_whole_numbers_in_csv_may_be_written_as_others_write_them(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "\ufeff" + HEAD + "drq, walker_walk ,1.0,1e5,3\r\n\r\ndrq,walker_walk,2,100_000,4\r\n"
    )
    assert store.import_csv(file, "them", tmp_path / "all.parquet").rows == 2
    frame = store.read(tmp_path / "all.parquet")
    assert frame["env_steps"].to_list() == [100_000, 100_000]
    assert set(frame["task"]) == {"walker_walk"}


@pytest.mark.parametrize("content", [b"\xff\xfe", b"method\x00", b"PAR1"])
def test_other_files_are_no_csv(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(content)
    with pytest.raises(KstepError, match=r"a\.csv"):
        store.import_csv(file, "them", tmp_path / "all.parquet")


def table_of(tmp_path: Path) -> Path:
    pretend(tmp_path / "runs", "ksl", 1)
    store.collect(tmp_path / "runs", tmp_path / "all.parquet")
    return tmp_path / "all.parquet"


@pytest.mark.parametrize(
    ("column", "value", "complaint"),
    [
        ("return", math.nan, "not within"),
        ("return", 1e300, "not within"),
        ("return", None, "return has empty cells"),
        ("seed", None, "seed has empty cells"),
        ("mark", -1, "mark has negative numbers"),
        ("mark", 0, "same episode of the same run twice"),
        ("seconds", -1.0, "seconds has numbers that are no times"),
        ("core_seconds", math.nan, "core_seconds has numbers that are no times"),
        ("seed", "one", "not a table of evaluations: .*seed String"),
        ("more", 1, "not a table of evaluations: .*more Int"),
    ],
)
def test_tables_with_impossible_values_are_refused(
    column: str, value: object, complaint: str, tmp_path: Path
) -> None:
    table = table_of(tmp_path)
    frame = pl.read_parquet(table)
    kind = frame.schema.get(column) if not isinstance(value, str) else None
    frame.with_columns(pl.lit(value, kind).alias(column)).write_parquet(table)
    with pytest.raises(KstepError, match=rf"all\.parquet cannot be read: .*{complaint}"):
        store.read(table)


def test_a_damaged_table_cannot_end_this_process(tmp_path: Path) -> None:
    """The decoder of Parquet aborts its process, or panics, for some of these."""
    table = table_of(tmp_path)
    intact, frame = table.read_bytes(), store.read(table)
    rng = random.Random(1)
    refused = 0
    for _ in range(12):
        data = bytearray(intact)
        at = rng.randrange(len(data) - 900, len(data) - 8)  # what describes the pages
        data[at : at + 4] = rng.randbytes(4)
        table.write_bytes(data)
        try:
            assert store.read(table).schema == frame.schema
        except KstepError as error:
            refused += "all.parquet cannot be read: it is not a Parquet table" in str(error)
    assert refused > 3
