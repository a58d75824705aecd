"""The memory behind the replay: arrays in a ring, written as the agent lives and saved in parts.
Frames are in memory, on disk or on the learning device; all else is in memory.

Frames carry a global number g = 0, 1, 2, ... and lie in slot g % slots. An episode of n
transitions is n + 1 consecutive frames; slot g also holds the frame's place t within its episode
and the action, reward and bootstrap of the transition g -> g + 1 (unused at an episode's last
frame).
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
import psutil

from kstep.files import Tree
from kstep.types import Array, EnvSpec, KstepError
from kstep.values import Count, Positive

if TYPE_CHECKING:  # needs PyTorch, without which the command line lists what `Storage` allows
    from kstep.data.on_device import DeviceFrames

Storage: TypeAlias = Literal["memory", "disk", "device"]

USABLE_PART = 0.9
"""Of the memory or disk space that is free; the rest is left to networks and batches."""

FRAMES_FILE = "replay_frames.bin"

LARGEST_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class ReplayConfig:
    """How much to remember, and where."""

    capacity: int = 100_000
    """Decisions; the newest are kept."""
    storage: Storage = "memory"
    device: str = "cpu"
    """Which one, for frames on a device."""

    def __post_init__(self) -> None:
        if self.capacity < 1:
            raise KstepError(f"replay capacity {self.capacity}: need at least 1")
        if self.storage not in get_args(Storage):
            allowed = ", ".join(get_args(Storage))
            raise KstepError(f"replay storage {self.storage!r}: allowed are {allowed}")


@dataclass(frozen=True)
class Counters:
    """The bookkeeping that goes with exported frames."""

    slots: Positive
    first: tuple[Count, ...]
    """First frames of the episodes that are not forgotten, oldest first."""
    total: Count
    """Frames ever written."""
    episodes: Count
    """Episodes ever begun."""
    running: bool
    """Whether the newest episode can still grow."""
    oldest: Count
    """No start before this frame is sampleable."""
    oldest_episode: Count
    """The episode that frame belongs to."""
    held: Count
    """Sampleable transitions."""

    def check(self) -> None:
        """Refuse numbers that no replay can have."""
        starts = np.array([*self.first, self.total])
        consistent = (
            len(self.first) == self.episodes - self.oldest_episode <= self.slots
            and (np.diff(starts) > 0).all()
            and self.oldest <= self.total
            and self.held <= self.total - self.oldest
        )
        if not consistent:
            raise KstepError("the saved replay's bookkeeping contradicts itself")


class Ring:
    """Its size is fixed when it is made; pages are touched as they fill."""

    def __init__(
        self, config: ReplayConfig, spec: EnvSpec, stack: int = 3, folder: Path | None = None
    ) -> None:
        """`stack` frames make an observation; 1 for state vectors."""
        self.config = config
        self.spec = spec
        self.stack = stack
        self.slots = _slots(config, spec, stack)
        self._frames = self._allocate_frames(folder)
        self._t = np.zeros(self.slots, np.int32)
        self._action = np.zeros((self.slots, spec.action_dim), np.float32)
        self._reward = np.zeros(self.slots, np.float32)
        self._bootstrap = np.zeros(self.slots, np.float32)
        # First frame of episode e, in entry e % slots: enough, as an episode has a frame or more.
        self._first = np.zeros(self.slots, np.int64)
        self._back = np.arange(stack - 1, -1, -1)

        self._total = 0  # frames ever written
        self._episodes = 0  # episodes ever begun
        self._running = False  # whether the newest episode can still grow
        self._oldest = 0  # no start before this frame is sampleable
        self._oldest_episode = 0  # the episode that frame belongs to
        self._held = 0  # sampleable transitions

    @staticmethod
    def bytes_needed(config: ReplayConfig, spec: EnvSpec, stack: int = 3) -> int:
        """Return the bytes a full replay takes."""
        frame = math.prod(spec.frame_shape) * spec.frame_dtype.itemsize
        # t, reward, bootstrap and action at 4 bytes, the episode's first frame at 8.
        return _slots(config, spec, stack) * (frame + 4 * (3 + spec.action_dim) + 8)

    def describe(self) -> str:
        """Return one line for the log."""
        size = _human(self.bytes_needed(self.config, self.spec, self.stack))
        places = {"memory": "in memory", "disk": "on disk", "device": f"on {self.config.device}"}
        return f"replay: {self.config.capacity:,} decisions, {size} {places[self.config.storage]}"

    @property
    def total(self) -> int:
        """Frames ever written."""
        return self._total

    @property
    def oldest_frame(self) -> int:
        """The first frame that is still in the ring."""
        return max(0, self._total - self.slots)

    def begin(self, frame: Array) -> None:
        """Store the first frame of an episode; an episode still running ends here."""
        self._check_frame(frame)
        self._write_frame(frame, t=0)
        self._first[self._episodes % self.slots] = self._total - 1
        self._episodes += 1
        self._running = True

    def add(
        self,
        action: Array,
        reward: float,
        terminated: bool,
        truncated: bool,
        next_frame: Array,
        *,
        life_lost: bool = False,
    ) -> None:
        """Store one decision of the running episode and the frame it led to. `life_lost`: what
        follows has no value, although the episode continues."""
        if not self._running:
            raise ValueError("no episode is running: call begin(frame) before add(...)")
        action = np.asarray(action)
        if action.shape != (self.spec.action_dim,):
            raise ValueError(f"need an action of ({self.spec.action_dim},), got {action.shape}")
        if not np.isfinite(action).all():
            raise KstepError(f"the action is not finite: {action}")
        if not abs(reward) <= LARGEST_REWARD:  # so that NaN fails too
            raise KstepError(f"the reward is not finite in single precision: {reward}")
        self._check_frame(next_frame)

        slot = (self._total - 1) % self.slots
        self._action[slot] = action
        self._reward[slot] = reward
        self._bootstrap[slot] = 0.0 if terminated or life_lost else 1.0
        self._write_frame(next_frame, int(self._t[slot]) + 1)
        self._held += 1
        while self._held > self.config.capacity:
            self._forget_oldest()
        self._running = not (terminated or truncated)

    def forget(self) -> None:
        """Make everything so far unavailable; the next frame must begin an episode."""
        self._oldest, self._oldest_episode = self._total, self._episodes
        self._held, self._running = 0, False

    def _check_frame(self, frame: Array) -> None:
        shape, dtype = self.spec.frame_shape, self.spec.frame_dtype
        if frame.shape != shape or frame.dtype != dtype:
            raise ValueError(f"need a frame {shape} {dtype}, got {frame.shape} {frame.dtype}")
        if dtype.kind == "f" and not np.isfinite(frame).all():
            raise KstepError(f"the observation is not finite: {frame}")

    def _write_frame(self, frame: Array, t: int) -> None:
        # Forget first: the frame to be overwritten may be the oldest start's, and its t is needed.
        while self._oldest_needed() <= self._total - self.slots:
            self._forget_oldest()
        slot = self._total % self.slots
        self._frames[slot] = frame
        self._t[slot] = t
        self._total += 1

    def _oldest_needed(self) -> int:
        """Return the first frame of the oldest start's stack."""
        t = int(self._t[self._oldest % self.slots])
        return self._oldest - min(t, self.stack - 1)

    def _forget_oldest(self) -> None:
        """Move past the oldest frame, which is a start unless it is its episode's last."""
        self._oldest += 1
        if self._t[self._oldest % self.slots] == 0:
            self._oldest_episode += 1
        else:
            self._held -= 1

    def steps(self, frames: Array) -> tuple[Array, Array, Array, Array]:
        """Return action, reward and bootstrap of the decisions at consecutive frames (B, T), and
        whether each is one of the episode of the first (B, T); where not, the rest says nothing."""
        slots, following = frames % self.slots, frames + 1
        t = self._t[following % self.slots] - self._t[slots[:, :1]]
        inside = (following < self._total) & (t == np.arange(1, frames.shape[1] + 1))
        return self._action[slots], self._reward[slots], self._bootstrap[slots], inside

    def export(self, since: int) -> dict[str, Array]:
        """Return copies of everything stored about the frames from `since` on.

        The newest frame has no action yet, so the next export should begin with it again. Parts
        exported one after the other are what `restore` takes: a save costs only what is new.
        """
        frames = np.arange(max(since, self.oldest_frame), self._total)
        slots = frames % self.slots
        arrays = {name: array[slots] for name, array in self._arrays().items()}
        return {"start": frames[:1], **arrays}

    def counters(self) -> Counters:
        """Return the bookkeeping that goes with the exported frames."""
        live = np.arange(self._oldest_episode, self._episodes)
        first = tuple(self._first[live % self.slots].tolist())
        numbers = {name: getattr(self, f"_{name}") for name in _COUNTERS}
        return Counters(slots=self.slots, first=first, **numbers)

    def restore(self, parts: Iterable[dict[str, Array]], counters: Counters) -> None:
        """Continue exactly where `counters` was taken; all it held must fit."""
        counters.check()
        held = min(counters.total, counters.slots)
        if held > self.slots:
            raise KstepError(
                f"the saved replay holds {held:,} frames, this one has room for {self.slots:,}. "
                "Continue with the replay_capacity, stack and environment of the saved run"
            )
        covered = None
        for part in parts:
            covered = self._restore_part(part, covered)
        alive = max(0, counters.total - counters.slots)
        if covered is None or covered[1] != counters.total or covered[0] > alive:
            raise KstepError(
                f"the saved replay has frames {covered}, needed are {alive} to {counters.total}"
            )
        for name in _COUNTERS:
            setattr(self, f"_{name}", getattr(counters, name))
        live = np.arange(self._oldest_episode, self._episodes)
        self._first[live % self.slots] = counters.first

    def _restore_part(
        self, part: dict[str, Array], covered: tuple[int, int] | None
    ) -> tuple[int, int]:
        """Write one exported part and return the frames (first, one past the last) held so far."""
        own = self._arrays()
        missing = {"start", *own} - set(part)
        if missing:
            raise KstepError(f"the saved replay lacks {', '.join(sorted(missing))}")
        numbered = part["start"].shape == (1,) and 0 <= part["start"][0] < 2**62
        if not numbered or part["t"].ndim != 1:
            raise KstepError("the saved replay does not fit: its frames have no numbers")
        start = int(part["start"][0])
        frames = np.arange(start, start + len(part["t"]))
        if covered is not None and not covered[0] <= start <= covered[1]:
            raise KstepError(f"the saved replay has a gap between frames {covered[1]} and {start}")
        for name, array in own.items():
            saved, expected = part[name], (len(frames), *array.shape[1:])
            if saved.shape != expected or saved.dtype != array.dtype:
                raise KstepError(
                    f"the saved replay does not fit: {name} is {saved.shape} {saved.dtype}, "
                    f"needed is {expected} {array.dtype}"
                )
            array[frames % self.slots] = saved
        return (start if covered is None else covered[0], start + len(frames))

    def _arrays(self) -> dict[str, Array | DeviceFrames]:
        return {
            "frames": self._frames,
            "t": self._t,
            "action": self._action,
            "reward": self._reward,
            "bootstrap": self._bootstrap,
        }

    @staticmethod
    def refuse_too_large(
        config: ReplayConfig, spec: EnvSpec, stack: int = 3, folder: Path | None = None
    ) -> None:
        """Raise where a replay would not fit; writes and allocates nothing."""
        needed = Ring.bytes_needed(config, spec, stack)
        if config.storage == "device" and config.device.startswith("cuda"):
            from torch.cuda import mem_get_info

            available = mem_get_info(config.device)[0]
            _check_room(needed, available, f"memory of {config.device}", "or --replay memory")
            return
        if config.storage != "disk":
            available = int(psutil.virtual_memory().available)
            _check_room(needed, available, "memory", "or --replay disk")
            return
        if folder is None:
            raise KstepError("a replay on disk needs a folder to put its frames in")
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        available = shutil.disk_usage(existing).free
        if (folder / FRAMES_FILE).exists():  # will be replaced, so its space counts as free
            available += (folder / FRAMES_FILE).stat().st_size
        _check_room(needed, available, f"disk space in {folder}", "or another folder")

    def _allocate_frames(self, folder: Path | None) -> Array | DeviceFrames:
        self.refuse_too_large(self.config, self.spec, self.stack, folder)
        shape = (self.slots, *self.spec.frame_shape)
        if self.config.storage == "device":
            from kstep.data.on_device import DeviceFrames

            return DeviceFrames.zeros(shape, self.spec.frame_dtype, self.config.device)
        if folder is None or self.config.storage == "memory":
            return np.zeros(shape, self.spec.frame_dtype)
        tree, path = Tree(folder), folder / FRAMES_FILE
        tree.make(folder)
        try:
            with tree.replace(path) as file:
                # Pages of a file with holes that find the disk full kill the process silently.
                size = math.prod(shape) * self.spec.frame_dtype.itemsize
                os.posix_fallocate(file.fileno(), 0, size)
                mapped = np.memmap(file, self.spec.frame_dtype, mode="r+", shape=shape)
        except BaseException:
            tree.remove(path)
            raise
        # As a plain array, so that batches taken from it are plain arrays too.
        return np.asarray(mapped)


_COUNTERS = ("total", "episodes", "running", "oldest", "oldest_episode", "held")


def _slots(config: ReplayConfig, spec: EnvSpec, stack: int) -> int:
    """Return the frames to keep for the newest `capacity` decisions to be sampleable.

    With episodes of L decisions, the newest C decisions touch at most ceil((C - 1) / L) + 1
    episodes, each with one frame more than decisions; or exactly ceil(C / L), followed by the lone
    first frame of a new episode. Both are at most C + ceil(C / L) + 1 frames. The oldest stack
    needs S - 1 frames before that. Where episodes end before the time limit, fewer decisions fit.
    """
    return config.capacity + math.ceil(config.capacity / spec.episode_decisions) + stack


def _check_room(needed: int, available: int, of_what: str, otherwise: str) -> None:
    if needed > USABLE_PART * available:
        raise KstepError(
            f"the replay needs {_human(needed)}, but {_human(available)} of {of_what} are "
            f"available, of which it takes at most {USABLE_PART:.0%}. "
            f"Set a smaller method.learning.replay_capacity, {otherwise}"
        )


def _human(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
