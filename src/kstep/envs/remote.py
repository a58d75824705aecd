"""An environment in a process of its own: it may step while this one learns, and be replaced.

In the loop of this family the action is chosen before the update and the environment steps after
it, so the two may overlap without changing a bit of either. `RemoteEnv` looks like any other
environment; `begin_step` returns at once and `finish_step` waits.

A process that dies (a driver crash, a kill), does not answer in time or can no longer render is
replaced: the new one replays the episode from its seed and actions, which ends in the same state,
and the run continues as if nothing had happened. worker.py is the other side.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import cloudpickle

from kstep.envs.base import ControlEnv
from kstep.errors import Fault
from kstep.types import Array, KstepError

T = TypeVar("T")

RETRIES = 3
"""Processes in a row that may be lost during one request before the run is ended."""
TIMEOUT = 300.0
"""Seconds that an environment may take to reset, to step or to render, unless set otherwise, and at
least to be made."""


class Lost(Exception):
    """The process of an environment is gone, does not answer, or can no longer render."""


@dataclass
class Opening:
    """What makes an environment, also in a new process."""

    maker: bytes
    lender: int | None = None
    """Whose rendering context it draws with."""


class Simulator:
    """A process that environments run in, and the one that takes its place."""

    def __init__(
        self,
        name: str,
        timeout: float,
        report: Callable[[str], None],
        opening: float = TIMEOUT,
    ) -> None:
        """`opening`: seconds that an environment may take to be made, if `timeout` is less."""
        self.name, self.timeout, self.report = name, timeout, report
        self.opening = opening
        self.replaced = 0
        """How many processes were lost so far."""
        self.openings: dict[int, Opening] = {}
        self._pending: deque[tuple[int, str]] = deque()
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, maker: bytes) -> tuple[int, dict[str, Any]]:
        """Make an environment; return its number and what it is like."""
        number = max(self.openings, default=-1) + 1
        try:
            described = self.insist(lambda: self.ask(number, "open", maker, None))
        except BaseException:
            self.close(number)
            raise
        self.openings[number] = Opening(maker)
        return number, described

    def lend(self, lender: int, number: int) -> None:
        """Let one environment draw with the rendering context of another."""
        self.openings[number].lender = lender
        self.insist(lambda: self.ask(number, "draw_with", lender))

    def ask(self, number: int, name: str, *arguments: Any) -> Any:
        self.send(number, name, *arguments)
        return self.receive(number)

    def send(self, number: int, name: str, *arguments: Any) -> None:
        try:
            self._connection.send((number, name, *arguments))
        except OSError as error:
            raise Lost(self._end()) from error
        self._pending.append((number, name))

    def receive(self, number: int) -> Any:
        """Return the answer to the oldest request, which must have been about this environment."""
        owner, name = self._pending[0]
        assert owner == number, f"{owner} was asked before {number}"
        seconds = max(self.timeout, self.opening) if name == "open" else self.timeout
        try:
            if not self._connection.poll(seconds):
                raise Lost(f"it did not answer {name}() within {seconds:g} s")
            kind, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise Lost(self._end()) from error
        self._pending.popleft()
        if kind == "answer":
            return answer
        if kind == "useless":
            raise Lost(answer)
        if kind == "bug":
            raise RuntimeError(f"in the process that simulates {self.name}:\n{answer}")
        raise (Fault if kind == "fault" else KstepError)(answer)

    def insist(self, request: Callable[[], T]) -> T:
        """Return what `request` returns, in a new process wherever one is lost."""
        for failures in range(RETRIES + 1):
            try:
                if failures:
                    self._replace()
                return request()
            except Lost as error:
                reason = str(error)
                if failures < RETRIES:
                    self.report(f"the process that simulates {self.name} is replaced: {reason}")
        raise Fault(
            f"the process that simulates {self.name} failed {RETRIES + 1} times in a row: "
            f"{reason}. `kstep doctor` tests rendering, and --overlap here steps it in this process"
        )

    def close(self, number: int) -> None:
        """Close one environment, and with the last of them the process."""
        self.openings.pop(number, None)
        if self.openings:
            with contextlib.suppress(OSError):
                self._connection.send((number, "close"))
            return
        self._connection.close()  # upon which the process ends
        try:
            # What owes an answer may hang, and would not notice.
            self._process.wait(timeout=0 if self._pending else 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        mine, theirs = socket.socketpair()
        # -P: nothing is imported from the current directory.
        command = [sys.executable, "-P", "-m", "kstep.envs.worker", str(theirs.fileno())]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), *importable()],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        self._connection = Connection(mine.detach())
        self._pending.clear()

    def _replace(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self.replaced += 1
        self._start()
        for number, opening in self.openings.items():
            self.ask(number, "open", opening.maker, opening.lender)

    def _end(self) -> str:
        """Return in words how the process ended."""
        try:
            code = self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        by = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return f"it was ended {by}"


class RemoteEnv(ControlEnv):
    """A proxy for an environment in another process."""

    def __init__(
        self,
        name: str,
        maker: Callable[[], ControlEnv],
        *,
        beside: ControlEnv | None = None,
        eager: bool = True,
        timeout: float = TIMEOUT,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """`maker` makes it over there; what that refuses is raised here as well.

        `beside`: in the process of that one. `eager`: steps begin when they are asked for, and not
        only when they are waited for. `report` is told of processes that are replaced.
        """
        self._name, self._eager = name, eager
        try:
            pickled = cloudpickle.dumps(maker)
        except Exception as error:  # whatever an environment's own classes raise
            raise KstepError(
                f"{name} cannot be sent to a process of its own ({error}); --overlap here steps it "
                "in this one"
            ) from error
        self._simulator: Simulator = (
            beside._simulator
            if isinstance(beside, RemoteEnv)
            else Simulator(name, timeout, report or _to_stderr)
        )
        self._episode_seed: int | None = None
        self._actions: list[Array] = []
        self._sent = self._closed = False
        self._drawing = True
        self._number, described = self._simulator.open(pickled)
        self._replaced = self._simulator.replaced
        vars(self).update(described)

    @property
    def pid(self) -> int:
        """The process id of the other side."""
        return self._simulator.pid

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        if seed is None:
            raise KstepError("an environment in a process of its own needs a seed for each episode")
        self._episode_seed, self._actions = int(seed), []
        return self._ask("reset", int(seed))  # type: ignore[no-any-return]

    def begin_step(self, action: Array) -> None:
        self._actions.append(action.copy())
        self._sent = False
        if self._eager:
            # A process that was lost is noticed, and replaced, when the answer is read.
            with contextlib.suppress(Lost):
                self._send_step()

    def finish_step(self) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        def outcome() -> Any:
            if self._replaced != self._simulator.replaced:
                return self._replay()
            if not self._sent:
                self._send_step()
            return self._simulator.receive(self._number)

        return self._simulator.insist(outcome)  # type: ignore[no-any-return]

    def _send_step(self) -> None:
        if self._replaced == self._simulator.replaced:
            self._simulator.send(self._number, "step", self._actions[-1])
            self._sent = True

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.begin_step(action)
        return self.finish_step()

    def set_rendering(self, enabled: bool) -> None:
        self._drawing = enabled
        self._ask("set_rendering", enabled)

    def current_frame(self) -> Array:
        return self._ask("current_frame")  # type: ignore[no-any-return]

    def film_frame(self, height: int = 240, width: int = 240, camera: int | None = None) -> Array:
        return self._ask("film_frame", height, width, camera)  # type: ignore[no-any-return]

    def quantities(self) -> dict[str, float]:
        return self._ask("quantities")  # type: ignore[no-any-return]

    def decisions_per_second(self) -> float:
        return self._ask("decisions_per_second")  # type: ignore[no-any-return]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._simulator.close(self._number)

    def draw_with(self, other: ControlEnv) -> None:
        assert isinstance(other, RemoteEnv)
        assert other._simulator is self._simulator
        self._simulator.lend(other._number, self._number)

    def _ask(self, name: str, *arguments: Any) -> Any:
        def answer() -> Any:
            if self._replaced != self._simulator.replaced:
                self._replay()
            return self._simulator.ask(self._number, name, *arguments)

        return self._simulator.insist(answer)

    def _replay(self) -> Any:
        """Bring a new process to where the episode is; return the last answer on the way."""
        answer, ask, number = None, self._simulator.ask, self._number
        if self._episode_seed is not None:
            steps = [("reset", self._episode_seed), *(("step", a) for a in self._actions)]
            ask(number, "set_rendering", False)
            for request in steps[:-1]:
                ask(number, *request)
            ask(number, "set_rendering", self._drawing)
            answer = ask(number, *steps[-1])
        self._replaced = self._simulator.replaced
        return answer

    def _over_there(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    _begin = _simulate = _state = _draw = _over_there


def importable() -> list[str]:
    """Return where modules can be imported from here, without the current directory, which Python
    adds by itself to `-m` and `-c`; the folder of a script that is being run stays."""
    main = sys.modules.get("__main__")
    script = getattr(main, "__file__", None) if getattr(main, "__spec__", None) is None else None
    chosen = os.path.dirname(os.path.abspath(script)) if script else None
    folders = [os.path.abspath(folder) for folder in sys.path if folder]
    return [folder for folder in folders if folder == chosen or folder != os.getcwd()]


def _to_stderr(text: str) -> None:
    print(f"kstep: {text}", file=sys.stderr)
