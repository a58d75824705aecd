"""`kstep check-env`: says in words what is wrong with an environment, and survives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

import kstep
from kstep import cli
from kstep.bench.check_env import Finding, examine
from kstep.config import resolve
from kstep.envs import own, tasks
from kstep.errors import KstepError
from tests.make import HANGING

IMPORTABLE = Path(__file__).parents[1] / "faults" / "importable"


class Sound(gymnasium.Env[Any, Any]):
    """A square that is moved over an image, with numbers beside it."""

    observation_space: Any = spaces.Dict(
        {
            "rgb": spaces.Box(0, 255, (24, 32, 3), np.uint8),
            "joints": spaces.Box(-1.0, 1.0, (2,), np.float32),
        }
    )
    action_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.clock = self.np_random.uniform(-1, 1, 2), 0
        return self.see(), {}

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + 0.1 * action, -1, 1)
        self.clock += 1
        return self.see(), self.reward(), False, False, {}

    def reward(self) -> float:
        return float(-np.abs(self.at).max())

    def see(self) -> Any:
        image = np.zeros((24, 32, 3), np.uint8)
        y, x = ((self.at + 1) * (10, 14)).astype(int)
        image[y : y + 4, x : x + 4] = (250, 120, 30)
        return {"rgb": image, "joints": self.at.astype(np.float32)}


class Unseeded(Sound):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = np.random.default_rng().uniform(-1, 1, 2)
        return self.see(), {}


class ByProcess(Sound):
    """Repeats itself in one process only."""

    def __init__(self) -> None:
        self.chance = np.random.default_rng().uniform(0, 1)

    def reward(self) -> float:
        return float(self.chance)


class Leaking(Sound):
    """Takes something of an episode into the next."""

    speed = 1.0

    def step(self, action: Any) -> Any:
        self.speed *= 0.99
        return super().step(action * self.speed)


class Outside(Sound):
    def see(self) -> Any:
        return {**super().see(), "joints": 3 * self.at.astype(np.float32)}


class OtherShape(Sound):
    def see(self) -> Any:
        return {**super().see(), "joints": np.zeros(2)}


class Blank(Sound):
    def see(self) -> Any:
        return {**super().see(), "rgb": np.full((24, 32, 3), 9, np.uint8)}


class Still(Sound):
    def see(self) -> Any:
        image = np.zeros((24, 32, 3), np.uint8)
        image[4:9, 4:9] = 200
        return {**super().see(), "rgb": image}


class Dark(Sound):
    """Values from 0 to 1 where the space says 255; bounds of actions that we map."""

    action_space: Any = spaces.Box(-2.0, 5.0, (2,), np.float32)
    observation_space: Any = spaces.Box(0.0, 255.0, (24, 32, 3), np.float32)

    def see(self) -> Any:
        return (super().see()["rgb"] / 255).astype(np.float32)


class DarkBytes(Dark):
    observation_space: Any = spaces.Box(0, 255, (24, 32, 3), np.uint8)

    def see(self) -> Any:
        return np.ceil(super().see()).astype(np.uint8)


class Unrewarded(Sound):
    def reward(self) -> float:
        return 0.0


class Deaf(Sound):
    """Moves by itself."""

    def step(self, action: Any) -> Any:
        return super().step(np.array([0.3, 0.2]))


class Cut(Sound):
    """Reports its time limit as an end."""

    def step(self, action: Any) -> Any:
        seen, reward, _, _, info = super().step(action)
        return seen, reward, self.clock >= 20, False, info


class Discrete(Sound):
    action_space: Any = spaces.Discrete(3)

    def step(self, action: Any) -> Any:
        return super().step(np.array([action - 1.0, 0.0]))


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]
        tasks.OWN.discard(name)


def look(task: str, picture: Path, *overrides: str, **options: Any) -> tuple[bool, list[Finding]]:
    found: list[Finding] = []
    experiment = resolve(options.pop("method", "ksl"), task, preset="debug", overrides=overrides)
    options = {"decisions": 60, "opening": HANGING, "timeout": HANGING, **options}
    passed = examine(experiment, picture, found.append, **options)
    assert passed == all(each.level != "fix" for each in found)
    return passed, found


def text(found: list[Finding], *levels: str) -> str:
    return "\n".join(f"{each.what}: {each.text}" for each in found if each.level in levels)


def test_a_sound_environment_passes_and_is_drawn(tmp_path: Path) -> None:
    task = own.register_env("sound", Sound, time_limit=20)
    picture = tmp_path / "seen" / "it.png"
    passed, found = look(task, picture)
    assert passed, text(found, "fix")
    assert not text(found, "note")
    assert [each.what for each in found] == [
        *("is made", "Gymnasium", "actions", "repeats", "sees", "observes", "rewards", "ends"),
        "speed",
    ]
    said = text(found, "ok")
    assert "2 continuous actions; episodes are cut off after 20 env steps" in said
    assert 'observation["rgb"], 24x32 -> 48x64, area resize, and beside it joints: 2' in said
    assert "3 episodes of 20 decisions: 0 terminated, 3 truncated" in said
    with Image.open(picture) as image:
        pixels = np.asarray(image)
    scale = 4  # every pixel of eight frames, each with a pixel of grey around it, as a square
    assert pixels.shape == (50 * scale, 8 * 66 * scale, 3)
    first = pixels[scale : 49 * scale : scale, scale : 65 * scale : scale]
    env = Sound()
    seen, _ = env.reset(seed=1)
    assert np.array_equal(first, seen["rgb"].repeat(2, axis=0).repeat(2, axis=1))


WRONG: list[tuple[type[Sound], str, str]] = [
    (Unseeded, "fix", "repeats: the same seed and actions did not lead to the same: the obs"),
    (ByProcess, "fix", "did not lead to the same in a new process: the reward"),
    (Leaking, "fix", "repeats: .* differs at decision 0.*set all that an episode changes"),
    (Outside, "fix", r'observes: observation\["joints"\] has values from .* says: -1 to 1'),
    (OtherShape, "fix", r'observes: observation\["joints"\] is float64, but its space says flo'),
    (Blank, "fix", "sees: every frame has one colour only"),
    (Still, "fix", "sees: the picture did not change in 30 decisions"),
    (Dark, "fix", "sees: observation has no value above 1, where its space says 255"),
    (DarkBytes, "fix", "sees: observation has no value above 1, where its space says 255"),
    (Unrewarded, "note", "rewards: always 0"),
    (Deaf, "note", "actions: ten times the most different ones led to the same"),
    (Cut, "note", "ends: .* All after exactly 20: if that is a time limit, return truncated=True"),
    (Discrete, "note", "methods: 'ksl' cannot choose discrete actions"),
]


@pytest.mark.parametrize(("kind", "level", "said"), WRONG)
def test_what_is_wrong_is_said(kind: type[Sound], level: str, said: str, tmp_path: Path) -> None:
    task = own.register_env("wrong", kind, time_limit=30)
    passed, found = look(task, tmp_path / "it.png")
    assert re.search(said, text(found, level)), text(found, "ok", "note", "fix")
    assert passed == (level == "note")
    assert "Gymnasium" not in text(found, "note")  # nothing about bounds, which we map


def test_training_refuses_what_would_be_seen_as_black(tmp_path: Path) -> None:
    """Bytes may be labels, of which the first frames have few."""
    wanted: Any = {"preset": "debug", "env_steps": 40, "settings": {"env.time_limit": 20}}
    with pytest.raises(KstepError, match=r"gym:Dark: observation has no value above 1.*by 255"):
        kstep.train("sac_pixel", env=Dark, folder=tmp_path / "dark", **wanted)
    assert not (tmp_path / "dark").exists()
    kstep.train("sac_pixel", env=DarkBytes, folder=tmp_path / "bytes", **wanted)


def test_no_time_limit_is_something_to_fix(tmp_path: Path) -> None:
    task = own.register_env("endless", Sound)
    passed, found = look(task, tmp_path / "it.png")
    assert not passed
    assert "has no time limit, so an episode might never end" in text(found, "fix")
    assert look(task, tmp_path / "it.png", "env.time_limit=20")[0]


BROKEN = {
    "init_raises": "works: .* raised ValueError in __init__",
    "step_late_raises": r"works: .* raised ValueError in step\(\).*\(decision \d of the episode",
    "step_late_crashes": r"answers: step\(\), decision \d.*: its process was ended by SIG",
    "step_late_hangs": "answers: .*no answer within 5 s. Look for a loop",
    "reward_nan": "works: .* gave a reward of nan",
    "actions_multidiscrete": "works: .* takes MultiDiscrete",
}


@pytest.mark.parametrize("trouble", BROKEN)
def test_what_breaks_is_survived_and_named(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    task = f"gym:kstep_broken:Broken/{trouble}-v0"
    options = {"timeout": 5.0} if "hangs" in trouble else {}
    passed, found = look(task, tmp_path / "it.png", **options)
    assert not passed
    assert re.search(BROKEN[trouble], text(found, "fix")), text(found, "ok", "note", "fix")


def test_the_command_ends_with_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["check-env", "toy_glide", "--method", "sac_state", "--decisions", "20"]
    cli.main(words)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "toy_glide"
    assert said[-1] == "passed"
    assert any("the state, 6 numbers" in line for line in said)
    assert not list(tmp_path.iterdir())  # there is no picture of a state
    with pytest.raises(SystemExit) as ended:
        cli.main(["check-env", "gym:NoSuchThing-v0"])
    assert ended.value.code == 1
    assert (
        "If a module or a file registers it: --import MODULE or FILE.py" in capsys.readouterr().out
    )


def test_python_checks_an_environment_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "it.png"
    options: Any = {"settings": {"env.time_limit": 10}, "output": picture, "decisions": 20}
    assert kstep.check_env(env=Sound(), **options)
    assert "passed" in capsys.readouterr().out
    assert not kstep.check_env(env=Blank, **options)  # a picture of its own is replaced
    assert "failed: 1 to fix" in capsys.readouterr().out


def test_a_picture_of_somebody_elses_is_not_replaced(tmp_path: Path) -> None:
    picture = tmp_path / "it.png"
    Image.new("RGB", (3, 3)).save(picture)
    before = picture.read_bytes()
    with pytest.raises(KstepError, match="exists already; choose another --output"):
        look("toy_reach", picture)
    assert picture.read_bytes() == before
    with pytest.raises(KstepError, match=r"must end in \.png"):
        look("toy_reach", tmp_path / "it.gif")
