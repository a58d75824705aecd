"""`import kstep`: a lazy, typed set of names; training and evaluating from Python."""

from __future__ import annotations

import ast
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kstep
from kstep import KstepError, Progress, Run
from tests.runs import at_decision, contents

SOURCE = Path(str(kstep.__file__))
SMALL: dict[str, Any] = {"preset": "debug", "env_steps": 60, "threads": 1}
SETTINGS = {"method.learning.initial_decisions": 30, "evaluation.every": 40}


def python(code: str, *flags: str, **variables: str) -> str:
    """What a Python process prints."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "gymnasium", "rich", "tyro")
    code = f"import kstep, sys; print([name for name in {heavy} if name in sys.modules])"
    assert python(code) == "[]"


@pytest.mark.parametrize("name", kstep.__all__)
def test_public_names_exist_and_are_described(name: str) -> None:
    value = getattr(kstep, name)
    assert name in dir(kstep)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__.split(".")[0] == "kstep"


def test_types_are_known_for_exactly_the_public_names() -> None:
    (block,) = (node for node in ast.parse(SOURCE.read_text()).body if isinstance(node, ast.If))
    imported = {
        (alias.asname, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(kstep._HOMES.items())


def test_other_names_do_not_exist() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kstep.nothing  # noqa: B018
    assert not hasattr(kstep, "__wrapped__")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Progress]]:
    said: list[Progress] = []
    folder = tmp_path_factory.mktemp("api") / "run"
    run = kstep.train(
        "ksl", "toy_reach", settings=SETTINGS, folder=folder, on_progress=said.append, **SMALL
    )
    return run, said


def test_training_returns_the_run(trained: tuple[Run, list[Progress]]) -> None:
    run, _ = trained
    assert run.experiment.method.name == "ksl"
    assert run.experiment.method.learning.initial_decisions == 30
    assert [row.mark for row in run.evaluations()] == [0, 40, 60]


def test_progress_is_reported_in_order(trained: tuple[Run, list[Progress]]) -> None:
    run, said = trained
    assert [line.env_steps for line in said] == sorted(line.env_steps for line in said)
    assert {line.budget for line in said} == {60}
    evaluated = [line.returns for line in said if line.returns]
    assert evaluated == [row.returns for row in run.evaluations()]
    assert str(said[0]) == "0/60 env steps, 0 decisions, 0 updates"
    assert str(said[-1]) == "60/60 env steps, 60 decisions, 30 updates"
    assert f"return {evaluated[0][0]:.1f} over 1 episode" in str(said[1])


def test_progress_is_printed_instead_of_what_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "kstep"):
        kstep.train("sac_state", "toy_reach", folder=tmp_path, on_progress=print, **SMALL)
    out = capsys.readouterr().out.splitlines()
    assert all("/60 env steps" in line for line in out)
    assert f"run folder: {tmp_path}" in caplog.messages
    kstep.train("sac_state", "toy_reach", folder=tmp_path, **SMALL)
    assert "nothing to do: the run is at 60 env steps" in capsys.readouterr().out


def test_evaluating_is_what_the_command_does(
    trained: tuple[Run, list[Progress]], capsys: pytest.CaptureFixture[str]
) -> None:
    from kstep import cli

    run, _ = trained
    found = kstep.evaluate(run, episodes=3, seed=4)
    assert len(found.returns) == 3
    assert kstep.evaluate(str(run.folder), episodes=3, seed=4) == found
    cli.main(["eval", str(run.folder), "--episodes", "3", "--seed", "4"])
    assert f"mean {found.mean:.2f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "ksll"}, "unknown method 'ksll'. Did you mean 'ksl'"),
        ({"task": "cart"}, "unknown task 'cart'"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": "one"}, "seed must be a whole number, not 'one'"),
        ({"preset": "gpu"}, "unknown preset 'gpu'"),
        ({"settings": {"method.auxiliary.q": 1}}, "method.auxiliary has no 'q'"),
        ({"settings": {"method.auxiliary.k": object()}}, "settings['method.auxiliary.k'] must be"),
        ({"threads": 0}, "threads must be at least 1, not 0"),
        ({"callbacks": [print]}, "callbacks must be instances of kstep.Callback, not <built-in"),
        ({"device": "abacus"}, "device 'abacus' is not available here"),
    ],
)
def test_wrong_arguments_are_refused_with_a_sentence(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"method": "ksl", "task": "toy_reach", "folder": tmp_path / "run"}
    with pytest.raises(KstepError) as refused:
        kstep.train(**{**given, **SMALL, **arguments})
    assert message in str(refused.value)
    assert not contents(tmp_path)


@pytest.mark.parametrize("episodes", [0, -1, 2.5, "two"])
def test_episodes_are_counted(episodes: Any, tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="episodes must be a whole number of at least 1"):
        kstep.evaluate(tmp_path, episodes=episodes)


def test_a_keyword_that_does_not_exist_is_a_type_error_as_everywhere() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'env_step'\. Did you mean"):
        kstep.train("ksl", "toy_reach", env_step=100)


def test_ctrl_c_writes_a_checkpoint_and_the_same_call_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_decision(patch, 45, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match="a checkpoint is written"):
            kstep.train("ksl", "toy_reach", folder=tmp_path / "run", **SMALL)
    run = kstep.train("ksl", "toy_reach", folder=tmp_path / "run", **SMALL)
    assert run.reached() == 60
