"""What verbs print: no file's content is obeyed; a closed pipe and a full disk are met calmly."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kstep.cli import main
from kstep.files import fingerprint
from kstep.run.folder import Attempt
from kstep.sweep import experiments
from kstep.sweep.plan import plan
from tests.make import HANGING
from tests.runs import experiment, go

COMMAND = [sys.executable, "-P", "-m", "kstep"]


@pytest.mark.parametrize("words", [["list", "methods"], ["train", "--help"], ["--version"]])
def test_a_reader_that_stops_reading_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head -1` once it has its line
    try:
        done = subprocess.run(
            [*COMMAND, *words], stdout=writing, stderr=subprocess.PIPE, timeout=HANGING
        )
    finally:
        os.close(writing)
    assert done.returncode == 128 + 13  # what a shell reports of a program that SIGPIPE ended
    assert done.stderr == b""


@pytest.mark.parametrize("words", [["list", "methods"], ["--help"], ["--version"]])
def test_what_cannot_be_printed_is_said_in_a_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=HANGING
        )
    assert done.returncode == 1
    assert done.stderr.startswith("kstep: the disk is full")
    assert done.stderr.count("\n") == 1


ODD = "[/bold] [red]x \x1b[31m\x07"


def without_escapes(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err
    assert "Traceback" not in captured.err
    return captured.out + captured.err


def test_a_run_in_a_folder_of_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / f"{ODD} seed1"
    run = go(folder, experiment(env_steps=35))
    main(["eval", str(folder), "--episodes", "1"])
    assert r"[/bold] [red]x \x1b[31m\x07 seed1 at 35 env steps" in without_escapes(capsys)
    main(["collect", str(tmp_path), "--output", str(tmp_path / "[/bold].parquet")])
    assert "[/bold].parquet: 1 run read" in without_escapes(capsys)
    run.config_file.write_text("{")
    main(["collect", str(tmp_path), "--output", str(tmp_path / "[x].parquet")])
    assert r"left out: " in (said := without_escapes(capsys))
    assert r"[/bold] [red]x \x1b[31m\x07 seed1/config.json cannot be read" in said


def changed(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Set one setting of a config.json, by its dotted key, and make the digest fit."""
    *path, last = key.split(".")
    inner = data["experiment"]
    for name in path:
        inner = inner[name]
    inner[last] = value
    rest = {name: value for name, value in data["experiment"].items() if name != "env_steps"}
    return data | {"digest": fingerprint(rest)[:16]}


@pytest.mark.parametrize("key", ["preset", "env.task", "method.base", "method.variant", "x\x1b[2J"])
def test_escape_sequences_in_a_config_reach_no_terminal(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=35))
    data = json.loads(run.config_file.read_text())
    run.config_file.write_text(json.dumps(changed(data, key, ODD)))
    for words in (
        ["collect", str(tmp_path), "--output", str(tmp_path / "t.parquet")],
        ["analyze", "main", str(run.folder), "--output", str(tmp_path / "out")],
        ["eval", str(run.folder), "--episodes", "1"],
        ["train", "ksl", "toy_reach", "--preset", "debug", "--folder", str(run.folder)],
    ):
        with contextlib.suppress(SystemExit):
            main(words)
        assert "kstep: " in (said := without_escapes(capsys)) or "left out: " in said


def test_titles_and_errors_of_a_sweep_are_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        'title = "[/bold] of [red]x \\u001b[31m"\ntasks = ["toy_reach"]\n'
        '[[group]]\nmethods = ["ksl"]\nseeds = [1]\nenv_steps = 40\n'
    )
    (spec,) = plan(experiments.read("mine.toml", "debug"))
    failed = Attempt("then", 1.0, 1, "cpu", "here", 0, "failed", 1, f"Traceback\n{ODD} broke")
    spec.folder.parent.mkdir(parents=True)
    spec.run.attempts_file.write_text(json.dumps(asdict(failed)) + "\n")
    main(["sweep", "mine.toml", "--scale", "debug", "--plan"])
    said = without_escapes(capsys)
    assert r"mine (debug): [/bold] of [red]x \x1b[31m" in said
    assert r"failed: toy_reach ksl-debug seed 1: [/bold] [red]x \x1b[31m\x07 broke" in said
