"""docs/paper.md: every figure, table and number is listed, and its command works as it stands.

Commands are run on debug runs that are made once: toy tasks, few seeds, in this process.
"""

from __future__ import annotations

import csv
import re
import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from kstep.cli import main
from kstep.config import digest, resolve
from kstep.report import paper
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from kstep.run.train import train
from kstep.sweep.experiments import read, shipped
from kstep.sweep.plan import RunSpec, plan
from tests.docs.test_decisions import LINK, live, tables

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "paper.md").read_text()
KINDS = ("figure", "table", "number")

DEBUG = {"walker_walk": "toy_reach", "ksl-paper": "ksl-debug", "5000 10000 15000": "50 100 120"}
DEBUG |= {"--sizes 100": "--sizes 64 --episodes 3"}
"""What the scale `debug` has instead: its task, its folders, its marks, its crops."""

RUNS = (
    ("main", (), [1]),
    ("main", ("ksl-results",), [1]),
    ("main", ("ksl", "drq"), [2]),
    ("tangential", ("pi_sac", "proto_rl"), [1]),
    ("k-l-grid", ("ksl-k1-l0", "ksl-k3-l1", "ksl-k5-l2"), [1]),
    ("conv-transition", ("ksl-conv",), [1]),
    ("optimizers", ("ksl-one-optimizer",), [1]),
    ("gradient-angles", (), [1]),
)
"""Experiment, methods (none: all) and seeds of the runs that are made: a part of each sweep."""
CARRIED = ("ksl", "drq")
"""Whose encoders are carried over, with one seed."""
ENOUGH = 120
"""env_steps of a run: beyond Proto-RL's exploration. Only what is carried over goes to the end."""


def rows(kind: str) -> list[dict[str, str]]:
    (table,) = (t for t in tables(TEXT) if t.head[0] == kind)
    return [dict(zip(("what", *table.head[1:]), row, strict=True)) for row in table.rows]


@cache
def commands() -> dict[str, tuple[str, ...]]:
    """Every command with the files that the page says it writes."""
    found: dict[str, set[str]] = {}
    for kind in KINDS:
        for row in rows(kind):
            found.setdefault(row["command"], set()).update(re.findall(r"[\w-]+\.\w+", row["files"]))
    return {command: tuple(sorted(files)) for command, files in found.items()}


def test_every_figure_and_table_of_the_paper_is_listed_once() -> None:
    figures = [row["what"].split(",")[0] for row in rows("figure")]
    assert figures == [f"Figure {number}" for number in range(1, 22)]
    listed = [row["what"].split(",")[0] for row in rows("table")]
    assert listed == [*(f"Table {number}" for number in range(1, 9)), "Algorithm 1"]
    for kind in KINDS:
        for row in rows(kind):
            assert row["state"], row["what"]


def test_the_papers_claims_are_among_the_numbers() -> None:
    improvement = rows("number")[0]["what"]
    for claim in paper.table("claims").values():
        for percent in claim.values():
            assert f"{percent} %" in improvement


def test_every_experiment_is_swept_on_the_page() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", TEXT, flags=re.DOTALL)
    swept = sorted(re.findall(r"kstep sweep ([\w-]+)", block))
    assert swept == sorted(name for name in shipped() if name != "evidence")


def test_links_lead_somewhere() -> None:
    for target, _ in LINK.findall(TEXT):
        assert (ROOT / "docs" / target).exists(), target


def carried_out(spec: RunSpec, env_steps: int) -> None:
    frozen = spec.frozen_encoder
    experiment = resolve(
        spec.method,
        spec.task,
        preset=spec.preset,
        seed=spec.seed,
        env_steps=spec.env_steps,
        overrides=spec.overrides,
        frozen_encoder=encoders.frozen(frozen) if frozen else None,
    )
    assert digest(experiment) == spec.digest
    every = 50 if experiment.method.observation == "pixels" else None
    runtime = Runtime(threads=1, save_encoders_every=every, frozen_encoder=frozen)
    run = Run.prepare(spec.folder, replace(experiment, env_steps=env_steps))
    train(run, runtime, Console(quiet=True))


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the commands start from, at the debug scale."""
    root = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name, methods, seeds in RUNS:
            for spec in plan(read(name, "debug"), methods=methods, seeds=seeds):
                carried_out(spec, ENOUGH)
        for stage in range(2):
            planned = plan(read("generalization", "debug"), methods=CARRIED, seeds=[1])
            for spec in planned:
                if (spec.frozen_encoder is not None) == stage:
                    assert spec.ready
                    for env_steps in (ENOUGH, spec.env_steps)[stage:]:
                        carried_out(spec, env_steps)
        # Times are those of whole processes, so these two runs are.
        sweep = "sweep wall-clock --scale debug --runs runs-wall-clock --methods sac_pixel ksl"
        main([*sweep.split(), "--threads", "1"])
        (made,) = re.findall(r"^kstep (evaluation-set .*)$", TEXT, flags=re.MULTILINE)
        main(shlex.split(at_debug_scale(made)))
    return root


def at_debug_scale(command: str) -> str:
    for there, here in DEBUG.items():
        command = command.replace(there, here)
    return command


def as_rows(file: Path) -> list[dict[str, str]]:
    with file.open() as open_file:
        return list(csv.DictReader(open_file))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", commands())
def test_the_command_works(
    command: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    program, verb, *words = shlex.split(at_debug_scale(command))
    assert program == "kstep"
    if verb == "show":
        main([verb, *words])
        assert words[0] in capsys.readouterr().out
        assert commands()[command] == ()
        return
    scale = [] if words[0] == "environments" else ["--scale", "debug"]
    main([verb, *words, *scale, "--output", str(tmp_path)])
    printed = {Path(line).name for line in capsys.readouterr().out.split()}
    assert commands()[command]
    for name in commands()[command]:
        assert name in printed
        file = tmp_path / name
        if file.suffix == ".png":
            pixels = np.asarray(Image.open(file).convert("RGB"))
            assert min(pixels.shape[:2]) > 200
            assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20, "an empty picture"
        elif file.suffix == ".csv":
            assert as_rows(file)
        else:
            assert file.read_text().count("\n| ") >= 2
    check = SENSIBLE.get(words[0])
    if check is not None:
        check(tmp_path)


def labels(file: Path) -> set[str]:
    return {row["label"].replace("-debug", "") for row in as_rows(file)}


def sensible_main(out: Path) -> None:
    methods = {"ksl", "rad", "drq", "curl", "sac_ae", "sac_state", "sac_pixel"}
    assert labels(out / "main.csv") == methods | {"ksl-results"}
    found = as_rows(out / "main.csv")
    runs = {row["label"]: row["runs"] for row in found}
    assert (runs["ksl-debug"], runs["drq-debug"], runs["rad-debug"]) == ("2", "2", "1")
    (best,) = (row for row in found if row["best"] == "1")
    assert "sac_state" not in best["label"]
    over = {
        (r["label"].split("-debug")[0], r["over"]) for r in as_rows(out / "main-improvement.csv")
    }
    assert over == {
        (reading, f"{rival}-debug")
        for reading in ("ksl", "ksl-results")
        for rival in methods - {"ksl", "sac_state"}
    }


def sensible_tangential(out: Path) -> None:
    assert labels(out / "tangential.csv") == {"ksl", "ksl-results", "pi_sac", "proto_rl 100/20"}
    assert {row["exploration"] for row in as_rows(out / "tangential-runs.csv")} == {"0", "100"}


def sensible_grid(out: Path) -> None:
    assert labels(out / "k-l-grid.csv") == {"k1-l0", "k3-l0", "k3-l1", "k5-l2"}
    assert "| k = 5" in (out / "k-l-grid.md").read_text().replace("toy_reach, ", "")


def sensible_conv(out: Path) -> None:
    assert labels(out / "conv-transition.csv") == {"ksl", "ksl-conv"}
    counted = as_rows(out / "conv-transition-collapse.csv")
    assert {row["label"]: row["runs"] for row in counted} == {
        "ksl-debug": "2",
        "ksl-conv-debug": "1",
    }
    assert all(int(row["collapsed"]) <= int(row["runs"]) for row in counted)


def sensible_generalization(out: Path) -> None:
    assert labels(out / "generalization.csv") == set(CARRIED)
    assert {row["task"] for row in as_rows(out / "generalization.csv")} == {
        "toy_reach",
        "toy_glide",
    }


def sensible_gradients(out: Path) -> None:
    found = as_rows(out / "gradients-tasks.csv")
    assert [(row["task"], row["runs"]) for row in found] == [("toy_reach", "2"), ("toy_glide", "1")]
    assert all(-1.0 <= float(row["pooled"]) <= 1.0 for row in found)


def sensible_times(out: Path) -> None:
    found = {row["label"]: row for row in as_rows(out / "wall-clock.csv")}
    assert float(found["sac_pixel-debug"]["normalized"]) == 1.0
    assert float(found["ksl-debug"]["normalized"]) > 0.0
    assert (found["sac_pixel-debug"]["paper"], found["ksl-debug"]["paper"]) == ("1.0", "3.9")


def sensible_environments(out: Path) -> None:
    found = as_rows(out / "environments.csv")
    assert [row["task"] for row in found] == list(paper.table("env"))
    for row in found:
        assert row["action_dim"] == row["paper_action_dim"]
        assert row["action_repeat"] == row["paper_action_repeat"]
        dense = row["paper_reward"] == "dense" and row["task"] != "finger_spin"
        assert (row["rewards"] == "graded") == dense
    assert {row["task"]: row["decisions"] for row in found}["cheetah_run"] == "250"
    assert (out / "environments.md").read_text() == (
        ROOT / "docs" / "results" / "environments.md"
    ).read_text()


def sensible_encoders(out: Path) -> None:
    (file,) = (p for p in out.glob("*.csv") if p.stem in ("reward-pca", "reward-mse", "temporal"))
    found = as_rows(file)
    methods = {"ksl", "rad", "drq", "curl", "sac_ae", "sac_pixel"}
    assert labels(file) == methods
    # Two of them have two seeds; two of those runs went on and saved two encoders more.
    assert len(found) == (3 * 8 if file.stem == "reward-pca" else 4 * 8 + 2 * 2)


def sensible_perturbation(out: Path) -> None:
    found = as_rows(out / "perturbation-changes.csv")
    assert {row["perturbation"] for row in found} == {"translation", "erasing", "noise", "flipping"}
    assert "paper" in found[0]


SENSIBLE = {
    "main": sensible_main,
    "tangential": sensible_tangential,
    "k-l-grid": sensible_grid,
    "conv-transition": sensible_conv,
    "generalization": sensible_generalization,
    "gradients": sensible_gradients,
    "wall-clock": sensible_times,
    "environments": sensible_environments,
    "reward-pca": sensible_encoders,
    "reward-mse": sensible_encoders,
    "temporal": sensible_encoders,
    "perturbation": sensible_perturbation,
}


HYPERPARAMETERS = {
    "image_pad": "method.augment.pad",
    "initial_steps": "method.learning.initial_decisions",
    "frame_stack": "method.stack",
    "k": "method.auxiliary.k",
    "eval_episodes": "evaluation.episodes",
    "eval_every_env_steps": "evaluation.every",
    "betas": "method.learning.betas",
    "batch_size": "method.learning.batch_size",
    "critic_ema": "method.core.ema_rate",
    "encoder_ema": "method.encoder.ema_rate",
    "target_update_every": "method.learning.ema_every",
    "actor_update_every": "method.core.actor_every",
    "aux_update_every": "method.auxiliary.every",
    "latent_dim": "method.encoder.latent_dim",
    "discount": "method.core.discount",
    "init_temperature": "method.core.initial_temperature",
    "replay_capacity": "method.learning.replay_capacity",
    "log_std_bounds": "method.core.log_std_bounds",
}


def test_table_3_is_what_ksl_has(capsys: pytest.CaptureFixture[str]) -> None:
    theirs = paper.table("hyperparameters")
    main(["show", "ksl"])
    shown = capsys.readouterr().out
    for name, key in HYPERPARAMETERS.items():
        assert live("ksl")[key] == theirs[name], name
        assert f"  {key} = " in shown
    rate = "method.learning.learning_rate"
    assert live("ksl", "cheetah_run")[rate] == theirs["lr"]["cheetah_run"]
    assert live("ksl")[rate] == theirs["lr"]["otherwise"]
    assert (live("ksl")["method.core.target_entropy"], theirs["target_entropy"]) == (-1.0, "-|A|")
    # The critic has its turn in every update; the optimizer is Adam throughout.
    rest = {"lr", "target_entropy", "critic_update_every", "optimizer"}
    assert set(theirs) == {*HYPERPARAMETERS, *rest}
