"""Replay: frames painted with (episode, step), compared with a slow list-based model."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstep.data.replay import Replay, ReplayUnderfilled, Rule
from kstep.data.ring import FRAMES_FILE, Counters, ReplayConfig
from kstep.types import Array, EnvSpec, KstepError
from kstep.values import decode, encode

FRAME_SHAPE = (2, 3, 3)


def pixel_spec(episode_decisions: int = 50) -> EnvSpec:
    return EnvSpec("pixels", FRAME_SHAPE, 2, 1, episode_decisions)


def paint(episode: int, step: int) -> Array:
    frame = np.full(FRAME_SHAPE, 9, np.uint8)
    frame[0, 0] = episode, step, episode ^ step
    return frame


def action_of(episode: int, step: int) -> Array:
    return np.array([episode / 256, step / 256], np.float32)


def reward_of(episode: int, step: int) -> float:
    return 1000.0 * episode + step


@dataclass
class Episode:
    decisions: int = 0
    terminated: bool = False
    completed: bool = False


@dataclass
class Recorder:
    """Feeds a replay and remembers everything in plain lists."""

    replay: Replay
    episodes: list[Episode] = field(default_factory=list)

    def begin(self) -> None:
        if self.episodes:
            self.episodes[-1].completed = True
        self.episodes.append(Episode())
        self.replay.begin(paint(len(self.episodes) - 1, 0))

    def add(self, terminated: bool = False, truncated: bool = False) -> None:
        number, episode = len(self.episodes) - 1, self.episodes[-1]
        step = episode.decisions
        episode.decisions += 1
        episode.terminated = terminated
        episode.completed = terminated or truncated
        self.replay.add(
            action_of(number, step),
            reward_of(number, step),
            terminated,
            truncated,
            paint(number, step + 1),
        )

    def episode(self, decisions: int, ending: str = "truncated") -> None:
        self.begin()
        for step in range(decisions):
            last = step == decisions - 1
            self.add(last and ending == "terminated", last and ending == "truncated")

    def stack(self, episode: int, step: int) -> list[tuple[int, int]]:
        size = self.replay.stack
        return [(episode, max(step - back, 0)) for back in range(size - 1, -1, -1)]

    def stack_array(self, episode: int, step: int) -> Array:
        return np.stack([paint(*frame) for frame in self.stack(episode, step)])

    def starts(self, k: int, rule: Rule) -> set[tuple[int, int]]:
        """Every (episode, step) a stretch of k may start at."""
        frames = [(e, i) for e, ep in enumerate(self.episodes) for i in range(ep.decisions + 1)]
        decisions = [(e, i) for e, ep in enumerate(self.episodes) for i in range(ep.decisions)]
        alive = set(frames[-self.replay.slots :])
        newest = set(decisions[-self.replay.config.capacity :])
        found = set()
        for e, i in decisions:
            needed = [(e, i + j) for j in range(k)]
            stacks = [f for j in range(k + 1) for f in self.stack(e, i + j)]
            last_transition = self.episodes[e].decisions - 1
            allowed = i + k - 1 <= last_transition
            if rule == "released":
                allowed = self.episodes[e].completed and i <= last_transition - k - 1
            if allowed and newest.issuperset(needed) and alive.issuperset(stacks):
                found.add((e, i))
        return found


@dataclass
class Transitions:
    """Sequences of one decision, their stacks put together."""

    observation: Array
    action: Array
    reward: Array
    next_observation: Array
    bootstrap: Array


def transitions(replay: Replay, n: int, rng: np.random.Generator) -> Transitions:
    drawn = replay.sequences(n, 1, rng)
    first, second = (np.asarray(drawn.observation.at(t).together()) for t in (0, 1))
    action, reward, bootstrap = drawn.action[:, 0], drawn.reward[:, 0], drawn.bootstrap[:, 0]
    return Transitions(first, action, reward, second, bootstrap)


def start_of(observation: Array) -> tuple[int, int]:
    return int(observation[-1, 0, 0, 0]), int(observation[-1, 0, 0, 1])


def check_against_model(recorder: Recorder, k: int, rng: np.random.Generator) -> None:
    """Draw so often that every start turns up, and compare all of it."""
    replay = recorder.replay
    expected = recorder.starts(1, "any")
    assert len(replay) == len(expected) <= replay.config.capacity
    if not expected:
        with pytest.raises(ReplayUnderfilled):
            transitions(replay, 1, rng)
    else:
        batch = transitions(replay, 1500, rng)
        found = {start_of(stack): b for b, stack in enumerate(batch.observation)}
        assert set(found) == expected
        for (e, i), b in found.items():
            episode = recorder.episodes[e]
            ends_terminal = episode.terminated and i == episode.decisions - 1
            assert np.array_equal(batch.observation[b], recorder.stack_array(e, i))
            assert np.array_equal(batch.next_observation[b], recorder.stack_array(e, i + 1))
            assert np.array_equal(batch.action[b], action_of(e, i))
            assert batch.reward[b] == reward_of(e, i)
            assert batch.bootstrap[b] == (0.0 if ends_terminal else 1.0)
    rules: tuple[Rule, ...] = ("any", "released")
    for rule in rules:
        expected = recorder.starts(k, rule)
        if not expected:
            with pytest.raises(ReplayUnderfilled):
                replay.sequences(1, k, rng, rule)
            continue
        sequences = replay.sequences(2500, k, rng, rule)
        observation = sequences.observation.together()
        found = {start_of(stacks[0]): b for b, stacks in enumerate(observation)}
        assert set(found) == expected
        for (e, i), b in found.items():
            for j in range(k + 1):
                stack = recorder.stack_array(e, i + j)
                assert np.array_equal(observation[b, j], stack)
            for j in range(k):
                assert np.array_equal(sequences.action[b, j], action_of(e, i + j))
                assert sequences.reward[b, j] == reward_of(e, i + j)


@settings(max_examples=400, deadline=None)
@given(
    capacity=st.integers(1, 25),
    stack=st.integers(1, 4),
    known=st.integers(1, 8),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=14),
    endings=st.lists(
        st.sampled_from(["terminated", "truncated", "none"]), min_size=14, max_size=14
    ),
    k=st.integers(1, 4),
)
def test_samples_are_exactly_the_models(
    capacity: int,
    stack: int,
    known: int,
    lengths: list[int],
    endings: list[str],
    k: int,
) -> None:
    replay = Replay(ReplayConfig(capacity), pixel_spec(known), stack)
    recorder = Recorder(replay)
    for length, ending in zip(lengths, endings, strict=False):
        recorder.episode(length, ending)
    check_against_model(recorder, k, np.random.default_rng(0))


def test_model_agrees_after_every_single_write() -> None:
    recorder = Recorder(Replay(ReplayConfig(7), pixel_spec(4), 3))
    rng = np.random.default_rng(0)
    for length in (4, 1, 4, 2, 6, 1, 1, 4):
        recorder.begin()
        check_against_model(recorder, 2, rng)
        for step in range(length):
            recorder.add(truncated=step == length - 1)
            check_against_model(recorder, 2, rng)


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 20), length=st.integers(1, 9), stack=st.integers(1, 4))
def test_holds_exactly_capacity_when_the_episode_length_is_known(
    capacity: int, length: int, stack: int
) -> None:
    replay = Replay(ReplayConfig(capacity), pixel_spec(length), stack)
    recorder = Recorder(replay)
    done = 0
    for _ in range(3 * (capacity // length + 2)):
        recorder.begin()
        assert len(replay) == min(done, capacity)
        for step in range(length):
            recorder.add(truncated=step == length - 1)
            done += 1
            assert len(replay) == min(done, capacity)
    newest = {((d // length), d % length) for d in range(done - capacity, done)}
    batch = transitions(replay, 1500, np.random.default_rng(1))
    assert {start_of(stack) for stack in batch.observation} == newest


def test_shorter_episodes_than_known_hold_fewer_never_more() -> None:
    replay = Replay(ReplayConfig(capacity=20), pixel_spec(10))
    recorder = Recorder(replay)
    for _ in range(60):
        recorder.episode(1)
        assert len(replay) <= 20
    assert 10 <= len(replay) < 20


def test_a_completed_episode_is_known_at_once() -> None:
    recorder = Recorder(Replay(ReplayConfig(50), pixel_spec(8)))
    rng = np.random.default_rng(0)
    recorder.begin()
    for _ in range(7):
        recorder.add()
    with pytest.raises(ReplayUnderfilled, match="completed episodes"):
        recorder.replay.sequences(4, 3, rng, "released")
    recorder.add(truncated=True)
    stacks = recorder.replay.sequences(200, 3, rng, "released").observation.together()
    # Eight transitions, 0..7: three steps may legally start at 5, but the released code stops at 3.
    assert {start_of(s[0])[1] for s in stacks} == {0, 1, 2, 3}
    stacks = recorder.replay.sequences(200, 3, rng).observation.together()
    assert {start_of(s[0])[1] for s in stacks} == {0, 1, 2, 3, 4, 5}


def chi_square(counts: Array, expected: Array | float) -> bool:
    """Whether counts fit; five standard deviations of the statistic are allowed."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    free = counts.size - 1
    return statistic < free + 5 * math.sqrt(2 * free)


def test_any_is_uniform_over_starts() -> None:
    recorder = Recorder(Replay(ReplayConfig(30), pixel_spec(), 2))
    for length in (20, 3, 1, 12, 7):
        recorder.episode(length, "none")
    rng = np.random.default_rng(3)
    for k in (1, 3):
        starts = sorted(recorder.starts(k, "any"))
        stacks = recorder.replay.sequences(20_000, k, rng).observation.together()
        found = [start_of(s[0]) for s in stacks]
        counts = np.array([found.count(start) for start in starts])
        assert counts.sum() == 20_000
        assert chi_square(counts, 20_000 / len(starts))


def test_released_is_uniform_over_episodes_then_starts() -> None:
    recorder = Recorder(Replay(ReplayConfig(100), pixel_spec(), 2))
    for length in (20, 6, 4, 12):
        recorder.episode(length)
    starts = sorted(recorder.starts(3, "released"))
    per_episode = [sum(e == episode for e, _ in starts) for episode in range(4)]
    assert per_episode == [16, 2, 0, 8]
    expected = np.array([20_000 / 3 / per_episode[e] for e, _ in starts])
    stacks = recorder.replay.sequences(
        20_000, 3, np.random.default_rng(4), "released"
    ).observation.together()
    found = [start_of(s[0]) for s in stacks]
    assert chi_square(np.array([found.count(start) for start in starts]), expected)


def test_shapes_types_and_freshness() -> None:
    recorder = Recorder(Replay(ReplayConfig(20), pixel_spec(5), 3))
    recorder.episode(5)
    rng = np.random.default_rng(0)
    batch = transitions(recorder.replay, 6, rng)
    sequences = recorder.replay.sequences(6, 2, rng)
    shapes = {
        (6, 3, *FRAME_SHAPE): (batch.observation, np.uint8),
        (6, 2): (batch.action, np.float32),
        (6,): (batch.reward, np.float32),
        (6, 3, 3, *FRAME_SHAPE): (sequences.observation.together(), np.uint8),
        (6, 2, 2): (sequences.action, np.float32),
    }
    for shape, (array, dtype) in shapes.items():
        assert array.shape == shape
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert batch.next_observation.shape == batch.observation.shape
    assert batch.bootstrap.shape == (6,)
    assert batch.bootstrap.dtype == np.float32
    assert sequences.reward.shape == (6, 2)
    for array in (batch.observation, batch.action, batch.reward, batch.bootstrap):
        array[:] = 0
    check_against_model(recorder, 2, rng)


def test_state_vectors() -> None:
    spec = EnvSpec("state", (4,), 1, 1, 3)
    replay = Replay(ReplayConfig(10), spec, 1)
    replay.begin(np.zeros(4, np.float32))
    for step in range(3):
        frame = np.full(4, step + 1.5, np.float32)
        replay.add(np.zeros(1), 0.0, False, step == 2, frame)
    batch = transitions(replay, 50, np.random.default_rng(0))
    assert batch.observation.shape == (50, 1, 4)
    assert batch.observation.dtype == np.float32
    assert set(batch.next_observation[:, 0, 0].tolist()) == {1.5, 2.5, 3.5}
    with pytest.raises(KstepError, match="not finite"):
        replay.begin(np.array([0, 1, np.nan, 0], np.float32))


def test_same_generator_state_gives_the_same_batch() -> None:
    recorder = Recorder(Replay(ReplayConfig(20), pixel_spec(5)))
    recorder.episode(5)
    one, two = (transitions(recorder.replay, 9, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(one.observation, two.observation)
    other = transitions(recorder.replay, 9, np.random.default_rng(6))
    assert not np.array_equal(one.observation, other.observation)


def test_announces_its_size_up_front(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = EnvSpec("pixels", (84, 84, 3), 6, 8, 125)
    needed = Replay.bytes_needed(ReplayConfig(), spec)
    assert 2.1e9 < needed < 2.2e9
    available(monkeypatch, 4e9)
    replay = Replay(ReplayConfig(), spec)
    assert replay.describe() == "replay: 100,000 decisions, 2.14 GB in memory"
    arrays = (
        a for a in vars(replay).values() if isinstance(a, np.ndarray) and a.ndim and a.size > 9
    )
    assert sum(a.nbytes for a in arrays) == needed


def available(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    memory = SimpleNamespace(available=int(size))
    monkeypatch.setattr("kstep.data.ring.psutil.virtual_memory", lambda: memory)


def test_refuses_what_does_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 1.5e9)
    with pytest.raises(KstepError) as refusal:
        Replay(ReplayConfig(), EnvSpec("pixels", (84, 84, 3), 6, 8, 125))
    for part in ("2.14 GB", "1.50 GB", "replay_capacity", "--replay disk"):
        assert part in str(refusal.value)


def test_refuses_what_does_not_fit_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = SimpleNamespace(free=10**9)
    monkeypatch.setattr("kstep.data.ring.shutil.disk_usage", lambda folder: usage)
    config = ReplayConfig(storage="disk")
    with pytest.raises(KstepError, match=r"2\.14 GB.*1\.00 GB of disk.*replay_capacity"):
        Replay(config, EnvSpec("pixels", (84, 84, 3), 6, 8, 125), folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_disk_equals_memory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    on_disk = Replay(ReplayConfig(15, storage="disk"), pixel_spec(4), folder=folder)
    in_memory = Replay(ReplayConfig(15), pixel_spec(4))
    recorders = [Recorder(on_disk), Recorder(in_memory)]
    for recorder in recorders:
        for length in (4, 4, 1, 3, 4, 4, 2):
            recorder.episode(length)
        check_against_model(recorder, 2, np.random.default_rng(0))
    disk, memory = (transitions(r.replay, 64, np.random.default_rng(1)) for r in recorders)
    assert np.array_equal(disk.observation, memory.observation)
    assert type(disk.observation) is np.ndarray
    assert (folder / FRAMES_FILE).stat().st_size == on_disk.slots * np.prod(FRAME_SHAPE)
    assert on_disk.describe().endswith("on disk")
    # A second replay in the same folder starts empty.
    assert len(Replay(ReplayConfig(15, storage="disk"), pixel_spec(4), folder=folder)) == 0
    with pytest.raises(KstepError, match="folder"):
        Replay(ReplayConfig(15, storage="disk"), pixel_spec(4))


@pytest.mark.parametrize("episodes", [0, 1, 3, 9])
@pytest.mark.parametrize("ending", ["truncated", "none"])
def test_state_round_trip(episodes: int, ending: str, tmp_path: Path) -> None:
    config, spec = ReplayConfig(14), pixel_spec(5)
    recorder = Recorder(Replay(config, spec))
    for _ in range(episodes):
        recorder.episode(5, ending)
    # Saved in two parts, the second beginning with the frame whose action was still to come.
    middle = recorder.replay.total // 2
    parts = [
        part
        for part in (recorder.replay.export(0), recorder.replay.export(max(middle - 1, 0)))
        if len(part["t"])
    ]
    for number, part in enumerate(parts):
        np.savez(tmp_path / f"{number}.npz", allow_pickle=False, **part)
    saved = json.dumps(encode(recorder.replay.counters()))
    counters = decode(Counters, json.loads(saved))

    restored = Replay(config, spec)
    loaded = [dict(np.load(tmp_path / f"{number}.npz")) for number in range(len(parts))]
    if episodes:
        restored.restore(loaded, counters)
    twin = Recorder(restored, [Episode(**vars(episode)) for episode in recorder.episodes])
    for step in range(25):
        assert_same_samples(recorder.replay, restored)
        for each in (recorder, twin):
            if step % 4 == 0 and not (ending == "none" and step == 0 and episodes):
                each.begin()  # otherwise the episode that was running continues
            each.add(truncated=step % 4 == 3)
    check_against_model(twin, 2, np.random.default_rng(0))


def assert_same_samples(one: Replay, two: Replay) -> None:
    assert len(one) == len(two)
    if not len(one):
        return
    a, b = (transitions(replay, 8, np.random.default_rng(7)) for replay in (one, two))
    for name in ("observation", "action", "reward", "next_observation", "bootstrap"):
        assert np.array_equal(getattr(a, name), getattr(b, name))


def test_parts_saved_while_recording_add_up() -> None:
    """What a run does: every save holds only what is new since the last, over several laps."""
    recorder = Recorder(Replay(ReplayConfig(14), pixel_spec(5), 3))
    parts: list[dict[str, Array]] = []
    written = 0
    for number in range(12):
        recorder.episode(3, "none") if number % 2 else recorder.episode(5, "truncated")
        parts.append(recorder.replay.export(max(written - 1, 0)))
        written = recorder.replay.total
    restored = Replay(ReplayConfig(14), pixel_spec(5), 3)
    restored.restore(parts, recorder.replay.counters())
    assert_same_samples(recorder.replay, restored)
    assert np.array_equal(restored.newest_stack(), recorder.replay.newest_stack())


def test_state_of_another_replay_is_refused() -> None:
    recorder = Recorder(Replay(ReplayConfig(14), pixel_spec(5)))
    recorder.episode(5)
    part, counters = recorder.replay.export(0), recorder.replay.counters()
    with pytest.raises(KstepError, match=r"replay_capacity"):
        Replay(ReplayConfig(1), pixel_spec(5)).restore([part], counters)
    other = EnvSpec("pixels", (4, 4, 3), 2, 1, 5)
    with pytest.raises(KstepError, match="frames"):
        Replay(ReplayConfig(14), other).restore([part], counters)
    with pytest.raises(KstepError, match="needed are 0 to 6"):
        Replay(ReplayConfig(14), pixel_spec(5)).restore([recorder.replay.export(3)], counters)
    del part["reward"]
    with pytest.raises(KstepError, match="lacks reward"):
        Replay(ReplayConfig(14), pixel_spec(5)).restore([part], counters)


@pytest.mark.parametrize(
    "changes",
    [
        {"held": 10**9},
        {"oldest": 7},
        {"episodes": 10**15},
        {"first": (0, 0), "episodes": 2},
        {"first": (6,)},
        {"oldest_episode": 5},
        {"first": ()},
    ],
)
def test_bookkeeping_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    recorder = Recorder(Replay(ReplayConfig(14), pixel_spec(5)))
    recorder.episode(5)
    part, counters = recorder.replay.export(0), recorder.replay.counters()
    fresh = Replay(ReplayConfig(14), pixel_spec(5))
    with pytest.raises(KstepError, match="contradicts itself"):
        fresh.restore([part], replace(counters, **changes))
    for name, wrong in (("start", np.array([-1])), ("start", np.array([2**63 - 1])), ("t", 5)):
        with pytest.raises(KstepError, match="frames have no numbers"):
            fresh.restore([{**part, name: np.asarray(wrong)}], counters)
    fresh.restore([part], counters)
    assert len(fresh) == 5


def test_forgetting_leaves_nothing_to_sample_and_goes_on() -> None:
    recorder = Recorder(Replay(ReplayConfig(14), pixel_spec(5)))
    for _ in range(4):
        recorder.episode(5)
    recorder.replay.forget()
    assert len(recorder.replay) == 0
    with pytest.raises(ReplayUnderfilled):
        transitions(recorder.replay, 1, np.random.default_rng(0))
    with pytest.raises(ValueError, match="no episode is running"):
        recorder.replay.add(np.zeros(2, np.float32), 0.0, False, False, paint(0, 0))
    forgotten = len(recorder.episodes)
    for _ in range(5):
        recorder.episode(5)
        batch = transitions(recorder.replay, 200, np.random.default_rng(0))
        seen = {start_of(stack)[0] for stack in batch.observation}
        assert min(seen) >= forgotten
    check_against_model(recorder, 2, np.random.default_rng(0))


def test_misuse_is_refused_and_changes_nothing() -> None:
    recorder = Recorder(Replay(ReplayConfig(20), pixel_spec(5)))
    replay = recorder.replay
    frame, action = paint(0, 0), np.zeros(2)
    rng = np.random.default_rng(0)
    with pytest.raises(ReplayUnderfilled, match="asked for 4 transitions, replay holds none"):
        transitions(replay, 4, rng)
    with pytest.raises(ValueError, match="begin"):
        replay.add(action, 0.0, False, False, frame)
    recorder.episode(3)
    with pytest.raises(ValueError, match="begin"):
        replay.add(action, 0.0, False, False, frame)
    recorder.begin()
    recorder.add()
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (ValueError, "action", {"action": np.zeros(3)}),
        (ValueError, "action", {"action": np.zeros((1, 2))}),
        (KstepError, "action", {"action": np.array([0.0, np.nan])}),
        (KstepError, "reward", {"reward": float("nan")}),
        (KstepError, "reward", {"reward": 1e39}),
        (ValueError, "frame", {"next_frame": frame[:1]}),
        (ValueError, "frame", {"next_frame": frame.astype(np.float32)}),
    ]
    right = {"action": action, "reward": 0.0, "next_frame": frame}
    for error, what, change in wrong:
        with pytest.raises(error, match=what):
            replay.add(**{**right, **change}, terminated=False, truncated=False)
    with pytest.raises(ValueError, match="frame"):
        replay.begin(frame[None])
    with pytest.raises(ValueError, match="k of at least 1"):
        replay.sequences(1, 0, rng)
    with pytest.raises(ReplayUnderfilled, match="sequences of 4 decisions"):
        replay.sequences(1, 4, rng)
    check_against_model(recorder, 1, rng)


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"storage": "tape"}])
def test_config_values_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(KstepError, match=f"replay.{next(iter(wrong))}"):
        ReplayConfig(**wrong)
