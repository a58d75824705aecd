"""examples/plugin: a package of somebody else, installed, trained, evaluated, swept, collected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def python(*arguments: str, folder: Path, **variables: str) -> str:
    """What a Python process prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


SWEEP = """
title = "Inverse dynamics"
tasks = ["toy_reach"]

[[group]]
methods = ["inverse"]
seeds = "1"
env_steps = 200
preset = "debug"
"""

COMMANDS = """
from kstep.cli import main
main(["list", "methods"])
main(["train", "inverse", "toy_reach", "--preset", "debug", "--env-steps", "200", "--runs", "mine",
      "--threads", "1"])
main(["eval", "mine/toy_reach/inverse-debug/seed1", "--episodes", "2"])
main(["sweep", "inverse.toml", "--runs", "swept", "--threads", "1"])
main(["collect", "swept"])
import polars
print(polars.read_parquet("results.parquet").select("method", "env_steps").unique())
"""


def test_a_plug_in_is_trained_evaluated_swept_and_collected_like_ours(tmp_path: Path) -> None:
    """Installed by pip into a place of its own, which only a path leads to."""
    place, source = tmp_path / "site-packages", tmp_path / "plugin"
    shutil.copytree(EXAMPLES / "plugin", source)  # building writes beside the source
    python(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"),
        *("--no-build-isolation", "--no-index", "--target", str(place), str(source)),
        folder=tmp_path,
    )
    (tmp_path / "inverse.toml").write_text(SWEEP)
    said = python("-c", COMMANDS, folder=tmp_path, PYTHONPATH=str(place))
    assert f"{'inverse':20} from kstep-inverse 0.1.0" in said.splitlines()
    assert "mean" in said
    folders = [tmp_path / f"{runs}/toy_reach/inverse-debug/seed1" for runs in ("mine", "swept")]
    for folder in folders:
        assert (
            '"kstep-inverse": "0.1.0"' in next(folder.glob("checkpoints/*/state.json")).read_text()
        )
    # One method, one seed: whoever started it, it is the same run.
    logs = [(folder / "evaluations.jsonl").read_bytes() for folder in folders]
    assert logs[0] == logs[1]
    assert "inverse" in said.rpartition("env_steps")[2]
