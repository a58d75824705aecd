"""Environments of one's own: registered from Python, by a module, or handed over as they are.

    kstep.register_env("arm", make_arm, time_limit=200)     then: kstep train ksl arm
    kstep train ksl gym:Arm-v0 --import my_package          whose import registers Arm-v0
    kstep train ksl gym:my_package:Arm-v0                   the same, as Gymnasium has it

All three end in Gymnasium's registry. A process that steps environments imports what this one has
imported, so that whatever is known here is known there.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kstep.envs import tasks
from kstep.types import KstepError

if TYPE_CHECKING:
    import gymnasium

imported: list[str] = []
"""What `bring` has imported in this process, in order: modules and files."""


def bring(modules: Sequence[str]) -> None:
    """Import modules, or files that end in .py, for what they register."""
    for name in absolute(modules):
        if name in imported:
            continue
        try:
            if name.endswith(".py"):
                _run_file(Path(name))
            else:
                importlib.import_module(name)
        except KstepError:
            raise
        except (Exception, SystemExit) as error:
            raise KstepError(
                f"{name} cannot be imported: {type(error).__name__}: {error}. A module must be "
                "installed or its folder on PYTHONPATH; a file is given as path/to/it.py"
            ) from error
        imported.append(name)


def _run_file(path: Path) -> None:
    """Import a file as the module of its name."""
    name = path.stem
    if not path.is_file():
        raise KstepError(f"{path} cannot be imported: there is no such file")
    if name in sys.modules:
        raise KstepError(f"{path} cannot be imported: a module called {name} is there already")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def absolute(modules: Sequence[str]) -> tuple[str, ...]:
    """Return modules as they can be imported from anywhere: files by their full path."""
    return tuple(str(Path(m).absolute()) if m.endswith(".py") else m for m in modules)


def module_of(task: str) -> str:
    """Return the module that a task's own name says to import; empty if it says none."""
    module, colon, _ = task.removeprefix(tasks.GYM).partition(":")
    return module if colon and task.startswith(tasks.GYM) else ""


def register_env(
    name: str,
    make: Callable[..., gymnasium.Env[Any, Any]],
    *,
    time_limit: int | None = None,
    **options: Any,
) -> str:
    """Register an environment of your own under a short name; return the name of its task.

    `make` returns a Gymnasium environment: its class, or a function; it is called with `options`,
    and a class that can draw also with `render_mode="rgb_array"`. `time_limit` ends its episodes,
    in env steps. In other processes (sweeps, `kstep eval`), the module that registers it is named
    with `--import`.
    """
    import gymnasium

    if re.fullmatch(r"[A-Za-z][\w.-]{0,80}", name) is None:
        raise KstepError(f"{name!r} is no name for an environment: letters, digits, '_', '.', '-'")
    if name in tasks.names() or name == "toy":
        raise KstepError(f"{name!r} is a task of kstep already; choose another name")
    if not callable(make):
        raise KstepError(f"what makes {name!r} must be a class or a function, not {make!r}")
    if time_limit is not None and not (isinstance(time_limit, Integral) and time_limit >= 1):
        raise KstepError(
            f"time_limit of {name!r} must be a whole number of env steps, at least 1, not "
            f"{time_limit!r}"
        )
    _let_travel(make)
    gymnasium.registry.pop(name, None)  # in a notebook it is registered again and again
    gymnasium.register(name, make, max_episode_steps=time_limit, kwargs=options)
    tasks.OWN.add(name)
    return f"{tasks.GYM}{name}"


def from_object(env: Any, *, time_limit: int | None = None) -> str:
    """Register an environment object, a class or a function that makes one; return its task.

    Every environment that a run needs (training, evaluation) is a copy of an object as it is now.
    """
    import cloudpickle
    import gymnasium

    if not isinstance(env, gymnasium.Env):
        if not callable(env):
            raise KstepError(
                f"{env!r} is no environment: needed is a gymnasium.Env, its class, or a function "
                "that makes one"
            )
        name = getattr(env, "__name__", type(env).__name__)
        return register_env(_plain(name), env, time_limit=time_limit)
    name = type(env.unwrapped).__name__
    _let_travel(type(env.unwrapped))
    try:
        copy = cloudpickle.dumps(env)
    except Exception as error:  # whatever an environment's own classes raise
        raise KstepError(
            f"a {name} cannot be copied ({error}): give its class or a function that makes it"
        ) from error
    if time_limit is None and env.spec is not None:
        time_limit = env.spec.max_episode_steps
    return register_env(_plain(name), _Copies(copy), time_limit=time_limit)


def _let_travel(made_by: Any) -> None:
    """Let what is defined in a module of the current folder travel to other processes as it is:
    they import nothing from there."""
    import cloudpickle

    from kstep.envs.remote import importable

    module = sys.modules.get(getattr(made_by, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    if module is not None and file is not None and module.__name__ != "__main__":
        path = Path(file).absolute()
        if not any(path.is_relative_to(folder) for folder in importable()):
            cloudpickle.register_pickle_by_value(module)


class _Copies:
    """Makes copies of one environment."""

    def __init__(self, pickled: bytes) -> None:
        self.pickled = pickled

    def __call__(self) -> Any:
        import cloudpickle

        return cloudpickle.loads(self.pickled)


def _plain(name: str) -> str:
    """Return a class's or a function's name as that of an environment: `<lambda>` has others."""
    return re.sub(r"\W", "", name) or "environment"
