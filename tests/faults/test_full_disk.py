"""A disk that is full, wherever a verb writes: one sentence, nothing half-written, and the same
command succeeds once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kstep.cli import main
from tests.make import HANGING

LIMITED = """
import contextlib, io, json, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, 2 * (int(sys.argv[1]),))
from kstep.cli import main
found = {}
for name, words in json.loads(sys.argv[2]).items():
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as stopped:
            code = stopped.code
    found[name] = [code, said.getvalue()]
print(json.dumps(found))
"""
"""No file may become larger than that: writing ends as on a full disk, with an error of the system,
and ffmpeg is ended by a signal."""

SMALL = ["--height", "64", "--width", "64", "--output"]
COMMANDS = {
    "evaluation-set": ["evaluation-set", "run", "--output", "new", "--episodes", "1"],
    "collapse.csv": ["analyze", "collapse", "run", "--on", "set", "--output", "collapse"],
    "main-runs.csv": ["analyze", "main", "run", "--output", "main"],
    "report": ["report", "run", "--output", "report"],
    "saliency": ["analyze", "saliency", "run", "--on", "set", "--output", "saliency"],
    "film.mp4": ["film", "run", *SMALL, "film.mp4"],
    "film.gif": ["film", "run", *SMALL, "film.gif"],
    "results.parquet": ["collect", "run", "--output", "results.parquet"],
}


def limited(most: int, folder: Path) -> dict[str, tuple[int, str]]:
    """Run every command where no file may become larger than `most` bytes."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, str(most), json.dumps(COMMANDS)],
        capture_output=True,
        text=True,
        timeout=HANGING,
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_full_disk_leaves_nothing_half_written_and_the_next_try_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["train", "ksl", "toy_reach", "--preset", "debug", "--env-steps", "60"]
    main([*train, "--threads", "1", "--save-encoders-every", "60", "--folder", "run"])
    main(["evaluation-set", "run", "--output", "set", "--episodes", "1"])
    intact = files(tmp_path)
    for name, (code, said) in limited(10, tmp_path).items():
        sentences = [line for line in said.splitlines() if line.startswith("kstep: ")]
        assert code == 1, f"{name}: {said}"
        assert len(sentences) == 1
        assert "disk" in sentences[0]
        assert "None" not in sentences[0]
        assert "Broken pipe" not in said
        assert "Traceback" not in said
    assert files(tmp_path) == intact
    assert not Path("new").exists()
    for words in COMMANDS.values():
        main(words)
    written = ("new/set.json", "collapse/collapse.csv", "main/main-runs.csv", "film.mp4")
    for name in (*written, "film.gif", "report/index.html", "results.parquet"):
        assert Path(name).stat().st_size > 10


def test_an_empty_folder_does_not_block_an_evaluation_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that an earlier version left on a full disk."""
    monkeypatch.chdir(tmp_path)
    main(["train", "ksl", "toy_reach", "--preset", "debug", "--env-steps", "45", "--folder", "run"])
    Path("set").mkdir()
    words = ["evaluation-set", "run", "--output", "set", "--episodes", "1"]
    main(words)
    assert sorted(path.name for path in Path("set").iterdir()) == ["set.json", "states.safetensors"]
    before = Path("set/set.json").read_bytes()
    with pytest.raises(SystemExit):
        main(words)
    assert Path("set/set.json").read_bytes() == before
