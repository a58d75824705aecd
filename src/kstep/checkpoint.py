"""Saving and loading a run whole: weights, moments, replay, streams, counts, the open episode.

Nothing is pickled: tensors in safetensors, the rest in JSON, so loading executes nothing. Frames go
into segments that are written once and shared by later checkpoints; a checkpoint becomes visible by
one rename, and the previous one stays until then.

Whatever is read is checked first. A damaged checkpoint gives way to the one before; one that is
whole but was made by another format, experiment, version or renderer is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
import safetensors.torch

from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.episode import Episode
from kstep.files import sha256, sync_folder, write_atomically, write_json
from kstep.log import Written, before
from kstep.origin import Allowed, Origin
from kstep.run import Run
from kstep.types import Array, Counts, KstepError

FORMAT = 2
KEEP = 2


class Refused(KstepError):
    """A checkpoint that is whole, but not one to go on from here."""


@dataclass(frozen=True)
class Positions:
    """What of each log belongs to a checkpoint; what is beyond is written again."""

    metrics: Written = field(default_factory=Written)
    evaluations: Written = field(default_factory=Written)


@dataclass
class Session:
    """The moving parts of a run that a checkpoint holds."""

    agent: Agent
    replay: Replay
    episode: Episode
    counts: Counts
    origin: Origin = field(default_factory=Origin)


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
        state = {
            "format": FORMAT,
            "digest": run.digest,
            "origin": session.origin.state(),
            "counts": asdict(session.counts),
            "streams": session.agent.streams.state(),
            "phase": session.agent.phase,
            "episode": session.episode.state(),
            "replay": {"counters": session.replay.counters(), "segments": segments},
            "positions": asdict(positions),
            "weights": hashlib.sha256(weights).hexdigest(),
        }
        write_json(aside / "state.json", {**state, "checksum": _checksum(state)})
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


def load_weights(run: Run, agent: Agent) -> Counts:
    """Load the newest whole checkpoint's weights, for acting only; the replay is not looked at."""
    folder, state = newest(run, with_replay=False)
    _load_agent(agent, folder, state)
    return Counts(**state["counts"])


def load(run: Run, session: Session, allowed: Allowed) -> tuple[Positions, list[str]]:
    """Continue `session` from the newest whole checkpoint; also say what is worth saying."""

    def restore(state: dict[str, Any]) -> None:
        session.replay.restore(_segments(run, state), state["replay"]["counters"])

    folder, state = _first(run, restore)
    notes = session.origin.refuse_other(_origin(state, allowed), allowed)
    notes = _set_damaged_aside(run, folder) + notes
    _sweep(run)
    _load_agent(session.agent, folder, state)
    session.agent.streams.load_state(state["streams"])
    # Other means may well lead to another frame; that was accepted with them.
    session.episode.enact(state["episode"], session.replay.newest_stack(), strictly=not allowed.any)
    for name, value in state["counts"].items():
        setattr(session.counts, name, value)
    return _positions(state), notes


def check(run: Run, origin: Origin, allowed: Allowed) -> None:
    """Refuse a run that could not go on here, before anything is touched; no frame is read."""
    if exists(run):
        origin.refuse_other(_origin(newest(run, with_replay=False)[1], allowed), allowed)


def begin(run: Run) -> None:
    """Remove what a run that was stopped inside its first checkpoint has left behind."""
    _sweep(run)
    for path in run.replay.glob("frames-*"):
        path.unlink()


def exists(run: Run) -> bool:
    """Whether there is a checkpoint to go on from; raises where there must have been one."""
    folders = [path for path in run.checkpoints.glob("[0-9]*") if _named(path)]
    if any(_whole(path) for path in folders):
        return True
    # A run that is stopped before its first checkpoint leaves at most one segment behind.
    if folders or len(list(run.replay.glob("frames-*.safetensors"))) > 1:
        raise KstepError(
            f"{run.folder} had checkpoints, but none is left to go on from. Move the folder "
            "away to start again"
        )
    return False


def reached(run: Run) -> int:
    """Return the env_steps of the newest checkpoint; 0 where there is none.

    Raises if a log was changed since: a run that is done must not vouch for it.
    """
    if not exists(run):
        return 0
    state = newest(run, with_replay=False)[1]
    positions = _positions(state)
    before(run.metrics_file, positions.metrics)
    before(run.evaluations_file, positions.evaluations)
    env_steps: int = state["counts"]["env_steps"]
    return env_steps


def standing(run: Run) -> str:
    """Say in one sentence what of a run is on disk."""
    for folder in reversed(_folders(run)):
        try:
            env_steps = json.loads((folder / "state.json").read_text())["counts"]["env_steps"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return f"The run folder is whole; its newest checkpoint is at {env_steps:,} env steps"
    return "The run folder is whole, but has no checkpoint yet"


def newest(run: Run, *, with_replay: bool = True) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint that is whole and its state, or explain why there is none."""

    def read(state: dict[str, Any]) -> None:
        for _ in _segments(run, state) if with_replay else ():
            pass

    return _first(run, read)


def _first(run: Run, use: Callable[[dict[str, Any]], None]) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint that is what was written and whose frames `use` can use.

    Reading gigabytes twice, to check and to use them, would be most of a restart.
    """
    problems = []
    for folder in reversed(_folders(run)):
        try:
            state = _check(run, folder)
            use(state)
            return folder, state
        except Refused as error:
            raise Refused(f"{folder} {error}") from error
        except (KstepError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"  {folder.name}: {error}")
    detail = "\n" + "\n".join(problems) if problems else ": none was written yet"
    raise KstepError(f"{run.folder} has no usable checkpoint{detail}")


def _folders(run: Run) -> list[Path]:
    """All checkpoints that look whole, oldest first."""
    return sorted((path for path in run.checkpoints.glob("[0-9]*") if _whole(path)), key=_age)


def _set_damaged_aside(run: Run, chosen: Path) -> list[str]:
    """Keep what `newest` passed over, but under a name that nothing will build on; say so."""
    said = []
    for folder in _folders(run):
        if folder.name > chosen.name:
            aside = _free_name(folder.with_name(f"{folder.name}.damaged"))
            folder.rename(aside)
            said.append(f"checkpoint {folder.name} is damaged; it is kept as {aside.name}")
    return said


def _check(run: Run, folder: Path) -> dict[str, Any]:
    state = _read_state(folder)
    if state["digest"] != run.digest:
        raise Refused("belongs to another experiment")
    if sha256(folder / "agent.safetensors") != state["weights"]:
        raise KstepError("agent.safetensors is damaged")
    return state


def _segments(run: Run, state: dict[str, Any]) -> Iterator[dict[str, Array]]:
    """Read the frames of a checkpoint, each file checked before it is looked at."""
    for name, expected in state["replay"]["segments"].items():
        path = run.replay / name
        data = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(data).hexdigest() != expected:
            raise KstepError(f"replay/{name} is missing or damaged")
        try:
            yield safetensors.numpy.load(data)
        except safetensors.SafetensorError as error:
            raise KstepError(f"{path} cannot be read: {error}") from error


def _read_state(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint says of itself, once it is known to be what was written."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    checksum = state.pop("checksum", None)
    # The first format had no checksum of its own, nor does it say what computed it.
    if checksum is None and state["format"] == 1:
        positions = {name: {"bytes": size} for name, size in state["positions"].items()}
        return {**state, "origin": None, "positions": positions}
    if checksum != _checksum(state):
        raise KstepError("state.json is damaged")
    if state["format"] != FORMAT:
        raise Refused(
            f"is written in format {state['format']}, this version of kstep reads {FORMAT}"
        )
    return state


def _checksum(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _origin(state: dict[str, Any], allowed: Allowed) -> Origin:
    if state["origin"] is None and not allowed.version:
        raise Refused(
            "the checkpoint is of format 1, which does not say what computed it; "
            "--force-version goes on with it"
        )
    return Origin(**(state["origin"] or {}))


def _positions(state: dict[str, Any]) -> Positions:
    return Positions(**{name: Written(**value) for name, value in state["positions"].items()})


def _named(folder: Path) -> bool:
    # Decisions, and a number where a run was saved more than once between two of them.
    return re.fullmatch(r"\d+(\.\d+)?", folder.name) is not None


def _age(folder: Path) -> tuple[int, ...]:
    """Orders checkpoints: by decisions, then by which was written later."""
    return tuple(int(number) for number in folder.name.split("."))


def _whole(folder: Path) -> bool:
    return _named(folder) and (folder / "state.json").is_file()


def _free_name(path: Path) -> Path:
    """Return `path`, or the first `path.1`, `path.2`, ... that does not exist."""
    names = itertools.chain([path], (path.with_name(f"{path.name}.{i}") for i in range(1, 10**6)))
    return next(name for name in names if not name.exists())


def _load_agent(agent: Agent, folder: Path, state: dict[str, Any]) -> None:
    path = folder / "agent.safetensors"
    try:
        tensors = safetensors.torch.load_file(path)
        agent.load_state(tensors, updates=state["counts"]["updates"], phase=state["phase"])
    except (safetensors.SafetensorError, RuntimeError) as error:  # no such file, or no such agent
        raise KstepError(f"{path} cannot be read: {error}") from error


def _write_new_frames(run: Run, replay: Replay) -> tuple[dict[str, str], Path | None]:
    """Write what no segment holds yet; return the checksums of all that are needed, and the one
    that no earlier checkpoint needs."""
    checkpoints = _folders(run)
    known: dict[str, str] = {}
    if checkpoints:
        known = _read_state(checkpoints[-1])["replay"]["segments"]
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


def _range(segment: str) -> tuple[int, int]:
    start, stop = segment.removeprefix("frames-").removesuffix(".safetensors").split("-")
    return int(start), int(stop)


def _sweep(run: Run) -> None:
    """Remove what was being written or removed when a run was killed."""
    for path in (*run.checkpoints.glob("*.part"), *run.replay.glob("*.part")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _forget_old(run: Run) -> None:
    checkpoints = _folders(run)
    for path in checkpoints[:-KEEP]:
        aside = path.with_name(f"{path.name}.part")  # so that half of one never looks whole
        path.rename(aside)
        shutil.rmtree(aside)
    needed: set[str] = set()
    for path in checkpoints[-KEEP:]:
        needed |= set(json.loads((path / "state.json").read_text())["replay"]["segments"])
    for path in run.replay.glob("frames-*.safetensors"):
        if path.name not in needed:
            path.unlink()
