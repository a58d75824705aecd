"""`kstep export`: what is exported acts as the run's own policy does, wherever it is run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kstep
from kstep import KstepError, Run, cli
from kstep.config import EvaluationConfig
from kstep.envs.actions import BoxActions, DiscreteActions
from kstep.envs.sight import resized
from kstep.interop.export import LOADER, export, network_of
from kstep.methods import METHODS
from tests.make import agent_and_replay, tiny
from tests.runs import experiment, go

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from kstep.interop import deployed


class Arm(gymnasium.Env[Any, Any]):
    """A dictionary: images channels first and not square, floats, numbers; odd bounds."""

    observation_space = spaces.Dict(
        {
            "front": spaces.Box(0, 255, (3, 60, 80), np.uint8),
            "grey": spaces.Box(0.0, 1.0, (30, 40), np.float32),
            "joints": spaces.Box(-9.0, 9.0, (2,), np.float32),
            "clock": spaces.Box(0, 99, (), np.int64),
        }
    )
    action_space = spaces.Box(
        np.array([[-3.0], [0.0]], np.float32), np.array([[1.0], [10.0]], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.clock = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.clock += 1
        return self.observe(), float(action[1, 0]), False, False, {}

    def observe(self) -> Any:
        rng = np.random.default_rng(self.clock)
        return {
            "front": rng.integers(0, 256, (3, 60, 80), np.uint8),
            "grey": rng.random((30, 40), np.float32),
            "joints": rng.normal(size=2).astype(np.float32),
            "clock": np.asarray(self.clock),
        }


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    gymnasium.register("KstepExported-v0", lambda **_: Arm(), max_episode_steps=12)
    yield
    del gymnasium.registry["KstepExported-v0"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One of each kind of observation and of action."""
    folder, short = tmp_path_factory.mktemp("runs"), EvaluationConfig(every=100, episodes=1)
    arm = replace(tiny("ksl"), env_steps=50, evaluation=short)
    arm = replace(arm, env=replace(arm.env, task="gym:KstepExported-v0"))
    choosing = experiment("rad", 40)  # which crops
    method = replace(choosing.method, core=tiny("dqn").method.core)
    env = replace(choosing.env, task="toy_arrows")
    return {
        "image": go(folder / "image", experiment("ksl", 60)),
        "dictionary": go(folder / "dictionary", arm, overlap="here"),
        "state": go(folder / "state", experiment("sac_state", 40)),
        "discrete": go(folder / "discrete", replace(choosing, method=method, env=env)),
    }


@pytest.fixture(scope="module")
def files(runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every run as ONNX."""
    folder = tmp_path_factory.mktemp("files")
    for name, run in runs.items():
        found = export(run, folder / f"{name}.onnx")
        assert found.difference <= 1e-4
        assert found.milliseconds > 0
    return {name: folder / f"{name}.onnx" for name in runs}


def observations(run: Run, number: int = 6) -> Iterator[Any]:
    """What an environment of the run gives."""
    rng, policy = np.random.default_rng(3), kstep.load(run)
    for i in range(number):
        if run.experiment.env.task.startswith("gym:"):
            arm = Arm()
            arm.clock = i
            yield arm.observe()
        elif policy.environment.sight.pictures:
            side = policy.environment.sight.height
            larger = side if i < 2 else side * 5  # a camera's own size will do
            yield rng.integers(0, 256, (larger, larger, 3), np.uint8)
        else:
            yield rng.normal(size=policy.stack_shape[1:])


@pytest.mark.parametrize("name", ["image", "dictionary", "state", "discrete"])
def test_an_onnx_policy_acts_as_the_runs_own(
    name: str, runs: dict[str, Run], files: dict[str, Path]
) -> None:
    ours, theirs = kstep.load(runs[name]), deployed.Policy(files[name])
    for _ in range(2):
        ours.reset()
        theirs.reset()
        for observation in observations(runs[name]):
            mine, other = ours.act(observation), theirs.act(observation)
            assert mine.dtype == other.dtype
            assert mine.shape == other.shape
            assert np.allclose(mine, other, rtol=0, atol=1e-4)
    about = theirs.about
    assert about["method"] == runs[name].experiment.method.name
    assert about["task"] == runs[name].experiment.env.task
    assert about["digest"] == runs[name].digest
    assert about["stack"] == ours.stack_shape[0]


def test_frames_are_those_of_training_to_the_byte(
    runs: dict[str, Run], files: dict[str, Path]
) -> None:
    ours, theirs = kstep.load(runs["dictionary"]), deployed.Policy(files["dictionary"])
    for observation in observations(runs["dictionary"]):
        seen = theirs.see(observation)
        sight = ours.environment.sight
        assert np.array_equal(sight.frame(observation)[: sight.height], seen["image"])
        assert np.array_equal(sight.state(observation), seen["vector"])


def test_images_are_resized_as_in_training() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        height, width, high, wide = (int(side) for side in rng.integers(8, 250, 4))
        image = rng.integers(0, 256, (height, width, int(rng.integers(1, 5))), np.uint8)
        assert np.array_equal(deployed.resize(image, high, wide), resized(image, high, wide)), (
            f"{height}x{width} -> {high}x{wide}"
        )


WRONG: list[tuple[str, Any, str]] = [
    ("image", np.zeros((48, 48, 3), np.float32), "float32; needed is"),
    ("image", np.zeros((3, 48, 48), np.uint8), r"\(3, 48, 48\) uint8; needed is"),
    ("image", np.zeros((96, 100, 3), np.uint8), r"\(96, 100, 3\) uint8"),
    ("image", {"camera": 1}, "object"),
    ("dictionary", np.zeros((3, 60, 80), np.uint8), "without 'front'"),
    ("state", np.full(4, np.nan), "finite"),
    ("state", np.zeros(3), r"\(3,\) float64; needed: \[4\]"),
]


@pytest.mark.parametrize(("name", "wrong", "said"), WRONG)
def test_what_the_agent_never_saw_is_refused(
    name: str, wrong: Any, said: str, files: dict[str, Path]
) -> None:
    with pytest.raises(ValueError, match=said):
        deployed.Policy(files[name]).act(wrong)


def test_values_outside_of_the_range_are_refused(files: dict[str, Path]) -> None:
    observation = Arm()
    observation.clock = 1
    dark = observation.observe()
    dark["grey"] = dark["grey"] * 255
    with pytest.raises(ValueError, match="not 0 to 1"):
        deployed.Policy(files["dictionary"]).act(dark)


def test_the_encoder_alone(runs: dict[str, Run], tmp_path: Path) -> None:
    export(runs["dictionary"], tmp_path / "encoder.onnx", encoder=True)
    ours, theirs = kstep.load(runs["dictionary"]), deployed.Policy(tmp_path / "encoder.onnx")
    for observation in observations(runs["dictionary"]):
        latent = ours.encode(ours.see(observation)[None])[0]
        assert np.allclose(theirs.act(observation), latent, atol=1e-4)
    with pytest.raises(KstepError, match="it has no encoder to export"):
        export(runs["state"], tmp_path / "state.onnx", encoder=True)
    assert not (tmp_path / "state.onnx").exists()


def test_pt2_acts_as_the_runs_own(runs: dict[str, Run], tmp_path: Path) -> None:
    path = tmp_path / "policy.pt2"
    assert export(runs["discrete"], path).difference <= 1e-4
    told = {"kstep.json": ""}
    module = torch.export.load(path, extra_files=told).module()
    assert json.loads(told["kstep.json"])["actions"] == {"kind": "discrete", "n": 4, "start": 0}
    policy = kstep.load(runs["discrete"])
    stacks = np.random.default_rng(0).integers(0, 256, (5, *policy.stack_shape), np.uint8)
    assert np.array_equal(module(torch.from_numpy(stacks)).numpy(), policy.act_batch(stacks))


def test_the_command_says_what_it_wrote(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(runs["state"].folder), "-o", str(tmp_path / "new" / "policy.onnx")]
    cli.main([*words, "--loader"])
    said = capsys.readouterr().out
    assert "agrees with the run's own to" in said
    assert "48 stacks of real frames" in said
    assert "ms per decision on one core" in said
    assert (tmp_path / "new" / "deployed.py").read_bytes() == LOADER.read_bytes()
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert "exists already; choose another --output" in capsys.readouterr().err


def test_wrong_requests_are_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(KstepError, match=r"must end in \.onnx or \.pt2"):
        export(runs["state"], tmp_path / "policy.pt")
    with pytest.raises(KstepError, match=r"deployed.py runs \.onnx files"):
        export(runs["state"], tmp_path / "policy.pt2", loader=True)
    (tmp_path / "deployed.py").write_text("mine")
    with pytest.raises(KstepError, match="exists already and is another"):
        export(runs["state"], tmp_path / "policy.onnx", loader=True)
    with pytest.raises(KstepError, match="has no policy at 7 env steps"):
        export(runs["state"], tmp_path / "policy.onnx", at=7)
    assert [path.name for path in tmp_path.iterdir()] == ["deployed.py"]


def test_where_the_environment_is_not_there_it_says_so(
    runs: dict[str, Run], tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(gymnasium.registry, "KstepExported-v0")
        found = export(runs["dictionary"], tmp_path / "policy.pt2")
    assert "48 random stacks: the environment cannot be made here (gym:KstepExported" in str(found)


def test_what_was_exported_is_compared(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a graph that computes something else is never written."""
    actions = kstep.load(runs["state"]).environment.actions
    assert isinstance(actions, BoxActions)
    wrong = replace(actions, high=tuple(high + 1e-3 for high in actions.high))
    monkeypatch.setattr(
        "kstep.interop.export.network_of",
        lambda agent, actions, encoder: network_of(agent, wrong, encoder=encoder),
    )
    with pytest.raises(KstepError, match=r"differs by 0\.000\d+ on .* Nothing was written"):
        export(runs["state"], tmp_path / "policy.pt2")
    assert not (tmp_path / "policy.pt2").exists()


def test_the_loader_needs_numpy_and_onnxruntime_alone(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """A copy of one short file, where nothing else of ours or of PyTorch can be imported."""
    assert len(LOADER.read_text().splitlines()) < 100
    (tmp_path / "deployed.py").write_bytes(LOADER.read_bytes())
    blocked = ("torch", "kstep", "PIL", "gymnasium", "mujoco", "dm_control", "scipy", "onnx")
    code = f"""
import sys
for name in {blocked}:
    sys.modules[name] = None
import numpy as np
from deployed import Policy
policy = Policy({str(files["image"])!r})
print(policy.act(np.zeros((240, 240, 3), np.uint8)).tolist())
print([name for name in {blocked} if sys.modules.get(name)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    action, imported = done.stdout.splitlines()
    here = deployed.Policy(files["image"]).act(np.zeros((240, 240, 3), np.uint8))
    assert np.allclose(json.loads(action), here, atol=1e-5)
    assert imported == "[]"


BASES = [name for name, method in METHODS.items() if not method.variant]


@pytest.mark.parametrize("name", BASES)
def test_every_method_can_be_exported(name: str) -> None:
    """By torch.export, from which both kinds of file are made, for any number of observations."""
    agent, replay = agent_and_replay(name)
    discrete = agent.spec.actions == "discrete"
    number = agent.spec.action_dim
    actions = DiscreteActions(number) if discrete else BoxActions((-1.0,) * 2, (3.0,) * 2, (2,))
    stacks = np.asarray(replay.stacks(np.arange(3, 8)).together())
    network = network_of(agent, actions, encoder=False)
    batch = torch.export.Dim("batch")
    with torch.no_grad():
        program = torch.export.export(
            network, (torch.from_numpy(stacks[:2]),), dynamic_shapes=({0: batch},), strict=False
        )
        found = program.module()(torch.from_numpy(stacks)).numpy()
    ours = [actions.true(vector) for vector in agent.act(stacks, explore=False)]
    assert np.allclose(found, np.stack(ours), atol=1e-5)
    critic = sum(p.numel() for p in agent.core.critic.parameters())
    if hasattr(agent.core, "actor"):  # what only learning needs is left out
        whole = sum(p.numel() for p in agent.core.parameters())
        assert network.core is not None
        kept = sum(p.numel() for p in network.core.parameters())
        assert kept <= whole - critic
