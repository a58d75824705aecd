"""Run folders from somebody else, and folders that change while a run starts.

Whatever lies in place of what a run writes, nothing outside the folder is changed; what came in
between is refused or resumed, never overwritten.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from kstep.errors import Busy
from kstep.files import Tree, fingerprint, write_json
from kstep.run import checkpoint
from kstep.run.folder import Attempt, Run, RunFolder
from kstep.sweep.engines import Local, Slot
from kstep.types import KstepError
from tests.runs import ALWAYS, assert_same, at_decision, contents, experiment, go
from tests.sweep.test_engines import specs_in

BEGUN, BUDGET = 34, 36
WRITTEN = [
    "lock",
    "config.json",
    "config.json.part",
    "system.json",
    "system.json.part",
    "metrics.jsonl",
    "metrics.jsonl.part",
    "evaluations.jsonl",
    "evaluations.jsonl.part",
    "clock.jsonl",
    "clock.jsonl.part",
    "frozen_encoder.safetensors.part",
    "checkpoints",
    "checkpoints/000000035.part",
    "checkpoints/000000036.part",
    "replay",
    "replay/replay_frames.bin",
    "replay/frames-000000000033-000000000036.safetensors.part",
    "encoders",
    "encoders/000000035.safetensors",
    "encoders/000000035.safetensors.part",
    "tensorboard",
]
"""What a run writes, or could: names that somebody else may have given to something else."""


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can be continued."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    go(folder, experiment(env_steps=BEGUN), checkpoint_minutes=ALWAYS, save_encoders_every=10)
    return folder


@pytest.fixture(scope="module")
def whole(begun: Path) -> Run:
    """How it ends."""
    shutil.copytree(begun, begun.with_name("whole"))
    return go(begun.with_name("whole"), experiment(env_steps=BUDGET))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with files of ours, beside the run."""
    folder = tmp_path / "mine"
    (folder / "000000034").mkdir(parents=True)
    for name in ("thesis.txt", "000000034/state.json", "frames-0-1.safetensors"):
        (folder / name).write_text("mine")
    return folder


def resumed(folder: Path) -> str:
    """Resume with all that a run can write; return why it was refused, or nothing."""
    try:
        go(
            folder,
            experiment(env_steps=BUDGET),
            checkpoint_minutes=ALWAYS,
            save_encoders_every=5,
            replay="disk",
            tensorboard=True,
        )
    except KstepError as error:
        return str(error)
    return ""


def link_to_a_file(path: Path, mine: Path) -> None:
    path.symlink_to(mine / "thesis.txt")


def link_to_a_folder(path: Path, mine: Path) -> None:
    path.symlink_to(mine)


def link_to_nothing_yet(path: Path, mine: Path) -> None:
    path.symlink_to(mine / "new")


def hard_link(path: Path, mine: Path) -> None:
    path.hardlink_to(mine / "thesis.txt")


def pipe(path: Path, mine: Path) -> None:
    os.mkfifo(path)


HOSTILE = [link_to_a_file, link_to_a_folder, link_to_nothing_yet, hard_link, pipe]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("put", HOSTILE)
def test_nothing_is_written_out_of_the_folder(
    put: Callable[[Path, Path], None], name: str, begun: Path, mine: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    Tree(folder).remove(path)
    put(path, mine)
    before, files = contents(mine), contents(folder) if put is not hard_link else {}
    refusal = resumed(folder)
    assert contents(mine) == before
    assert sorted(tmp_path.iterdir()) == [mine, folder]
    if put is not hard_link:
        assert refusal.startswith(f"{path} is a "), refusal
        assert {path: data for path, data in contents(folder).items() if path in files} == files
    elif refusal:
        assert str(folder) in refusal


def test_a_link_that_a_user_made_to_the_run_is_followed(
    begun: Path, whole: Run, tmp_path: Path
) -> None:
    shutil.copytree(begun, tmp_path / "disk" / "run")
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (tmp_path / "run").symlink_to(tmp_path / "runs" / "run")
    (tmp_path / "disk" / "run" / "checkpoints" / "newest").symlink_to("000000034")  # their own
    assert_same(whole, go(tmp_path / "run", experiment(env_steps=BUDGET)))


def test_a_log_that_a_backup_shares_is_copied_before_it_grows(
    begun: Path, whole: Run, tmp_path: Path
) -> None:
    shutil.copytree(begun, tmp_path / "run", copy_function=os.link)
    before = contents(begun)
    (tmp_path / "run" / "lock").unlink()
    assert_same(whole, go(tmp_path / "run", experiment(env_steps=BUDGET)))
    assert contents(begun) == before


@pytest.mark.parametrize("name", ["encoders", "checkpoints", "replay"])
def test_a_folder_that_becomes_a_link_in_mid_run_is_not_followed(
    name: str, begun: Path, mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    before = contents(mine)

    def swap() -> None:
        (folder / name).rename(tmp_path / "moved")
        (folder / name).symlink_to(mine)

    at_decision(monkeypatch, BEGUN, swap)
    with pytest.raises(KstepError, match=rf"{folder / name} is a symbolic link"):
        go(
            folder,
            experiment(env_steps=BUDGET),
            checkpoint_minutes=ALWAYS,
            save_encoders_every=1,
        )
    assert contents(mine) == before


def rewritten(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the checkpoints of a run say, with checksums that fit."""
    for path in folder.glob("checkpoints/*/state.json"):
        state = json.loads(path.read_text())
        del state["checksum"]
        change(state)
        write_json(path, {**state, "checksum": fingerprint(state)})


@pytest.mark.parametrize(
    "name",
    [
        "../../mine/thesis.txt",
        "../../mine/frames-0-1.safetensors",
        "{mine}/thesis.txt",
        "frames-000000000000-000000000034.safetensors/../../../mine/thesis.txt",
        "frames-0-34.safetensors",
        "frames-000000000000-000000000034.safetensors\n",
        "..",
        "",
    ],
)
@pytest.mark.parametrize("what", ["segments", "positions"])
def test_names_in_a_checkpoint_lead_nowhere_else(
    what: str, name: str, begun: Path, mine: Path, tmp_path: Path
) -> None:
    folder, name = tmp_path / "run", name.format(mine=mine)
    shutil.copytree(begun, folder)

    def change(state: dict[str, Any]) -> None:
        if what == "segments":
            state["replay"]["segments"][name] = "0" * 64
        else:
            state["positions"][name] = {"bytes": 0, "sha256": None}

    rewritten(folder, change)
    before, opened = contents(tmp_path), []
    _AUDITED.append(lambda event, arguments: opened.append(str(arguments[0])))
    try:
        with pytest.raises(
            KstepError, match=r"state\.json cannot be read: .*(is not the|in positions)"
        ):
            go(folder, experiment(env_steps=BUDGET))
    finally:
        _AUDITED.clear()
    assert contents(tmp_path) == before
    assert not [path for path in opened if "mine" in path]


_AUDITED: list[Callable[[str, tuple[Any, ...]], None]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for see in _AUDITED:
            see(event, arguments)


sys.addaudithook(_audit)  # for good: hooks cannot be removed


def test_a_checkpoint_damaged_while_the_run_is_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it needs is not known any more, so nothing is removed, and all frames are kept."""
    whole = go(tmp_path / "whole", experiment(env_steps=40))
    shutil.copytree(whole.folder, tmp_path / "longer")
    longer = go(tmp_path / "longer", experiment(env_steps=42))
    for victim in (-1, -2):
        folder = tmp_path / str(victim)

        def damage(folder: Path = folder, victim: int = victim) -> None:
            run = RunFolder(folder)
            (run.checkpoint_folders()[victim] / "state.json").write_text("{")

        with monkeypatch.context() as patch:
            at_decision(patch, 36, damage)
            run = go(folder, experiment(env_steps=40), checkpoint_minutes=ALWAYS)
        assert_same(whole, run)
        assert_same(longer, go(folder, experiment(env_steps=42)))


# What happens between the checks and the lock.


def before_the_lock(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen just before a run gets its lock for the first time."""
    done: list[bool] = []
    real = fcntl.flock

    def flock(file: Any, operation: int) -> None:
        if not done and operation & fcntl.LOCK_EX:
            done.append(True)
            happens()
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_another_experiment_that_came_before_the_lock_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: dict[Path, bytes] = {}

    def come() -> None:
        go(tmp_path / "run", replace(experiment(env_steps=40), seed=2))
        theirs.update(contents(tmp_path / "run"))

    before_the_lock(monkeypatch, come)
    with pytest.raises(KstepError, match="seed: there 2, here 1"):
        go(tmp_path / "run", experiment(env_steps=40))
    assert without_lock(contents(tmp_path / "run")) == without_lock(theirs)


def without_lock(files: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: data for path, data in files.items() if path.name != "lock"}


def test_another_backend_that_came_before_the_lock_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: dict[Path, bytes] = {}

    def come() -> None:
        go(tmp_path / "run", experiment(env_steps=40), encoder_backend="torch")
        path = tmp_path / "run" / "config.json"
        write_json(path, json.loads(path.read_text()) | {"encoder_backend": "compiled"})
        theirs.update(contents(tmp_path / "run"))

    before_the_lock(monkeypatch, come)
    with pytest.raises(Busy, match=r"just begun .* with encoder_backend=compiled, not torch"):
        go(tmp_path / "run", experiment(env_steps=50), encoder_backend="torch")
    assert without_lock(contents(tmp_path / "run")) == without_lock(theirs)


def test_other_versions_that_came_before_the_lock_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: dict[Path, bytes] = {}

    def come() -> None:
        go(tmp_path / "run", experiment(env_steps=40))
        rewritten(tmp_path / "run", lambda state: state["provenance"].update(renderer="a new card"))
        theirs.update(contents(tmp_path / "run"))

    before_the_lock(monkeypatch, come)
    with pytest.raises(KstepError, match="--force-renderer"):
        go(tmp_path / "run", experiment(env_steps=50))
    assert without_lock(contents(tmp_path / "run")) == without_lock(theirs)


@pytest.mark.parametrize("reached", [40, 60, 70])
def test_the_same_run_that_came_before_the_lock_is_resumed_or_left_alone(
    reached: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs: dict[Path, bytes] = {}

    def come() -> None:
        go(tmp_path / "run", experiment(env_steps=reached))
        theirs.update(contents(tmp_path / "run"))

    said = StringIO()
    with monkeypatch.context() as patch:
        before_the_lock(patch, come)
        run = go(tmp_path / "run", experiment(env_steps=60), said)
    if reached < 60:
        assert f"resuming at {reached} env steps" in said.getvalue()
        assert checkpoint.reached(run) == 60
    else:
        assert f"nothing to do: the run is at {reached} env steps" in said.getvalue()
        assert without_lock(contents(tmp_path / "run")) == without_lock(theirs)


def test_a_folder_that_is_replaced_before_the_lock_is_not_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that a process then gets is that of a file which nobody else can see."""

    def come() -> None:
        shutil.rmtree(tmp_path / "run")
        go(tmp_path / "run", experiment(env_steps=40))

    before_the_lock(monkeypatch, come)
    with pytest.raises(Busy, match="was replaced while it was being locked"):
        go(tmp_path / "run", experiment(env_steps=40))


# What a killed run leaves behind.


def test_a_run_that_is_done_keeps_nothing_incomplete(tmp_path: Path) -> None:
    """It was killed after its last checkpoint was published, while older ones were removed."""
    run = go(tmp_path / "run", experiment(env_steps=40), checkpoint_minutes=ALWAYS)
    shutil.copytree(run.folder, tmp_path / "done")
    oldest, _ = run.checkpoint_folders()
    shutil.copytree(oldest, run.checkpoints / "000000038")
    shutil.copytree(oldest, run.checkpoints / "000000037.part")
    (run.checkpoints / "000000037.part" / "state.json").unlink()
    for name in ("config.json.part", "replay/frames-1.part", "encoders/000000040.safetensors.part"):
        (run.folder / name).parent.mkdir(exist_ok=True)
        (run.folder / name).write_text("half")
    unneeded = run.replay / "frames-000000000900-000000000901.safetensors"
    unneeded.write_text("not needed")
    (run.folder / "notes.part").write_text("a user's own")
    said = StringIO()
    go(run.folder, experiment(env_steps=40), said)
    assert "nothing to do" in said.getvalue()
    (run.folder / "notes.part").unlink()
    expected = {path.relative_to(tmp_path / "done") for path in contents(tmp_path / "done")}
    assert {path.relative_to(run.folder) for path in contents(run.folder)} == expected


def test_a_finished_run_on_a_disk_that_cannot_be_written_is_still_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = go(tmp_path / "run", experiment(env_steps=40))
    (run.checkpoints / "000000039.part").mkdir()

    def read_only(*arguments: Any, **options: Any) -> int:
        raise PermissionError(30, "Read-only file system")

    said = StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", read_only)
        go(run.folder, experiment(env_steps=40), said)
    assert "nothing to do" in said.getvalue()


# Durable.


def test_every_new_name_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose entries have changed is flushed before the run continues."""
    changed: list[str] = []
    real_sync = os.fsync

    def fsync(descriptor: int) -> None:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        changed[:] = [folder for folder in changed if folder != place]
        real_sync(descriptor)

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            result = real(path, *arguments, **options)
            descriptor = options.get("dir_fd", options.get("dst_dir_fd"))
            if descriptor is None:
                changed.append(str(Path(path).absolute().parent))
            else:
                changed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            return result

        monkeypatch.setattr(os, name, call)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("mkdir", "rename", "replace"):
        watch(name)
    lag: list[list[str]] = []
    at_decision(monkeypatch, 33, lambda: lag.append([*changed]))
    run = go(
        tmp_path / "a" / "b" / "run",
        experiment(env_steps=36),
        checkpoint_minutes=ALWAYS,
        save_encoders_every=10,
    )
    assert len(run.checkpoint_folders()) == checkpoint.KEEP
    assert lag == [[]]
    assert changed == []


# Sweeps.


@pytest.mark.parametrize(
    ("put", "name"),
    [
        (link_to_a_file, "seed1.log"),
        (hard_link, "seed1.log"),
        (pipe, "seed1.log"),
        (link_to_nothing_yet, "seed1.attempts.jsonl"),
    ],
)
def test_a_sweep_writes_no_log_through_a_link(
    put: Callable[[Path, Path], None], name: str, mine: Path, tmp_path: Path
) -> None:
    bad, good = specs_in(tmp_path, "sac_state", seeds=2, env_steps=40)
    bad.folder.parent.mkdir(parents=True)
    put(bad.folder.parent / name, mine)
    before = contents(mine)
    specs = [bad, good] if put is link_to_a_file else [bad]
    outcomes = dict(event for event in Local(1).run(specs, Slot(), 1) if event)
    assert contents(mine) == before
    assert len(outcomes) == len(specs)
    assert outcomes[specs[-1]].result == ("failed" if specs == [bad] else "done")
    assert outcomes[bad].result == "failed"
    assert outcomes[bad].error.startswith(f"{bad.folder.parent / name} is a ")


def test_a_record_after_one_that_was_cut_off_is_not_lost(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "seed1")
    first, second, third = (
        Attempt("now", 1.0, 1, "cpu", "here", 9, "done", n, "") for n in range(3)
    )
    run.record_attempt(first)
    run.attempts_file.write_bytes(run.attempts_file.read_bytes() + b'{"code"')
    run.record_attempt(second)
    run.record_attempt(third)
    assert run.attempts() == [first, second, third]
