"""examples/: every script runs, briefly; the single file computes what the package computes."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import kstep
from kstep.envs import tasks
from tests.runs import experiment, go

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for its names
    spec.loader.exec_module(module)
    return module


def test_every_script_is_run_here() -> None:
    run = set(re.findall(r'example\("(\w+)"\)', Path(__file__).read_text()))
    assert run == {path.stem for path in FOLDER.glob("*.py")}


def test_the_plain_loop_runs() -> None:
    taken, others = example("plain_loop").main(decisions=60, updates=3)
    assert 0 < taken < 4
    assert 0 < others < 4


@pytest.mark.parametrize("ksl", [True, False])
def test_the_single_file_runs(ksl: bool) -> None:
    single = example("dqn_ksl_single_file")
    args = single.Args(decisions=90, learning_starts=80, ksl=ksl, evaluation_episodes=2)
    assert -12 < single.main(args) < 12


def test_the_single_file_has_the_packages_loss() -> None:
    single = example("dqn_ksl_single_file")
    torch.manual_seed(0)
    q, other = (single.QNetwork(20, 4, 8) for _ in range(2))
    heads = single.KSL(8, 4)
    torch.nn.init.normal_(heads.slow_projector[0].weight)
    ours = kstep.KSL(q.encoder, latent_dim=8, n_actions=4)
    ours.slow_encoder.load_state_dict(other.encoder.state_dict())
    parts: dict[str, Any] = {"task.transition.inputs.0": heads.transition[0]}
    parts |= {f"task.transition.body.{i}": heads.transition[i + 2] for i in (0, 1, 3)}
    parts |= {f"task.{n}": getattr(heads, n) for n in ("projector", "slow_projector", "predictor")}
    for name, part in parts.items():
        ours.get_submodule(name).load_state_dict(part.state_dict())
    images = torch.randint(256, (6, 4, 3, 20, 20))
    actions = torch.randint(4, (6, 3))
    valid = torch.tensor([3, 3, 2, 1, 1, 3])[:, None] > torch.arange(3)
    loss = heads.loss(q, other, images, F.one_hot(actions, 4).float(), valid)
    torch.testing.assert_close(ours.loss(q.encoder, images / 255, actions, valid), loss)


@pytest.mark.parametrize("ksl", [True, False])
def test_stable_baselines3_with_sac_runs(ksl: bool, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    assert -12 < example("sb3_sac").main(decisions=40, ksl=ksl, folder=tmp_path) < 12
    names = {"model.zip", "replay.pkl"} | ({"ksl.safetensors"} if ksl else set())
    assert {path.name for path in tmp_path.iterdir()} == names


def test_stable_baselines3_with_dqn_runs() -> None:
    pytest.importorskip("stable_baselines3")
    assert -12 < example("sb3_dqn").main(decisions=80) < 12


def test_torchrl_runs() -> None:
    pytest.importorskip("torchrl")
    assert -12 < example("torchrl_dqn").main(decisions=120) < 12


@pytest.fixture
def _registry() -> Iterator[None]:
    """Leave no environment behind."""
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]
        tasks.OWN.discard(name)


@pytest.mark.usefixtures("_registry")
def test_own_images_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert -100 < example("own_image").main(env_steps=80, runs=tmp_path) <= 50
    said = capsys.readouterr().out
    assert "sees: observation, 48x64\n" in said
    assert "passed" in said
    assert (tmp_path / "lamp.png").exists()


@pytest.mark.usefixtures("_registry")
def test_own_dictionaries_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert -40 < example("own_dictionary").main(env_steps=80, runs=tmp_path) <= 40
    said = capsys.readouterr().out
    assert 'observation["front"] (channels first, floats from 0 to 1) and observation' in said
    assert "beside it joints: 2 numbers" in said


@pytest.mark.usefixtures("_registry")
def test_own_discrete_actions_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maze = example("own_discrete")
    with pytest.raises(kstep.KstepError, match="'ksl' cannot choose discrete actions"):
        maze.main(env_steps=80, runs=tmp_path, method="ksl")
    assert 0 <= maze.main(env_steps=80, runs=tmp_path) <= 1


WITHOUT = """
import sys
for name in {blocked}:
    sys.modules[name] = None
sys.argv[1:] = [{argument!r}]
import runpy
runpy.run_path({script!r}, run_name="__main__")
print("imported:", [name for name in {blocked} if sys.modules.get(name)])
"""


def without(blocked: tuple[str, ...], script: str, argument: Path) -> list[str]:
    """What an example prints in a process that cannot import these packages."""
    path = str(FOLDER / script)
    code = WITHOUT.format(blocked=blocked, argument=str(argument), script=path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, imported = done.stdout.splitlines()
    assert imported == "imported: []"
    return printed


SIMULATORS = ("mujoco", "dm_control", "gymnasium", "dm_env", "OpenGL")


def test_acting_needs_no_simulator(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment("ksl", 40))
    printed = without(SIMULATORS, "act_without_simulator.py", run.folder)
    here = example("act_without_simulator").main(run.folder)
    assert printed == [str(action) for action in here]


def test_an_exported_policy_needs_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    run = go(tmp_path / "run", experiment("sac_pixel", 40))
    kstep.export(run, tmp_path / "policy.onnx")
    blocked = ("torch", "PIL", "onnx", *SIMULATORS)
    first, *printed = without(blocked, "onnx_without_torch.py", tmp_path / "policy.onnx")
    assert first == "sac_pixel in toy_reach, 40 env steps"
    policy, camera = kstep.load(run), example("onnx_without_torch").camera
    actions = np.array([np.fromstring(text.strip("[]"), sep=" ") for text in printed])
    assert np.allclose(actions, [policy.act(camera(i)) for i in range(20)], atol=1e-4)
