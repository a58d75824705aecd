"""`kstep.load`: a policy acts as its run did in evaluations, without the environment."""

from __future__ import annotations

import json
import shutil
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
from kstep import KstepError, Run, envs
from kstep.config import EvaluationConfig
from kstep.run.episode import Episode
from tests.make import tiny
from tests.runs import experiment, go


class Crane(gymnasium.Env[Any, Any]):
    """Shows a dictionary with an image, channels first; takes actions (2, 1) with odd bounds."""

    observation_space = spaces.Dict({"camera": spaces.Box(0, 255, (3, 60, 60), np.uint8)})
    action_space = spaces.Box(
        np.array([[-3.0], [0.0]], np.float32), np.array([[1.0], [10.0]], np.float32)
    )
    taken: list[Any] = []  # noqa: RUF012
    """By every crane of this process."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(10, 50))
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.taken.append(action)
        self.place = int(np.clip(self.place + action[0, 0], 0, 59))
        return self.observe(), float(action[1, 0]), False, False, {}

    def observe(self) -> Any:
        image = np.zeros((3, 60, 60), np.uint8)
        image[:, self.place, :] = 255
        return {"camera": image}


@pytest.fixture(scope="module", autouse=True)
def _cranes() -> Iterator[None]:
    gymnasium.register("KstepCrane-v0", lambda **_: Crane(), max_episode_steps=12)
    yield
    del gymnasium.registry["KstepCrane-v0"]


@pytest.fixture(scope="module")
def crane(tmp_path_factory: pytest.TempPathFactory) -> Run:
    what = replace(
        tiny("ksl", "method.learning.initial_decisions=20"),
        env_steps=24,
        evaluation=EvaluationConfig(every=100, episodes=1),
    )
    what = replace(what, env=replace(what.env, task="gym:KstepCrane-v0"))
    return go(tmp_path_factory.mktemp("crane") / "run", what, overlap="here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return go(tmp_path_factory.mktemp("toy") / "run", experiment())


def test_it_acts_as_the_run_does_when_it_is_evaluated(crane: Run) -> None:
    """The environment's own observations in, its own actions out: bounds, shape, type."""
    policy = kstep.load(crane)
    env = Crane()
    observation, _ = env.reset(seed=5)
    Crane.taken.clear()
    policy.reset()
    for _ in range(12):
        action = policy.act(observation)
        assert env.action_space.contains(action)
        observation, *_ = env.step(action)
    mine = np.array(Crane.taken)
    # What evaluations do: frames and vectors on our side of the environment.
    agent = policy.agent
    episode = Episode(envs.make(crane.experiment.env, 1), agent.method.stack)
    episode.start(5)
    Crane.taken.clear()
    for _ in range(12):
        episode.step(agent.act(episode.observation[None], explore=False)[0])
    assert np.array_equal(mine, np.array(Crane.taken))
    assert len({float(action[0, 0]) for action in mine}) > 1


def test_stacks_give_what_single_images_give(run: Run) -> None:
    policy, rng = kstep.load(run), np.random.default_rng(0)
    frames = rng.integers(0, 256, (5, 48, 48, 3), dtype=np.uint8)
    stacks = np.stack([frames[i : i + 3] for i in range(3)])
    assert stacks.shape[1:] == policy.stack_shape
    actions = policy.act_batch(stacks)
    assert actions.shape == (3, 2)
    singles = [policy.act(frame) for frame in frames]
    assert np.allclose(singles[2:], actions, atol=1e-6)
    first = policy.act_batch(np.repeat(frames[:1], 3, axis=0)[None])[0]
    policy.reset()
    assert np.array_equal(policy.act(frames[0]), first)
    latents = policy.encode(stacks)
    with torch.no_grad():
        expected = policy.agent.encoder(torch.from_numpy(stacks))
    assert np.allclose(latents, expected, atol=1e-6)


def test_methods_that_crop_and_methods_that_see_the_state(tmp_path: Path) -> None:
    cropped = kstep.load(go(tmp_path / "rad", experiment("rad", env_steps=40)))
    assert cropped.stack_shape == (3, 64, 64, 3)
    assert cropped.encode(np.zeros((2, 3, 64, 64, 3), np.uint8)).shape == (2, 16)
    state = kstep.load(go(tmp_path / "state", experiment("sac_state", env_steps=40)))
    assert state.act(np.zeros(4)).shape == (2,)
    with pytest.raises(KstepError, match=r"given an observation \(5,\) float64; needed is \(4,\)"):
        state.act(np.zeros(5))
    with pytest.raises(KstepError, match="that is not finite"):
        state.act(np.full(4, np.nan))
    with pytest.raises(KstepError, match="stacks that are not finite"):
        state.act_batch(np.full((1, 1, 4), np.nan, np.float32))


def test_a_larger_image_of_the_same_proportions_is_made_smaller(run: Run) -> None:
    policy, rng = kstep.load(run), np.random.default_rng(0)
    frame = rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)
    small = policy.act(frame)
    policy.reset()
    assert np.array_equal(policy.act(frame.repeat(5, axis=0).repeat(5, axis=1)), small)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (np.zeros((48, 48), np.uint8), r"\(48, 48\) uint8; needed is \(48, 48, 3\)"),
        (np.zeros((3, 48, 48), np.uint8), r"\(3, 48, 48\) uint8"),
        (np.zeros((48, 48, 3)), "float64; needed is .* of whole numbers"),
        (np.zeros((48, 48, 4), np.uint8), r"\(48, 48, 4\)"),
        (np.zeros((47, 47, 3), np.uint8), r"\(47, 47, 3\)"),
        (np.zeros((96, 100, 3), np.uint8), r"\(96, 100, 3\)"),
        (np.full((48, 48, 3), 256), "from 256 to 256; needed are whole numbers from 0 to 255"),
        (np.full((48, 48, 3), -1, np.int16), "from -1 to -1"),
        (np.zeros((1, 48, 48, 3), np.uint8), r"\(1, 48, 48, 3\)"),
        ({"rgb": np.zeros((48, 48, 3), np.uint8)}, "object"),
        (None, "object"),
        ([[1], [2, 3]], "that is no array"),
    ],
)
def test_wrong_images_get_a_sentence_and_change_nothing(image: Any, message: str, run: Run) -> None:
    policy = kstep.load(run)
    good = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    policy.act(good)
    with pytest.raises(KstepError, match=f"^the policy of ksl in toy_reach was given .*{message}"):
        policy.act(image)
    undisturbed = kstep.load(run)
    for _ in range(2):
        expected = undisturbed.act(good)
    assert np.array_equal(policy.act(good), expected)


@pytest.mark.parametrize(
    "stacks",
    [
        np.zeros((3, 48, 48, 3), np.uint8),
        np.zeros((1, 2, 48, 48, 3), np.uint8),
        np.zeros((1, 3, 3, 48, 48), np.uint8),
        np.zeros((1, 3, 48, 48, 3), np.float32),
        np.zeros((1, 3, 48, 48, 3), np.int64),
        np.zeros((0, 3, 48, 48, 3), np.uint8),
    ],
)
def test_wrong_stacks_get_a_sentence(stacks: Any, run: Run) -> None:
    policy = kstep.load(run)
    for use in (policy.act_batch, policy.encode):
        with pytest.raises(KstepError, match=r"needed are \(B, 3, 48, 48, 3\) uint8"):
            use(stacks)


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gymnasium", "mujoco", "dm_control", "OpenGL"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import kstep
import numpy as np
policy = kstep.load(sys.argv[1])
"""


def without_simulators(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_needs_no_simulator(crane: Run) -> None:
    code = 'print(policy.act({"camera": np.zeros((3, 60, 60), np.uint8)}).tolist())'
    done = without_simulators(code, crane.folder)
    assert done.returncode == 0, done.stderr
    here = kstep.load(crane).act({"camera": np.zeros((3, 60, 60), np.uint8)})
    assert np.allclose(json.loads(done.stdout), here, atol=1e-5)


def changed(run: Run, folder: Path, **changes: Any) -> Path:
    """A copy of a run with another config.json; what is None is removed."""
    shutil.copytree(run.folder, folder)
    path = folder / "config.json"
    data = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return folder


def test_a_run_that_did_not_store_its_environment_makes_it_once(run: Run, tmp_path: Path) -> None:
    older = changed(run, tmp_path / "older", environment=None)
    image = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    assert np.array_equal(kstep.load(older).act(image), kstep.load(run).act(image))
    done = without_simulators("", older)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "did not store what its environment is" in last
    assert "Load the run where its simulator is installed" in last


def test_what_is_stored_must_agree_with_itself(crane: Run, tmp_path: Path) -> None:
    stored = json.loads(crane.config_file.read_text())["environment"]
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("sight", {"height": 84}),
        ("spec", {"action_dim": 3}),
        ("spec", {"actions": "discrete"}),
        ("spec", {"frame_shape": [48, 48]}),
        ("actions", {"low": [0.0]}),
        ("actions", {"shape": [2, 2]}),
        ("actions", {"dtype": "O"}),
    ]
    for number, (part, change) in enumerate(wrong):
        broken = {**stored, part: {**stored[part], **change}}
        folder = changed(crane, tmp_path / str(number), environment=broken)
        with pytest.raises(KstepError, match="do not agree with each other"):
            kstep.load(folder)


def test_an_environment_that_has_changed_is_not_resumed(run: Run, tmp_path: Path) -> None:
    stored = json.loads(run.config_file.read_text())["environment"]
    actions = {**stored["actions"], "high": [2.0, 1.0]}
    folder = changed(run, tmp_path / "run", environment={**stored, "actions": actions})
    longer = replace(run.experiment, env_steps=100)
    with pytest.raises(KstepError) as refused:
        go(folder, longer)
    assert "toy_reach is no longer what it was when" in str(refused.value)
    assert "  actions.high: there [2.0, 1.0], here [1.0, 1.0]" in str(refused.value)


def test_what_is_not_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="is not a run: it has no config"):
        kstep.load(tmp_path)


def test_a_damaged_newest_checkpoint_is_left_out_with_a_warning(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(), checkpoint_minutes=1e-9)
    newest = run.checkpoint_folders()[-1]
    (newest / "agent.safetensors").write_bytes(b"")
    with pytest.warns(UserWarning, match="left out: .*agent.safetensors is damaged"):
        policy = kstep.load(run)
    assert policy.counts.env_steps < 90
