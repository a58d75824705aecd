"""The states that every question is asked about: collected once, stored, reused.

Ten episodes of a trained agent, as in the paper: for each decision the image, the action, its
reward and the simulator's own state. Frames are stored once; stacks are assembled a batch at a
time. Encoders that see other sizes (crops of 100 pixels) need frames rendered at that size, so a
set may hold several sizes of the same states.

A set is a folder: `states.safetensors`, and `set.json` with its provenance.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import annotated_types as at
import numpy as np
import safetensors.numpy

from kstep import reading
from kstep.agent import Agent
from kstep.envs import ControlEnv
from kstep.files import write_atomically, write_json
from kstep.rng import episode_seed
from kstep.run import system
from kstep.run.episode import Episode
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.saved_encoders import Side, side_of
from kstep.types import Array, KstepError
from kstep.values import encode

FORMAT = 1
PER_STATE = ("action", "reward", "state", "episode")
"""The arrays of a set with one row per state, beside the frames."""
BATCH = 64
"""States encoded at a time: few enough that activations stay in the cache."""

EncodeImages = Callable[[Array], Array]
"""Any encoder: stacks (B, S, H, W, C) uint8, oldest frame first, to latents (B, D)."""


@dataclass(frozen=True)
class Description:
    """A set's set.json."""

    format: int
    stack: Annotated[int, at.Ge(1), at.Le(64)]
    sizes: Annotated[tuple[Side, ...], at.MinLen(1)]
    """Pixels per side of its frames; the first are those that its agent saw."""
    quantities: tuple[str, ...]
    states: str
    """Checksum of states.safetensors."""
    provenance: dict[str, Any]


@dataclass(frozen=True)
class EvaluationSet:
    """N states in order of time, with the action chosen in each and its reward."""

    frames: dict[int, Array]
    """By pixels per side: (N, H, W, C) uint8, the newest frame of each state."""
    action: Array
    """(N, A) chosen in each state"""
    reward: Array
    """(N,) received for it, summed over action repeats"""
    state: Array
    """(N, Q) the simulator's own quantities"""
    quantities: tuple[str, ...]
    """Their names."""
    episode: Array
    """(N,) which episode, counted from 0"""
    stack: int
    provenance: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def size(self) -> int:
        """The size of the frames that its own agent saw."""
        return next(iter(self.frames))

    def stacks(self, states: Array, size: int | None = None, stack: int | None = None) -> Array:
        """Return stacks (B, S, H, W, C) of the chosen states, oldest frame first.

        An episode's first frame is repeated before its start, as when acting.
        """
        size = size or self.size
        if size not in self.frames:
            raise KstepError(
                f"the evaluation set has frames of {', '.join(map(str, self.frames))} pixels, the "
                f"encoder takes {size}. Collect it with --sizes "
                f"{' '.join(map(str, [*self.frames, size]))}"
            )
        first = np.searchsorted(self.episode, self.episode[states])
        back = np.arange((stack or self.stack) - 1, -1, -1)
        return self.frames[size][np.maximum(states[:, None] - back, first[:, None])]

    def batches(
        self, size: int | None = None, stack: int | None = None, states: Array | None = None
    ) -> Iterator[Array]:
        """Yield the chosen states, or all in order, as batches of stacks."""
        states = np.arange(len(self)) if states is None else states
        for begin in range(0, len(states), BATCH):
            yield self.stacks(states[begin : begin + BATCH], size, stack)

    def spaced(self, count: int) -> Array:
        """Return the indices of `count` states, evenly spaced over the set; all if it has fewer."""
        return np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(int)

    def latents(
        self, encode: EncodeImages, size: int | None = None, stack: int | None = None
    ) -> Array:
        """Encode every state: (N, D)."""
        return np.concatenate([checked(encode(x), len(x)) for x in self.batches(size, stack)])

    def first(self, episodes: int) -> EvaluationSet:
        """Return the set of its first few episodes."""
        count = np.searchsorted(self.episode, episodes)
        frames = {size: frames[:count] for size, frames in self.frames.items()}
        return replace(self, frames=frames, **{n: getattr(self, n)[:count] for n in PER_STATE})

    def save(self, folder: Path) -> None:
        """Write the set into a new folder. Where that fails, nothing of it is left."""
        refuse_taken(folder)
        arrays = {name: getattr(self, name) for name in PER_STATE}
        arrays |= {f"frames/{size}": frames for size, frames in self.frames.items()}
        data = safetensors.numpy.save(arrays)
        about = Description(
            format=FORMAT,
            stack=self.stack,
            sizes=tuple(self.frames),
            quantities=self.quantities,
            states=hashlib.sha256(data).hexdigest(),
            provenance=self.provenance,
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        try:
            aside.mkdir()
            write_atomically(aside / "states.safetensors", data)
            write_json(aside / "set.json", encode(about))
            aside.rename(folder)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise

    @classmethod
    def load(cls, folder: Path | str) -> EvaluationSet:
        """Read a set back, refusing one that is damaged."""
        folder = Path(folder)
        path = folder / "states.safetensors"
        try:
            about: Description = reading.json_file(folder / "set.json", Description)
            data = reading.contents(path, reading.LARGEST_TENSORS)
        except reading.Unreadable as error:
            raise reading.Unreadable(f"{folder} is not an evaluation set: {error}") from error
        if about.format != FORMAT:
            raise KstepError(f"{folder} has format {about.format}, this version reads {FORMAT}")
        if hashlib.sha256(data).hexdigest() != about.states:
            raise KstepError(f"{path} is damaged: its checksum does not match")
        arrays = reading.arrays(data, path)
        with reading.naming(path):
            _check_arrays(arrays, about)
        return cls(
            frames={size: arrays[f"frames/{size}"] for size in about.sizes},
            quantities=about.quantities,
            stack=about.stack,
            provenance=about.provenance,
            **{name: arrays[name] for name in PER_STATE},
        )


def refuse_taken(folder: Path) -> None:
    """Refuse a place for a new set where there is something else; an empty folder will do."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise KstepError(f"{folder} exists already; choose another --output")


def _check_arrays(arrays: Mapping[str, Array], about: Description) -> None:
    """Refuse arrays that are not those of a set: their names, types and shapes."""
    names = [*PER_STATE, *(f"frames/{size}" for size in about.sizes)]
    if missing := [name for name in names if name not in arrays]:
        raise KstepError(f"it lacks {missing[0]}")
    count = len(arrays["reward"]) if arrays["reward"].ndim == 1 else 0
    frame = {f"frames/{size}": (count, size, size, 3) for size in about.sizes}
    needed = {**frame, "reward": (count,), "episode": (count,)}
    needed["state"] = (count, len(about.quantities))
    needed["action"] = (count, *arrays["action"].shape[-1:])
    for name, shape in needed.items():
        found, kinds = arrays[name], "u" if name in frame else "iu" if name == "episode" else "f"
        if count == 0 or found.shape != shape or found.dtype.kind not in kinds:
            raise KstepError(f"{name} is {found.shape} {found.dtype}, needed is {shape}")
    frames = [arrays[name] for name in frame]
    if any(array.dtype != np.uint8 for array in frames):
        raise KstepError("its frames are not of bytes")
    jumps = np.diff(arrays["episode"].astype(np.int64), prepend=0)
    if not np.isin(jumps, (0, 1)).all():
        raise KstepError("its episodes are not counted from 0")


def checked(latents: Array, states: int) -> Array:
    """Return latents as an array (B, D); raise if they are not finite numbers of that shape."""
    try:
        latents = np.asarray(latents)
    except (RuntimeError, TypeError, ValueError) as error:  # such as a tensor that needs gradients
        raise KstepError(f"an encoder must return an array of numbers: {error}") from error
    if latents.ndim != 2 or len(latents) != states:
        raise KstepError(
            f"an encoder must return one vector per state, ({states}, D), not {latents.shape}"
        )
    if not np.isfinite(latents).all():
        raise KstepError("the encoder returned non-finite numbers")
    return latents


def collect(
    agent: Agent, env: ControlEnv, seeds: Sequence[int], sizes: Sequence[int] = ()
) -> EvaluationSet:
    """Run one greedy episode per seed and keep every state, rendered at further `sizes` as well."""
    if agent.spec.observation != "pixels":
        raise KstepError(
            f"'{agent.method.name}' sees the state; collect with an agent that sees images"
        )
    if agent.spec.vector_dim:
        raise KstepError("evaluation sets are of images alone, not of images with numbers beside")
    own = side_of(agent.spec.frame_shape)
    frames: dict[int, list[Array]] = {size: [] for size in dict.fromkeys((own, *sizes))}
    actions, rewards, numbers = [], [], []
    states: list[dict[str, float]] = []
    for number, seed in enumerate(seeds):
        episode = Episode(env, agent.method.stack)
        episode.start(seed)
        done = False
        while not done:
            for size, kept in frames.items():
                own_frame = episode.observation[-1]
                kept.append(own_frame if size == own else env.film_frame(size, size))
            states.append(env.quantities())
            action = agent.act(episode.observation[None], explore=False)[0]
            step = episode.step(action)
            actions.append(action)
            rewards.append(step.reward)
            numbers.append(number)
            done = step.done
    return EvaluationSet(
        frames={size: np.stack(kept) for size, kept in frames.items()},
        action=np.stack(actions),
        reward=np.array(rewards),
        state=np.array([list(state.values()) for state in states]),
        quantities=tuple(states[0]),
        episode=np.array(numbers),
        stack=agent.method.stack,
    )


def collect_from(
    folder: Path, *, episodes: int = 10, seed: int = 0, sizes: Sequence[int] = ()
) -> EvaluationSet:
    """Collect a set with a run's newest checkpoint; the same seed gives the same starts."""
    run = Run.open(folder)
    with opened(folder) as (agent, [env], counts):
        seeds = [episode_seed(seed, "evaluation set", index) for index in range(episodes)]
        states = collect(agent, env, seeds, sizes)
    returns = np.bincount(states.episode, states.reward)
    provenance = {
        "run": str(folder),
        "digest": run.digest,
        "experiment": encode(run.experiment),
        "counts": asdict(counts),
        "seed": seed,
        "episode_seeds": seeds,
        "returns": returns.tolist(),
        "versions": system.versions(),
        "commit": system.commit(),
        "collected": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return replace(states, provenance=provenance)


def make(
    run: Path, output: Path, *, episodes: int = 10, seed: int = 0, sizes: Sequence[int] = ()
) -> str:
    """Collect a set with a run's newest checkpoint into a new folder; return a summary of it."""
    refuse_taken(output)
    states = collect_from(run, episodes=episodes, seed=seed, sizes=sizes)
    states.save(output)
    returns = states.provenance["returns"]
    return (
        f"{output}: {len(states):,} states of {episodes} episodes, returns {min(returns):.1f} to "
        f"{max(returns):.1f}"
    )
