"""Evaluation in lock step: the same episodes, whoever else is under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from kstep import envs
from kstep.agent import Agent
from kstep.envs import ControlEnv, EnvConfig, close_lanes, make_lanes, spec_of
from kstep.rng import Streams
from kstep.run.evaluate import evaluate
from tests.make import tiny


@contextmanager
def lanes(config: EnvConfig, number: int) -> Iterator[list[ControlEnv]]:
    made = make_lanes(config, 0, number)
    try:
        yield made
    finally:
        close_lanes(made)


def test_lock_step_gives_the_returns_of_one_after_the_other() -> None:
    experiment = tiny("ksl")
    with lanes(experiment.env, 1) as alone, lanes(experiment.env, 3) as several:
        agent = Agent(experiment.method, spec_of(alone[0]), Streams(0))
        seeds = [11, 12, 13, 14, 15]
        one, three = evaluate(agent, alone, seeds), evaluate(agent, several, seeds)
    assert one.lengths == three.lengths
    # One pass for three decides what three passes decide, up to rounding.
    assert np.allclose(one.returns, three.returns, atol=1e-3)
    assert len(set(one.returns)) == len(seeds)


def test_one_pass_decides_for_all() -> None:
    experiment = tiny("sac_pixel")
    with lanes(experiment.env, 4) as several:
        agent = Agent(experiment.method, spec_of(several[0]), Streams(0))
        sizes: list[int] = []
        act = agent.act
        agent.act = lambda o, explore: sizes.append(len(o)) or act(o, explore=explore)  # type: ignore[method-assign,func-returns-value,misc]
        result = evaluate(agent, several, [1, 2, 3, 4, 5])
    together = result.lengths[:4]
    assert len(set(together)) > 1  # some end early, and the others continue without them
    expected = [sum(length > t for length in together) for t in range(max(together))]
    assert sizes == expected + [1] * result.lengths[4]


def test_lanes_that_share_a_context_draw_what_they_would_alone() -> None:
    config = EnvConfig("reacher_easy", size=32)  # its target's place and size change per episode
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (3, 2)).astype(np.float32)
    with lanes(config, 3) as several:
        frames = [[env.reset(seed=seed)[0]] for seed, env in enumerate(several)]
        for action in actions:
            for lane, env in zip(frames, several, strict=True):
                lane.append(env.step(action)[0])
    for seed, lane in enumerate(frames):
        env = envs.make(config, 0)
        try:
            expected = [env.reset(seed=seed)[0], *(env.step(action)[0] for action in actions)]
        finally:
            env.close()
        assert np.array_equal(lane, expected)
    assert not np.array_equal(frames[0][0], frames[1][0])


def test_at_most_ten_lanes() -> None:
    with lanes(EnvConfig("toy_reach", size=12), 99) as several:
        assert len(several) == 10


@pytest.mark.parametrize(("domain", "task"), [("cartpole", "swingup"), ("ball_in_cup", "catch")])
def test_exact_frames_are_those_of_dm_control(domain: str, task: str) -> None:
    ours = envs.make(EnvConfig(f"{domain}_{task}", action_repeat=1), 0)
    from dm_control import suite  # only now: `make` has chosen how MuJoCo draws

    theirs = suite.load(domain, task, task_kwargs={"random": np.random.RandomState(3)})
    try:
        theirs.reset()
        frames = [ours.reset(seed=3)[0]]
        expected = [theirs.physics.render(84, 84, camera_id=0)]
        for action in np.linspace(-1, 1, 3):
            push = np.full(spec_of(ours).action_dim, action, np.float32)
            frames.append(ours.step(push)[0])
            theirs.step(push)
            expected.append(theirs.physics.render(84, 84, camera_id=0))
    finally:
        ours.close()
        theirs.physics.free()
    assert np.array_equal(frames, expected)
    assert not np.array_equal(frames[0], frames[-1])


@pytest.mark.parametrize("size", [84])
def test_quick_frames_are_hardly_to_be_told_from_exact_ones(size: int) -> None:
    frames = []
    for renderer in ("exact", "quick"):
        env = envs.make(EnvConfig("cartpole_swingup", size=size, renderer=renderer), 0)
        try:
            frames.append(env.reset(seed=3)[0].astype(float))
            film = env.film_frame(120, 160)  # larger than the buffer: it grows
            assert film.shape == (120, 160, 3)
            again = env.current_frame().astype(float)
            assert np.array_equal(again, frames[-1])
        finally:
            env.close()
    assert 0 < np.abs(frames[0] - frames[1]).mean() < 0.1
