"""A run folder: the one place that knows its layout, its lock, its logs and how far it is.

config.json         the experiment and its digest; what computes the encoder's convolutions;
                    what the environment turned out to be
system.json         versions, processor, rendering, commit: where it was computed
evaluations.jsonl   one line per evaluation, every episode's return
metrics.jsonl       one line per logged update
clock.jsonl         how long it took, one line per evaluation and checkpoint
checkpoints/        the last two, each a folder
replay/             frames in segments, shared by the checkpoints
encoders/           encoders over training, where asked for
policies/           policies over training, where asked for
frozen_encoder.safetensors   the encoder of another run, where this one uses it without training
tensorboard/        events, where asked for
wandb/              what Weights & Biases keeps, where asked for
lock                held, and with the writer's process number in it, while the run is written

Beside the folder, written by sweeps: `<name>.log` and `<name>.attempts.jsonl`. All of it is written
through a `Tree`, which follows no link; names of what is incomplete end in `.part`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias, get_args

import annotated_types as at
import numpy as np

from kstep import reading, zoo
from kstep.config import Experiment, digest, setting
from kstep.envs.actions import Actions, BoxActions
from kstep.envs.sight import Sight
from kstep.errors import Busy, KstepError
from kstep.files import Tree, part_of, refuse_special
from kstep.native import Backend
from kstep.reading import json_lines, last_json_line
from kstep.run import legacy
from kstep.types import EnvSpec
from kstep.values import Count, decode, difference, encode

FORMAT = 2
"""Of config.json. The first, which did not say so, is read by legacy.py."""

LogName: TypeAlias = Literal["metrics", "evaluations"]
LOGS: tuple[LogName, ...] = get_args(LogName)

Module = Annotated[str, at.MaxLen(4096), at.Predicate(str.isprintable)]
"""A module's name, or a file's path."""

LARGEST_RETURN = 1e50
"""Rewards fit single precision, so no return is larger; squares of these still fit double
precision, in which statistics are computed."""
Return = Annotated[float, at.Ge(-LARGEST_RETURN), at.Le(LARGEST_RETURN)]


@dataclass(frozen=True)
class Evaluated:
    """A line of evaluations.jsonl."""

    mark: Count
    """The env_steps it was due at."""
    env_steps: Count
    decisions: Count
    updates: Count
    episodes: Count
    returns: Annotated[tuple[Return, ...], at.MinLen(1)]
    """One per evaluation episode."""
    lengths: tuple[Count, ...]
    """Decisions per episode."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True)
class Attempt:
    """A line of an attempts.jsonl: what a sweep recorded of one attempt at a run."""

    started: str
    seconds: Annotated[float, at.Ge(0.0)]
    threads: Count
    device: str
    node: str
    decisions: Count
    outcome: Literal["done", "failed", "stopped", "busy"]
    code: int
    error: str
    """The end of its output, traceback included, if it failed."""


LARGEST_FRAME = 1 << 28
"""Numbers in one frame; such an image would have 9,000 pixels a side."""


@dataclass(frozen=True)
class Environment:
    """What the environment of a run turned out to be: all that its policy needs to act."""

    spec: EnvSpec
    actions: Actions
    sight: Sight

    def __post_init__(self) -> None:
        spec, actions, shape = self.spec, self.actions, self.sight.shape
        fits = spec.frame_shape == shape and math.prod(shape) <= LARGEST_FRAME
        if isinstance(actions, BoxActions):
            sizes = {len(actions.low), len(actions.high), math.prod(actions.shape)}
            fits = fits and sizes == {spec.action_dim}
            fits = fits and actions.dtype in ("float16", "float32", "float64")
        if not fits or actions.dim != spec.action_dim or actions.kind != spec.actions:
            raise KstepError("the sizes of frames and actions do not agree with each other")


class RunFolder:
    """Where a run keeps everything it writes, whatever the run is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config_file = folder / "config.json"
        self.system_file = folder / "system.json"
        self.evaluations_file = self.log("evaluations")
        self.metrics_file = self.log("metrics")
        self.clock_file = folder / "clock.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.replay = folder / "replay"
        self.encoders = folder / "encoders"
        self.policies = folder / "policies"
        self.policy_file = folder / "policy.safetensors"
        self.frozen_encoder = folder / "frozen_encoder.safetensors"
        self.tensorboard = folder / "tensorboard"
        self.wandb = folder / "wandb"
        self.lock_file = folder / "lock"
        # Beside the folder, which must be empty until the run itself begins.
        self.log_file = folder.with_name(f"{folder.name}.log")
        self.attempts_file = folder.with_name(f"{folder.name}.attempts.jsonl")
        self.tree, self._beside = Tree(folder), Tree(folder.parent)

    @contextmanager
    def locked(self, *note: str) -> Iterator[None]:
        """Keep every other process from writing this run, whose folder is made if it is missing.
        The system frees the lock of the dead. The lock file has the process and the note, a word
        per line."""
        self.tree.make(self.folder)
        with self.tree.open(self.lock_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                writer = [*self.lock_note(), "?"][0]
                raise Busy(f"{self.folder} is being written by process {writer}") from None
            if not _leads_to(self.lock_file, file):
                raise Busy(f"{self.folder} was replaced while it was being locked")
            file.truncate(0)
            file.write("\n".join([str(os.getpid()), *note]).encode())
            file.flush()
            yield

    def lock_note(self) -> list[str]:
        """Return the words in the lock file: a process, perhaps one that is gone, and its note."""
        try:
            return reading.contents(self.lock_file, 200).decode(errors="replace").split()
        except KstepError:
            return []

    def is_locked(self) -> bool:
        """Whether a process is writing this run, on this machine or on another sharing the disk."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.lock_file, flags)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def refuse_special(self) -> None:
        """Refuse links, pipes and devices in place of what a run writes, before it is written or
        read. The folder itself may be reached through links."""
        for path in self._files():
            refuse_special(path)
            refuse_special(part_of(path))
        for path in (*self._folders(), self.tensorboard, self.wandb):
            refuse_special(path)
        inside = ("checkpoints/[0-9]*", "checkpoints/[0-9]*/*", "replay/*frames*")
        for pattern in (*inside, "encoders/[0-9]*", "policies/[0-9]*", "tensorboard/*"):
            for path in self.folder.glob(pattern):
                refuse_special(path)

    def incomplete(self) -> list[Path]:
        """Return what was being written, or removed, when a process was killed."""
        parts = [path for path in map(part_of, self._files()) if path.is_file()]
        for folder in self._folders():
            parts += folder.glob("*.part")
        return parts

    def _files(self) -> list[Path]:
        written = [self.config_file, self.system_file, self.frozen_encoder, self.lock_file]
        written.append(self.clock_file)
        return written + [self.log(name) for name in LOGS]

    def _folders(self) -> list[Path]:
        return [self.checkpoints, self.replay, self.encoders, self.policies]

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def evaluations(self) -> list[Evaluated]:
        """Return every evaluation so far, oldest first."""
        return list(json_lines(self.evaluations_file, Evaluated))

    def logged(self) -> Iterator[dict[str, float]]:
        """Yield every logged update so far, by the names of its values."""
        return json_lines(self.metrics_file, dict[str, float])

    def checkpoint_folders(self) -> list[Path]:
        """Return every complete checkpoint, oldest first."""
        found = [path.parent for path in self.checkpoints.glob("[0-9]*/state.json")]
        named = [path for path in found if checkpoint_age(path.name)]
        return sorted(named, key=lambda path: checkpoint_age(path.name))

    def checkpointed(self) -> int:
        """Return the decisions of the newest checkpoint, by its name; -1 if there is none."""
        try:
            names = os.listdir(self.checkpoints)
        except (FileNotFoundError, NotADirectoryError):
            return -1
        return max((age[0] for name in names if (age := checkpoint_age(name))), default=-1)

    def saved_encoders(self) -> list[Path]:
        """Return the encoders saved during training, oldest first."""
        return _marked(self.encoders)

    def saved_policies(self) -> list[Path]:
        """Return the policies saved during training, oldest first."""
        return _marked(self.policies)

    def reached(self) -> int:
        """Return the env_steps of the newest evaluation or logged update, whichever is further."""
        evaluated = last_json_line(self.evaluations_file, Evaluated)
        logged = last_json_line(self.metrics_file, dict[str, float]) or {}
        return max(evaluated.env_steps if evaluated else 0, int(logged.get("env_steps", 0.0)))

    def is_done(self, env_steps: int) -> bool:
        """Whether the run is at this budget: it ends with an evaluation and a checkpoint of the
        same moment."""
        last = last_json_line(self.evaluations_file, Evaluated)
        if last is None or last.env_steps < env_steps:
            return False
        return self.checkpointed() == last.decisions

    def identity(self) -> str | None:
        """Return the digest of the experiment in the folder: None without one, empty if unknown."""
        try:
            data = reading.json_file(self.config_file)
            if data.get("format") == FORMAT:
                return str(data.get("digest"))
            return digest(_experiment(data))
        except reading.Missing:
            return None
        except KstepError:
            return ""

    def open_log(self) -> BinaryIO:
        """Open the file that a sweep collects a run's output in, to append to it."""
        return self._beside.open(self.log_file)

    def record_attempt(self, attempt: Attempt) -> None:
        """Add a line to what a sweep records of its attempts."""
        self._beside.append_line(self.attempts_file, json.dumps(encode(attempt)))

    def attempts(self, *, strict: bool = False) -> list[Attempt]:
        """Return what a sweep recorded of every attempt: when, how long, how it ended. What is not
        such a record is left out, or refused if `strict`."""
        return list(json_lines(self.attempts_file, Attempt, strict=strict))

    def last_problem(self) -> str:
        """Return the last line of the newest attempt's error; empty if it was stopped or ended."""
        last = last_json_line(self.attempts_file, Attempt)
        if last is None or last.outcome != "failed":
            return ""
        lines = [line for line in last.error.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {last.code}"


class Run(RunFolder):
    """A run folder and the experiment that belongs in it."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        encoder_backend: Backend | None = None,
        written_digest: str | None = None,
        imports: tuple[str, ...] = (),
        environment: Environment | None = None,
    ) -> None:
        super().__init__(folder)
        self.experiment = experiment
        self.encoder_backend = encoder_backend
        """What computes the encoder's convolutions: settled when the run first starts, then kept,
        since it decides the last bits. None before that."""
        self.imports = imports
        """Modules that register its environment; trust.py says when they may be imported."""
        self.environment = environment
        """None before the run first starts, and in runs from before it was stored."""
        self.digest = digest(experiment)
        self.written_digest = written_digest or self.digest
        """What identifies the experiment in the folder's files: another one in runs of format 1."""

    @property
    def is_legacy(self) -> bool:
        """Whether an earlier version wrote the folder: it can be read, but not resumed."""
        return self.written_digest != self.digest

    @staticmethod
    def default_folder(root: Path, experiment: Experiment, overridden: bool) -> Path:
        """Where a run lives unless told otherwise; overridden settings get a place of their own."""
        name, seed = f"{experiment.method.name}-{experiment.preset}", f"seed{experiment.seed}"
        below = root / experiment.env.task.replace(":", "-").replace("/", "-")
        if not overridden:
            return below / name / seed
        folder, earlier = (
            below / f"{name}-{found[:6]}" / seed
            for found in (setting(experiment), digest(experiment))
        )
        # Folders had the seed in their digest once; a run that was begun so is continued there.
        return earlier if earlier.exists() else folder

    @classmethod
    def prepare(cls, folder: Path, experiment: Experiment) -> Run:
        """Accept a folder that is free or holds the same experiment; writes nothing yet."""
        RunFolder(folder).refuse_special()
        if not (folder / "config.json").exists():
            if folder.exists() and not _only_begun(folder):
                raise KstepError(f"{folder} exists, is not empty and is not a run of kstep")
            return cls(folder, experiment)
        present = cls.open(folder)
        if present.digest != digest(experiment):
            raise KstepError(_other_experiment(present, experiment))
        known = (present.encoder_backend, present.written_digest, present.imports)
        return cls(folder, experiment, *known, present.environment)

    def begin(self) -> None:
        """Write down which experiment the folder holds, once it is locked and looked at."""
        about: dict[str, Any] = {"format": FORMAT, "digest": self.digest}
        about |= {"encoder_backend": self.encoder_backend, "environment": encode(self.environment)}
        about |= {"imports": list(self.imports)} if self.imports else {}
        about |= {"experiment": encode(self.experiment)}
        self.tree.write_json(self.config_file, about)
        for path in (self.checkpoints, self.replay):
            self.tree.make(path)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open a run that exists, or an agent that comes with the package (`zoo:NAME`)."""
        folder = zoo.located(folder)
        path = folder / "config.json"
        try:
            data = reading.json_file(path)
        except reading.Missing as error:
            raise KstepError(f"{folder} is not a run: it has no config.json") from error
        with reading.naming(path):
            # Runs from before there was a choice were computed by PyTorch.
            backend = decode(
                Backend | None, data.get("encoder_backend", "torch"), "encoder_backend"
            )
            written = decode(str | None, data.get("digest"), "digest")
            imports = decode(tuple[Module, ...], data.get("imports", []), "imports")
            environment = decode(Environment | None, data.get("environment"), "environment")
            run = cls(folder, _experiment(data), backend, written, imports, environment)
            expected = run.digest
            if data.get("format") is None:
                expected = legacy.digest(data["experiment"])
        if run.written_digest != expected:
            raise KstepError(
                f"{path} was changed by hand or written by another version of kstep: its digest "
                f"{run.written_digest} is not that of its settings, {expected}"
            )
        return run


def checkpoint_age(name: str) -> tuple[int, ...]:
    """Return what orders checkpoints by name: decisions, then a number where a run was saved more
    than once between two of them. Nothing for other names."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", name) is None:
        return ()
    return tuple(int(number) for number in name.split("."))


def _experiment(data: dict[str, Any]) -> Experiment:
    """Return the settings in a config.json, refusing what could not have been resolved."""
    written = data.get("format")
    if written not in (None, FORMAT):
        raise KstepError(f"it has format {str(written)[:20]}, this version of kstep reads {FORMAT}")
    settings: Any = data.get("experiment")
    if written is None:
        settings = legacy.experiment(settings)
    experiment: Experiment = decode(Experiment, settings, "experiment")
    experiment.validate()
    return experiment


def _other_experiment(present: Run, experiment: Experiment) -> str:
    rows = [
        f"  {key}: there {there!r}, here {here!r}"
        for key, there, here in difference(present.experiment, experiment)
        if key != "env_steps"
    ]
    hint = "Choose another --folder, or repeat that run's own settings"
    exploration = present.experiment.method.exploration
    if exploration and all("exploration.env_steps" in row for row in rows):
        hint = (
            "Its first phase was half of the budget it began with. To resume it: "
            f"--set method.exploration.env_steps={exploration.env_steps} "
            f"--folder {present.folder}"
        )
    return f"{present.folder} holds another experiment:\n" + "\n".join(rows) + f"\n{hint}"


def _only_begun(folder: Path) -> bool:
    """Whether a folder holds at most what a run makes before it has written who it is."""
    ours = ("lock", "checkpoints", "replay", "config.json.part")
    return all(
        path.name in ours and not (path.is_dir() and any(path.iterdir()))
        for path in folder.iterdir()
    )


def _leads_to(path: Path, file: BinaryIO) -> bool:
    """Whether a path is still that of an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _marked(folder: Path) -> list[Path]:
    """Return the files that were saved for marks, oldest first."""
    found = folder.glob("[0-9]*.safetensors")
    named = (path for path in found if re.fullmatch("[0-9]+", path.stem))
    return sorted(named, key=lambda path: int(path.stem))
