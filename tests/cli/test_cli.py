"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from kstep import names
from kstep.analysis import options
from kstep.analysis.questions import GROUPS, QUESTIONS
from kstep.cli import COMMANDS, main
from kstep.config import PRESETS
from kstep.errors import KstepError
from kstep.methods import METHODS
from kstep.report.comparisons import COMPARISONS
from kstep.run.runtime import Allowed, Runtime
from tests.make import HANGING


def kstep(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kstep", *arguments],
        capture_output=True,
        text=True,
        timeout=HANGING,
        **options,
    )


def train(folder: Path, *extra: str) -> None:
    options = ["--preset", "debug", "--env-steps", "150", "--threads", "1"]
    main(["train", "ksl", "toy_reach", *options, "--folder", str(folder), *extra])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "seed1"
    train(folder)
    return folder


def without_torch(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that fails if PyTorch was imported."""
    code = (
        "import sys; from kstep.cli import main\n"
        f"try: main({list(arguments)})\n"
        "finally: assert 'torch' not in sys.modules"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_help_and_version_import_nothing_heavy() -> None:
    done = without_torch("--help")
    assert done.returncode == 0, done.stderr
    for verb in COMMANDS:
        assert verb in done.stdout
    assert without_torch("--version").stdout == f"kstep {version('kstep')}\n"


@pytest.mark.parametrize("what", ["methods", "tasks", "presets", "experiments"])
def test_lists_import_nothing_heavy(what: str) -> None:
    done = without_torch("list", what)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", "ksl"], "Did you mean 'train'"),  # codespell:ignore trian
        (["train", "kls", "toy_reach"], "Did you mean 'ksl'"),
        (["show", "drqq"], "unknown method 'drqq'"),
        (["train", "ksl", "toy_reach", "--threads", "0"], "--threads must be at least 1, not 0"),
        (["train", "ksl", "carpole_swingup"], "did you mean cartpole_swingup"),
        (["train", "ksl", "toy_reach", "--preset", "cup"], "unknown preset 'cup'"),
        (["show", "ksl", "--diff", "drqq"], "unknown method 'drqq'"),
        (["sweep", "mainn"], "mainn"),
        (["compare", "mainn"], "mainn"),
        (["analyze", "reward-cpa"], "Did you mean 'reward-pca'"),
    ],
)
def test_wrong_names_are_refused_without_importing_anything_heavy(
    arguments: list[str], message: str
) -> None:
    done = without_torch(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_names_are_those_of_the_registries() -> None:
    assert list(names.METHOD_SUMMARIES) == list(METHODS)
    assert {name: method.summary for name, method in METHODS.items()} == names.METHOD_SUMMARIES
    assert list(names.PRESET_SUMMARIES) == list(PRESETS)
    others = ("wall-clock", "environments")
    assert {*options.KNOWN} == {*QUESTIONS, *GROUPS, *COMPARISONS, *others}


def test_a_method_registered_in_this_process_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "mine", METHODS["ksl"])
    names.check_method("mine")
    with pytest.raises(KstepError, match="unknown method 'yours'"):
        names.check_method("yours")


@pytest.mark.parametrize("text", ["150", "1_50", "1.5e2"])
def test_whole_numbers_may_have_underscores_and_exponents(
    text: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--preset", "debug", "--threads", "1", "--folder", str(run)]
    main(["train", "ksl", "toy_reach", "--env-steps", text, *options])
    assert "nothing to do: the run is at 150 env steps" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1.5", "1e-5", "inf", "nan", "many"])
def test_other_numbers_of_env_steps_are_refused(text: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "ksl", "toy_reach", "--env-steps", text])
    assert stopped.value.code == 2


def test_training_has_the_flags_of_a_runtime(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    flags = set(re.findall(r"(?<=[\s│])--[a-z-]+", capsys.readouterr().out))
    runtime = {field.name for field in (*fields(Runtime), *fields(Allowed))}
    runtime -= {"allowed", "log_every"}
    assert {f"--{name.replace('_', '-')}" for name in runtime} <= flags
    assert not [flag for flag in flags if "runtime" in flag or flag == "--log-every"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([verb, "--help"])
    assert stopped.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_the_same_command_again_is_at_once_done(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (run / "evaluations.jsonl").read_bytes()
    train(run)
    assert "nothing to do: the run is at 150 env steps" in capsys.readouterr().out
    assert (run / "evaluations.jsonl").read_bytes() == before


def test_eval_prints_every_return(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["eval", str(run), "--episodes", "3"])
    first = capsys.readouterr().out
    assert "episode   3" in first
    assert "150 env steps" in first
    main(["eval", str(run), "--episodes", "3"])
    assert capsys.readouterr().out == first


def test_film_makes_a_video(run: Path, tmp_path: Path) -> None:
    import imageio.v2 as imageio

    target = tmp_path / "new" / "film.mp4"
    main(["film", str(run), "--output", str(target), "--height", "64", "--width", "96"])
    frames = imageio.mimread(target)
    assert frames[0].shape == (64, 96, 3)
    assert len(frames) > 3
    before = target.read_bytes()
    with pytest.raises(SystemExit):
        main(["film", str(run), "--output", str(target)])
    assert target.read_bytes() == before
    for wrong in (
        ["--height", "63"],
        ["--height", "0"],
        ["--width", "-2"],
        ["--height", "100000"],
        ["--fps", "-5"],
        ["--fps", "0"],
        ["--episodes", "0"],
        ["--seed", "-1"],
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["film", str(run), "--output", str(tmp_path / "odd.mp4"), *wrong])
        assert stopped.value.code == 2, wrong
    with pytest.raises(SystemExit) as stopped:
        main(["film", str(run), "--output", str(tmp_path / "noend")])
    assert stopped.value.code == 2
    assert sorted(p.name for p in tmp_path.rglob("*.mp4")) == ["film.mp4"]


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "methods"])
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == list(METHODS)
    main(["list", "tasks"])
    out = capsys.readouterr().out
    assert "cartpole_swingup" in out
    assert "action repeat 8" in out
    main(["list", "presets"])
    assert "compact encoder" in capsys.readouterr().out
    main(["list", "experiments"])
    assert "Table 1" in capsys.readouterr().out


@pytest.mark.parametrize("method", METHODS)
def test_show_explains_every_method(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", method])
    out = capsys.readouterr().out
    assert "who owns what" in out
    assert "method.learning.batch_size = " in out


def test_show_diff(capsys: pytest.CaptureFixture[str]) -> None:
    main(["show", "ksl", "--diff", "ksl-released"])
    out = capsys.readouterr().out
    assert "encoder.tanh" in out
    assert "batch_size" not in out
    main(["show", "ksl", "--diff", "ksl"])
    assert "do not differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "ksl", "walker_wlak"], "walker_walk"),
        (["train", "ksl", "toy_reach", "--preset", "cpuu"], "Did you mean 'cpu'"),
        (["train", "ksl", "toy_reach", "--set", "method.axiliary.k=1"], "Did you mean 'auxiliary'"),
        (["train", "ksl", "toy_reach", "--device", "tpu"], "usable: cpu"),
        (["eval", "nowhere"], "nowhere is not a run"),
        (["eval", "nowhere", "--episodes", "0"], "--episodes must be at least 1"),
        (["eval", "nowhere", "--seed", "-1"], "--seed must be at least 0"),
        (
            ["train", "ksl", "toy_reach", "--checkpoint-minutes", "-1"],
            "--checkpoint-minutes must be above 0.0, not -1.0",
        ),
        (["train", "ksl", "toy_reach", "--env-steps", "0"], "--env-steps must be at least 1"),
        (["train", "ksl", "toy_reach", "--set", "preset=cpu"], "use --preset"),
        (["train", "ksl", "toy_reach", "--set", "method.variant=x"], "cannot be set"),
        (["sweep", "main", "--retries", "-1"], "--retries must be at least 0"),
        (["sweep", "main", "--seeds", "1-999999999"], "more than 10,000 seeds"),
        (["sweep", "main", "--threads", "99999"], "--threads must be at most 1024"),
        (["bench", "--rounds", "0"], "--rounds must be at least 1"),
        (["bench", "--threads", "1", "0"], "--threads[1] must be at least 1"),
        (["analyze", "reward", "--output", "x"], "unknown question 'reward'"),
        (["train", "ksl", "toy_reach", "--set", "method.auxiliary.kind=curl"], "cannot be set"),
        (["train", "ksl", "toy_reach", "--set", "method.auxiliary.k=0"], "k must be at least 1"),
        (["train", "ksl", "toy_reach", "--set", "method.encoder.image_size=10"], "too small"),
        (["train", "ksl", "toy_reach", "--set", "env.action_repeat=0"], "must be at least 1"),
        (["train", "ksl", "toy_reach", "--set", "method.learning.betas=[2,3]"], "must be below 1"),
    ],
)
def test_mistakes_are_answered_in_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())  # nothing half-written


def test_errors_of_the_system_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "file/below"):
        with pytest.raises(SystemExit) as stopped:
            train(tmp_path / folder)
        assert stopped.value.code in (1, 2)
        assert "kstep: " in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_ctrl_c_ends_with_a_checkpoint_and_the_same_command_resumes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kstep", "train", "sac_pixel", "toy_reach"]
    command += ["--preset", "debug", "--threads", "1", "--folder", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--env-steps", "100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"  # written once learning has begun
    deadline = time.monotonic() + HANGING
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=HANGING)
    assert process.returncode == 130
    assert "a checkpoint is written. Rerun the command to resume" in error
    (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
    state = json.loads((folder / "state.json").read_text())
    assert state["counts"]["decisions"] > 0
    more = kstep(*command[3:], "--env-steps", str(state["counts"]["env_steps"] + 20))
    assert f"resuming at {state['counts']['env_steps']:,} env steps" in more.stdout
    assert more.returncode == 0, more.stderr


def test_doctor_shows_what_matters() -> None:
    done = kstep("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("torch", "mujoco", "ms per frame", "cores", "2.14 GB", "threads"):
        assert word in done.stdout, word
    cores = len(os.sched_getaffinity(0))
    ways = len({2, cores}) if cores > 1 else 0  # halves, and a core each: the same on two cores
    assert done.stdout.count("at once: --threads") == ways
