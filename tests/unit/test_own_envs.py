"""Environments of one's own: by name, by module, by file, as an object; and who may import what."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import kstep
from kstep import cli
from kstep.envs import EnvConfig, make, make_apart, own, parse, tasks
from kstep.envs.own import from_object, register_env
from kstep.run import trust
from kstep.run.folder import Run
from kstep.sweep import experiments
from kstep.sweep.plan import plan
from kstep.types import Array, KstepError

FILE = """
import pathlib
import gymnasium
import numpy as np

if MARK:
    with open(MARK, "a") as file:
        file.write("imported ")


class Arm(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (48, 48, 3), np.uint8)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shade = self.np_random.integers(100, dtype=np.uint8)
        return np.full((48, 48, 3), self.shade), {}

    def step(self, action):
        self.shade += 1
        return np.full((48, 48, 3), self.shade), float(action[0]), False, False, {}


gymnasium.register(f"{__name__}/Arm-v0", f"{__name__}:Arm", max_episode_steps=10)
"""


class Own(gymnasium.Env[Array, Any]):
    """In a module of the current folder, which no other process could import."""

    def __init__(self, size: int = 20) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.full(
            self.observation_space.shape or (), self.np_random.integers(99), np.uint8
        ), {}

    def step(self, action: Any) -> Any:
        return np.zeros(self.observation_space.shape or (), np.uint8), 1.0, False, False, {}


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing that a test registers, imports or allows stays."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setattr(own, "imported", [])
    monkeypatch.setattr(tasks, "OWN", set())
    known, modules = set(gymnasium.registry), set(sys.modules)
    yield
    for name in set(gymnasium.registry) - known:
        gymnasium.registry.pop(name)
    for name in set(sys.modules) - modules:
        if name.startswith("arm_"):
            del sys.modules[name]


def written(folder: Path, name: str) -> Path:
    """A file with an environment, which notes whenever it is imported."""
    mark = folder / f"{name}.mark"
    path = folder / f"{name}.py"
    path.write_text(FILE.replace("MARK", repr(str(mark))))
    return path


def shown(env: Any) -> Array:
    try:
        frame: Array = env.reset(seed=3)[0]
        return frame
    finally:
        env.close()


# From Python.


def test_a_registered_environment_has_a_short_name_here_and_in_another_process() -> None:
    task = register_env("own-one", Own, time_limit=7, size=24)
    assert task == "gym:own-one" == parse("own-one").name
    config = EnvConfig("own-one", size=24)
    frame = shown(make(config, 0))
    assert frame.shape == (24, 24, 3)
    np.testing.assert_array_equal(frame, shown(make_apart(config, 0)))
    register_env("own-one", lambda: Own(30), time_limit=7)  # again, as in a notebook
    assert shown(make(EnvConfig("own-one", resize="none"), 0)).shape == (30, 30, 3)


@pytest.mark.parametrize("name", ["", "a:b", "gym:x", "a b", "7up", "cartpole_swingup", "toy"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(KstepError, match=r"no name for an environment|already"):
        register_env(name, Own)
    assert name not in tasks.OWN


def test_objects_classes_and_functions_become_tasks() -> None:
    limited = gymnasium.wrappers.TimeLimit(Own(), 9)
    limited.unwrapped.seen = 5  # type: ignore[attr-defined]  # an object is taken as it is
    found = [
        from_object(Own, time_limit=7),
        from_object(lambda: Own(30), time_limit=7),
        from_object(limited, time_limit=9),
    ]
    assert found == ["gym:Own", "gym:lambda", "gym:Own"]
    env: Any = make(EnvConfig("gym:Own", resize="none"), 0)
    assert env._env.unwrapped.seen == 5
    frame = shown(env)
    np.testing.assert_array_equal(frame, shown(make_apart(EnvConfig("gym:Own", resize="none"), 0)))
    made = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    env = make(EnvConfig(from_object(made), "state"), 0)
    assert env.episode_decisions == 500
    env.close()


class Steered(Own):
    """The same with continuous actions."""

    def __init__(self, size: int = 20) -> None:
        super().__init__(size)
        self.action_space = gymnasium.spaces.Box(-2.0, 5.0, (1,))


class Sloppy(Steered):
    """Says that it can render, but takes no argument that asks it to."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012


SHORT: dict[str, Any] = {
    "preset": "debug",
    "env_steps": 20,
    "threads": 1,
    "settings": {"env.time_limit": 10, "evaluation.episodes": 1},
}


@pytest.mark.parametrize("given", [Steered, Steered(24), lambda: Sloppy(24)])
def test_an_environment_goes_straight_into_training(given: Any, tmp_path: Path) -> None:
    """A class, an object or a function; evaluating and loading know what it was."""
    run = kstep.train("sac_pixel", env=given, runs=tmp_path, **SHORT)
    assert run.experiment.env.task.startswith("gym:")
    assert kstep.evaluate(run, episodes=1).returns == (10.0,)
    frame = np.zeros((20 if given is Steered else 24,) * 2 + (3,), np.uint8)
    assert -2.0 <= float(kstep.load(run).act(frame)[0]) <= 5.0
    again = kstep.train("sac_pixel", env=given, runs=tmp_path, **SHORT)  # resumes: it is done
    assert again.folder == run.folder


def test_a_class_that_cannot_be_asked_to_render_is_not_asked() -> None:
    for made in (Sloppy, lambda: Sloppy()):
        env = make(EnvConfig(from_object(made, time_limit=5)), 0)
        assert str(env.sight) == "sees: observation, 20x20 -> 84x84, area resize"
        env.close()


@pytest.mark.parametrize("limit", [0, -3, 2.5, "ten"])
def test_a_time_limit_is_a_number_of_env_steps(limit: Any) -> None:
    with pytest.raises(KstepError, match="time_limit of 'limited' must be a whole number"):
        register_env("limited", Own, time_limit=limit)


def test_without_a_time_limit_it_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(KstepError, match=r"has no time limit.*env\.time_limit=1000"):
        kstep.train("sac_pixel", env=Steered, runs=tmp_path / "runs", preset="debug")
    assert not (tmp_path / "runs").exists()


def test_either_a_task_or_an_environment(tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="either a task, by its name, or env="):
        kstep.train("ksl", runs=tmp_path)
    with pytest.raises(KstepError, match="either a task, by its name, or env="):
        kstep.train("ksl", "toy", env=Own, runs=tmp_path)
    with pytest.raises(KstepError, match="an environment itself is given as env="):
        kstep.train("ksl", Own, runs=tmp_path)  # type: ignore[arg-type]


def test_python_remembers_imports_too(tmp_path: Path) -> None:
    path = written(tmp_path, "arm_python")
    run = kstep.train(
        "sac_pixel",
        "gym:arm_python/Arm-v0",
        imports=[str(path)],
        runs=tmp_path,
        **{**SHORT, "settings": {"evaluation.episodes": 1}},
    )
    assert Run.open(run.folder).imports == (str(path),)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(KstepError, match="7 is no environment"):
        from_object(7)
    unfit = Own()
    unfit.generator = (n for n in range(3))  # type: ignore[attr-defined]
    with pytest.raises(KstepError, match=r"Own cannot be copied.*give its class"):
        from_object(unfit)
    with pytest.raises(KstepError, match="gym:own-two raised TypeError"):
        make(EnvConfig(register_env("own-two", lambda: 7, time_limit=3)), 0)  # type: ignore[arg-type,return-value]


# By module.


def test_modules_and_files_are_imported_once_and_in_other_processes_too(tmp_path: Path) -> None:
    path = written(tmp_path, "arm_file")
    own.bring([str(path), str(path)])
    config = EnvConfig("gym:arm_file/Arm-v0", size=48)
    np.testing.assert_array_equal(shown(make(config, 0)), shown(make_apart(config, 0)))
    # Here, and in the process of the environment.
    assert (tmp_path / "arm_file.mark").read_text() == "imported imported "


def test_gymnasiums_own_form_imports_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "arm_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = EnvConfig("gym:arm_module:arm_module/Arm-v0", size=48)
    assert shown(make_apart(config, 0)).shape == (48, 48, 3)
    assert "arm_module" not in sys.modules
    assert shown(make(config, 0)).shape == (48, 48, 3)


@pytest.mark.parametrize("name", ["gym:a:b:c", "gym::b", "gym:a:", "gym:../a:b", "gym:a b:c"])
def test_other_forms_of_that_name_are_refused(name: str) -> None:
    with pytest.raises(KstepError, match="gym:<module>:<id>"):
        parse(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("arm_nowhere", "ModuleNotFoundError"),
        ("nowhere/arm.py", "no such file"),
        ("json.py", "no such file"),
    ],
)
def test_what_cannot_be_imported_is_named(name: str, why: str) -> None:
    with pytest.raises(KstepError, match=f"{name} cannot be imported.*{why}"):
        own.bring([name])
    assert own.imported == []


def test_a_file_must_not_stand_in_for_a_module(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit")
    with pytest.raises(KstepError, match="a module called json is there already"):
        own.bring([str(tmp_path / "json.py")])
    assert sys.modules["json"] is json
    (tmp_path / "arm_broken.py").write_text("raise SystemExit(3)")
    with pytest.raises(KstepError, match="SystemExit: 3"):
        own.bring([str(tmp_path / "arm_broken.py")])


def test_an_unknown_id_hints_at_the_flag() -> None:
    with pytest.raises(KstepError, match=r"gym:Nobodys-v0 cannot be made.*--import MODULE"):
        make(EnvConfig("gym:Nobodys-v0"), 0)


# Runs remember, and import nothing by themselves.

TINY = ["--preset", "debug", "--env-steps", "20", "--threads", "1"]


def test_a_run_finds_its_environment_again_but_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = written(tmp_path, "arm_owned"), tmp_path / "run"
    mark = tmp_path / "arm_owned.mark"
    task = "gym:arm_owned/Arm-v0"
    monkeypatch.chdir(tmp_path)  # as the user names it
    words = ["train", "sac_pixel", task, *TINY, "--folder", str(folder)]
    cli.main([*words, "--import", path.name])
    assert json.loads((folder / "config.json").read_text())["imports"] == [str(path)]
    monkeypatch.chdir("/")

    def forget() -> None:
        own.imported.clear()
        sys.modules.pop("arm_owned", None)
        gymnasium.registry.pop("arm_owned/Arm-v0", None)
        mark.unlink(missing_ok=True)

    # Its owner said so when training.
    forget()
    cli.main(["eval", str(folder), "--episodes", "1"])
    assert "sees: observation, 48x48" in capsys.readouterr().out
    forget()
    cli.main([*words[:-4], "--env-steps", "30", *words[-2:]])
    assert Run.open(folder).is_done(30)
    assert Run.open(folder).imports == (str(path),)

    # To anybody else it is a folder that asks for an import.
    forget()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "somebody"))
    for verb in (["eval"], ["film", "--output", str(tmp_path / "film.mp4")]):
        with pytest.raises(SystemExit) as stopped:
            cli.main([verb[0], str(folder), *verb[1:]])
        assert stopped.value.code == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"{path}' imported, which can execute anything" in said
        assert f"kstep trust {folder}" in said
    with pytest.raises(SystemExit):
        cli.main([*words[:-4], "--env-steps", "40", *words[-2:]])
    cli.main(["collect", str(tmp_path), "--output", str(tmp_path / "table.parquet")])
    assert not mark.exists()
    cli.main(["trust", str(folder)])
    assert not mark.exists()
    cli.main(["eval", str(folder), "--episodes", "1"])
    assert mark.exists()
    # Only the modules that were allowed, and only for that folder.
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "imports": ["arm_other"]}))
    with pytest.raises(KstepError, match="'arm_other'"):
        trust.require(Run.open(folder))
    (folder / "config.json").write_text(json.dumps(config))
    forget()
    folder.rename(tmp_path / "moved")
    with pytest.raises(KstepError, match="kstep trust"):
        trust.require(Run.open(tmp_path / "moved"))
    own.bring([str(path)])  # what the user names counts
    trust.require(Run.open(tmp_path / "moved"))


def test_a_task_that_names_a_module_asks_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    task = "gym:arm_named:arm_named/Arm-v0"
    run = Run(folder, cli_experiment(task))
    run.tree.make(folder)
    run.begin()
    with pytest.raises(KstepError, match="'arm_named' imported"):
        trust.require(Run.open(folder))
    assert trust.allow(run) == ("arm_named",)


def cli_experiment(task: str) -> Any:
    from kstep.config import resolve

    return resolve("sac_pixel", task, preset="debug")


@pytest.mark.parametrize("imports", [7, [7], ["a\x00b"], "arm", {"a": 1}])
def test_what_a_folder_says_to_import_is_checked(imports: Any, tmp_path: Path) -> None:
    run = Run(tmp_path / "run", cli_experiment("toy_reach"))
    run.tree.make(run.folder)
    run.begin()
    config = json.loads(run.config_file.read_text())
    run.config_file.write_text(json.dumps({**config, "imports": imports}))
    with pytest.raises(KstepError, match="imports"):
        Run.open(run.folder)


def test_a_sweep_tells_every_run(tmp_path: Path) -> None:
    sweep = experiments.read("main", "debug")
    specs = plan(sweep, tmp_path, tasks=["gym:Arm-v0"], seeds=[1], imports=("arms", "more.arms"))
    parsed: Any = cli.parsed(specs[0].arguments())
    assert parsed.imports == ("arms", "more.arms")
    assert parsed.task == "gym:Arm-v0"
