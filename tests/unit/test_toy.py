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
        # The dot is painted over the target, so what remains of it is pulled aside: aim anew.
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


def test_leaving_the_arena_terminates_and_costs() -> None:
    env = make_toy()
    env.reset(seed=1)
    env._target = np.array([-0.7, 0.0])
    env._dot = np.array([0.95, 0.0])
    _, reward, terminated, truncated, _ = env.step(np.array([1.0, 0.0]))
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(-toy.PROGRESS * toy.SPEED - toy.TIME - toy.LEFT)


def test_reaching_the_target_terminates_and_pays() -> None:
    env = make_toy()
    env.reset(seed=1)
    env._target = np.array([0.0, 0.0])
    env._dot = np.array([0.23, 0.0])
    _, reward, terminated, truncated, _ = env.step(np.array([-1.0, 0.0]))
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(toy.PROGRESS * toy.SPEED - toy.TIME + toy.REACHED)


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
    env = make_toy("toy_glide")
    env.reset(seed=2)
    still = env.current_frame()
    env._velocity = np.array([0.05, 0.05])
    np.testing.assert_array_equal(env.current_frame(), still)
    assert env._state()[4:].tolist() == pytest.approx([0.05, 0.05])
    before = env._dot
    env.step(np.zeros(2))
    # It coasts.
    assert (env._dot > before).all()
    assert make_toy("toy_reach", observation="state").observation_space.shape == (4,)


def test_moves_smaller_than_a_pixel_show() -> None:
    env = make_toy(size=36)
    env.reset(seed=3)
    before = env.current_frame()
    env._dot = env._dot + 0.1 * 2 / 36
    assert (env.current_frame() != before).any()


def test_dot_stays_in_the_picture_at_the_edge() -> None:
    env = make_toy(size=36)
    env.reset(seed=3)
    for corner in ([1.0, 1.0], [-1.0, -1.0], [1.2, -3.0]):
        env._dot = np.array(corner)
        assert env.current_frame().shape == (36, 36, 3)


def test_films_any_shape_with_the_arena_square() -> None:
    env = make_toy(size=36)
    env.reset(seed=3)
    film = env.film_frame(120, 200)
    assert film.shape == (120, 200, 3)
    np.testing.assert_array_equal(film[:, 40:160], env.film_frame(120, 120))
