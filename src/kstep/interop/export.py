"""A run's policy, or its encoder, as one file that needs no kstep: ONNX, or PyTorch's .pt2.

    image (B, S, H, W, C) uint8, vector (B, S, D) float32  ->  action (B, ...), as the environment
                                                               takes it; or latent (B, D)

The centre crop of methods that crop, normalization and the bounds of actions are in the graph. What
turns an observation into frames is described beside it; deployed.py does that with NumPy and ONNX
Runtime alone. Every export is compared with the run's own policy before its file is written.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import kstep
from kstep import envs, extras, packing
from kstep.agent import Agent
from kstep.config import digest
from kstep.data.augment import Augment
from kstep.envs.actions import Actions, BoxActions, DiscreteActions
from kstep.envs.sight import Picture
from kstep.errors import KstepError
from kstep.files import Tree
from kstep.nets.base import Encoder
from kstep.nets.beside import WithVector
from kstep.run import trust
from kstep.run.episode import Episode
from kstep.run.evaluate import evaluation_seeds
from kstep.run.folder import Run
from kstep.run.policies import acting
from kstep.run.policy import Policy, load
from kstep.types import Array
from kstep.values import encode

SUFFIXES = (".onnx", ".pt2")
FORMAT = 1
"""Of the description; deployed.py reads it."""
TOLERANCE = 1e-4
"""Largest difference to the run's own policy: of actions as in [-1, 1], and of latents."""
STACKS, OBSERVATIONS, CALLS = 48, 8, 100
"""How many of each an export is compared with, and how many decisions are timed."""
LOADER = Path(__file__).with_name("deployed.py")

Stacks = dict[str, Array]
"""`image` (B, S, H, W, C) uint8 and `vector` (B, S, D) float32, whichever the agent sees."""


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares."""

    path: Path
    difference: float
    """The largest found: of actions as in [-1, 1], or of latents."""
    compared: str
    """With what, in words."""
    milliseconds: float
    """One decision takes, the median on one core."""

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.path.stat().st_size / 1e6:.2g} MB\n"
            f"agrees with the run's own to {self.difference:.1g} (allowed: {TOLERANCE:g}) on "
            f"{self.compared}\n"
            f"{self.milliseconds:.2g} ms per decision on one core (median of {CALLS})"
        )


def export(
    run: Run | str | Path,
    output: str | Path,
    *,
    encoder: bool = False,
    at: int | None = None,
    loader: bool = False,
) -> Exported:
    """Write a run's policy, or its encoder alone, as .onnx or .pt2 (`torch.export`).

    The file takes stacks of frames and returns actions as the environment takes them. `at`: a
    moment of training, in env steps, of which the run has a policy. `loader`: also copy deployed.py
    beside it, which runs it with NumPy and ONNX Runtime alone.
    """
    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise KstepError(f"--output must end in {' or '.join(SUFFIXES)}, not '{output}'")
    if path.exists():
        raise KstepError(f"{path} exists already; choose another --output")
    beside = path.with_name(LOADER.name)
    if loader and beside.exists() and beside.read_bytes() != LOADER.read_bytes():
        raise KstepError(f"{beside} exists already and is another: choose another folder")
    if loader and path.suffix != ".onnx":
        raise KstepError(f"{LOADER.name} runs .onnx files, not '{path.name}'")
    if path.suffix == ".onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            extras.need(module, "onnx")
    policy = load(run, at=at)
    if encoder and policy.agent.method.observation != "pixels":
        raise KstepError(f"{policy} sees the state: it has no encoder to export")
    network = network_of(policy.agent, policy.environment.actions, encoder=encoder)
    example = random_stacks(policy, 2)
    program = _traced(policy, network, example)
    about = json.dumps(_about(policy, encoder))
    if path.suffix == ".onnx":
        data = _as_onnx(policy, program, list(example), "latent" if encoder else "action", about)
    else:
        data = _as_pt2(program, about)
    found = _compared(policy, data, path, encoder)
    tree = Tree(path.parent)
    tree.make(path.parent)
    tree.write(path, data)
    if loader:
        tree.write(beside, LOADER.read_bytes())
    return found


# The network.


class Apart(Encoder):
    """An encoder of images and of numbers beside them that are not packed into one array."""

    def __init__(self, encoder: WithVector) -> None:
        super().__init__()
        self.encoder = encoder
        self.feature_shape, self.latent_dim = encoder.feature_shape, encoder.latent_dim

    def features(self, observation: Any) -> Tensor:
        return self.encoder.features_of(*observation)

    def latent(self, features: Tensor) -> Tensor:
        return self.encoder.latent(features)


class Network(nn.Module):
    """Frames to actions or latents; a subclass says which inputs it takes."""

    low: Tensor
    middle: Tensor
    room: Tensor
    high: Tensor

    def __init__(self, agent: Agent, actions: Actions, *, encoder: bool) -> None:
        super().__init__()
        inner = agent.encoder
        self.encoder = Apart(inner) if isinstance(inner, WithVector) else inner
        self.core = None if encoder else agent.core
        self.actions = actions
        self.cut = _centre(agent.method.augment, agent.spec.image_shape)
        if isinstance(actions, BoxActions):
            low, high = np.array(actions.low), np.array(actions.high)
            bounds = {"low": low, "middle": (high + low) / 2, "room": (high - low) / 2}
            for name, numbers in {**bounds, "high": high}.items():
                self.register_buffer(name, torch.from_numpy(numbers))

    def answer(self, observation: Any) -> Tensor:
        if self.core is None:
            return self.encoder(observation)  # type: ignore[no-any-return]
        vector = self.core.act(self.encoder, observation, None)
        if isinstance(self.actions, DiscreteActions):
            return vector.argmax(-1) + self.actions.start
        assert isinstance(self.actions, BoxActions)
        # As BoxActions.true; Min and Max because ONNX clips to single numbers only.
        true = self.middle + self.room * vector.double()
        true = torch.minimum(torch.maximum(true, self.low), self.high)
        dtype: torch.dtype = getattr(torch, self.actions.dtype)
        return true.reshape(-1, *self.actions.shape).to(dtype)

    def seen(self, image: Tensor) -> Tensor:
        """Cut what the policy sees when acting out of frames (B, S, H, W, C)."""
        rows, columns = self.cut
        return image[:, :, rows, columns]


class OfImages(Network):
    def forward(self, image: Tensor) -> Tensor:
        return self.answer(self.seen(image))


class OfImagesAndVectors(Network):
    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        return self.answer((self.seen(image), vector))


class OfVectors(Network):
    def forward(self, vector: Tensor) -> Tensor:
        return self.answer(vector)


def network_of(agent: Agent, actions: Actions, *, encoder: bool) -> Network:
    """Return what is exported."""
    kind: type[Network] = OfImages if agent.method.observation == "pixels" else OfVectors
    if isinstance(agent.encoder, WithVector):
        kind = OfImagesAndVectors
    network = copy.deepcopy(kind(agent, actions, encoder=encoder)).eval().requires_grad_(False)
    used = acting(agent)
    for name, module in network.core.named_modules() if network.core is not None else ():
        for own in (module._parameters, module._buffers):
            prefix = f"core/{name}." if name else "core/"
            for key in [key for key in own if prefix + key not in used]:
                own.pop(key)  # what only learning needs, such as the critic
    return network


def _centre(augment: Augment, shape: tuple[int, ...]) -> tuple[slice, slice]:
    """Return which rows and columns of a frame the policy sees when acting."""
    if len(shape) != 3:
        return slice(None), slice(None)
    places = np.moveaxis(np.indices(shape[:2]), 0, -1)
    seen = augment.act_view(places[None])[0]
    rows, columns = seen[:, 0, 0], seen[0, :, 1]
    if not np.array_equal(seen, places[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]):
        raise KstepError(f"method.augment.kind={augment.kind} does more than cut when acting")
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def _traced(policy: Policy, network: Network, example: Stacks) -> Any:
    """Return the network as a graph, for any number of observations."""
    inputs = {name: torch.from_numpy(stacks) for name, stacks in example.items()}
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(
                network,
                tuple(inputs.values()),
                dynamic_shapes={name: {0: batch} for name in inputs},
                strict=False,
            )
    except Exception as error:  # of whatever a plug-in's modules do
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise KstepError(
            f"{policy} cannot be exported: torch.export cannot follow its networks "
            f"({type(error).__name__}: {first})"
        ) from error


def _as_onnx(policy: Policy, program: Any, inputs: list[str], output: str, about: str) -> bytes:
    try:
        with _quiet():
            written = torch.onnx.export(
                program,
                input_names=inputs,
                output_names=[output],
                dynamo=True,
                verbose=False,
                optimize=True,
            )
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise KstepError(
            f"{policy} cannot be exported as ONNX ({type(error).__name__}: {first}); .pt2 may do"
        ) from error
    assert written is not None  # it is only where it goes to a file
    model = written.model_proto
    model.metadata_props.add(key="kstep", value=about)
    data: bytes = model.SerializeToString()
    return data


def _as_pt2(program: Any, about: str) -> bytes:
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={"kstep.json": about})
    return file.getvalue()


def _about(policy: Policy, encoder: bool) -> dict[str, Any]:
    """Return the description that is stored in the file."""
    experiment, environment = policy.run.experiment, policy.environment
    return {
        "format": FORMAT,
        "kind": "encoder" if encoder else "policy",
        "kstep": kstep.__version__,
        "method": experiment.method.name,
        "preset": experiment.preset,
        "task": experiment.env.task,
        "seed": experiment.seed,
        "digest": digest(experiment),
        "env_steps": policy.counts.env_steps,
        "stack": policy.agent.method.stack,
        "action_repeat": environment.spec.action_repeat,
        "actions": encode(environment.actions),
        "sight": encode(environment.sight),
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch's exporters report their progress and plans; what fails is raised."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# The comparison.


def _compared(policy: Policy, data: bytes, path: Path, encoder: bool) -> Exported:
    """Compare what is about to be written with the run's own policy, and time it."""
    run, loaded = _runner(data, path.suffix)
    stacks, compared = _frames(policy)
    difference = _difference(policy, stacks, run(**_split(policy, stacks)), encoder)
    if loaded is not None:
        compared += f", and on {OBSERVATIONS} random observations through {LOADER.name}"
        difference = max(difference, _through_loader(policy, loaded, encoder))
    if not difference <= TOLERANCE:  # so that NaN fails
        raise KstepError(
            f"{policy} cannot be exported: what was exported differs by {difference:.2g} on "
            f"{compared}; at most {TOLERANCE:g} is allowed. Nothing was written"
        )
    return Exported(path, difference, compared, _milliseconds(run, _split(policy, stacks[:1])))


def _runner(data: bytes, suffix: str) -> tuple[Callable[..., Array], Any]:
    """Return a function of stacks that runs what was exported, and deployed.py's policy of it."""
    if suffix == ".onnx":
        from kstep.interop.deployed import Policy as Loaded

        loaded = Loaded(data)
        return loaded.run, loaded
    module = torch.export.load(io.BytesIO(data)).module()

    def run(**stacks: Array) -> Array:
        with torch.no_grad():
            found = module(*(torch.from_numpy(stack) for stack in stacks.values()))
        return found.numpy()  # type: ignore[no-any-return]

    return run, None


def _frames(policy: Policy) -> tuple[Array, str]:
    """Return stacks (B, S, ...) as the policy meets them in its environment, and what they are;
    random ones where its environment cannot be made here."""
    run = policy.run
    try:
        trust.require(run)
        lanes = envs.make_lanes(run.experiment.env, run.experiment.seed, 1)
    except (KstepError, ImportError) as error:
        made = list(random_stacks(policy, STACKS).values())
        stacks = packing.pack(*made) if len(made) == 2 else made[0]
        return stacks, f"{STACKS} random stacks: the environment cannot be made here ({error})"
    try:
        stacks_seen: list[Array] = []
        for seed in evaluation_seeds(run.experiment.seed, -1, STACKS):
            episode, done = Episode(lanes[0], policy.agent.method.stack), False
            episode.start(seed)
            while not done and len(stacks_seen) < STACKS:
                stacks_seen.append(episode.observation)
                (action,) = policy.agent.act(episode.observation[None], explore=False)
                done = episode.step(action).done
        return np.stack(stacks_seen), f"{STACKS} stacks of real frames"
    finally:
        envs.close_lanes(lanes)


def random_stacks(policy: Policy, number: int) -> Stacks:
    """Return stacks of noise."""
    rng, stack = np.random.default_rng(0), policy.stack_shape[0]
    sight, made = policy.environment.sight, Stacks()
    if sight.pictures:
        shape = (number, stack, sight.height, sight.width, sight.channels)
        made["image"] = rng.integers(0, 256, shape, np.uint8)
    if sight.numbers:
        made["vector"] = rng.normal(size=(number, stack, sight.vector_dim)).astype(np.float32)
    return made


def _split(policy: Policy, stacks: Array) -> Stacks:
    """Return stacks of frames as the exported graph takes them."""
    sight = policy.environment.sight
    if not sight.pictures:
        return {"vector": stacks}
    if not sight.numbers:
        return {"image": stacks}
    image, vector = packing.unpack(stacks, sight.vector_dim)
    return {"image": np.ascontiguousarray(image), "vector": vector}


def _difference(policy: Policy, stacks: Array, found: Array, encoder: bool) -> float:
    ours = policy.encode(stacks) if encoder else policy.act_batch(stacks)
    if found.shape != ours.shape or found.dtype != ours.dtype:
        raise KstepError(
            f"{policy} cannot be exported: {found.shape} {found.dtype} came out, not {ours.shape} "
            f"{ours.dtype}"
        )
    return distance(ours, found, None if encoder else policy.environment.actions)


def distance(ours: Array, theirs: Array, actions: Actions | None) -> float:
    """Return how far apart actions are, as if their bounds were -1 and 1; latents, as they are, but
    relative to the largest if that is above 1. Of discrete actions: the share that differs."""
    if isinstance(actions, DiscreteActions):
        return float((ours != theirs).mean())
    unit: Any = max(1.0, float(np.abs(ours).max()))
    if isinstance(actions, BoxActions):
        unit = ((np.array(actions.high) - np.array(actions.low)) / 2).reshape(actions.shape)
    return float((np.abs(ours.astype(np.float64) - theirs) / unit).max())


def _through_loader(policy: Policy, loaded: Any, encoder: bool) -> float:
    """Return the difference over an episode of random observations, as an environment gives them:
    through the run's own preprocessing and through deployed.py."""
    rng, sight = np.random.default_rng(1), policy.environment.sight
    actions = None if encoder else policy.environment.actions
    policy.reset()
    loaded.reset()
    worst = 0.0
    for _ in range(OBSERVATIONS):
        parts: dict[str, Array] = {p.key: _random_image(p, rng) for p in sight.pictures}
        parts |= {key: rng.normal(size=shape) for key, shape in sight.numbers.items()}
        observation = parts.get("", parts)
        theirs = loaded.act(observation)
        stack = policy.see(observation)[None]
        ours = (policy.encode if encoder else policy.act_batch)(stack)
        worst = max(worst, distance(ours, np.asarray(theirs)[None], actions))
    policy.reset()
    return worst


def _random_image(picture: Picture, rng: np.random.Generator) -> Array:
    if picture.floats:
        return (rng.random(picture.shape) * picture.white).astype(np.float32)
    return rng.integers(0, picture.white, picture.shape, endpoint=True).astype(np.uint8)


def _milliseconds(run: Callable[..., Array], stacks: Stacks) -> float:
    """Return how long one decision takes on one core: the median."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = []
        for _ in range(CALLS + 5):  # the first ones prepare something
            began = time.perf_counter()
            run(**stacks)
            times.append(time.perf_counter() - began)
        return 1000 * float(np.median(times[5:]))
    finally:
        torch.set_num_threads(threads)
