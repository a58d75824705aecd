"""Encoders saved during training, and any of them as a function from images to vectors.

A file holds the weights of the encoder that feeds critic and actor (safetensors) and, in its
header, which run it is from, how to build it, and the angle between the optimizers that step it.
Nothing is pickled; loading executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from kstep import native
from kstep.agent import Agent
from kstep.config import Experiment, FrozenEncoder, digest, resolve, setting
from kstep.data.augment import Augment
from kstep.files import sha256
from kstep.nets.backends import native_shape
from kstep.nets.base import Encoder, EncoderConfig
from kstep.run import legacy
from kstep.run.folder import Run
from kstep.run.update_angles import Angle, live_angles
from kstep.types import Array, Counts, KstepError
from kstep.values import decode, encode

FORMAT = "2"


@dataclass(frozen=True)
class SavedEncoder:
    """An encoder of a run at one moment: stacks (B, S, H, W, C) uint8 to latents (B, D) float32.

    It sees what the policy sees when acting; for methods that crop that is the centre.
    """

    label: str
    """The method, and the preset where it is not the paper's."""
    task: str
    seed: int
    env_steps: int
    """The mark it was saved for."""
    size: int
    """Pixels per side of the frames it takes."""
    stack: int
    augment: Augment
    config: EncoderConfig
    encoder: Encoder
    angles: Mapping[str, Angle] = field(default_factory=dict)
    """Between the critic's and the auxiliary optimizer when it was saved, by parameter."""

    def __call__(self, stacks: Array) -> Array:
        with torch.inference_mode():
            latents = self.encoder(torch.from_numpy(self.view(stacks)))
        return latents.numpy()  # type: ignore[no-any-return]

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of a frame as the network sees it."""
        return self.augment.seen_shape((self.size, self.size, 3))

    def computes_as(self, config: EncoderConfig, stack: int, seen_shape: tuple[int, ...]) -> bool:
        """Whether an encoder of these settings could have the same weights."""

        def shaping(settings: EncoderConfig) -> dict[str, Any]:
            # How weights start and how fast a slow copy follows leaves no trace in them.
            data: dict[str, Any] = encode(settings)
            return {key: data[key] for key in data if key not in ("init", "ema_rate")}

        mine = (shaping(self.config), self.stack, self.seen_shape)
        return mine == (shaping(config), stack, seen_shape)

    def view(self, stacks: Array) -> Array:
        """Return the part of the images that the encoder sees."""
        return self.augment.act_view(stacks)


def save(run: Run, agent: Agent, counts: Counts, mark: int) -> Path:
    """Save the encoder that feeds critic and actor, for the mark just reached."""
    about = {**_describe(run, agent, mark), "counts": asdict(counts), "digest": run.digest}
    tensors = {name: value.contiguous() for name, value in agent.encoder.state_dict().items()}
    path = run.encoders / f"{mark:09d}.safetensors"
    run.tree.make(run.encoders)
    run.tree.write(path, safetensors.torch.save(tensors, {"kstep encoder": json.dumps(about)}))
    return path


def _describe(run: Run, agent: Agent, mark: int) -> dict[str, Any]:
    """Return what a file's header says of an agent's encoder."""
    angles = live_angles(agent.optimizers, agent.encoder)
    return {
        "format": FORMAT,
        "label": label_of(run.experiment),
        "task": run.experiment.env.task,
        "seed": run.experiment.seed,
        "mark": mark,
        "config": encode(agent.method.encoder),
        "augment": encode(agent.method.augment),
        "stack": agent.method.stack,
        "frame_shape": list(agent.spec.frame_shape),
        "angles": {name: asdict(angle) for name, angle in angles.items()},
    }


def load(path: Path, *, quick: bool = False) -> SavedEncoder:
    """Load a saved encoder; a `quick` one uses the native kernels where there are any, which
    decides its last bits."""
    about = _about(path)
    config, stack = decode(EncoderConfig, about["config"]), about["stack"]
    seen = decode(Augment, about["augment"]).seen_shape(tuple(about["frame_shape"]))
    # Its first weights are drawn from the global generator and then replaced.
    with torch.random.fork_rng(devices=[]):
        backend = _quickest(native_shape(config, seen, stack)) if quick else "torch"
        encoder = config.build(seen, stack, backend)
    encoder.load_state_dict(safetensors.torch.load_file(path))
    return _described(about, encoder.eval().requires_grad_(False))


def of_agent(run: Run, agent: Agent, counts: Counts) -> SavedEncoder:
    """Return an agent's present encoder as if it had been saved now."""
    return _described(_describe(run, agent, counts.env_steps), agent.encoder)


def _described(about: dict[str, Any], encoder: Encoder) -> SavedEncoder:
    return SavedEncoder(
        label=about["label"],
        task=about["task"],
        seed=about["seed"],
        env_steps=about["mark"],
        size=about["frame_shape"][0],
        stack=about["stack"],
        augment=decode(Augment, about["augment"]),
        config=decode(EncoderConfig, about["config"]),
        encoder=encoder,
        angles={name: Angle(**angle) for name, angle in about["angles"].items()},
    )


def _about(path: Path) -> dict[str, Any]:
    """Read what a file's header says of the encoder."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            about: dict[str, Any] = json.loads((file.metadata() or {})["kstep encoder"])
    except (KeyError, OSError, json.JSONDecodeError, safetensors.SafetensorError) as error:
        raise KstepError(f"{path} is not an encoder that kstep saved: {error}") from error
    if about["format"] == "1":
        frame, augment = about["frame_shape"][0], legacy.augment(about["augment"])
        size = decode(Augment, augment).seen_shape((frame, frame, 3))[0]
        config = legacy.encoder(about["config"], size)
        return {**about, "augment": augment, "config": config}
    if about["format"] != FORMAT:
        raise KstepError(f"{path} has format {about['format']}, this version reads {FORMAT}")
    return about


@cache
def _quickest(shape: native.Shape | None) -> native.Backend:
    """Return the native kernels wherever they are right, not only where a trial finds them faster:
    the same machine gives the same numbers again."""
    try:
        return native.choose("native", shape).backend
    except native.Unavailable:
        return "torch"


def frozen(path: Path) -> FrozenEncoder:
    """Return what an experiment says of the encoder it takes as it is."""
    about = _about(path)
    return FrozenEncoder(sha256(path), about["label"], about["task"], about["seed"], about["mark"])


def mark_of(path: Path) -> int:
    """Return the env_steps that an encoder was saved for."""
    return int(_about(path)["mark"])


def label_of(experiment: Experiment) -> str:
    """Return an experiment's method, with the preset unless it is the paper's, with a digest where
    settings were changed (such runs are something of their own), and with the lengths of both
    phases where there are two: `proto_rl 50k/50k`."""
    label, explored = with_preset(experiment.method.name, experiment), experiment.method.exploration
    plain = resolve(
        experiment.method.name,
        experiment.env.task,
        preset=experiment.preset,
        seed=experiment.seed,
        env_steps=experiment.env_steps,
        overrides=[f"method.exploration.env_steps={explored.env_steps}"] if explored else [],
        frozen_encoder=experiment.frozen_encoder,
    )
    if digest(plain) != digest(experiment):
        label += f"-{setting(experiment)[:6]}"
    return f"{label} {phases_of(experiment)}".strip()


def phases_of(experiment: Experiment) -> str:
    """Return how long both phases of a method are, such as 50k/50k; empty if it has but one."""
    exploration = experiment.method.exploration
    if exploration is None or exploration.env_steps is None:
        return ""
    lengths = (exploration.env_steps, max(0, experiment.env_steps - exploration.env_steps))
    return "/".join(f"{n // 1000}k" if n and n % 1000 == 0 else str(n) for n in lengths)


def with_preset(name: str, experiment: Experiment) -> str:
    """Return a name with the experiment's preset, unless that is the paper's."""
    return name if experiment.preset == "paper" else f"{name}-{experiment.preset}"
