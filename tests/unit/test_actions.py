"""Actions at the border of an environment: vectors in, the environment's own actions out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from kstep import methods
from kstep.agent import Agent
from kstep.cli import main
from kstep.envs import EnvConfig, make, spec_of
from kstep.envs.actions import Actions, BoxActions, DiscreteActions, actions_of
from kstep.methods import METHODS
from kstep.rl.sac import SACConfig
from kstep.rng import Streams
from kstep.run.episode import Episode, EpisodeSoFar
from kstep.types import KstepError
from kstep.values import decode, encode
from tests.make import spec_for, tiny

BOX = spaces.Box(np.array([[0.0], [-2.0]], np.float32), np.array([[5.0], [2.0]], np.float32))
UNEVEN = spaces.Discrete(3, start=-1)


def test_vectors_are_mapped_onto_a_box_in_its_own_shape_and_type() -> None:
    actions = actions_of(BOX, "env")
    assert (actions.kind, actions.dim) == ("box", 2)
    for vector, true in (
        ([-1, -1], [[0], [-2]]),
        ([0, 0.5], [[2.5], [1]]),
        ([9, -9], [[5], [-2]]),
    ):
        taken = actions.true(np.array(vector, np.float32))
        np.testing.assert_array_equal(taken, np.array(true, np.float32))
        assert taken in BOX
    assert actions.true(actions.example()) in BOX


def test_one_hot_vectors_and_numbers_are_choices() -> None:
    actions = actions_of(UNEVEN, "env")
    assert (actions.kind, actions.dim) == ("discrete", 3)
    for index in range(3):
        one_hot = np.eye(3, dtype=np.float32)[index]
        assert actions.true(one_hot) == actions.true(np.array(index - 1)) == index - 1
        assert actions.true(one_hot) in UNEVEN
    assert actions.true(actions.example()) in UNEVEN


@pytest.mark.parametrize("wrong", [[0, 0, 0], [1, 1, 0], [0.5, 0.5, 0], [0, 0.9, 0], [-1, 0, 1]])
def test_what_is_not_one_hot_is_refused(wrong: Sequence[float]) -> None:
    with pytest.raises(KstepError, match="one-hot"):
        DiscreteActions(3).true(np.array(wrong))


def test_a_number_out_of_range_is_refused() -> None:
    for number in (-1, 3):
        with pytest.raises(KstepError, match="one of 3"):
            DiscreteActions(3).true(np.array(number))


@pytest.mark.parametrize("space", [BOX, UNEVEN])
def test_actions_survive_json(space: Any) -> None:
    actions = actions_of(space, "env")
    assert decode(Actions, encode(actions)) == actions


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Tuple([BOX, UNEVEN]),
        spaces.Dict({"arm": BOX}),
        spaces.Box(0, 9, (2,), np.int64),
        spaces.Text(5),
        None,
    ],
)
def test_other_spaces_are_refused_by_name(space: Any) -> None:
    with pytest.raises(KstepError) as refused:
        actions_of(space, "gym:Mine-v0")
    assert str(refused.value).startswith(f"gym:Mine-v0 takes {space} actions; needed is a Box")


def test_nothing_to_choose_is_refused() -> None:
    with pytest.raises(KstepError, match="nothing to choose"):
        actions_of(spaces.Discrete(1), "env")
    with pytest.raises(KstepError, match="no room"):
        actions_of(spaces.Box(1.0, 1.0, (2,)), "env")


def test_the_arrows_of_the_toy_move_the_dot() -> None:
    env = make(EnvConfig("toy_arrows", "state"), 0)
    spec = spec_of(env)
    assert (spec.actions, spec.action_dim) == ("discrete", 4)
    for index, moved in enumerate([(1, 0), (0, 1), (-1, 0), (0, -1)]):
        start, _ = env.reset(seed=5)
        after, *_ = env.step(np.eye(4, dtype=np.float32)[index])
        np.testing.assert_allclose(after[:2] - start[:2], 0.07 * np.array(moved), atol=1e-6)
        env.reset(seed=5)
        np.testing.assert_array_equal(env.step(np.array(index))[0], after)
    for wrong in (np.zeros(2), np.zeros((4, 1))):
        with pytest.raises(KstepError, match=r"toy_arrows takes actions \(4,\)"):
            env.step(wrong)


def test_an_interrupted_episode_of_choices_is_replayed() -> None:
    env = make(EnvConfig("toy_arrows", size=20), 0)
    episode = Episode(env, stack=2)
    episode.start(3)
    for index in (0, 1, 1, 2):
        episode.step(np.eye(4, dtype=np.float32)[index])
    saved = decode(EpisodeSoFar, encode(episode.state()))
    again = Episode(env, stack=2)
    again.repeat(saved.seed, saved.decoded(again.width), episode.observation)
    assert again.state() == saved


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_random_actions_are_valid_and_cover_the_space(kind: Any) -> None:
    experiment = tiny("sac_pixel")
    spec = replace(spec_for(experiment), action_dim=3, actions=kind)
    agent = Agent(experiment.method, spec, Streams(0))
    drawn = np.array([agent.random_action() for _ in range(60)])
    assert drawn.dtype == np.float32
    if kind == "discrete":
        assert {tuple(row) for row in drawn} == {tuple(row) for row in np.eye(3)}
    else:
        assert (drawn.min(0) < -0.6).all()
        assert (drawn.max(0) > 0.6).all()


def test_a_core_that_cannot_choose_is_refused_and_those_that_can_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(frozen=True)
    class Chooser(SACConfig):
        acts_in = ("discrete",)

    chooser = replace(METHODS["sac_pixel"], base="chooser", core=Chooser())
    registry = {**METHODS, "chooser": chooser, "chooser-b": replace(chooser, variant="b")}
    monkeypatch.setattr(methods, "METHODS", registry)
    folder = tmp_path / "run"
    with pytest.raises(SystemExit) as stopped:
        main(["train", "ksl", "toy_arrows", "--preset", "debug", "--folder", str(folder)])
    assert stopped.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "'ksl' cannot choose discrete actions, which toy_arrows takes; these methods can:" in said
    )
    assert said.endswith("chooser")
    assert not folder.exists()
    with pytest.raises(KstepError, match=r"'chooser' cannot choose continuous.*can: ksl, rad, drq"):
        methods.refuse_actions(chooser, spec_for(tiny("ksl")), "toy_reach")


def test_environments_of_gymnasium_with_choices() -> None:
    env = make(EnvConfig("gym:CartPole-v1", "state"), 0)
    assert isinstance(env.action_space, gymnasium.spaces.Discrete)
    assert spec_of(env).action_dim == 2
    env.reset(seed=0)
    left = env.step(np.array([1.0, 0.0], np.float32))[0]
    env.reset(seed=0)
    right = env.step(np.array([0.0, 1.0], np.float32))[0]
    assert left[1] < right[1]
    env.close()


def test_bounds_of_minus_one_and_one_change_nothing() -> None:
    vector = np.linspace(-0.93, 0.77, 6).astype(np.float32)
    same = BoxActions((-1.0,) * 6, (1.0,) * 6, (6,)).true(vector)
    np.testing.assert_array_equal(same, vector.astype(np.float64))
