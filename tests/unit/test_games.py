"""Atari and MinAtar: the protocol, episodes that repeat themselves, whole runs, human scores."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kstep import envs
from kstep.analysis.tables import Row
from kstep.config import EvaluationConfig, Experiment, resolve
from kstep.data.replay import Replay
from kstep.envs import ControlEnv, EnvConfig, tasks
from kstep.report import human, scales
from kstep.run.episode import Episode
from kstep.run.train import Stopped
from kstep.types import Array, KstepError
from tests.runs import assert_same, go, stop_after

pytest.importorskip("ale_py")
pytest.importorskip("minatar")

Seen = tuple[Array, float, bool, bool, dict[str, Any]]


def play(env: ControlEnv, seed: int, decisions: int, choices: int = 0) -> list[Seen]:
    """An episode of random actions, as long as it lasts."""
    rng = np.random.default_rng(choices)
    env.reset(seed=seed)
    found: list[Seen] = []
    while len(found) < decisions and not (found and (found[-1][2] or found[-1][3])):
        found.append(env.step(np.array(rng.integers(env.actions.dim))))
    return found


def assert_repeats_itself(task: str, decisions: int) -> None:
    """After other episodes, and in another object, an episode is what it was."""
    one, two = (envs.make(EnvConfig(task, size=84), seed) for seed in (0, 1))
    first = play(one, 3, decisions)
    play(one, 4, decisions + 25, choices=1)
    for again in (play(one, 3, decisions), play(two, 3, decisions)):
        assert len(again) == len(first)
        for mine, theirs in zip(first, again, strict=True):
            assert np.array_equal(mine[0], theirs[0])
            assert mine[1:] == theirs[1:]


# What a reset or a restored state alone would not repeat, and one of the others.
@pytest.mark.parametrize("task", ["atari:KungFuMaster", "atari:Qbert", "atari:Pong"])
def test_an_atari_game_repeats_itself(task: str) -> None:
    assert_repeats_itself(task, 75)


@pytest.mark.parametrize("task", tasks.MINATAR)
def test_a_minatar_game_repeats_itself(task: str) -> None:
    assert_repeats_itself(task, 120)


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks.ATARI_100K)
def test_every_atari_game_repeats_itself(task: str) -> None:
    assert_repeats_itself(task, 300)


def test_the_games_are_those_that_are_installed() -> None:
    from ale_py import roms
    from minatar.gym import BaseEnv

    known = {rom.replace("_", "") for rom in roms.get_all_rom_ids()}
    for task in (*tasks.ATARI_100K, *human.scores()):
        assert task.partition(":")[2].lower() in known
    assert set(tasks.ATARI_100K) <= set(human.scores())
    for task in tasks.MINATAR:
        BaseEnv(task.partition(":")[2])


def test_what_is_seen_of_atari() -> None:
    env = envs.make(EnvConfig("atari:Pong"), 0)
    assert str(env.sight) == (
        "sees: observation, 210x160 -> 84x84, area resize, grey; the larger of the last two frames"
    )
    frame, _ = env.reset(seed=0)
    assert frame.shape == (84, 84, 1)
    play(env, 0, 60)
    before, now = env._screens  # type: ignore[attr-defined]
    assert not np.array_equal(before, now)
    larger = np.maximum(before, now)[..., None]
    assert np.array_equal(env.current_frame(), env.sight.frame(larger[..., 0]))
    assert env.film_frame(120, 90).shape == (120, 90, 3)
    assert env.episode_decisions == 27_000
    assert env.decisions_per_second() == 15
    state = envs.make(EnvConfig("atari:Pong", "state"), 0)
    assert state.reset(seed=0)[0].shape == (128,)


def test_seeds_decide_how_long_a_game_is_idle_at_first() -> None:
    env = envs.make(EnvConfig("atari:Breakout"), 0)
    idle = []
    for seed in range(60):
        env.reset(seed=seed)
        idle.append(env._ale.getEpisodeFrameNumber())  # type: ignore[attr-defined]
    assert (min(idle), max(idle)) == (1, 30)


def test_lives_and_clipped_rewards_are_for_learning_alone() -> None:
    env = envs.make(EnvConfig("atari:Breakout"), 0)
    lost = [step[4]["life_lost"] for step in play(env, 1, 400)]
    assert sum(lost) == 5  # and with the last one the game is over
    assert lost[-1]
    env = envs.make(EnvConfig("atari:MsPacman"), 0)
    episode, rewards = Episode(env, 4), set()
    episode.start(0)
    rng = np.random.default_rng(0)
    for _ in range(120):
        step = episode.step(env.actions.vector(int(rng.integers(env.actions.dim))))  # type: ignore[attr-defined]
        rewards.add((step.reward, step.learned_reward))
    assert rewards >= {(0.0, 0.0), (10.0, 1.0)}
    assert episode.total_reward >= 10


def test_what_is_seen_of_minatar() -> None:
    env = envs.make(EnvConfig("minatar:breakout", size=10), 0)
    assert str(env.sight) == "sees: observation, 10x10, 4 channels"
    frame, _ = env.reset(seed=0)
    assert np.array_equal(frame, 255 * env._game.state().astype(np.uint8))  # type: ignore[attr-defined]
    env.step(np.array(0))
    picture = env.film_frame(240, 120)
    assert picture.shape == (240, 120, 3)
    # Bricks, which hide where the ball was before, the ball, the paddle, nothing.
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 4
    large = envs.make(EnvConfig("minatar:breakout", size=48), 0)
    assert large.reset(seed=0)[0].shape == (48, 48, 4)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("atari:Pongg", "no game called 'Pongg'. Did you mean 'Pong'"),
        # Two spellings of a game would be two tasks, one of them without a human score.
        ("atari:JamesBond", "no game called 'JamesBond'. Did you mean 'Jamesbond'"),
        ("atari:HERO", "no game called 'HERO'. Did you mean 'Hero'"),
        # ALE would end this process.
        ("atari:Joust", "no game called 'Joust'"),
        ("atari:pong", "did you mean atari:Pong"),
        ("minatar:Breakout", "did you mean minatar:breakout"),
    ],
)
def test_wrong_names_are_refused(task: str, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        envs.make(EnvConfig(task), 0)


def test_every_game_is_loaded_and_those_with_human_scores_are_among_them() -> None:
    program = """if True:
        from ale_py import roms
        from kstep.envs import atari
        for rom in roms.get_all_rom_ids():
            if rom not in atari.NOT_FOR_ONE:
                name = atari._spelled(rom)
                atari._console(f"atari:{name}", name)
                print(f"atari:{name}")
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    loaded = done.stdout.split()
    assert done.returncode == 0, (loaded[-1:], done.stderr)
    assert len(loaded) > 100
    assert set(human.scores()) | set(tasks.ATARI_100K) <= set(loaded)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstep.extras.find_spec", lambda name: None)
    with pytest.raises(KstepError, match=r"ale_py is not installed: pip install"):
        envs.make(EnvConfig("atari:Pong"), 0)
    with pytest.raises(KstepError, match=r"minatar is not installed: pip install"):
        envs.make(EnvConfig("minatar:asterix"), 0)


def test_the_budget_is_that_of_the_protocol() -> None:
    experiment = resolve("dqn", "atari:Pong")
    assert (experiment.env_steps, experiment.evaluation.every) == (400_000, 80_000)
    assert experiment.method.stack == 4
    assert resolve("dqn", "minatar:asterix").env_steps == 100_000


def small(method: str, task: str, env_steps: int) -> Experiment:
    overrides = ["method.learning.initial_decisions=20", "method.learning.batch_size=4"]
    overrides += ["env.time_limit=120"]
    found = resolve(method, task, preset="debug", env_steps=env_steps, overrides=overrides)
    return replace(found, evaluation=EvaluationConfig(every=200, episodes=2))


@pytest.mark.parametrize(
    ("task", "env_steps", "stop", "overlap"),
    [("atari:Breakout", 200, 40, "off"), ("minatar:asterix", 60, 40, "here")],
)
def test_a_game_from_end_to_end_and_across_an_interruption(
    task: str,
    env_steps: int,
    stop: int,
    overlap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = small("ksl_dqn", task, env_steps)
    stored: list[tuple[float, bool]] = []
    add = Replay.add

    def listening(self: Replay, action: Array, reward: float, *rest: Any, life_lost: bool) -> None:
        stored.append((reward, life_lost))
        add(self, action, reward, *rest, life_lost=life_lost)

    said = StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(Replay, "add", listening)
        whole = go(tmp_path / "whole", experiment, said, overlap=overlap)
    assert "sees: observation" in said.getvalue()
    assert all(-1 <= reward <= 1 for reward, _ in stored)
    assert [row.mark for row in whole.evaluations()] == [0, env_steps]
    with monkeypatch.context() as patch:
        stop_after(patch, stop)
        with pytest.raises(Stopped, match=r"a checkpoint is written"):
            go(tmp_path / "parts", experiment, overlap=overlap)
    assert_same(whole, go(tmp_path / "parts", experiment, overlap=overlap))


def test_human_scores() -> None:
    assert len(human.scores()) == 57
    assert human.normalized("atari:Pong", -20.7) == 0
    assert human.normalized("atari:Pong", 14.6) == 1
    assert human.normalized("atari:Breakout", 16.1) == pytest.approx(0.5)
    with pytest.raises(KstepError, match="no human score is known of 'atari:Adventure'"):
        human.normalized("atari:Adventure", 1.0)


def test_human_scores_are_tabulated_where_tasks_are_games() -> None:
    cells: list[Row] = [
        {"task": "atari:Pong", "label": "dqn", "mean": -20.7},
        {"task": "atari:Pong", "label": "ksl_dqn", "mean": 14.6},
        {"task": "atari:Breakout", "label": "ksl_dqn", "mean": 16.1},
        {"task": "atari:Boxing", "label": "ksl_dqn", "mean": 24.1},
        {"task": "cartpole_swingup", "label": "ksl", "mean": 800.0},
    ]
    grid = human.table(cells)
    assert grid.head == ("human-normalized", "dqn", "ksl_dqn")
    assert [[cell.text for cell in row] for row in grid.rows] == [
        ["atari:Pong", "0.000", "1.000"],
        ["atari:Breakout", "-", "0.500"],
        ["atari:Boxing", "-", "2.000"],
        ["mean of 3 games", "-", "1.167"],
        ["median of 3 games", "-", "1.000"],
    ]
    assert human.table(cells[4:]).rows == ()
    rows: list[Row] = [{"task": cell["task"], "score": cell["mean"]} for cell in cells]
    found = scales.scales(rows)
    assert found["atari:Pong"](14.6) == 1
    assert found["atari:Pong"].known
    assert "human-normalized: atari:Pong, atari:Breakout, atari:Boxing" in scales.remark(found)
