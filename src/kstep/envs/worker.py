"""The process that environments run in: makes them, answers requests, ends with its parent.

    python -P -m kstep.envs.worker FILE_DESCRIPTOR PARENT [FOLDER...]

remote.py is the other side. A request is (number, name, *arguments), about the environment of that
number; an answer is (kind, value). Whatever an environment does to the process it runs in (its
signals, its random generators, its working directory, its end) it does here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from kstep.envs.base import ControlEnv, RendererFailed
from kstep.errors import KstepError, explain

PR_SET_PDEATHSIG = 1


class Environments:
    """The environments of this process, by number."""

    def __init__(self) -> None:
        self._envs: dict[int, ControlEnv] = {}

    def answer(self, number: int, name: str, arguments: list[Any]) -> Any:
        if name == "open":
            return self._open(number, *arguments)
        env = self._envs[number]
        if name == "reset":
            return env.reset(seed=arguments[0])
        if name == "draw_with":
            arguments = [self._envs[arguments[0]]]
        return getattr(env, name)(*arguments)

    def _open(self, number: int, maker: bytes, lender: int | None) -> dict[str, Any]:
        """Make an environment; return what every one has: observation, size, spaces and so on."""
        try:
            make: Callable[[], ControlEnv] = cloudpickle.loads(maker)
        except (ImportError, AttributeError) as error:
            raise KstepError(
                f"what makes the environment cannot be imported in a process of its own ({error}): "
                "put its folder on PYTHONPATH, or use --overlap here"
            ) from error
        env = self._envs[number] = make()
        if lender is not None:
            env.draw_with(self._envs[lender])
        return {name: value for name, value in vars(env).items() if not name.startswith("_")}

    def name_of(self, number: int) -> str:
        return str(self._envs.get(number, "the environment"))

    def close(self, number: int) -> None:
        if number in self._envs:
            self._envs.pop(number).close()

    def close_all(self) -> None:
        """In reverse order: who lends a rendering context is closed last."""
        for number in reversed(self._envs.copy()):
            self.close(number)


def serve(connection: Connection) -> None:
    """Answer requests until the connection is closed."""
    environments = Environments()
    with contextlib.suppress(EOFError, OSError):
        try:
            while True:
                number, name, *arguments = connection.recv()
                if name == "close":  # the only request without an answer
                    environments.close(number)
                else:
                    connection.send(_answer(environments, number, name, arguments))
        finally:
            environments.close_all()


def _answer(
    environments: Environments, number: int, name: str, arguments: list[Any]
) -> tuple[str, Any]:
    try:
        return "answer", environments.answer(number, name, arguments)
    except RendererFailed as error:
        return "useless", str(error)
    except KstepError as error:
        return "refused", str(error)
    except KeyboardInterrupt:  # the environment's own: this process ignores the signal
        return "refused", f"{environments.name_of(number)} raised KeyboardInterrupt in {name}()"
    except Exception as error:
        # The system's fault, such as no memory, or a mistake, which a traceback helps to find.
        sentence = explain(error)
        return ("fault", sentence) if sentence else ("bug", traceback.format_exc())


def die_with(parent: int) -> None:
    """Ask the kernel to end this process with its parent, even if an environment hangs. Linux
    only; elsewhere the closed connection ends it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was asked
            sys.exit()


if __name__ == "__main__":
    # Ctrl-C reaches every process of a terminal, and job schedulers send SIGTERM to every process
    # of a job; this one must not end before the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with(int(sys.argv[2]))
    # Last, so that nothing in them stands in for what is installed.
    sys.path += [folder for folder in sys.argv[3:] if folder not in sys.path]
    connection = Connection(int(sys.argv[1]))
    serve(connection)
    # At once: threads that an environment has started may never end.
    sys.stdout.flush()
    os._exit(0)
