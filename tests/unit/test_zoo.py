"""Trained agents that come with the package: what they are, that they are intact, that they act."""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path

import imageio.v2 as imageio
import pytest
from scripts.zoo import add, command

import kstep
from kstep import zoo
from kstep.cli import main, parsed
from kstep.config import digest
from kstep.run import checkpoint, policies, start
from kstep.run.episode import Episode
from kstep.run.evaluate import evaluate, evaluation_seeds
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.runtime import RunRequest, Runtime
from kstep.types import KstepError
from tests.runs import experiment, go

SMALL = 10_000_000
"""Bytes of all agents: everybody who installs the package gets them."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zoo with one agent."""
    root = tmp_path_factory.mktemp("zoo")
    run = go(root / "run", experiment(env_steps=60))
    add(run, "toy-ksl", root / "home", episodes=3)
    return root / "home"


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(zoo, "HOME", home)
    return home


def test_an_added_agent_is_small_and_acts_as_its_card_says(here: Path) -> None:
    card = zoo.card(here / "toy-ksl")
    run = Run.open(here.parent / "run")
    (newest,) = (folder / "agent.safetensors" for folder in run.checkpoint_folders()[-1:])
    assert 5 * (here / "toy-ksl" / "policy.safetensors").stat().st_size < newest.stat().st_size
    assert (card.digest, card.env_steps) == (run.digest, 60)
    assert card.return_in_training == pytest.approx(run.evaluations()[-1].mean, abs=1e-3)
    with opened(Path("zoo:toy-ksl"), lanes=3) as (agent, lanes, counts):
        again = evaluate(agent, lanes, evaluation_seeds(0, -1, 3))
        rounded = policies.acting(agent)
    assert again.returns == pytest.approx(card.returns, abs=1e-3)
    assert counts == checkpoint.newest(run)[1].counts
    with opened(run.folder) as (agent, _, _):
        for name, weights in policies.acting(agent).items():
            assert rounded[name].allclose(weights, atol=1e-3), name
    page = (here / "toy-ksl" / "README.md").read_text()
    assert page == card.text("toy-ksl")
    assert card.sha256["policy.safetensors"] in page


def test_verbs_take_an_agent_by_its_name(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["list", "zoo"])
    assert "zoo:toy-ksl" in capsys.readouterr().out
    main(["eval", "zoo:toy-ksl", "--episodes", "2"])
    assert "zoo:toy-ksl at 60 env steps" in capsys.readouterr().out
    path = tmp_path / "film.mp4"
    words = ["film", "zoo:toy-ksl", "--overlay", "looks", "reward", "--output", str(path)]
    main([*words, "--height", "64", "--width", "64"])
    assert len(imageio.mimread(path)) > 3
    main(["evaluation-set", "zoo:toy-ksl", "--episodes", "2", "--output", str(tmp_path / "set")])
    assert (tmp_path / "set" / "set.json").is_file()


def test_it_can_be_loaded_from_python(here: Path) -> None:
    policy = kstep.load("zoo:toy-ksl")
    with opened(Path("zoo:toy-ksl")) as (agent, [env], _):
        episode = Episode(env, agent.method.stack)
        episode.start(7)
        stacks = episode.observation[None]
        expected = env.actions.true(agent.act(stacks, explore=False)[0])
    assert policy.act_batch(stacks)[0] == pytest.approx(expected)


def test_the_command_of_a_card_trains_the_same_run(here: Path) -> None:
    run = Run.open(here / "toy-ksl")
    train = parsed(shlex.split(command(run))[1:])
    assert isinstance(train, RunRequest)
    assert start._run(train, Runtime()).digest == run.digest
    assert zoo.card(here / "toy-ksl").command == command(run)


def test_wrong_names_and_damaged_agents_are_refused(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KstepError, match=r"unknown agent 'toy-kls'.*Did you mean 'toy-ksl'"):
        zoo.located(Path("zoo:toy-kls"))
    with pytest.raises(KstepError, match="exists already"):
        add(Run.open(here.parent / "run"), "toy-ksl", here)
    with pytest.raises(KstepError, match="--name must have only"):
        add(Run.open(here.parent / "run"), "../x", here)
    assert zoo.located(tmp_path) == tmp_path
    with pytest.raises(KstepError, match="is not a run"):
        zoo.check(tmp_path)
    for name in ("config.json", "policy.safetensors"):
        copy = tmp_path / name
        copy.mkdir()
        agent = copy / "toy-ksl"
        agent.mkdir()
        for path in (here / "toy-ksl").iterdir():
            (agent / path.name).write_bytes(path.read_bytes())
        data = bytearray((agent / name).read_bytes())
        data[len(data) // 2] ^= 1
        (agent / name).write_bytes(data)
        monkeypatch.setattr(zoo, "HOME", copy)
        with pytest.raises(KstepError, match=f"{name} is damaged"):
            zoo.located(Path("zoo:toy-ksl"))
    monkeypatch.setattr(zoo, "HOME", tmp_path / "nothing")
    with pytest.raises(KstepError, match="comes without trained agents"):
        zoo.located(Path("zoo:toy-ksl"))


def test_the_agents_that_are_shipped_are_intact_and_small() -> None:
    files = [path for path in zoo.HOME.rglob("*") if path.is_file() and path.suffix != ".py"]
    assert sum(path.stat().st_size for path in files if "__pycache__" not in path.parts) < SMALL
    for name in zoo.agents():
        folder = zoo.located(Path(f"zoo:{name}"))
        card, run = zoo.card(folder), Run.open(folder)
        assert (folder / "README.md").read_text() == card.text(name)
        assert card.digest == digest(run.experiment)
        assert policies.describe(folder / "policy.safetensors").digest == card.digest
        assert (card.task, card.seed) == (run.experiment.env.task, run.experiment.seed)
        assert {path.name for path in folder.iterdir()} == {"card.json", "README.md", *card.sha256}
        for file, expected in card.sha256.items():
            assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == expected
