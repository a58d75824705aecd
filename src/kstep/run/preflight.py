"""What is checked before a run writes anything: everything that can be refused is refused here."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kstep import envs, methods, native, reading
from kstep.config import Experiment
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.envs import ControlEnv
from kstep.errors import Busy, KstepError
from kstep.native import BackendChoice
from kstep.nets.backends import native_shape
from kstep.nets.encoder import PixelEncoderConfig
from kstep.run import callbacks, checkpoint, provenance, saved_encoders, system
from kstep.run.folder import Environment, Run
from kstep.run.provenance import Provenance
from kstep.run.runtime import Runtime
from kstep.types import EnvSpec, Overlap
from kstep.values import difference


@dataclass(frozen=True)
class Cleared:
    """What the checks found and training needs."""

    environment: Environment
    backend: BackendChoice
    provenance: Provenance

    @property
    def spec(self) -> EnvSpec:
        return self.environment.spec


def check(run: Run, runtime: Runtime, env: ControlEnv) -> Cleared:
    """Refuse what cannot work or cannot be resumed; writes nothing."""
    experiment, method = run.experiment, run.experiment.method
    spec = envs.spec_of(env)
    found = Environment(spec, env.actions, env.sight)
    methods.refuse_actions(method, spec, env)
    envs.try_out(env, experiment.seed)
    if run.environment is not None and not runtime.allowed.any:
        _refuse_another(run, run.environment, found, env)
    if method.auxiliary is not None:
        method.auxiliary.check_episodes(method, spec)
    lower = isinstance(method.encoder, PixelEncoderConfig) and method.encoder.precision == "tf32"
    if lower and not runtime.device.startswith("cuda"):
        raise KstepError(
            f"method.encoder.precision=tf32 exists on CUDA only, not on {runtime.device}"
        )
    if runtime.save_encoders_every is not None and method.observation != "pixels":
        raise KstepError(f"'{method.name}' sees the state: it has no encoder to save")
    _frozen_encoder(run, runtime, spec)
    memory = replay_config(experiment, runtime)
    Replay.refuse_too_large(memory, spec, method.stack, run.folder)
    callbacks.require_packages(runtime)
    here = provenance.here(experiment, runtime.device, runtime.threads)
    checkpoint.check(run, here, runtime.allowed)
    with system.threads(runtime.threads):
        choice = encoder_backend(run, runtime, spec)
    if choice.backend == "native":
        here = replace(here, threads=1)  # PyTorch's; those of our pool decide nothing
    return Cleared(found, choice, here)


def _refuse_another(run: Run, there: Environment, here: Environment, env: ControlEnv) -> None:
    """Refuse an environment that is no longer what the run began with."""
    if there != here:
        rows = [
            f"  {key}: there {was!r}, here {is_!r}" for key, was, is_ in difference(there, here)
        ]
        raise KstepError(
            f"{env} is no longer what it was when {run.folder} began:\n" + "\n".join(rows) + "\nGo "
            "back to that one, choose another --folder, or accept a run that is no longer "
            "reproducible with --force-version"
        )


def look_again(run: Run, runtime: Runtime, cleared: Cleared) -> Path | None:
    """Refuse what has come into the folder between the checks and the lock; writes nothing.

    Returns the file of an encoder that the run takes from another one.
    """
    present = Run.prepare(run.folder, run.experiment)
    if present.encoder_backend not in (None, cleared.backend.backend):
        raise Busy(
            f"another process has just begun {run.folder} with "
            f"encoder_backend={present.encoder_backend}, not {cleared.backend.backend}. Rerun the "
            "command to resume it"
        )
    checkpoint.check(present, cleared.provenance, runtime.allowed)
    return _frozen_encoder(run, runtime, cleared.spec)


def overlap(run: Run, runtime: Runtime) -> Overlap:
    """When and where the environment steps."""
    if runtime.overlap != "auto":
        return runtime.overlap
    if not envs.needs_process(run.experiment.env):
        return "here"
    threads = runtime.threads or torch.get_num_threads()
    free = runtime.device != "cpu" or threads < len(os.sched_getaffinity(0))
    return "on" if free else "off"


def encoder_backend(run: Run, runtime: Runtime, spec: EnvSpec) -> BackendChoice:
    """What computes the encoder's convolutions: what the run began with, or what is best here."""
    asked, begun_with = runtime.encoder_backend, run.encoder_backend
    if begun_with is not None and asked not in ("auto", begun_with):
        raise KstepError(
            f"{run.folder} was begun with encoder_backend={begun_with}, not {asked}; that decides "
            "its last bits. Leave it at auto, or choose another --folder"
        )
    method = run.experiment.method
    seen = method.augment.seen_shape(spec.image_shape)
    shape = native_shape(method.encoder, seen, method.stack)
    if begun_with == "native":
        try:
            return native.choose("native", shape, runtime.device)
        except native.Unavailable as error:
            raise KstepError(
                f"{run.folder} was begun with encoder_backend=native, which cannot be used here: "
                f"{error}. Resume it where it can, or choose another --folder"
            ) from error
    if begun_with is not None:
        return BackendChoice(begun_with, "as the run began")
    return native.choose(asked, shape, runtime.device)


def replay_config(experiment: Experiment, runtime: Runtime) -> ReplayConfig:
    """The replay of a run: its method's capacity, or as much as its budget can fill."""
    # A run stores at most two frames per env step, even if every episode were one decision long.
    capacity = min(experiment.method.learning.replay_capacity, 2 * experiment.env_steps)
    return ReplayConfig(capacity, runtime.replay, runtime.device)


def _frozen_encoder(run: Run, runtime: Runtime, spec: EnvSpec) -> Path | None:
    """Return the file of the run's frozen encoder, refusing one that is another or does not fit."""
    wanted = run.experiment.frozen_encoder
    if wanted is None:
        return None
    path = run.frozen_encoder if run.frozen_encoder.exists() else runtime.frozen_encoder
    if path is None or not path.is_file():
        raise KstepError("the frozen encoder is missing: give its file with --frozen-encoder")
    if reading.sha256(path) != wanted.sha256:
        raise KstepError(f"{path} is not the encoder that this run was begun with")
    saved, method = saved_encoders.load(path), run.experiment.method
    shape = method.augment.seen_shape(spec.image_shape)
    if not saved.computes_as(method.encoder, method.stack, shape):
        raise KstepError(
            f"{path} does not fit: it has {saved.config} on {saved.stack} frames of "
            f"{saved.seen_shape}, '{method.name}' has {method.encoder} on {method.stack} of {shape}"
        )
    return path
