"""A signal at any point of writing a checkpoint: what is published stays usable, what is not leaves
nothing that matters, and the message is true.

The points are single instructions of the interpreter (`sys.settrace`): a real SIGINT is sent at
each of them in turn, as by somebody who presses Ctrl-C a second time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kstep import envs, files
from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.rng import Streams
from kstep.run import checkpoint
from kstep.run.checkpoint import Session
from kstep.run.episode import Episode
from kstep.run.folder import Run
from kstep.run.provenance import Allowed
from kstep.types import Counts
from tests.runs import experiment

SOURCES = (checkpoint.__file__, files.__file__)


@dataclass
class Saved:
    """A run with two checkpoints, two decisions apart, and the moving parts to write a third."""

    run: Run
    session: Session
    place: Path
    """A copy of its folder as it was."""

    def restore(self) -> None:
        shutil.rmtree(self.run.folder)
        shutil.copytree(self.place, self.run.folder)

    def save(self) -> None:
        checkpoint.save(self.run, self.session, {})

    def usable(self) -> int:
        """Load all of the newest checkpoint, frames included; return its decisions."""
        session = session_of(self.run)
        checkpoint.load(self.run, session, Allowed())
        return session.counts.decisions


def session_of(run: Run) -> Session:
    what = run.experiment
    env = envs.make(what.env, what.seed)
    agent = Agent(what.method, envs.spec_of(env), Streams(what.seed))
    replay = Replay(ReplayConfig(8), envs.spec_of(env), what.method.stack)
    return Session(agent, replay, Episode(env, what.method.stack), Counts())


def play(session: Session, decisions: int) -> None:
    for _ in range(decisions):
        action = session.agent.random_action()
        session.episode.begin(action)
        step = session.episode.finish()
        session.replay.add(action, step.reward, step.terminated, step.truncated, step.frame)
        session.counts.decisions += 1
        session.counts.env_steps += 1


@pytest.fixture
def saved(tmp_path: Path) -> Saved:
    run = Run(tmp_path / "run", experiment("sac_pixel"))
    session = session_of(run)
    session.replay.begin(session.episode.start(1))
    with run.locked():
        run.begin()
        for decisions in (9, 2):  # more than the replay holds, so that old frames go
            play(session, decisions)
            checkpoint.save(run, session, {})
    play(session, 2)
    shutil.copytree(run.folder, tmp_path / "before")
    return Saved(run, session, tmp_path / "before")


def interrupted(work: Callable[[], None], number: int, every: str = "line") -> bool:
    """Send SIGINT at the n-th line, or instruction, of the sources; False: there were fewer."""
    seen = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if frame.f_code.co_filename not in SOURCES:
            return None
        frame.f_trace_opcodes = every == "opcode"
        if event == every:
            seen += 1
            if seen == number:
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def check(saved: Saved, number: int) -> str:
    """After an interrupt: the newest checkpoint is as it was said to be, and it can be loaded."""
    reported = re.search(r"checkpoint is at (\d+) env steps", checkpoint.describe(saved.run))
    assert reported, number
    decisions = int(reported[1])
    assert decisions in (11, 13)
    published = saved.run.checkpointed() == 13
    assert published == (decisions == 13), number
    before = sorted(path.name for path in saved.place.glob("replay/*.safetensors"))
    after = sorted(path.name for path in saved.run.replay.glob("*.safetensors"))
    if not published:
        assert set(before) <= set(after), number
    assert saved.usable() == decisions, number
    # What was left behind is gone as soon as the run is resumed.
    assert not saved.run.incomplete(), number
    saved.session.counts.decisions += 1
    saved.save()
    saved.session.counts.decisions -= 1
    assert len(saved.run.checkpoint_folders()) == checkpoint.KEEP
    return "published" if published else "not published"


def interrupt_everywhere(saved: Saved, every: str, step: int) -> dict[str, int]:
    found: dict[str, int] = {}
    number = 1
    while interrupted(saved.save, number, every):
        kind = check(saved, number)
        found[kind] = found.get(kind, 0) + 1
        saved.restore()
        number += step
    assert saved.run.checkpointed() == 13  # the last one was not interrupted
    return found


def test_an_interrupt_around_publication_loses_nothing(saved: Saved) -> None:
    """Every instruction from the rename of the finished checkpoint on, for a while."""
    first = _instruction_of_the_rename(saved)
    found = set()
    for number in range(first - 40, first + 160, 3):
        assert interrupted(saved.save, number, "opcode")
        found.add(check(saved, number))
        saved.restore()
    assert found == {"published", "not published"}


def _instruction_of_the_rename(saved: Saved) -> int:
    """The number of the first instruction that sees the new checkpoint under its name."""
    seen = first = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen, first
        if frame.f_code.co_filename not in SOURCES:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if not first and saved.run.checkpointed() == 13:
                first = seen
        return trace

    sys.settrace(trace)
    try:
        saved.save()
    finally:
        sys.settrace(None)
    saved.restore()
    return first


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_an_interrupt_at_any_instruction_of_a_checkpoint_loses_nothing(saved: Saved) -> None:
    found = interrupt_everywhere(saved, "opcode", 1)
    print(f"interrupts at every instruction of a checkpoint: {found}")
    assert sum(found.values()) > 1000
    assert min(found.values()) > 100


def test_an_interrupt_at_any_line_of_a_checkpoint_loses_nothing(saved: Saved) -> None:
    found = interrupt_everywhere(saved, "line", 4)
    assert found["published"] > 5
    assert found["not published"] > 10


@pytest.mark.parametrize("name", ["000000013", "agent.safetensors"])
def test_a_checkpoint_that_cannot_be_renamed_leaves_nothing(
    name: str, saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = {"rename": os.rename, "replace": os.replace}

    def failing(how: str) -> Callable[..., None]:
        def call(old: str, new: str, **options: Any) -> None:
            if new == name:
                raise OSError(5, "Input/output error")
            real[how](old, new, **options)

        return call

    for how in real:
        monkeypatch.setattr(os, how, failing(how))
    before = sorted(path.relative_to(saved.place) for path in saved.place.rglob("*"))
    with pytest.raises(OSError, match=r"Input/output error: .*/run/checkpoints/"):
        saved.save()
    after = sorted(path.relative_to(saved.run.folder) for path in saved.run.folder.rglob("*"))
    assert after == before


def test_later_names_are_newer_even_where_earlier_ones_are_gone(saved: Saved) -> None:
    """A run that is stopped and resumed between two decisions is saved once more each time."""
    for number in range(1, 12):
        saved.session.counts.updates = number
        saved.save()
        folder, state = checkpoint.newest(saved.run)
        assert state.counts.updates == number
        assert folder.name == ("000000013" if number == 1 else f"000000013.{number - 1}")
    names = [path.name for path in saved.run.checkpoint_folders()]
    assert names == ["000000013.9", "000000013.10"]
