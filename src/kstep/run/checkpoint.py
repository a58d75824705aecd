"""Saving and loading all of a run: weights, moments, replay, streams, counts, the open episode.

Nothing is pickled: tensors in safetensors, the rest in JSON, so loading executes nothing. Frames go
into segments that are written once and shared by later checkpoints; a checkpoint becomes visible by
one rename, and the previous one stays until then.

Whatever is read is checked first. A damaged checkpoint gives way to the one before; one that is
intact but of another format, experiment, version or renderer is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import annotated_types as at
import safetensors.numpy
import safetensors.torch

from kstep import reading
from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.data.ring import Counters
from kstep.files import fingerprint, sync_folder, write_atomically, write_json
from kstep.rng import StreamPositions
from kstep.run import legacy
from kstep.run.episode import Episode, EpisodeSoFar
from kstep.run.folder import Run, checkpoint_age
from kstep.run.log import LogName, Written, before
from kstep.run.provenance import Allowed, Provenance
from kstep.types import Array, Counts, KstepError
from kstep.values import decode, encode

FORMAT = 3
READABLE = (1, 2, FORMAT)
"""Earlier formats can be evaluated, not resumed; their experiments are of another format too."""
KEEP = 2
SEGMENT = re.compile(r"frames-([0-9]{12,18})-([0-9]{12,18})\.safetensors")
"""The name of a file of frames: the first, and one past the last."""


class Refused(KstepError):
    """An intact checkpoint that cannot be resumed here."""


Positions: TypeAlias = Mapping[LogName, Written]
"""What of each log belongs to a checkpoint; what is beyond is written again."""


@dataclass(frozen=True)
class Weights:
    """What a checkpoint of any format says of its weights."""

    format: int
    digest: str
    """Of the experiment."""
    counts: Counts
    phase: Annotated[int, at.Ge(0), at.Le(1)]
    weights: str
    """Checksum of agent.safetensors."""


@dataclass(frozen=True)
class SavedReplay:
    """Which frames belong to a checkpoint."""

    counters: Counters
    segments: Mapping[str, str]
    """Checksums by the name of the file, below the folder of the replay."""


@dataclass(frozen=True)
class State(Weights):
    """A checkpoint's state.json: everything but weights and frames."""

    provenance: Provenance
    streams: StreamPositions
    episode: EpisodeSoFar
    replay: SavedReplay
    positions: Positions


@dataclass
class Session:
    """The moving parts of a run that a checkpoint holds."""

    agent: Agent
    replay: Replay
    episode: Episode
    counts: Counts
    provenance: Provenance = field(default_factory=Provenance)


def save(run: Run, session: Session, positions: Positions) -> Path:
    """Write a checkpoint and return its folder. Where that fails, nothing of it is left."""
    segments, new = _write_new_frames(run, session.replay)
    final = _free_name(run.checkpoints / f"{session.counts.decisions:09d}")
    aside = run.checkpoints / f"{final.name}.part"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        tensors = {key: tensor.contiguous() for key, tensor in session.agent.state().items()}
        weights = safetensors.torch.save(tensors)
        write_atomically(aside / "agent.safetensors", weights)
        state = encode(
            State(
                format=FORMAT,
                digest=run.digest,
                provenance=session.provenance,
                counts=session.counts,
                streams=session.agent.streams.state(),
                phase=session.agent.phase,
                episode=session.episode.state(),
                replay=SavedReplay(session.replay.counters(), segments),
                positions=positions,
                weights=hashlib.sha256(weights).hexdigest(),
            )
        )
        write_json(aside / "state.json", {**state, "checksum": fingerprint(state)})
        sync_folder(aside)
        aside.rename(final)
    except BaseException:
        # On a full disk these are what stands in the way of everything else.
        shutil.rmtree(aside, ignore_errors=True)
        if new is not None:
            new.unlink(missing_ok=True)
        raise
    sync_folder(run.checkpoints)
    _forget_old(run)
    return final


def load_weights(run: Run, agent: Agent, passed_over: Callable[[str], None]) -> Counts:
    """Load the newest intact checkpoint's weights, for acting only; frames are not read.
    `passed_over` is told of newer ones that are damaged."""
    folder, state = newest(run, passed_over=passed_over)
    _load_agent(agent, folder, state)
    return state.counts


def load(run: Run, session: Session, allowed: Allowed) -> tuple[Positions, list[str]]:
    """Continue `session` from the newest intact checkpoint; also return what to report."""

    def restore(state: State) -> None:
        session.replay.restore(_segments(run, state), state.replay.counters)

    folder, state = resumable(run, restore)
    notes = session.provenance.refuse_other(state.provenance, allowed)
    notes = _set_damaged_aside(run, folder) + notes
    _sweep(run)
    _load_agent(session.agent, folder, state)
    with reading.naming(folder / "state.json"):
        session.agent.streams.load_state(state.streams)
        actions = state.episode.decoded(session.episode.width)
    # Other versions may well lead to another frame; that was accepted with them.
    session.episode.repeat(
        state.episode.seed, actions, session.replay.newest_stack(), strictly=not allowed.any
    )
    for name, value in vars(state.counts).items():
        setattr(session.counts, name, value)
    return state.positions, notes


def check(run: Run, here: Provenance, allowed: Allowed) -> None:
    """Refuse a run that cannot be resumed here, before anything is touched; no frame is read."""
    if run.is_legacy:
        raise KstepError(
            f"{run.folder} was written by an earlier version of kstep: it can be evaluated, filmed "
            "and analyzed, but not resumed. Choose another --folder"
        )
    if exists(run):
        state = resumable(run)[1]
        here.refuse_other(state.provenance, allowed)
        _check_logs(run, state)


def begin(run: Run) -> None:
    """Remove what a run that was stopped inside its first checkpoint has left behind."""
    _sweep(run)
    for path in run.replay.glob("frames-*"):
        path.unlink()


def exists(run: Run) -> bool:
    """Whether there is a checkpoint to resume from; raises where there must have been one."""
    if run.checkpoint_folders():
        return True
    folders = [path for path in run.checkpoints.glob("[0-9]*") if checkpoint_age(path.name)]
    # A run that is stopped before its first checkpoint leaves at most one segment behind.
    if folders or len(list(run.replay.glob("frames-*.safetensors"))) > 1:
        raise KstepError(
            f"{run.folder} had checkpoints, but none is left to resume from. Move the folder "
            "away to start again"
        )
    return False


def reached(run: Run) -> int:
    """Return the env_steps of the newest intact checkpoint.

    Raises if a log was changed since it was written: a run that is done must not vouch for it.
    """
    if run.is_legacy:
        return newest(run)[1].counts.env_steps
    state = resumable(run)[1]
    _check_logs(run, state)
    return state.counts.env_steps


def describe(run: Run) -> str:
    """Return in one sentence what of a run is on disk."""
    for folder in reversed(run.checkpoint_folders()):
        try:
            env_steps = _read_state(folder).counts.env_steps
        except KstepError:
            continue
        return f"The run folder is intact; its newest checkpoint is at {env_steps:,} env steps"
    return "The run folder is intact, but has no checkpoint yet"


def newest(
    run: Run,
    use: Callable[[Weights], None] = lambda state: None,
    passed_over: Callable[[str], None] = lambda problem: None,
) -> tuple[Path, Weights]:
    """Return the newest checkpoint that is what was written and whose frames `use` can use, and
    what it says of itself, or explain why there is none. `passed_over` is told of newer ones.

    Reading gigabytes twice, to check and to use them, would be most of a restart.
    """
    problems = []
    for folder in reversed(run.checkpoint_folders()):
        try:
            state = _check(run, folder)
            use(state)
        except Refused as error:
            raise Refused(f"{folder} {error}") from error
        except KstepError as error:
            problems.append(f"{folder.name}: {error}")
            continue
        for problem in problems:
            passed_over(f"{run.checkpoints}/{problem}")
        return folder, state
    detail = "".join(f"\n  {problem}" for problem in problems) or ": none was written yet"
    raise KstepError(f"{run.folder} has no usable checkpoint{detail}")


def resumable(run: Run, use: Callable[[State], None] = lambda state: None) -> tuple[Path, State]:
    """Return the newest intact checkpoint of today's format."""

    def check(state: Weights) -> None:
        if isinstance(state, State):
            use(state)

    folder, state = newest(run, check)
    if not isinstance(state, State):
        raise Refused(f"{folder} is written in format {state.format}, which cannot be resumed")
    return folder, state


def _set_damaged_aside(run: Run, chosen: Path) -> list[str]:
    """Keep what `newest` passed over, but under a name that nothing will build on; report it."""
    notes = []
    for folder in run.checkpoint_folders():
        if checkpoint_age(folder.name) > checkpoint_age(chosen.name):
            aside = _free_name(folder.with_name(f"{folder.name}.damaged"))
            folder.rename(aside)
            notes.append(f"checkpoint {folder.name} is damaged; it is kept as {aside.name}")
    return notes


def _check(run: Run, folder: Path) -> Weights:
    state = _read_state(folder)
    if state.digest != run.written_digest:
        raise Refused("belongs to another experiment")
    if state.phase and run.experiment.method.exploration is None:
        raise Refused(f"is in a second phase, which '{run.experiment.method.name}' does not have")
    if reading.sha256(folder / "agent.safetensors") != state.weights:
        raise KstepError("agent.safetensors is damaged")
    return state


def _segments(run: Run, state: State) -> Iterator[dict[str, Array]]:
    """Read the frames of a checkpoint, each file checked before it is looked at."""
    for name, expected in state.replay.segments.items():
        path = run.replay / name
        try:
            data = reading.contents(path, reading.LARGEST_TENSORS)
        except reading.Missing:
            data = b""
        if hashlib.sha256(data).hexdigest() != expected:
            raise KstepError(f"replay/{name} is missing or damaged")
        yield reading.arrays(data, path)


def _read_state(folder: Path) -> Weights:
    """Return what a checkpoint says of itself, once it is known to be what was written."""
    path = folder / "state.json"
    data: dict[str, Any] = reading.json_file(path)
    checksum, written = data.pop("checksum", None), data.get("format")
    # The first format had no checksum of its own.
    if checksum != fingerprint(data) and not (checksum is None and written == 1):
        raise KstepError("state.json is damaged")
    if written not in READABLE:
        raise Refused(
            f"is written in format {str(written)[:20]}, this version of kstep reads {FORMAT}"
        )
    with reading.naming(path):
        if written == FORMAT:
            state: State = decode(State, data)
            for name in state.replay.segments:
                _range(name)
            return state
        of_weights = {name: data[name] for name in data if name in Weights.__dataclass_fields__}
        weights: Weights = decode(Weights, of_weights)
        return weights


def _check_logs(run: Run, state: State) -> None:
    for name, written in state.positions.items():
        before(run.log(name), written)


def _free_name(path: Path) -> Path:
    """Return `path`, or the first `path.1`, `path.2`, ... that does not exist."""
    names = itertools.chain([path], (path.with_name(f"{path.name}.{i}") for i in range(1, 10**6)))
    return next(name for name in names if not name.exists())


def _load_agent(agent: Agent, folder: Path, state: Weights) -> None:
    path = folder / "agent.safetensors"
    tensors = reading.weights(reading.contents(path, reading.LARGEST_TENSORS), path)
    if state.format < FORMAT:
        tensors = legacy.weights(tensors)
    try:
        agent.load_state(tensors, updates=state.counts.updates, phase=state.phase)
    except (RuntimeError, KstepError) as error:  # of another agent
        raise KstepError(f"{path} does not fit: {' '.join(str(error).split())[:300]}") from error


def _write_new_frames(run: Run, replay: Replay) -> tuple[dict[str, str], Path | None]:
    """Write what no segment holds yet; return the checksums of all that are needed, and the one
    that no earlier checkpoint needs."""
    checkpoints = run.checkpoint_folders()
    known: Mapping[str, str] = {}
    if checkpoints:
        known = _segment_names(checkpoints[-1])
    written = max((_range(name)[1] for name in known), default=0)
    # The newest frame of the last segment had no action yet, so it is written once more.
    start = max(written - 1, replay.oldest_frame, 0)
    data = safetensors.numpy.save(replay.export(start))
    name = f"frames-{start:012d}-{replay.total:012d}.safetensors"
    write_atomically(run.replay / name, data)
    sync_folder(run.replay)
    kept = {key: value for key, value in known.items() if _range(key)[1] > replay.oldest_frame}
    segments = {**kept, name: hashlib.sha256(data).hexdigest()}
    return segments, None if name in known else run.replay / name


def _segment_names(folder: Path) -> Mapping[str, str]:
    """Return the checksums of the frames that a checkpoint needs, by the name of their file."""
    state = _read_state(folder)
    return state.replay.segments if isinstance(state, State) else {}


def _range(segment: str) -> tuple[int, int]:
    """Return the frames in a file (first, one past the last), refusing any other name: it becomes
    part of a path."""
    found = SEGMENT.fullmatch(segment)
    if found is None:
        raise KstepError(f"{segment[:100]!r} is not the name of a file of frames")
    return int(found[1]), int(found[2])


def _sweep(run: Run) -> None:
    """Remove what was being written or removed when a run was killed."""
    for path in (*run.checkpoints.glob("*.part"), *run.replay.glob("*.part")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _forget_old(run: Run) -> None:
    checkpoints = run.checkpoint_folders()
    for path in checkpoints[:-KEEP]:
        aside = path.with_name(f"{path.name}.part")  # so that half of one never looks complete
        path.rename(aside)
        shutil.rmtree(aside)
    needed: set[str] = set()
    for path in checkpoints[-KEEP:]:
        needed |= set(_segment_names(path))
    for path in run.replay.glob("frames-*.safetensors"):
        if path.name not in needed:
            path.unlink()
