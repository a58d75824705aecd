"""Encoders carried to another task: frozen, and everything else fresh."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kstep.agent import Agent
from kstep.cli import main
from kstep.config import resolve
from kstep.ownership import owners
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run, RunFolder
from kstep.run.load import opened
from kstep.types import KstepError
from kstep.values import change
from tests.make import agent_and_replay, moved, snapshot

TINY = ["--preset", "debug", "--threads", "1"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "ksl"
    options = ["--env-steps", "60", "--save-encoders-every", "60", "--folder", str(folder)]
    main(["train", "ksl", "toy_reach", *TINY, *options])
    return RunFolder(folder).saved_encoders()[-1]


def carry(source: Path, folder: Path, *options: str, method: str = "sac_pixel") -> None:
    frozen = ["--frozen-encoder", str(source), "--folder", str(folder)]
    main(["train", method, "toy_glide", *TINY, *frozen, *(options or ["--env-steps", "60"])])


def test_a_frozen_encoder_stays_as_it_was_and_the_rest_learns(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    carry(source, folder)
    carry(source, folder, "--env-steps", "70")  # resumes
    wanted = encoders.load(source).encoder.state_dict()
    with opened(folder) as (agent, _, counts):
        assert counts.updates > 0
        for mine in (agent.encoder, agent.slow_encoder):
            for name, value in mine.state_dict().items():
                assert torch.equal(value, wanted[name])
    experiment = Run.open(folder).experiment
    assert experiment.frozen_encoder == encoders.frozen(source)
    assert experiment.frozen_encoder.label == "ksl-debug"
    main(["analyze", "generalization", str(folder), "--output", str(tmp_path / "table")])
    assert "| toy_glide |" in (tmp_path / "table" / "generalization.md").read_text()
    with pytest.raises(SystemExit):  # plain runs have no place in that table, nor this in others
        main(["analyze", "main", str(folder), "--output", str(tmp_path / "other")])
    assert not (tmp_path / "other").exists()


def test_only_actor_critic_and_temperature_move(source: Path) -> None:
    plain, replay = agent_and_replay("sac_pixel")
    method = change(plain.method, {"learning.critic_trains": "nothing"})
    agent = Agent(method, plain.spec, plain.streams)
    assert "encoder" not in owners(agent.optimizers.groups)
    agent.take_encoder(encoders.load(source).encoder)
    before = snapshot(agent.state())
    for _ in range(4):
        agent.update(replay)
    changed = moved(before, agent.state())
    assert {name.split("/")[0] for name in changed} == {"core"}
    assert any("slow_critic" in name for name in changed)


def test_what_does_not_fit_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        carry(source, tmp_path / "a", method="ksl")
    with pytest.raises(SystemExit):
        carry(source, tmp_path / "b", "--set", "method.encoder.channels=4")
    with pytest.raises(SystemExit):
        carry(tmp_path / "nothing", tmp_path / "c")
    assert not list(tmp_path.iterdir())
    with pytest.raises(KstepError, match="nothing to shape"):
        resolve("ksl", "toy_glide", frozen_encoder=encoders.frozen(source))
