"""A run folder: where one experiment keeps everything it writes.

config.json         the experiment and its digest; what computes the encoder's convolutions
system.json         versions, processor, rendering, commit: where it was computed
evaluations.jsonl   one line per evaluation, every episode's return
metrics.jsonl       one line per logged update
checkpoints/        the last two, each a folder
replay/             frames in segments, shared by the checkpoints
encoders/           encoders over training, where asked for
frozen_encoder.safetensors   the encoder of another run, where this one takes it as it is
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from kstep.config import Experiment, digest
from kstep.files import write_json
from kstep.native import Backend
from kstep.types import KstepError
from kstep.values import decode, difference, encode


class Run:
    """Paths and identity of one run."""

    def __init__(
        self, folder: Path, experiment: Experiment, encoder_backend: Backend | None = None
    ) -> None:
        self.folder = folder
        self.experiment = experiment
        self.encoder_backend = encoder_backend
        """What computes the encoder's convolutions: settled when the run first starts, then kept,
        since it decides the last bits. None before that."""
        self.digest = digest(experiment)
        self.evaluations_file = folder / "evaluations.jsonl"
        self.metrics_file = folder / "metrics.jsonl"
        self.checkpoints = folder / "checkpoints"
        self.replay = folder / "replay"
        self.frozen_encoder = folder / "frozen_encoder.safetensors"

    @staticmethod
    def default_folder(root: Path, experiment: Experiment, overridden: bool) -> Path:
        """Where a run lives unless told otherwise; overridden settings get a place of their own."""
        name = f"{experiment.method.name}-{experiment.preset}"
        if overridden:
            name += f"-{digest(experiment)[:6]}"
        task = experiment.env.task.replace(":", "-").replace("/", "-")
        return root / task / name / f"seed{experiment.seed}"

    @classmethod
    def prepare(cls, folder: Path, experiment: Experiment) -> Run:
        """Accept a folder that is free or holds the same experiment; writes nothing yet."""
        begun_with: Backend | None = None
        if (folder / "config.json").exists():
            present = cls.open(folder)
            begun_with = present.encoder_backend
            if present.digest != digest(experiment):
                rows = [
                    f"  {key}: there {there!r}, here {here!r}"
                    for key, there, here in difference(present.experiment, experiment)
                    if key != "env_steps"
                ]
                hint = "Choose another --folder, or repeat that run's own settings"
                exploration = present.experiment.method.exploration
                if exploration and all("exploration.env_steps" in row for row in rows):
                    hint = (
                        "Its first phase was half of the budget it began with. To go on with it: "
                        f"--set method.exploration.env_steps={exploration.env_steps} "
                        f"--folder {folder}"
                    )
                raise KstepError(
                    f"{folder} holds another experiment:\n" + "\n".join(rows) + f"\n{hint}"
                )
        elif folder.exists() and not _only_begun(folder):
            raise KstepError(f"{folder} exists, is not empty and is not a run of kstep")
        return cls(folder, experiment, begun_with)

    @contextmanager
    def being_written(self) -> Iterator[None]:
        """Make the folder, lock it and write down which experiment it holds."""
        for path in (self.checkpoints, self.replay):
            path.mkdir(parents=True, exist_ok=True)
        with self.locked():
            self._write_config()
            yield

    def _write_config(self) -> None:
        write_json(
            self.folder / "config.json",
            {
                "digest": self.digest,
                "encoder_backend": self.encoder_backend,
                "experiment": encode(self.experiment),
            },
        )

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open a run that exists."""
        path = folder / "config.json"
        if not path.is_file():
            raise KstepError(f"{folder} is not a run: it has no config.json")
        try:
            data = json.loads(path.read_text())
            # Runs from before there was a choice were computed by PyTorch.
            backend = data.get("encoder_backend", "torch")
            if backend not in (None, *get_args(Backend)):
                raise TypeError(f"there is no encoder_backend {backend!r}")
            run = cls(folder, decode(Experiment, data["experiment"]), backend)
            found = data.get("digest")
        except (KstepError, ValueError, KeyError, TypeError, AttributeError) as error:
            # Settings that this version does not know are another reason for all of these.
            raise KstepError(f"{path} cannot be read: {error}") from error
        if run.digest != found:
            raise KstepError(
                f"{path} was changed by hand or written by another version of kstep: its digest "
                f"{found} is not that of its settings, {run.digest}"
            )
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process from writing this run. The system frees the lock of the dead."""
        with (self.folder / "lock").open("a+", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise KstepError(
                    f"{self.folder} is being written by process {file.read().strip() or '?'}"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def evaluations(self) -> list[dict[str, Any]]:
        """Return every evaluation so far, oldest first."""
        if not self.evaluations_file.exists():
            return []
        # What follows the last line's end is being written, or was when the process died.
        lines = self.evaluations_file.read_bytes().split(b"\n")[:-1]
        try:
            return [json.loads(line) for line in lines]
        except ValueError as error:
            raise KstepError(f"{self.evaluations_file} is damaged: {error}") from error


def _only_begun(folder: Path) -> bool:
    """Whether a folder holds at most what a run makes before it has written who it is."""
    ours = ("lock", "checkpoints", "replay", "config.json.part")
    return all(
        path.name in ours and not (path.is_dir() and any(path.iterdir()))
        for path in folder.iterdir()
    )
