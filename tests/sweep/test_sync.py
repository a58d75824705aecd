"""Runs that travel: what is handed back can be gone on from, and there is one writer at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kstep import encoders
from kstep.config import digest, resolve
from kstep.sweep import plan, sync
from kstep.sweep.engines import Ray, carry_out, carry_out_apart
from kstep.sweep.plan import RunSpec, is_locked, status
from kstep.sweep.sync import Keeper, Superseded, borrowed, consistent
from kstep.types import KstepError
from tests.sweep.test_engines import OFTEN, results, specs_in


class Wire:
    """Calls a keeper as from another machine; counts bytes and can be cut."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper, self.written, self.cut = keeper, 0, False

    def __call__(self, name: str, *arguments: Any) -> Any:
        if self.cut:
            raise ConnectionError("the wire is cut")
        if name == "write":
            self.written += len(arguments[-1])
        return getattr(self.keeper, name)(*arguments)


def pretend(folder: Path, decisions: int, *, log: str = "") -> None:
    """Write a checkpoint with one new segment, and logs that went on after it."""
    segments = {f"frames-{n}": "" for n in range(1, decisions + 1)}
    for name in segments:
        (folder / "replay").mkdir(parents=True, exist_ok=True)
        if not (folder / "replay" / name).exists():
            (folder / "replay" / name).write_text(name * 10)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        (folder / name).write_text("x" * decisions + log)
    (folder / "config.json").write_text("{}")
    checkpoint = folder / "checkpoints" / f"{decisions:09d}"
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "agent.safetensors").write_text(f"weights {decisions}")
    positions = {name: {"bytes": decisions} for name in ("metrics", "evaluations")}
    state = {"positions": positions, "replay": {"segments": segments}}
    (checkpoint / "state.json").write_text(plan.json.dumps(state))


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    (found,) = specs_in(tmp_path, "sac_state", env_steps=150)
    return found


def test_what_counts_is_the_newest_checkpoint_and_its_own(spec: RunSpec) -> None:
    pretend(spec.folder, 2)
    pretend(spec.folder, 3, log="later")
    (spec.folder / "replay" / "frames-9").write_text("not saved yet")
    (spec.folder / "checkpoints" / "000000004.part").mkdir()
    (spec.folder / "encoders").mkdir()
    (spec.folder / "encoders" / "000000002.safetensors").write_text("encoder")
    (spec.folder / "encoders" / "000000003.safetensors.part").write_text("half an enc")
    (spec.folder / "frozen_encoder.safetensors").write_text("frozen")
    name = spec.folder.name
    assert consistent(spec.folder) == {
        f"{name}/config.json": 2,
        f"{name}/frozen_encoder.safetensors": 6,
        f"{name}/encoders/000000002.safetensors": 7,
        f"{name}/metrics.jsonl": 3,
        f"{name}/evaluations.jsonl": 3,
        f"{name}/replay/frames-1": 80,
        f"{name}/replay/frames-2": 80,
        f"{name}/replay/frames-3": 80,
        f"{name}/checkpoints/000000003/agent.safetensors": 9,
        f"{name}/checkpoints/000000003/state.json": (
            spec.folder / "checkpoints" / "000000003" / "state.json"
        )
        .stat()
        .st_size,
    }


def test_a_borrowed_run_comes_back_and_only_what_changed_travels(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "PIECE", 7)  # every file in several pieces
    pretend(spec.folder, 2)
    wire = Wire(Keeper())
    with borrowed(spec, wire, threading.Event()) as here:
        assert consistent(here.folder) == consistent(spec.folder)
        assert is_locked(spec.folder)
        assert not is_locked(here.folder)
        pretend(here.folder, 3, log="later")
    assert not is_locked(spec.folder)
    assert not here.folder.exists()
    assert (spec.folder / "metrics.jsonl").read_text() == "xxx"
    assert (spec.folder / "replay" / "frames-3").read_text() == "frames-3" * 10
    assert sorted(p.name for p in (spec.folder / "checkpoints").iterdir()) == ["000000003"]
    assert not spec.folder.with_name(f"{spec.folder.name}.incoming").exists()
    assert wire.written < 600  # the two old segments stayed at home
    once = wire.written
    with borrowed(spec, wire, threading.Event()):
        pass
    assert wire.written == once


def test_encoders_travel_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved where the run is carried out, kept at home, and frozen by a run somewhere else."""
    monkeypatch.setattr(sync, "PIECE", 10_000)
    (source,) = specs_in(tmp_path, "sac_pixel", env_steps=60)
    source = plan.replace(source, save_encoders_every=20)
    keeper = Keeper()
    assert carry_out_apart(source, OFTEN, 1, Wire(keeper)).result == "done"
    names = [path.name for path in encoders.saved_in(source.folder)]
    assert names == [f"{mark:09d}.safetensors" for mark in (0, 20, 40, 60)]
    assert status(source).state == "done"
    last = plan.last_encoder(source)
    assert last is not None
    experiment = resolve(
        "sac_pixel", "toy_glide", preset="debug", frozen_encoder=encoders.frozen(last)
    )
    taking = plan.replace(
        source,
        task="toy_glide",
        folder=tmp_path / "runs" / "toy_glide" / "taking" / "seed1",
        digest=digest(experiment),
        save_encoders_every=None,
        frozen_encoder=last,
    )
    began = plan.replace(taking, env_steps=40)
    assert carry_out_apart(began, OFTEN, 1, Wire(keeper)).result == "done"
    kept = taking.folder / "frozen_encoder.safetensors"
    assert kept.read_bytes() == last.read_bytes()
    assert carry_out_apart(taking, OFTEN, 1, Wire(keeper)).result == "done"  # goes on
    assert "going on at 40 env steps" in taking.log.read_text()
    assert not list(taking.folder.parent.glob("0*"))  # only what belongs to the run came back


def test_a_later_claim_ends_the_earlier(spec: RunSpec) -> None:
    pretend(spec.folder, 1)
    keeper, folder = Keeper(), str(spec.folder)
    first, _ = keeper.take(folder)
    keeper.write(folder, first, f"{spec.folder.name}/config.json", 0, b"lost")
    second, listing = keeper.take(folder)
    for verb in (
        lambda: keeper.write(folder, first, "x", 0, b""),
        lambda: keeper.keep(folder, first, {}),
        lambda: keeper.read(folder, first, f"{spec.folder.name}/config.json", 0),
    ):
        with pytest.raises(Superseded):
            verb()
    keeper.release(folder, first)
    assert is_locked(spec.folder)  # not the first one's to give back
    keeper.keep(folder, second, listing)
    assert (spec.folder / "config.json").read_text() == "{}"
    keeper.release(folder, second)
    assert not is_locked(spec.folder)


def test_a_superseded_borrower_stops_and_changes_nothing(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync, "LOOK_SECONDS", 0.01)
    pretend(spec.folder, 1)
    keeper, stopping = Keeper(), threading.Event()

    def come_back() -> None:
        with borrowed(spec, Wire(keeper), stopping) as here:
            keeper.take(str(spec.folder))  # another machine, while this one was away
            pretend(here.folder, 2)
            assert stopping.wait(60)

    with pytest.raises(Superseded):
        come_back()
    assert not (spec.folder / "checkpoints" / "000000002").exists()
    assert consistent(spec.folder)


def test_what_arrives_incomplete_or_elsewhere_is_refused(spec: RunSpec) -> None:
    pretend(spec.folder, 1)
    keeper, folder = Keeper(), str(spec.folder)
    number, listing = keeper.take(folder)
    name = f"{spec.folder.name}/replay/frames-2"
    keeper.write(folder, number, name, 0, b"123")
    with pytest.raises(KstepError, match="3 of 80 bytes"):
        keeper.keep(folder, number, {**listing, name: 80})
    for path in ("../x", os.path.abspath("x")):
        with pytest.raises(KstepError, match="leaves the folder"):
            keeper.write(folder, number, path, 0, b"")


def test_runs_do_not_travel_to_a_client() -> None:
    with pytest.raises(KstepError, match="on a node of the cluster"):
        next(Ray("ray://somewhere:10001", shared=False).run([], OFTEN, 1))


def test_a_lost_machine_costs_what_it_had_not_handed_back(tmp_path: Path) -> None:
    for name in ("calm", "travels"):
        (tmp_path / name).mkdir()
    (calm,) = specs_in(tmp_path / "calm", "sac_state", env_steps=300)
    (spec,) = specs_in(tmp_path / "travels", "sac_state", env_steps=300)
    assert carry_out(calm, OFTEN).result == "done"
    keeper = Keeper()
    wire, stopping = Wire(keeper), threading.Event()

    def lose() -> None:
        with borrowed(spec, wire, stopping) as here:
            half = plan.replace(here, env_steps=150)
            assert carry_out(half, OFTEN).result == "done"
            wire.cut = True

    with pytest.raises(ConnectionError):
        lose()
    assert is_locked(spec.folder)  # nobody gave it back; the next claim goes through the keeper
    outcome = carry_out_apart(spec, OFTEN, 1, Wire(keeper))
    assert outcome.result == "done", outcome
    assert status(spec).state == "done"
    assert results(spec).splitlines()[-1] == results(calm).splitlines()[-1]
    # Somebody at home is writing it: not ours to take.
    with spec.folder.joinpath("lock").open("a+") as file:
        sync.fcntl.flock(file, sync.fcntl.LOCK_EX)
        assert carry_out_apart(spec, OFTEN, 1, Wire(Keeper())).result == "busy"
