"""The loop: its order, its evaluations, and that stopping and going on changes no bit."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kstep import envs
from kstep.agent import Agent, Update
from kstep.config import EvaluationConfig
from kstep.data.replay import Replay
from kstep.envs import ControlEnv, EnvConfig
from kstep.envs.remote import RemoteEnv
from kstep.files import fingerprint, write_json
from kstep.reading import sha256
from kstep.run import checkpoint, system, train
from kstep.run.folder import Run
from kstep.run.train import Stopped
from kstep.types import KstepError
from kstep.values import change, encode
from tests.make import expect, tiny
from tests.runs import ALWAYS, assert_same, at_decision, experiment, go, stop_after, weights

FAMILIES = ["ksl", "ksl-results", "ksl-conv", "ksl-one-optimizer", "ksl-k3-l2", "sac_pixel"]
FAMILIES += ["sac_state", "rad", "drq", "curl", "sac_ae-original", "pi_sac-original", "proto_rl"]
FAMILIES += ["drq_v2", "ksl_drq_v2", "dqn", "ksl_dqn"]


@pytest.mark.parametrize("method", FAMILIES)
def test_stopped_and_continued_equals_never_stopped(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(tmp_path / "whole", experiment(method))
    for decisions in (17, 44, 71):  # before learning, in mid-episode, near the end
        with monkeypatch.context() as patch:
            stop_after(patch, decisions)
            with pytest.raises(Stopped, match=r"a checkpoint is written"):
                go(tmp_path / "parts", experiment(method))
    parts = go(tmp_path / "parts", experiment(method))
    assert_same(whole, parts)


@pytest.mark.parametrize("overlap", ["here", "on"])
def test_stopped_between_two_episodes(
    overlap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the running episode has no action yet; every suite task's budget ends there."""
    whole = go(tmp_path / "whole", experiment(env_steps=150))
    ended = [
        row["decisions"]
        for row in map(json.loads, whole.metrics_file.read_text().splitlines())
        if "train/return" in row
    ]
    for decisions in ended[:2]:
        with monkeypatch.context() as patch:
            stop_after(patch, decisions)
            with pytest.raises(Stopped):
                go(tmp_path / "parts", experiment(env_steps=150), overlap=overlap)
    assert_same(whole, go(tmp_path / "parts", experiment(env_steps=150), overlap=overlap))


def test_a_crash_falls_back_to_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(tmp_path / "whole", experiment())
    with monkeypatch.context() as patch:
        stop_after(patch, 40)
        with pytest.raises(Stopped):
            go(tmp_path / "parts", experiment())

    def power_cut() -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        at_decision(patch, 63, power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            go(tmp_path / "parts", experiment())
    assert_same(whole, go(tmp_path / "parts", experiment()))


def test_frequent_checkpoints_change_nothing(tmp_path: Path) -> None:
    rare = go(tmp_path / "rare", experiment())
    often = go(tmp_path / "often", experiment(), checkpoint_minutes=ALWAYS)
    assert_same(rare, often)
    assert len(list(often.checkpoints.iterdir())) == checkpoint.KEEP


def test_evaluations_come_at_zero_at_every_mark_and_at_the_very_end(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=120))
    rows = run.evaluations()
    assert [row.mark for row in rows] == [0, 50, 100, 120]
    assert [row.env_steps for row in rows] == [0, 50, 100, 120]
    assert [row.updates for row in rows] == [0, 20, 70, 90]
    assert all(len(row.returns) == 2 for row in rows)
    exact = go(tmp_path / "exact", experiment(env_steps=100))
    assert [row.mark for row in exact.evaluations()] == [0, 50, 100]


def test_a_finished_run_is_not_done_again_but_may_be_extended(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=50))
    before = run.metrics_file.read_bytes(), run.evaluations_file.read_bytes()
    again = go(tmp_path / "run", experiment(env_steps=50))
    assert (again.metrics_file.read_bytes(), again.evaluations_file.read_bytes()) == before
    longer = go(tmp_path / "run", experiment(env_steps=100))
    assert_same(longer, go(tmp_path / "fresh", experiment(env_steps=100)))


def test_a_smaller_budget_has_nothing_to_do_and_changes_nothing(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=60))
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    go(tmp_path / "run", experiment(env_steps=40))
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}


def test_lost_logs_are_reported(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=60))
    run.metrics_file.write_bytes(run.metrics_file.read_bytes()[:500])
    run.evaluations_file.unlink()
    with pytest.raises(KstepError, match=r"metrics\.jsonl was changed .* move it away"):
        go(run.folder, experiment(env_steps=90))
    run.metrics_file.unlink()
    said = StringIO()
    go(run.folder, experiment(env_steps=90), said)
    assert "bytes of metrics.jsonl are lost" in said.getvalue()
    assert "bytes of evaluations.jsonl are lost" in said.getvalue()
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert rows[0]["decisions"] >= 60
    assert [row.mark for row in run.evaluations()] == [50, 90]


def test_lost_checkpoints_are_not_mistaken_for_a_new_run(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=60), checkpoint_minutes=ALWAYS)
    before = run.metrics_file.read_bytes()
    for path in run.checkpoints.glob("*/state.json"):
        path.unlink()
    with pytest.raises(KstepError, match="had checkpoints, but none is left"):
        go(tmp_path / "run", experiment(env_steps=90))
    assert run.metrics_file.read_bytes() == before


def test_acting_needs_no_replay(tmp_path: Path) -> None:
    import shutil

    from kstep.run.load import opened

    run = go(tmp_path / "run", experiment(env_steps=40))
    shutil.rmtree(run.replay)
    with opened(run.folder) as (agent, _, counts):
        assert counts.env_steps == 40
        assert agent.act(np.zeros((1, 3, 48, 48, 3), np.uint8), explore=False).shape == (1, 2)


@pytest.mark.parametrize("content", ["{", "{}", ""])
def test_a_damaged_note_about_the_machine_stops_nothing(content: str, tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    (run.folder / "system.json").write_text(content)
    go(tmp_path / "run", experiment(env_steps=50))
    assert (run.folder / "system.json.damaged").read_text() == content


def test_a_two_phase_run_says_how_to_extend_it(tmp_path: Path) -> None:
    first = replace(experiment("proto_rl"), env_steps=100)
    go(tmp_path / "run", first)
    assert first.method.exploration is not None
    longer = replace(first.method.exploration, env_steps=999)
    other = replace(first, method=replace(first.method, exploration=longer))
    with pytest.raises(KstepError, match=r"--set method.exploration.env_steps=800"):
        Run.prepare(tmp_path / "run", other)


def test_counts_are_logged_side_by_side(tmp_path: Path) -> None:
    what = experiment(env_steps=120)
    what = replace(what, env=replace(what.env, action_repeat=2))
    run = go(tmp_path / "run", what)
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    learning = [row for row in rows if "critic/loss" in row]
    assert learning
    for row in learning:
        # Logged inside a decision: after learning, before the environment moves.
        assert row["updates"] == row["decisions"] - 30
        assert row["decisions"] <= row["env_steps"] <= 2 * row["decisions"]


def test_the_order_of_one_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Act, learn from what is stored, then step and store: the family's loop."""
    calls: list[str] = []

    def spy(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(label)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, wrapped)

    spy(Agent, "random_action", "random")
    spy(Agent, "update", "learn")
    spy(Replay, "add", "store")
    spy(train, "evaluate", "evaluate")
    original_act = Agent.act

    def act(self: Any, observation: Any, *, explore: bool) -> Any:
        if explore:
            calls.append("act")
        return original_act(self, observation, explore=explore)

    monkeypatch.setattr(Agent, "act", act)
    go(tmp_path / "run", experiment(env_steps=32))
    expected = ["evaluate"] + ["random", "store"] * 30 + ["act", "learn", "store"] * 2
    assert calls == [*expected, "evaluate"]


def test_learning_must_not_start_before_there_is_anything_to_learn_from(tmp_path: Path) -> None:
    what = tiny("ksl-released", "method.learning.initial_decisions=30")
    with pytest.raises(KstepError, match=r"take 60 decisions and learning starts after 30"):
        go(tmp_path / "run", what)
    with pytest.raises(KstepError, match=r"sequences of 61 decisions, but episodes have 60"):
        go(tmp_path / "other", tiny("ksl", "method.auxiliary.k=61"))
    assert not list(tmp_path.iterdir())


def test_evaluating_changes_no_training(tmp_path: Path) -> None:
    often = replace(experiment(), evaluation=EvaluationConfig(every=10, episodes=3))
    one, two = go(tmp_path / "often", often), go(tmp_path / "rare", experiment())
    first, second = weights(one), weights(two)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_another_experiment_in_the_folder_is_refused_with_the_difference(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    with pytest.raises(KstepError, match=r"seed: there 1, here 2"):
        Run.prepare(run.folder, replace(experiment(env_steps=40), seed=2))
    assert before == {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.txt").write_text("mine")
    with pytest.raises(KstepError, match="is not a run"):
        Run.prepare(stranger, experiment())


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    run = Run.prepare(tmp_path / "run", experiment())
    with run.locked(), pytest.raises(KstepError, match="is being written by process"):
        go(tmp_path / "run", experiment())


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize("victim", ["agent.safetensors", "state.json", "not a dict"])
def test_a_damaged_checkpoint_gives_way_to_the_previous_one(tmp_path: Path, victim: str) -> None:
    whole = go(tmp_path / "whole", experiment())
    run = go(tmp_path / "run", experiment(), checkpoint_minutes=ALWAYS)
    last = sorted(run.checkpoints.iterdir())[-1]
    if victim != "agent.safetensors":
        (last / "state.json").write_text("{" if victim == "state.json" else "[]")
    else:
        damage(last / victim)
    assert checkpoint.newest(run)[0] != last
    assert_same(whole, go(tmp_path / "run", experiment()))
    assert (run.checkpoints / f"{last.name}.damaged").is_dir()


def test_a_run_without_any_whole_checkpoint_says_so(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    for path in run.replay.iterdir():
        damage(path)
    with pytest.raises(KstepError, match=r"no usable checkpoint\n.*missing or damaged"):
        go(tmp_path / "run", experiment(env_steps=60))


@pytest.mark.parametrize("whose", ["weights", "frames", "state"])
def test_a_pickle_in_place_of_any_file_is_refused_and_never_run(whose: str, tmp_path: Path) -> None:
    """Even where its author has put all the checksums right."""
    run = go(tmp_path / "run", experiment(env_steps=40))
    folder, saved = checkpoint.newest(run)
    (segment,) = run.replay.iterdir()
    bomb = {"weights": folder / "agent.safetensors", "frames": segment}.get(
        whose, folder / "state.json"
    )
    marker = tmp_path / "exploded"

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (marker.touch, ())

    torch.save({"x": Bomb()}, bomb)
    if whose != "state":
        state = encode(saved)
        state["weights"] = sha256(folder / "agent.safetensors")
        state["replay"]["segments"] = {segment.name: sha256(segment)}
        write_json(folder / "state.json", {**state, "checksum": fingerprint(state)})
    with pytest.raises(KstepError, match=r"not a file of tensors|no usable checkpoint"):
        go(tmp_path / "run", experiment(env_steps=60))
    assert not marker.exists()


def test_disk_replay_trains_like_memory(tmp_path: Path) -> None:
    base = experiment()
    one, two = go(tmp_path / "memory", base), go(tmp_path / "disk", base, replay="disk")
    assert_same(one, two)


@pytest.mark.parametrize("method", ["ksl", "proto_rl", "sac_state"])
def test_a_replay_on_the_device_trains_like_memory(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is interrupted and continues with the other kind, either way."""
    said = StringIO()
    whole = go(tmp_path / "memory", experiment(method))
    assert_same(whole, go(tmp_path / "device", experiment(method), said, replay="device"))
    assert " on cpu\n" in said.getvalue()
    for first, second in (("device", "memory"), ("memory", "device")):
        folder = tmp_path / f"{first} first"
        with monkeypatch.context() as patch:
            stop_after(patch, 55)
            with pytest.raises(Stopped):
                go(folder, experiment(method), replay=first)
        assert_same(whole, go(folder, experiment(method), replay=second))


def test_overlapping_changes_no_bit(tmp_path: Path) -> None:
    here = go(tmp_path / "here", experiment(), overlap="here")
    for overlap in ("on", "off"):
        assert_same(here, go(tmp_path / overlap, experiment(), overlap=overlap))


def test_a_killed_worker_is_replaced_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = go(tmp_path / "whole", experiment())
    original, killed = Agent.update, []
    worker: Any = None

    def update(agent: Agent, replay: Replay, *, every_part: bool = False) -> Update:
        if len(replay) in (41, 66):  # while the environment steps
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return original(agent, replay, every_part=every_part)

    def make(config: EnvConfig, seed: int, **options: Any) -> ControlEnv:
        nonlocal worker
        worker = real_make(config, seed, **options)
        return expect(RemoteEnv, worker)

    real_make = envs.make_apart
    monkeypatch.setattr(envs, "make_apart", make)
    monkeypatch.setattr(Agent, "update", update)
    assert_same(whole, go(tmp_path / "killed", experiment(), overlap="on"))
    assert len(set(killed)) == 2


def test_what_a_run_records_about_its_machine(tmp_path: Path) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    (entry,) = json.loads((run.folder / "system.json").read_text())
    assert entry["versions"]["torch"] == torch.__version__
    assert entry["rendering"].startswith("rendering:")
    assert entry["commit"]
    assert entry["processor"]
    config = json.loads((run.folder / "config.json").read_text())
    assert config["digest"] == run.digest
    assert np.isfinite(run.evaluations()[0].returns).all()


def test_products_are_rounded_as_the_experiment_says(tmp_path: Path) -> None:
    """tf32 is CUDA's: without it the switches are off; elsewhere it is refused."""
    system.use_tf32(True)
    go(tmp_path / "run", experiment(env_steps=5))
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    lower = change(experiment(env_steps=5), {"method.encoder.precision": "tf32"})
    with pytest.raises(KstepError, match="precision=tf32 exists on CUDA only, not on cpu"):
        go(tmp_path / "lower", lower)
    assert not (tmp_path / "lower").exists()
