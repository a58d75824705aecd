"""Encoders saved during training, and any of them as a function from images to vectors.

A file holds the weights of the encoder that feeds critic and actor (safetensors) and, in its
header, which run it is from, how to build it, and the angle between the optimizers that step it.
Nothing is pickled; loading executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import safetensors.torch
import torch

from kstep import native, reading
from kstep.agent import Agent
from kstep.config import Experiment, FrozenEncoder, digest, resolve, setting
from kstep.data.augment import Augment
from kstep.nets.backends import native_shape
from kstep.nets.base import Encoder, EncoderConfig
from kstep.run import legacy
from kstep.run.folder import Run
from kstep.run.update_angles import Angle, live_angles
from kstep.types import Array, Counts, KstepError
from kstep.values import Count, Name, decode, encode

FORMAT = "2"
KEY = "kstep encoder"
"""Of the description in a file's header."""

Side = Annotated[int, at.Ge(1), at.Le(4096)]
"""Pixels of a frame."""


@dataclass(frozen=True)
class Description:
    """What a file's header says of its encoder."""

    format: str
    label: Name
    task: Name
    seed: Count
    mark: Count
    config: EncoderConfig
    augment: Augment
    stack: Annotated[int, at.Ge(1), at.Le(64)]
    frame_shape: tuple[Side, Side, Annotated[int, at.Ge(1), at.Le(256)]]
    angles: Mapping[str, Angle]
    counts: Counts = field(default_factory=Counts)
    digest: str = ""
    """Of the run's experiment."""

    @property
    def seen_shape(self) -> tuple[int, ...]:
        """Shape of a frame as the network sees it."""
        return self.augment.seen_shape(self.frame_shape)


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
    frame_shape: tuple[int, ...]
    """(H, W, C) of the frames it takes."""
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
        return self.augment.seen_shape(self.frame_shape)

    @property
    def size(self) -> int:
        """Pixels per side of the frames it takes."""
        return side_of(self.frame_shape)

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
    about = replace(_describe(run, agent, mark), counts=counts, digest=run.digest)
    tensors = {
        name: value.contiguous() for name, value in agent.encoder.image_part.state_dict().items()
    }
    path = run.encoders / f"{mark:09d}.safetensors"
    run.tree.make(run.encoders)
    run.tree.write(path, safetensors.torch.save(tensors, {KEY: json.dumps(encode(about))}))
    return path


def _describe(run: Run, agent: Agent, mark: int) -> Description:
    height, width, colours = agent.spec.image_shape
    return Description(
        format=FORMAT,
        label=label_of(run.experiment),
        task=run.experiment.env.task,
        seed=run.experiment.seed,
        mark=mark,
        config=agent.method.encoder,
        augment=agent.method.augment,
        stack=agent.method.stack,
        frame_shape=(height, width, colours),
        angles=live_angles(agent.optimizers, agent.encoder.image_part),
    )


def load(path: Path, *, quick: bool = False) -> SavedEncoder:
    """Load a saved encoder; a `quick` one uses the native kernels where there are any, which
    decides its last bits."""
    about = describe(path)
    weights = reading.weights(reading.contents(path, reading.LARGEST_TENSORS), path)
    config, seen, stack = about.config, about.seen_shape, about.stack
    with reading.naming(path):
        # Without memory first: a header can ask for an encoder of any size.
        with torch.device("meta"):
            _check_shapes(_built(config, seen, stack, "torch"), weights)
        backend = _quickest(native_shape(config, seen, stack)) if quick else "torch"
        encoder = _built(config, seen, stack, backend)
    encoder.load_state_dict(weights)
    return _described(about, encoder.eval().requires_grad_(False))


def _built(
    config: EncoderConfig, seen: tuple[int, ...], stack: int, backend: native.Backend
) -> Encoder:
    try:
        # Its first weights are drawn from the global generator and then replaced.
        with torch.random.fork_rng(devices=[]):
            return config.build(seen, stack, backend)
    except (RuntimeError, TypeError, OverflowError) as error:  # sizes beyond PyTorch's numbers
        raise KstepError(f"it describes an encoder that cannot be built: {config}") from error


def _check_shapes(encoder: Encoder, weights: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights that are not those of such an encoder."""
    needed = {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    wrong = [name for name in {**needed, **found} if needed.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        raise KstepError(
            f"its weights are not those of the encoder that it describes: {name[:100]!r} is "
            f"{found.get(name, 'missing')}, needed is {needed.get(name, 'nothing of that name')}"
        )


def of_agent(run: Run, agent: Agent, counts: Counts) -> SavedEncoder:
    """Return an agent's present encoder as if it had been saved now."""
    return _described(_describe(run, agent, counts.env_steps), agent.encoder.image_part)


def _described(about: Description, encoder: Encoder) -> SavedEncoder:
    return SavedEncoder(
        label=about.label,
        task=about.task,
        seed=about.seed,
        env_steps=about.mark,
        frame_shape=about.frame_shape,
        stack=about.stack,
        augment=about.augment,
        config=about.config,
        encoder=encoder,
        angles=about.angles,
    )


def describe(path: Path) -> Description:
    """Read what a file's header says of its encoder."""
    header = reading.tensor_metadata(path)
    if KEY not in header:
        raise reading.Unreadable(f"{path} is not an encoder that kstep saved")
    with reading.naming(path):
        about = reading.parse_json(header[KEY])
        written = about.get("format") if isinstance(about, dict) else None
        if written == "1":
            augment = legacy.augment(about.get("augment"))
            frame = decode(tuple[Side, Side, Side], about.get("frame_shape"), "frame_shape")[0]
            size = frame - (decode(Augment, augment).render_size(frame) - frame)
            config = legacy.encoder(about.get("config"), size)
            about = {**about, "augment": augment, "config": config}
        elif written != FORMAT:
            raise KstepError(f"it has format {str(written)[:20]}, this version reads {FORMAT}")
        found: Description = decode(Description, about)
        try:
            found.seen_shape  # noqa: B018
        except ValueError as error:
            raise KstepError(f"frame_shape does not fit the augmentation: {error}") from error
    return found


def side_of(frame_shape: tuple[int, ...]) -> int:
    """Return the side of square images in colour, which is what analyses are made for."""
    height, width, channels = frame_shape
    if height != width or channels != 3:
        raise KstepError(
            f"analyses are made for square images with three colours, not {frame_shape}; train "
            "with --set env.resize=square"
        )
    return height


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
    about, checksum = describe(path), reading.sha256(path)
    return FrozenEncoder(checksum, about.label, about.task, about.seed, about.mark)


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
