"""An environment in a process of its own, so that stepping and rendering overlap with learning.

In the loop of this family the action is chosen before the update and the environment steps after
it, so the two may overlap without changing a bit of either. `RemoteEnv` looks like any other
environment; `begin_step` returns at once and `finish_step` waits.

A worker that dies (a driver crash, a kill) or can no longer render is replaced: the new one replays
the episode from its seed and actions, which ends in the same state, and the run continues as if
nothing had happened.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from kstep.envs.base import ControlEnv, RendererFailed
from kstep.errors import Fault
from kstep.types import Array, KstepError

RETRIES = 3
"""Workers in a row that may die during one request before the run is ended."""


class WorkerDied(Exception):
    """The worker process is gone, or can no longer render."""


class RemoteEnv(ControlEnv):
    """A proxy for an environment in a worker process."""

    def __init__(self, config: Any, seed: int) -> None:
        """`config` is an `EnvConfig`; what the environment refuses is raised here as well."""
        self._config, self._seed, self._name = config, seed, str(config.task)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Any = None
        self._episode_seed: int | None = None
        self._actions: list[Array] = []
        self._drawing = True
        self._start()
        vars(self).update(self._ask("describe"))

    @property
    def pid(self) -> int:
        """The worker's process id."""
        assert self._process is not None
        return self._process.pid

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        if seed is None:
            raise KstepError("an environment in a worker needs a seed for every episode")
        self._episode_seed, self._actions = int(seed), []
        return self._ask_again("reset", int(seed))  # type: ignore[no-any-return]

    def begin_step(self, action: Array) -> None:
        self._actions.append(action.copy())
        # A dead worker is noticed, and replaced, when the answer is read.
        with contextlib.suppress(WorkerDied):
            self._send("step", action)

    def finish_step(self) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        try:
            return self._receive()  # type: ignore[no-any-return]
        except WorkerDied:
            return self._revive()  # type: ignore[no-any-return]

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.begin_step(action)
        return self.finish_step()

    def set_rendering(self, enabled: bool) -> None:
        self._drawing = enabled
        self._ask_again("set_rendering", enabled)

    def current_frame(self) -> Array:
        return self._ask_again("current_frame")  # type: ignore[no-any-return]

    def film_frame(self, height: int = 240, width: int = 240, camera: int | None = None) -> Array:
        return self._ask_again("film_frame", height, width, camera)  # type: ignore[no-any-return]

    def decisions_per_second(self) -> float:
        return self._ask_again("decisions_per_second")  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._process is None:
            return
        self._connection.close()  # upon which the worker exits
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._connection.close()
        mine, theirs = socket.socketpair()
        # -P: nothing is imported from the current directory.
        command = [sys.executable, "-P", "-m", "kstep.envs.worker", str(theirs.fileno())]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        self._connection = Connection(mine.detach())
        # As in a step: a worker that has died by now is noticed when its answer is read.
        with contextlib.suppress(WorkerDied):
            self._send(self._config, self._seed)

    def _ask_again(self, *request: Any) -> Any:
        try:
            return self._ask(*request)
        except WorkerDied:
            self._revive()
            return self._ask(*request)

    def _revive(self) -> Any:
        """Replace a dead worker, replay the episode and return its last answer."""
        for _ in range(RETRIES):
            try:
                self._start()
                return self._replay()
            except WorkerDied as error:
                reason = f" ({error})" if str(error) else ""
        raise Fault(
            f"the process that simulates {self} died {RETRIES + 1} times in a row{reason}; "
            "`kstep doctor` tests rendering, and --overlap off steps in this process"
        )

    def _replay(self) -> Any:
        if self._episode_seed is None:
            return None
        requests = [("reset", self._episode_seed), *(("step", action) for action in self._actions)]
        self._ask("set_rendering", False)
        for request in requests[:-1]:
            self._ask(*request)
        self._ask("set_rendering", self._drawing)
        return self._ask(*requests[-1])

    def _ask(self, *request: Any) -> Any:
        self._send(*request)
        return self._receive()

    def _send(self, *request: Any) -> None:
        try:
            self._connection.send(request)
        except OSError as error:
            raise WorkerDied from error

    def _receive(self) -> Any:
        try:
            kind, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied from error
        if kind == "error":
            raise KstepError(answer)
        if kind == "useless":
            raise WorkerDied(answer)
        return answer

    def _by_the_worker(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    _begin = _simulate = _state = _draw = _by_the_worker


def serve(connection: Connection) -> None:
    """Make an environment and answer requests until the connection is closed."""
    from kstep import envs

    env: ControlEnv | None = None
    with contextlib.suppress(EOFError, OSError), contextlib.ExitStack() as stack:
        config, seed = connection.recv()
        while True:
            name, *arguments = connection.recv()
            try:
                if env is None:
                    env = stack.enter_context(contextlib.closing(envs.make(config, seed)))
                if name == "describe":
                    # What every environment has: observation, size, camera, spaces and so on.
                    answer: Any = {k: v for k, v in vars(env).items() if not k.startswith("_")}
                elif name == "reset":
                    answer = env.reset(seed=arguments[0])
                else:
                    answer = getattr(env, name)(*arguments)
                connection.send(("answer", answer))
            except RendererFailed as error:
                connection.send(("useless", str(error)))
            except KstepError as error:
                connection.send(("error", str(error)))


if __name__ == "__main__":
    # Ctrl-C reaches every process of a terminal; this one must not end before the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(Connection(int(sys.argv[1])))
