"""The toy world: its rules, its scale of returns, and that its pixels tell all there is."""

from __future__ import annotations

import numpy as np
import pytest

from kstep.envs import EnvConfig, make, spec_of, toy
from kstep.envs.toy import ToyEnv
from kstep.types import Array


def make_toy(name: str = "toy_reach", **options: object) -> ToyEnv:
    env = make(EnvConfig(name, **options), seed=0)  # type: ignore[arg-type]
    assert isinstance(env, ToyEnv)
    return env


def centre(frame: Array, colour: tuple[int, int, int]) -> Array:
    """Where a colour is, in the arena's coordinates, read from the pixels alone."""
    near = np.abs(frame.astype(int) - np.array(colour)).sum(-1) < 60
    row, column = np.argwhere(near).mean(0)
    side = frame.shape[0]
    return np.array([(column + 0.5) / side * 2 - 1, 1 - (row + 0.5) / side * 2])


def episode(env: ToyEnv, seed: int, policy: object) -> tuple[float, int, bool]:
    frame, _ = env.reset(seed=seed)
    total, length = 0.0, 0
    while True:
        frame, reward, terminated, truncated, _ = env.step(policy(frame))  # type: ignore[operator]
        total += reward
        length += 1
        if terminated or truncated:
            return total, length, terminated


def test_a_policy_that_sees_only_pixels_solves_it_and_a_random_one_does_not() -> None:
    env = make_toy(size=84)
    rng = np.random.default_rng(0)

    def steer(frame: Array) -> Array:
        # The dot is painted over the target, so what remains of it is pulled aside: aim again.
        return np.clip((centre(frame, toy.TARGET) - centre(frame, toy.DOT)) / toy.SPEED, -1, 1)

    good = [episode(env, seed, steer) for seed in range(40)]
    random = [episode(env, seed, lambda _: rng.uniform(-1, 1, 2)) for seed in range(40)]
    # The scale the module documents.
    assert 8 < np.mean([total for total, _, _ in good]) < 10
    assert all(terminated for _, _, terminated in good)
    assert -6 < np.mean([total for total, _, _ in random]) < -2
    lengths = {length for _, length, _ in good + random}
    assert len(lengths) > 5
    assert min(lengths) > 3
    assert max(lengths) == toy.LIMIT


def places(env: ToyEnv) -> tuple[Array, Array]:
    """Where the dot and the target are."""
    found = env.quantities()
    dot, target = ([found[f"{name} x"], found[f"{name} y"]] for name in ("dot", "target"))
    return np.array(dot), np.array(target)


def apart(env: ToyEnv) -> float:
    dot, target = places(env)
    return float(np.hypot(*(dot - target)))


def test_leaving_the_arena_terminates_and_costs() -> None:
    env = make_toy()
    env.reset(seed=1)
    dot, target = places(env)
    away, terminated = np.sign(dot - target), False
    while not terminated:
        before = apart(env)
        _, reward, terminated, truncated, _ = env.step(away)
        left = bool(np.abs(places(env)[0]).max() > 1)
        progress = toy.PROGRESS * (before - apart(env)) - toy.TIME
        assert reward == pytest.approx(progress - toy.LEFT * left, abs=1e-5)
        assert (terminated, truncated) == (left, False)


def test_reaching_the_target_terminates_and_pays() -> None:
    env = make_toy()
    env.reset(seed=1)
    terminated = False
    while not terminated:
        dot, target = places(env)
        before = apart(env)
        _, reward, terminated, truncated, _ = env.step(np.clip((target - dot) / toy.SPEED, -1, 1))
        reached = apart(env) < toy.TARGET_RADIUS
        progress = toy.PROGRESS * (before - apart(env)) - toy.TIME
        assert reward == pytest.approx(progress + toy.REACHED * reached, abs=1e-5)
        assert (terminated, truncated) == (reached, False)


@pytest.mark.parametrize("repeat", [1, 7])
def test_time_truncates_without_terminating(repeat: int) -> None:
    env = make_toy(action_repeat=repeat)
    env.reset(seed=1)
    steps = []
    truncated = terminated = False
    while not truncated:
        assert not terminated
        _, _, terminated, truncated, info = env.step(np.zeros(2))
        steps.append(info["env_steps"])
    assert sum(steps) == toy.LIMIT
    assert len(steps) == spec_of(env).episode_decisions == -(-toy.LIMIT // repeat)
    # 60 = 8 x 7 + 4: the last action is cut short.
    assert steps[-1] == (toy.LIMIT - 1) % repeat + 1
    assert not terminated


def test_a_repeated_action_earns_the_sum_of_single_ones() -> None:
    once, thrice = make_toy(action_repeat=1), make_toy(action_repeat=3)
    once.reset(seed=4)
    thrice.reset(seed=4)
    action = np.array([0.3, -0.2])
    single = [once.step(action) for _ in range(3)]
    frame, reward, _, _, info = thrice.step(action)
    assert reward == pytest.approx(sum(step[1] for step in single))
    assert info["env_steps"] == 3
    np.testing.assert_array_equal(frame, single[-1][0])


def test_velocity_is_hidden_in_glide_frames_but_not_in_its_state() -> None:
    """The same move in both worlds ends in the same picture, but one dot coasts from there."""
    gliding, walking = make_toy("toy_glide"), make_toy("toy_reach")
    assert np.array_equal(gliding.reset(seed=2)[0], walking.reset(seed=2)[0])
    push = np.ones(2)
    glided = gliding.step(push)[0].astype(int)
    walked = walking.step(push * toy.GLIDE_PUSH / toy.SPEED)[0].astype(int)
    assert np.abs(glided - walked).max() <= 1  # apart from rounding
    found = gliding.quantities()
    assert [found["velocity x"], found["velocity y"]] == pytest.approx([toy.GLIDE_PUSH] * 2)
    still = places(walking)[0]
    gliding.step(np.zeros(2))
    walking.step(np.zeros(2))
    assert np.array_equal(places(walking)[0], still)
    assert (places(gliding)[0] > still + toy.GLIDE_PUSH / 2).all()
    assert make_toy("toy_reach", observation="state").observation_space.shape == (4,)


def test_moves_smaller_than_a_pixel_show() -> None:
    env = make_toy(size=36)
    before, _ = env.reset(seed=3)
    tenth_of_a_pixel = 0.1 * 2 / 36
    after, *_ = env.step(np.full(2, tenth_of_a_pixel / toy.SPEED))
    assert (after != before).any()


@pytest.mark.parametrize("corner", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
def test_frames_at_and_beyond_the_edge_keep_their_shape(corner: tuple[int, int]) -> None:
    env = make_toy(size=36)
    for seed in range(4):
        env.reset(seed=seed)
        terminated = False
        while not terminated:
            frame, _, terminated, _, _ = env.step(np.array(corner, float))
            assert frame.shape == (36, 36, 3)
    assert np.abs(places(env)[0]).max() > 1


def test_films_any_shape_with_the_arena_square() -> None:
    env = make_toy(size=36)
    env.reset(seed=3)
    film = env.film_frame(120, 200)
    assert film.shape == (120, 200, 3)
    np.testing.assert_array_equal(film[:, 40:160], env.film_frame(120, 120))
