"""What Python code calls to train and to evaluate; the command line does the same.

Everything public is named in `kstep.__all__` and described in docs/api.md.
"""

from __future__ import annotations

import inspect
import io
import json
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any

from kstep import names
from kstep.envs import own
from kstep.errors import KstepError, Stopped
from kstep.run.callbacks import Callback, OnProgress, Progress
from kstep.run.evaluate import Evaluation, evaluation_seeds
from kstep.run.evaluate import evaluate as run_episodes
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.runtime import RunRequest, Runtime
from kstep.run.start import start
from kstep.terminal import Terminal
from kstep.values import decode, near


def train(
    method: str,
    task: str | None = None,
    *,
    env: Any = None,
    preset: str = "paper",
    seed: int = 1,
    env_steps: int | None = None,
    settings: Mapping[str, object] | None = None,
    imports: Sequence[str] = (),
    runs: str | Path = "runs",
    folder: str | Path | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    callbacks: Sequence[Callback] = (),
    **runtime: Any,
) -> Run:
    """Train an agent, as `kstep train` does, and return its run; the same call resumes it.

    `env` instead of a task: a Gymnasium environment, its class, or a function that makes one.
    `settings` changes any setting by its key, as `--set` does: `{"method.auxiliary.k": 5}`.
    `runtime` are the other flags of `kstep train`: `device`, `threads`, `checkpoint_minutes`, ...
    With `on_progress` nothing is printed: it is called instead, and lines go to the logger `kstep`.
    Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    names.check_method(method)
    own.bring(imports)
    request = decode(
        RunRequest,
        {
            "method": method,
            "task": task_of(task, env),
            "preset": preset,
            "seed": seed,
            "env_steps": env_steps,
            "set": overrides(settings),
            "runs": runs,
            "folder": folder,
            "imports": list(imports),
        },
    )
    known = [field.name for field in fields(Runtime)]
    for name in runtime:
        if name not in known:
            hint = near(name, [*known, *inspect.signature(train).parameters])
            raise TypeError(f"train() got an unexpected keyword argument '{name}'.{hint}")
    flags = decode(Runtime, runtime)
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise KstepError(f"callbacks must be instances of kstep.Callback, not {callback!r}")
    told, console = list(callbacks), None
    if on_progress is not None:
        told.append(OnProgress(on_progress))
        console = Terminal(file=_Logged())
    try:
        return start(request, flags, console, told)
    except Stopped as stopped:
        if stopped.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt(str(stopped)) from None
        raise


def evaluate(
    run: Run | str | Path, *, episodes: int = 10, seed: int = 0, device: str = "cpu"
) -> Evaluation:
    """Run greedy episodes of a run's newest checkpoint, as `kstep eval` does."""
    if not isinstance(episodes, Integral) or episodes < 1:
        raise KstepError(f"episodes must be a whole number of at least 1, not {episodes!r}")
    with opened(folder_of(run), device, lanes=episodes) as (agent, lanes, _):
        return run_episodes(agent, lanes, evaluation_seeds(seed, -1, episodes))


def task_of(task: str | None, env: Any) -> str:
    """Return the task of a name, or of an environment that is given as it is."""
    if (task is None) == (env is None):
        raise KstepError("needed is either a task, by its name, or env=, an environment")
    if task is None:
        return own.from_object(env)
    if not isinstance(task, str):
        raise KstepError(f"a task is a name, not {task!r}; an environment itself is given as env=")
    return task


def folder_of(run: Run | str | Path) -> Path:
    """Return the folder of a run that is given as itself or by its folder."""
    return run.folder if isinstance(run, Run) else Path(run)


def overrides(settings: Mapping[str, object] | None) -> list[str]:
    """Return settings as they would be written after `--set`."""
    return [f"{key}={_text(key, value)}" for key, value in (settings or {}).items()]


def _text(key: str, value: object) -> str:
    """Return a setting as it would be written after `--set`."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except TypeError:
        raise KstepError(
            f"settings['{key}'] must be a number, a text, true or false, or a list, not {value!r}"
        ) from None


class _Logged(io.StringIO):
    """A file whose lines go to the logger `kstep`."""

    def write(self, text: str) -> int:
        for line in filter(None, map(str.strip, text.splitlines())):
            level = logging.WARNING if line.startswith("warning") else logging.INFO
            logging.getLogger("kstep").log(level, line)
        return len(text)
