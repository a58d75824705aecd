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
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
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
from kstep.files import fingerprint, part_of
from kstep.rng import StreamPositions
from kstep.run import legacy, on_demand
from kstep.run.episode import Episode, EpisodeSoFar
from kstep.run.folder import LogName, Run, checkpoint_age
from kstep.run.log import Written, before
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
    final = _next_folder(run, session.counts.decisions)
    aside = part_of(final)
    known, segment = _new_segment(run, session.replay)
    try:
        segments = {**known, segment.name: _write_frames(run, session.replay, segment)}
        run.tree.remove(aside)
        run.tree.make(aside)
        tensors = {key: tensor.contiguous() for key, tensor in session.agent.state().items()}
        weights = safetensors.torch.save(tensors)
        run.tree.write(aside / "agent.safetensors", weights)
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
        run.tree.write_json(aside / "state.json", {**state, "checksum": fingerprint(state)})
        run.tree.rename(aside, final.name)
    except BaseException:
        # An interrupt may come when the rename is done: what is published keeps its frames. The
        # rest is removed: on a full disk it stands in the way of everything else.
        if not final.exists():
            run.tree.remove(aside)
            if segment.name not in known:
                run.tree.remove(segment)
        raise
    _forget_old(run)
    return final


def load_weights(
    run: Run,
    agent: Agent,
    passed_over: Callable[[str], None] | None = None,
    use: Callable[[Weights], None] = lambda state: None,
) -> Counts:
    """Load the weights of the newest intact checkpoint that `use` does not refuse, for acting only;
    frames are not read. `passed_over` is told of newer ones that are damaged."""
    folder, state = newest(run, use, passed_over or (lambda problem: None))
    _load_agent(agent, folder, state)
    return state.counts


def load(run: Run, session: Session, allowed: Allowed) -> tuple[Positions, list[str]]:
    """Continue `session` from the newest intact checkpoint; also return what to report."""

    def restore(state: State) -> None:
        session.replay.restore(_segments(run, state), state.replay.counters)

    folder, state = resumable(run, restore)
    notes = session.provenance.refuse_other(state.provenance, allowed)
    notes = _set_damaged_aside(run, folder) + notes
    _remove_incomplete(run)
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
    _remove_incomplete(run)
    for path in run.replay.glob("frames-*"):
        run.tree.remove(path)


def tidy(run: Run) -> None:
    """Remove what a run that was killed at its end has left behind; the lock must be free."""
    if run.is_legacy:
        return
    if run.incomplete() or run.checkpoint_folders()[:-KEEP] or _unneeded_segments(run):
        with run.locked():
            _remove_incomplete(run)
            _forget_old(run)


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
            env_steps = f"{_read_state(folder).counts.env_steps:,}"
        except KstepError:
            continue
        return f"The run folder is intact; its newest checkpoint is at {env_steps} env steps"
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
    detail = "".join(f"\n  {problem}" for problem in problems)
    detail = detail or f": {on_demand.first_checkpoint(run)}"
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
            run.tree.rename(folder, aside.name)
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


def _next_folder(run: Run, decisions: int) -> Path:
    """Return where the next checkpoint goes: its name is later than those of all others of the same
    decision, even where the first of them are gone."""
    ages = sorted(checkpoint_age(name) for name in os.listdir(run.checkpoints))
    same = [(*age, 0)[1] for age in ages if age[:1] == (decisions,)]
    suffix = f".{same[-1] + 1}" if same else ""
    return run.checkpoints / f"{decisions:09d}{suffix}"


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


def _new_segment(run: Run, replay: Replay) -> tuple[dict[str, str], Path]:
    """Return the segments that hold frames still needed, with their checksums, and where to write
    the frames that none of them holds."""
    known: Mapping[str, str] = {}
    with suppress(IndexError, KstepError):  # otherwise all frames are written once more
        known = _segment_names(run.checkpoint_folders()[-1])
    written = max((_range(name)[1] for name in known), default=0)
    # The newest frame of the last segment had no action yet, so it is written once more.
    start = max(written - 1, replay.oldest_frame, 0)
    kept = {key: value for key, value in known.items() if _range(key)[1] > replay.oldest_frame}
    return kept, run.replay / f"frames-{start:012d}-{replay.total:012d}.safetensors"


def _write_frames(run: Run, replay: Replay, segment: Path) -> str:
    """Write the frames that belong in a segment and return their checksum."""
    data = safetensors.numpy.save(replay.export(_range(segment.name)[0]))
    run.tree.write(segment, data)
    return hashlib.sha256(data).hexdigest()


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


def _remove_incomplete(run: Run) -> None:
    """Remove what was being written or removed when a run was killed."""
    for path in run.incomplete():
        run.tree.remove(path)


def _forget_old(run: Run) -> None:
    for path in run.checkpoint_folders()[:-KEEP]:
        run.tree.remove(part_of(path))
        # So that half of one never looks complete.
        run.tree.remove(run.tree.rename(path, part_of(path).name))
    for path in _unneeded_segments(run):
        run.tree.remove(path)


def _unneeded_segments(run: Run) -> list[Path]:
    """Return the segments that no checkpoint to be kept refers to; none where one is damaged, since
    it is not known what that one needs."""
    needed: set[str] = set()
    try:
        for path in run.checkpoint_folders()[-KEEP:]:
            needed |= set(_segment_names(path))
    except KstepError:
        return []
    found = run.replay.glob("frames-*.safetensors")
    return [path for path in found if SEGMENT.fullmatch(path.name) and path.name not in needed]
