"""Commands that are killed at a chosen point, in children of a process that has done all imports.

`Forked` is for tests. It starts this module as a process, which forks for every command: a run
begins in a fraction of a second instead of several, so that hundreds can be killed. A child runs
`kstep` itself; a hook of the interpreter (`sys.addaudithook`) counts its file-system events, and at
the chosen one the system kills it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.flock")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Kill:
    """When a command is killed, and how."""

    kind: Literal["event", "write", "evaluation", "instant", "worker"]
    """event: before a file-system event. write: inside the first write after it that makes a file
    longer than `amount` bytes. evaluation: at a call inside an evaluation. instant: `amount`
    seconds after the lock was asked for. worker: at an event, but the environment's process."""
    number: int = 1
    amount: float = 0


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Negative: the signal that killed it."""
    output: str
    outside: tuple[str, ...]
    """What it opened for writing or changed elsewhere, by absolute path."""

    @property
    def killed(self) -> bool:
        return self.code in (-signal.SIGKILL, -signal.SIGXFSZ)


class Forked:
    """Runs commands, one at a time."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for the files in which output is collected."""
        self._output, self._report = folder / "output", folder / "report"
        command = [sys.executable, "-m", "tests.faults.forked"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def __call__(self, arguments: Sequence[str], root: Path, kill: Kill | None = None) -> Ended:
        """Run `kstep` with these arguments in a folder `root`, below which it may write."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "arguments": [*arguments],
            "root": str(root),
            "kill": kill and asdict(kill),
            "output": str(self._output),
            "report": str(self._report),
        }
        print(json.dumps(request), file=self._process.stdin, flush=True)
        code = int(self._process.stdout.readline())
        outside = tuple(self._report.read_text().splitlines())
        return Ended(code, self._output.read_text(errors="replace"), outside)

    def close(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def forking(folder: Path) -> Iterator[Forked]:
    forked = Forked(folder)
    try:
        yield forked
    finally:
        forked.close()


def serve() -> None:
    """Answer every line, a command to run, with the exit code of a child that has run it."""

    import torch._dynamo  # noqa: F401  what PyTorch imports with the first optimizer takes a second

    from kstep import cli as cli
    from kstep.envs import remote as remote
    from kstep.run import start as start

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(
    arguments: list[str], root: str, kill: dict[str, Any] | None, output: str, report: str
) -> NoReturn:
    for path, descriptors in ((output, (1, 2)), (os.devnull, (0,))):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in descriptors:
            os.dup2(opened, descriptor)
    os.chdir(root)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _Watch(root, Kill(**kill) if kill else None, os.open(report, WRITING, 0o600))
    sys.argv = ["kstep", *arguments]
    code = 1
    try:
        from kstep.__main__ import main

        main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _Watch:
    """Counts what a process does, kills it in time and reports writes outside `root`."""

    def __init__(self, root: str, kill: Kill | None, report: int) -> None:
        self._root, self._kill, self._report = root, kill, report
        self._events = self._calls = 0
        self._evaluating = False
        self._fsync = os.fsync
        os.fsync = self._counted_fsync
        if kill is not None and kill.kind == "evaluation":
            sys.setprofile(self._profile)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not (flags or 0) & WRITING or path == os.devnull:
                return
        elif event not in CHANGES:
            return
        for path in arguments[:2]:
            # Names relative to a descriptor are those of a folder that was opened: see `Tree`.
            if isinstance(path, str | bytes | os.PathLike) and os.path.isabs(path):
                place = os.path.realpath(os.fsdecode(path))
                if not place.startswith(self._root + os.sep):
                    os.write(self._report, f"{event} {place}\n".encode())
        self._happens(event)

    def _counted_fsync(self, fd: Any) -> None:
        self._happens("fsync")
        self._fsync(fd)

    def _happens(self, event: str) -> None:
        self._events += 1
        kill = self._kill
        if kill is None:
            return
        if kill.kind == "instant" and event == "fcntl.flock":
            timer = threading.Timer(kill.amount, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        if self._events != kill.number:
            return
        if kill.kind == "event":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kill.kind == "write":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(kill.amount), int(kill.amount)))
        elif kill.kind == "worker":
            _kill_workers()

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Count the calls inside evaluations."""
        code = frame.f_code
        if code.co_name == "evaluate" and code.co_filename.endswith("run/evaluate.py"):
            self._evaluating = event != "return"
        elif self._evaluating and event == "call":
            self._calls += 1
            if self._kill is not None and self._calls == self._kill.number:
                os.kill(os.getpid(), signal.SIGKILL)


def _kill_workers() -> None:
    import psutil

    for process in psutil.Process().children():
        if "kstep.envs.worker" in process.cmdline():
            process.kill()


if __name__ == "__main__":
    serve()
