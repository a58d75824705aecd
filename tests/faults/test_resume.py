"""Going on is strict: by the same means, from files that are what was written, or not at all."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from kstep import envs
from kstep.config import Experiment
from kstep.files import fingerprint, write_json
from kstep.reading import sha256
from kstep.run import checkpoint, legacy, provenance, system, train
from kstep.run.evaluate import evaluate
from kstep.run.folder import Run
from kstep.run.health import Health
from kstep.run.load import opened
from kstep.run.provenance import Allowed, Provenance
from kstep.run.train import Stopped
from kstep.types import KstepError
from kstep.values import decode, encode
from tests.make import snapshot
from tests.runs import ALWAYS, assert_same, contents, experiment, go, weights


def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {**system.versions(), "torch": "9.9"}
    monkeypatch.setattr(system, "versions", lambda: versions)


def test_another_version_is_refused_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    before = contents(run.folder)
    with monkeypatch.context() as patch:
        other_version(patch)
        with pytest.raises(KstepError, match=r"torch: there 2\.13.*, here 9\.9\n.*--force-version"):
            go(run.folder, experiment(env_steps=50))
        with pytest.raises(KstepError, match="--force-version"):
            go(run.folder, experiment(env_steps=50), allowed=Allowed(force_renderer=True))
        assert contents(run.folder) == before
        said = StringIO()
        go(run.folder, experiment(env_steps=50), said, allowed=Allowed(force_version=True))
        assert "resuming all the same: torch: there 2.13" in said.getvalue()
        # From here on the other version is this run's own.
        go(run.folder, experiment(env_steps=60))
    with pytest.raises(KstepError, match=r"torch: there 9\.9"):
        go(run.folder, experiment(env_steps=70))


def test_another_renderer_is_refused_with_the_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    before = contents(run.folder)
    monkeypatch.setattr(envs, "renderer", lambda config: "a new card")
    with pytest.raises(
        KstepError, match=r"there the toy's own, here a new card\n.*--force-renderer"
    ):
        go(run.folder, experiment(env_steps=50))
    assert contents(run.folder) == before
    # What draws otherwise draws other frames: that must not stop a run that was forced.
    original = envs.ControlEnv.current_frame
    monkeypatch.setattr(envs.ControlEnv, "current_frame", lambda env: original(env) ^ 1)
    go(run.folder, experiment(env_steps=50), allowed=Allowed(force_renderer=True))


def test_what_only_changes_rounding_is_said() -> None:
    saved = Provenance("r", {"torch": "1"}, threads=1, commit="a")
    notes = replace(saved, threads=2, commit="b").refuse_other(saved, Allowed())
    assert notes == ["note: threads was 1, is 2", "note: commit was a, is b"]
    assert saved.refuse_other(saved, Allowed()) == []


def test_a_renderer_is_known_by_what_draws_not_by_its_speed() -> None:
    config = experiment()
    assert envs.renderer(config.env) == "the toy's own"
    assert provenance.here(config, "cpu", 3).threads == 3
    suite = envs.renderer(envs.EnvConfig("cartpole_swingup"))
    assert suite
    assert "ms per frame" not in suite


def rewritten(run: Run, **changes: Any) -> None:
    """Change the newest checkpoint's state and make its checksum fit."""
    folder, saved = checkpoint.newest(run)
    state = encode(saved) | changes
    write_json(folder / "state.json", {**state, "checksum": fingerprint(state)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"format": 99}, "written in format 99"), ({"digest": "0"}, "belongs to another experiment")],
)
def test_what_is_whole_but_foreign_is_refused_not_passed_over(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40), checkpoint_minutes=ALWAYS)
    rewritten(run, **changes)
    before = contents(run.folder)
    with pytest.raises(checkpoint.Refused, match=message):
        go(run.folder, experiment(env_steps=50))
    assert contents(run.folder) == before


def as_written_earlier(run: Run, old: dict[str, Any]) -> None:
    """Turn a run folder into one of the first format, whose experiment is `old`."""
    digest = legacy.digest(old)
    data = {"digest": digest, "encoder_backend": "torch", "experiment": old}
    write_json(run.config_file, data)
    folder, *_ = run.checkpoint_folders()
    path = folder / "agent.safetensors"
    names = {"auxiliary": "task"}
    tensors = {
        "/".join([names.get(key.split("/")[0], key.split("/")[0]), *key.split("/")[1:]]): value
        for key, value in safetensors.torch.load_file(path).items()
    }
    path.write_bytes(safetensors.torch.save(tensors))
    state = json.loads((folder / "state.json").read_text())
    del state["checksum"]
    state |= {"format": 2, "digest": digest, "weights": sha256(path)}
    state["origin"] = state.pop("provenance")
    write_json(folder / "state.json", {**state, "checksum": fingerprint(state)})


def test_a_run_of_an_earlier_version_can_be_looked_at_but_not_resumed(tmp_path: Path) -> None:
    file = Path(__file__).parents[1] / "legacy" / "experiments.json"
    old = json.loads(file.read_text())["ksl toy_reach debug"]["experiment"] | {"env_steps": 45}
    run = go(tmp_path / "run", decode(Experiment, legacy.experiment(old)))
    learned = snapshot(weights(run))  # the file they are mapped from is rewritten
    as_written_earlier(run, old)
    assert "task/predictor.weight" in safetensors.torch.load_file(
        run.checkpoint_folders()[-1] / "agent.safetensors"
    )
    with opened(run.folder) as (agent, _, counts):
        assert counts.env_steps == 45
        assert counts.updates > 0
        for name, value in agent.state().items():
            assert torch.equal(value, learned[name]), name
    before = contents(run.folder)
    longer = decode(Experiment, legacy.experiment(old | {"env_steps": 60}))
    with pytest.raises(KstepError, match=r"earlier version of kstep.*not resumed.*--folder"):
        go(run.folder, longer)
    assert contents(run.folder) == before


def test_a_state_that_was_changed_is_not_believed(tmp_path: Path) -> None:
    whole = go(tmp_path / "whole", experiment())
    run = go(tmp_path / "run", experiment(), checkpoint_minutes=ALWAYS)
    last = sorted(run.checkpoints.iterdir())[-1]
    state = json.loads((last / "state.json").read_text())
    state["counts"]["episodes"] += 1  # still valid in every other respect
    (last / "state.json").write_text(json.dumps(state))
    assert_same(whole, go(run.folder, experiment()))


def test_settings_that_are_not_those_of_the_digest_are_refused(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    data = json.loads((run.folder / "config.json").read_text())
    data["experiment"]["seed"] += 1
    write_json(run.folder / "config.json", data)
    with pytest.raises(KstepError, match=rf"by hand or .* another version .* {run.digest} is not"):
        Run.open(run.folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl"])
@pytest.mark.parametrize("env_steps", [60, 70])  # done already, and to be continued
def test_a_log_that_was_changed_is_not_vouched_for(
    name: str, env_steps: int, tmp_path: Path
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=60))
    path = run.folder / name
    text = path.read_text()
    digit = next(i for i, letter in enumerate(text) if letter.isdigit())
    path.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
    before = contents(run.folder)
    with pytest.raises(KstepError, match=f"{name} was changed since it was written"):
        go(run.folder, experiment(env_steps=env_steps))
    assert contents(run.folder) == before


def test_a_run_killed_before_its_last_evaluation_still_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(tmp_path / "whole", experiment(env_steps=60))
    marks = iter((0, 50, 60))

    def until_the_last(*arguments: Any) -> Any:
        if next(marks) == 60:
            raise RuntimeError("power cut")
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train, "evaluate", until_the_last)
        with pytest.raises(RuntimeError, match="power cut"):
            go(tmp_path / "run", experiment(env_steps=60), checkpoint_minutes=ALWAYS)
    assert_same(whole, go(tmp_path / "run", experiment(env_steps=60)))


def test_two_checkpoints_between_two_decisions_and_both_are_kept(tmp_path: Path) -> None:
    """Nothing is ever removed to make room for what takes its place."""
    run = go(tmp_path / "run", experiment(env_steps=40))
    saved = sorted(path.name for path in run.checkpoints.iterdir())

    class Stopping(Health):
        """The last thing that is made before the first decision."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "Health", Stopping)
        with pytest.raises(Stopped, match="stopped at 40 env steps"):
            go(run.folder, experiment(env_steps=41))
    go(run.folder, experiment(env_steps=41))
    assert saved == ["000000040"]
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["000000040.1", "000000041"]


def test_evaluations_ignore_a_line_that_is_being_written(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    rows = run.evaluations()
    with run.evaluations_file.open("a") as file:
        file.write('{"mark": 99, "ret')
    assert run.evaluations() == rows
    run.evaluations_file.write_text("{\n")
    with pytest.raises(KstepError, match=r"evaluations\.jsonl is damaged"):
        run.evaluations()
