"""The contract of every environment: seeds, repeats, endings, actions, drawing, and refusals."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from kstep.envs import PLANET, ControlEnv, EnvConfig, gl, make, names, parse, spec_of, tasks
from kstep.envs.sight import resized
from kstep.types import Array, KstepError


class Rooms(gymnasium.Env[Array, Array]):
    """A stand-in for a user's environment; `trouble` makes it misbehave."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(
        self, image: bool = False, trouble: str = "", render_mode: str | None = None
    ) -> None:
        self.render_mode = render_mode
        self.image = image
        self.trouble = trouble
        low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)
        self.action_space: Any = gymnasium.spaces.Box(low, high)
        if trouble == "unbounded":
            self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.observation_space: Any = (
            gymnasium.spaces.Box(0, 255, (40, 60, 1), np.uint8)
            if image
            else gymnasium.spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
        )
        self.actions: list[Array] = []

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.np_random.uniform(-1, 1, (2, 2))
        self.clock = 0
        return self._see(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.at = self.at + action
        self.clock += 1
        reward = np.nan if self.trouble == "nan" else float(self.clock)
        return self._see(), reward, self.clock == 5, False, {}

    def _see(self) -> Array:
        if self.trouble == "shape" and self.clock:
            return np.zeros(7)
        if self.image:
            return np.full((40, 60, 1), 10 + int(self.at[0, 0] * 9) % 200, np.uint8)
        return self.at.copy()

    def render(self) -> Array:
        dtype = np.float32 if self.trouble == "render" else np.uint8
        return np.full((50, 50, 3), 100 + int(self.at[0, 0] * 9) % 100, dtype)


class Blind(Rooms):
    metadata = {"render_modes": []}  # noqa: RUF012


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    ids: dict[str, tuple[Any, dict[str, Any]]] = {
        "KstepRooms-v0": (Rooms, {}),
        "KstepImage-v0": (Rooms, {"image": True}),
        "KstepBlind-v0": (Blind, {}),
    }
    for trouble in ("unbounded", "nan", "shape", "render"):
        ids[f"Kstep_{trouble}-v0"] = (Rooms, {"trouble": trouble})
    for name, (creator, options) in ids.items():
        gymnasium.register(name, creator, max_episode_steps=4, kwargs=options)
    endless: Any = Rooms
    gymnasium.register("KstepEndless-v0", endless)
    yield
    for name in [*ids, "KstepEndless-v0"]:
        gymnasium.registry.pop(name)


@pytest.fixture(scope="module")
def _rendering() -> None:
    gl.choose()  # raises, and so fails the tests, where nothing can draw: set-up sees to it


@pytest.fixture
def opened() -> Iterator[Any]:
    """A `make` whose environments are closed after the test."""
    envs: list[ControlEnv] = []

    def open_one(task: str, seed: int = 0, **options: Any) -> Any:
        envs.append(make(EnvConfig(task, **options), seed))
        return envs[-1]

    yield open_one
    for env in envs:
        env.close()


def rollout(env: ControlEnv, seed: int | None, decisions: int) -> list[Any]:
    """One episode of fixed actions, everything it showed and said."""
    rng = np.random.default_rng(7)
    seen: list[Any] = [env.reset(seed=seed)[0]]
    for _ in range(decisions):
        seen += env.step(rng.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        if seen[-2] or seen[-3]:
            break
    return seen


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every image of `Rooms` that is drawn."""
    drawn: list[int] = []
    draw = Rooms.render

    def counted(rooms: Rooms) -> Array:
        drawn.append(1)
        return draw(rooms)

    monkeypatch.setattr(Rooms, "render", counted)
    return drawn


def assert_same(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


# Gymnasium's own checker.

CHECKED = [
    EnvConfig("toy_reach", size=36),
    EnvConfig("toy_glide", "state"),
    EnvConfig("toy_arrows", size=36),
    EnvConfig("cartpole_swingup", "state"),
    EnvConfig("cartpole_swingup", size=32),
    EnvConfig("gym:KstepRooms-v0"),
    EnvConfig("gym:KstepRooms-v0", "state"),
    EnvConfig("gym:KstepImage-v0", size=20),
]


@pytest.mark.parametrize("config", CHECKED, ids=lambda c: f"{c.task}-{c.observation}")
def test_passes_the_checker_of_gymnasium(config: EnvConfig, request: Any) -> None:
    if config.task in PLANET and config.observation == "pixels":
        request.getfixturevalue("_rendering")
    env = make(config, seed=0)
    with warnings.catch_warnings():
        # A state has no known bounds, and our environments need no registration.
        warnings.filterwarnings("ignore", message=".*infinity.*")
        warnings.filterwarnings("ignore", message=".*render.*")
        check_env(env, skip_render_check=True)
    env.close()


# An episode is a function of its seed and its actions.


@pytest.mark.parametrize("task", PLANET)
def test_re_enacting_a_seed_repeats_every_state(task: str, opened: Any) -> None:
    env = opened(task, observation="state")
    first = rollout(env, 11, 20)
    rollout(env, 12, 5)
    rollout(env, None, 3)
    assert_same(first, rollout(env, 11, 20))
    # A resumed run does so in a new environment, made with another seed.
    assert_same(first, rollout(opened(task, seed=99, observation="state"), 11, 20))
    assert (rollout(env, 12, 0)[0] != first[0]).any()


@pytest.mark.usefixtures("_rendering")
@pytest.mark.parametrize("task", ["reacher_easy", "walker_walk"])
def test_re_enacting_a_seed_repeats_every_pixel(task: str, opened: Any) -> None:
    env = opened(task)
    first = rollout(env, 11, 6)
    rollout(env, 12, 3)
    assert_same(first, rollout(env, 11, 6))
    assert_same(first, rollout(opened(task, seed=99), 11, 6))


@pytest.mark.usefixtures("_rendering")
@pytest.mark.parametrize("task", ["reacher_easy", "toy_glide", "gym:KstepRooms-v0"])
def test_re_enacting_without_rendering_ends_in_the_same_frame(task: str, opened: Any) -> None:
    env = opened(task)
    shown = rollout(env, 3, 3)
    env.set_rendering(False)
    env.reset(seed=4)
    silent = rollout(env, 3, 3)
    np.testing.assert_array_equal(silent[0], silent[-5])
    np.testing.assert_array_equal(env.current_frame(), shown[-5])
    assert [silent[2], silent[7]] == [shown[2], shown[7]]
    env.set_rendering(True)
    assert_same(shown, rollout(env, 3, 3))


def test_no_rendering_means_no_drawing(opened: Any, drawn: list[int]) -> None:
    env = opened("gym:KstepRooms-v0")
    drawn.clear()
    env.reset(seed=0)
    env.step(np.zeros(2))
    assert len(drawn) == 2
    env.set_rendering(False)
    env.step(np.zeros(2))
    assert len(drawn) == 2


def test_draws_once_per_decision_however_often_it_repeats(opened: Any, drawn: list[int]) -> None:
    env = opened("gym:KstepRooms-v0", action_repeat=3)
    env.reset(seed=0)
    drawn.clear()
    assert env.step(np.zeros(2))[4]["env_steps"] == 3
    assert len(drawn) == 1


@pytest.mark.parametrize("task", ["reacher_easy", "toy_reach", "gym:KstepRooms-v0"])
def test_resets_without_a_seed_follow_the_seed_of_make(task: str, opened: Any) -> None:
    def starts(seed: int) -> list[Any]:
        env = opened(task, seed=seed, observation="state")
        return [env.reset()[0] for _ in range(3)]

    assert_same(starts(5), starts(5))
    assert (starts(5)[0] != starts(6)[0]).any()
    # The generator continues instead of starting over.
    assert (starts(5)[0] != starts(5)[1]).any()


def test_seeds_may_be_wide_or_numpy_integers(opened: Any) -> None:
    env = opened("reacher_easy", seed=2**62, observation="state")
    first = env.reset(seed=2**62 + 1)[0]
    assert (env.reset(seed=2**62 + 2)[0] != first).any()
    np.testing.assert_array_equal(env.reset(seed=np.int64(2**62 + 1))[0], first)


# Endings, repeats and shapes.

SHAPES = {
    "finger_spin": (2, 9, 500),
    "cartpole_swingup": (1, 5, 125),
    "reacher_easy": (2, 6, 250),
    "cheetah_run": (6, 17, 250),
    "walker_walk": (6, 24, 500),
    "ball_in_cup_catch": (2, 8, 250),
}


@pytest.mark.parametrize("task", PLANET)
def test_benchmark_tasks_have_the_papers_shapes(task: str, opened: Any) -> None:
    action_dim, state_dim, decisions = SHAPES[task]
    env = opened(task, observation="state")
    spec = spec_of(env)
    assert (spec.action_dim, spec.frame_shape) == (action_dim, (state_dim,))
    assert (spec.action_repeat, spec.episode_decisions) == (PLANET[task], decisions)
    assert env.reset(seed=0)[0].dtype == spec.frame_dtype == np.float32


@pytest.mark.parametrize("repeat", [8, 300])
def test_the_suites_time_limit_truncates_and_never_terminates(repeat: int, opened: Any) -> None:
    env = opened("cartpole_swingup", observation="state", action_repeat=repeat)
    env.reset(seed=0)
    env_steps = decisions = 0
    truncated = False
    while not truncated:
        _, _, terminated, truncated, info = env.step(np.zeros(1))
        assert not terminated
        env_steps += info["env_steps"]
        decisions += 1
    assert env_steps == 1000
    assert decisions == spec_of(env).episode_decisions
    # dm_control would silently begin another episode.
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(1))


def test_the_suites_discount_of_zero_terminates(opened: Any) -> None:
    env = opened("cartpole_swingup", observation="state")
    env.reset(seed=0)
    env._env.task.get_termination = lambda physics: 0.0
    _, _, terminated, truncated, info = env.step(np.zeros(1))
    assert (terminated, truncated, info["env_steps"]) == (True, False, 1)


def test_a_repeated_action_of_the_suite_earns_the_sum(opened: Any) -> None:
    once = opened("walker_walk", observation="state", action_repeat=1)
    twice = opened("walker_walk", observation="state", action_repeat=2)
    once.reset(seed=1)
    twice.reset(seed=1)
    action = np.full(6, 0.4, np.float32)
    rewards = [once.step(action)[1], once.step(action)[1]]
    state, reward, *_ = twice.step(action)
    assert reward == rewards[0] + rewards[1] != 0
    np.testing.assert_array_equal(state, once.current_frame())


def test_gymnasium_time_limits_truncate_and_its_ends_terminate(opened: Any) -> None:
    env = opened("gym:KstepRooms-v0", observation="state", action_repeat=3)
    env.reset(seed=0)
    assert spec_of(env).episode_decisions == 2
    _, reward, terminated, truncated, info = env.step(np.zeros(2))
    assert (reward, terminated, truncated, info["env_steps"]) == (6.0, False, False, 3)
    # The limit of 4 cuts the second action short.
    _, reward, terminated, truncated, info = env.step(np.zeros(2))
    assert (reward, terminated, truncated, info["env_steps"]) == (4.0, False, True, 1)


@pytest.mark.parametrize("task", ["cartpole_swingup", "toy_reach", "gym:KstepRooms-v0"])
def test_a_time_limit_truncates(task: str, opened: Any) -> None:
    env = opened(task, observation="state", time_limit=3, action_repeat=2)
    assert spec_of(env).episode_decisions == 2
    for seed in range(2):
        env.reset(seed=seed)
        action = np.zeros(env.action_space.shape)
        steps = [env.step(action)[2:] for _ in range(2)]
        assert steps == [(False, False, {"env_steps": 2}), (False, True, {"env_steps": 1})]


def test_a_time_limit_is_needed_and_must_have_an_effect(opened: Any) -> None:
    with pytest.raises(KstepError, match=r"gym:KstepEndless-v0 has no time limit.*env.time_limit"):
        make(EnvConfig("gym:KstepEndless-v0"), 0)
    assert spec_of(opened("gym:KstepEndless-v0", time_limit=9)).episode_decisions == 9
    # Gymnasium's limit is part of the registration, and gives way.
    assert spec_of(opened("gym:KstepRooms-v0", time_limit=9)).episode_decisions == 9
    with pytest.raises(KstepError, match=r"env.time_limit=1001 has no effect: cartpole_swingup"):
        make(EnvConfig("cartpole_swingup", "state", time_limit=1001), 0)


# Actions.


def test_actions_are_mapped_onto_the_true_bounds_and_clipped(opened: Any) -> None:
    env = opened("gym:KstepRooms-v0", observation="state")
    env.reset(seed=0)
    for action in ([-1.0, -1.0], [0.5, 0.0], [7.0, -7.0]):
        env.step(np.array(action, np.float32))
    taken = env._env.unwrapped.actions
    np.testing.assert_allclose(taken, [[-2.0, 0.0], [1.0, 2.5], [2.0, 0.0]])
    assert taken[0].dtype == np.float32


def test_actions_within_minus_one_and_one_reach_the_suite_unchanged(opened: Any) -> None:
    env = opened("walker_walk", observation="state", action_repeat=1)
    env.reset(seed=0)
    action = np.linspace(-0.93, 0.77, 6).astype(np.float32)
    env.step(action)
    np.testing.assert_array_equal(env._physics.control(), action.astype(np.float64))


@pytest.mark.parametrize("task", ["toy_reach", "reacher_easy", "gym:KstepRooms-v0"])
def test_bad_actions_are_refused_by_name(task: str, opened: Any) -> None:
    env = opened(task, observation="state")
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.zeros(2))
    env.reset(seed=0)
    with pytest.raises(KstepError, match=rf"{task}.*not finite"):
        env.step(np.array([0.0, np.nan]))
    with pytest.raises(KstepError, match=rf"{task} takes actions \(2,\), got \(3,\)"):
        env.step(np.zeros(3))
    env.step(np.zeros(2))


# Drawing.


@pytest.mark.usefixtures("_rendering")
def test_suite_frames_and_films(opened: Any) -> None:
    env = opened("cartpole_swingup", size=60)
    frame, _ = env.reset(seed=0)
    assert (frame.shape, frame.dtype) == ((60, 60, 3), np.uint8)
    assert frame.std() > 5
    assert spec_of(env).frame_shape == (60, 60, 3)
    # Beyond MuJoCo's buffer of 640 x 480, which changes nothing for the agent.
    film = env.film_frame(500, 700, camera=1)
    assert film.shape == (500, 700, 3)
    np.testing.assert_array_equal(env.current_frame(), frame)
    assert (env.film_frame(60, 60, camera=1) != frame).any()
    np.testing.assert_array_equal(env.film_frame(60, 60), frame)
    env.close()
    env.close()


@pytest.mark.usefixtures("_rendering")
def test_camera_is_the_configs_or_the_tasks(opened: Any) -> None:
    assert parse("quadruped_walk").camera == 2
    env = opened("cartpole_swingup", camera=1, size=40)
    frame, _ = env.reset(seed=0)
    np.testing.assert_array_equal(frame, env.film_frame(40, 40, camera=1))
    with pytest.raises(KstepError, match="cameras 0 to 1 and the free camera -1, not 9"):
        make(EnvConfig("cartpole_swingup", "state", camera=9), 0)


@pytest.mark.usefixtures("_rendering")
def test_a_process_that_never_closes_its_environments_ends_quietly() -> None:
    code = (
        "import sys\n"
        "from kstep.envs import EnvConfig, make\n"
        "env = make(EnvConfig('cartpole_swingup', size=32), 0)\n"
        "other = make(EnvConfig('reacher_easy', size=32), 0)\n"
        "sys.stdout.write(f'{env.reset(seed=0)[0].std() + other.reset(seed=0)[0].std() > 1}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("True", "", 0)


def test_gymnasium_images_are_observed_and_resized(opened: Any) -> None:
    observed = opened("gym:KstepImage-v0", size=20)
    frame, _ = observed.reset(seed=0)
    value = observed._env.unwrapped._see()[0, 0, 0]
    np.testing.assert_array_equal(frame, np.full((20, 30, 1), value))
    # Films come from the render, which shows another grey.
    film = observed.film_frame(33, 44)
    assert film.shape == (33, 44, 3)
    assert film[0, 0, 0] == observed._env.unwrapped.render()[0, 0, 0] != value
    rendered = opened("gym:KstepRooms-v0", size=84)
    assert rendered.reset(seed=0)[0].shape == (84, 84, 3)
    assert rendered.film_frame(30, 40).shape == (30, 40, 3)


def test_resizing_averages() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    image[:, ::2] = 200
    np.testing.assert_array_equal(resized(image, 2, 2), np.full((2, 2, 3), 100))


# Refusals.


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gym:Kstep_unbounded-v0", "without bounds"),
        ("gym:KstepBlind-v0", "shows no image.*rgb_array"),
        ("gym:KstepNothing-v0", "cannot be made"),
    ],
)
def test_unfit_gymnasium_environments_are_refused(name: str, message: str) -> None:
    with pytest.raises(KstepError, match=message):
        make(EnvConfig(name), 0)


def test_environments_that_misbehave_later_are_named(opened: Any) -> None:
    env = opened("gym:Kstep_nan-v0", observation="state")
    env.reset(seed=0)
    with pytest.raises(KstepError, match="gym:Kstep_nan-v0 gave a reward of nan"):
        env.step(np.zeros(2))
    env = opened("gym:Kstep_shape-v0", observation="state")
    env.reset(seed=0)
    with pytest.raises(KstepError, match=r"gym:Kstep_shape-v0 gave an observation \(7,\)"):
        env.step(np.zeros(2))
    with pytest.raises(KstepError, match=r"a rendered image \(50, 50, 3\) float32"):
        opened("gym:Kstep_render-v0")


def test_blind_environments_still_give_states_but_no_film(opened: Any) -> None:
    env = opened("gym:KstepBlind-v0", observation="state")
    assert env.reset(seed=0)[0].shape == (4,)
    with pytest.raises(KstepError, match="cannot be rendered"):
        env.film_frame(10, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_repeat": 0}, "action repeat"),
        ({"size": 0}, "1 pixel"),
        ({"observation": "sound"}, "pixels or state"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(KstepError, match=message):
        make(EnvConfig("toy_reach", **options), 0)


def test_spec_of_wants_our_own_environments() -> None:
    with pytest.raises(TypeError, match=r"kstep\.envs\.make"):
        spec_of(Rooms())


# Names.


def test_the_list_of_suite_tasks_is_the_installed_suites() -> None:
    gl_free = subprocess.run(
        [
            sys.executable,
            "-c",
            "from dm_control import suite\nprint(*(f'{d}/{t}' for d, t in suite.ALL_TASKS))",
        ],
        capture_output=True,
        text=True,
        env={"MUJOCO_GL": "disabled"},
        check=True,
    )
    ours = {f"{domain}/{task}" for domain, inner in tasks.SUITE.items() for task in inner}
    excluded = {"lqr/lqr_2_1", "lqr/lqr_6_2"}
    assert ours | excluded == set(gl_free.stdout.split())
    assert {name.replace("/", "_") for name in excluded} == set(tasks.EXCLUDED)


def test_every_listed_name_parses_to_itself() -> None:
    listed = names()
    assert len(set(listed)) == len(listed) == 83
    assert listed[:6] == tuple(PLANET)
    for name in listed:
        task = parse(name)
        assert task.name == name
        if task.kind == "suite":
            assert f"{task.domain}_{task.task}" == name
    assert parse("toy") == parse("toy_reach")


@pytest.mark.parametrize(
    ("name", "domain", "task", "repeat"),
    [
        ("ball_in_cup_catch", "ball_in_cup", "catch", 4),
        ("point_mass_easy", "point_mass", "easy", 2),
        ("humanoid_CMU_run", "humanoid_CMU", "run", 2),
        ("humanoid_run_pure_state", "humanoid", "run_pure_state", 2),
        ("cartpole_swingup", "cartpole", "swingup", 8),
        ("cartpole_swingup_sparse", "cartpole", "swingup_sparse", 2),
    ],
)
def test_names_with_underscores_are_cut_right(
    name: str, domain: str, task: str, repeat: int
) -> None:
    parsed = parse(name)
    assert (parsed.domain, parsed.task, parsed.action_repeat) == (domain, task, repeat)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("cartpole-swingup", "did you mean cartpole_swingup"),
        ("Walker Walk", "did you mean walker_walk"),
        ("humanoid_cmu_run", "did you mean humanoid_CMU_run"),
        ("toy_reech", "did you mean toy_reach"),
        ("qqq", "finger_spin, cartpole_swingup"),
        ("lqr_lqr_2_1", "cannot be used: its actions have no bounds"),
        ("gym:", "needs the id"),
    ],
)
def test_wrong_names_are_told_the_nearest_right_ones(wrong: str, hint: str) -> None:
    with pytest.raises(KstepError, match=hint):
        parse(wrong)
