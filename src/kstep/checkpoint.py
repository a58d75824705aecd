"""Saving and loading a run whole: weights, moments, replay, streams, counts, the open episode.

Nothing is pickled: tensors in safetensors, the rest in JSON, so loading executes nothing. Frames go
into segments that are written once and shared by later checkpoints; a checkpoint becomes visible by
one rename, and the previous one stays until then.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.numpy
import safetensors.torch

from kstep.agent import Agent
from kstep.episode import Episode
from kstep.files import sha256, sync_folder, write_atomically, write_json
from kstep.replay import Replay
from kstep.run import Run
from kstep.types import Counts, KstepError

FORMAT = 1
KEEP = 2


@dataclass(frozen=True)
class Positions:
    """How many bytes of each log belong to a checkpoint; what is beyond is written again."""

    metrics: int
    evaluations: int


@dataclass
class Session:
    """The moving parts of a run that a checkpoint holds."""

    agent: Agent
    replay: Replay
    episode: Episode
    counts: Counts


def save(run: Run, session: Session, positions: Positions) -> Path:
    """Write a checkpoint and return its folder."""
    segments = _write_new_frames(run, session.replay)
    final = run.checkpoints / f"{session.counts.decisions:09d}"
    aside = run.checkpoints / f"{final.name}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    weights = aside / "agent.safetensors"
    tensors = {key: tensor.contiguous() for key, tensor in session.agent.state().items()}
    write_atomically(weights, safetensors.torch.save(tensors))
    state = {
        "format": FORMAT,
        "digest": run.digest,
        "counts": asdict(session.counts),
        "streams": session.agent.streams.state(),
        "phase": session.agent.phase,
        "episode": session.episode.state(),
        "replay": {"counters": session.replay.counters(), "segments": segments},
        "positions": asdict(positions),
        "weights": sha256(weights),
    }
    write_json(aside / "state.json", state)
    sync_folder(aside)
    if final.exists():
        shutil.rmtree(final)
    aside.rename(final)
    sync_folder(run.checkpoints)
    _forget_old(run)
    return final


def load_weights(run: Run, agent: Agent) -> Counts:
    """Load the newest whole checkpoint's weights, for acting only; the replay is not looked at."""
    folder, state = newest(run, with_replay=False)
    _load_agent(agent, folder, state)
    return Counts(**state["counts"])


def load(run: Run, session: Session) -> tuple[Positions, list[str]]:
    """Continue `session` from the newest whole checkpoint; also say what had to be passed over."""
    folder, state = newest(run)
    damaged = _set_damaged_aside(run, folder)
    _load_agent(session.agent, folder, state)
    session.agent.streams.load_state(state["streams"])
    counters = state["replay"]["counters"]
    segments = (
        safetensors.numpy.load_file(run.replay / name) for name in state["replay"]["segments"]
    )
    session.replay.restore(segments, counters)
    session.episode.enact(state["episode"], session.replay.newest_stack())
    for name, value in state["counts"].items():
        setattr(session.counts, name, value)
    return Positions(**state["positions"]), damaged


def exists(run: Run) -> bool:
    """Whether there is a checkpoint to go on from; raises where there must have been one."""
    folders = [path for path in run.checkpoints.glob("[0-9]*") if path.name.isdigit()]
    if any(_whole(path) for path in folders):
        return True
    # A run that is stopped before its first checkpoint leaves at most one segment behind.
    if folders or len(list(run.replay.glob("frames-*"))) > 1:
        raise KstepError(
            f"{run.folder} had checkpoints, but none is left to go on from. Move the folder "
            "away to start again"
        )
    return False


def reached(run: Run) -> int:
    """Return the env_steps of the newest checkpoint; 0 where there is none."""
    if not exists(run):
        return 0
    env_steps: int = newest(run, with_replay=False)[1]["counts"]["env_steps"]
    return env_steps


def newest(run: Run, *, with_replay: bool = True) -> tuple[Path, dict[str, Any]]:
    """Return the newest checkpoint that is whole and its state, or explain why there is none."""
    problems = []
    for folder in sorted(run.checkpoints.glob("[0-9]*"), reverse=True):
        if not _whole(folder):
            continue
        try:
            return folder, _check(run, folder, with_replay)
        except (KstepError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"  {folder.name}: {error}")
    detail = "\n" + "\n".join(problems) if problems else ": none was written yet"
    raise KstepError(f"{run.folder} has no usable checkpoint{detail}")


def _set_damaged_aside(run: Run, chosen: Path) -> list[str]:
    """Keep what `newest` passed over, but under a name that nothing will build on; say so."""
    said = []
    for folder in sorted(run.checkpoints.glob("[0-9]*")):
        if _whole(folder) and folder.name > chosen.name:
            aside = folder.with_name(f"{folder.name}.damaged")
            folder.rename(aside)
            said.append(f"checkpoint {folder.name} is damaged; it is kept as {aside.name}")
    return said


def _check(run: Run, folder: Path, with_replay: bool) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if state["format"] != FORMAT:
        raise KstepError(f"written in format {state['format']}, this version reads {FORMAT}")
    if state["digest"] != run.digest:
        raise KstepError("belongs to another experiment")
    if sha256(folder / "agent.safetensors") != state["weights"]:
        raise KstepError("agent.safetensors is damaged")
    for name, expected in state["replay"]["segments"].items() if with_replay else ():
        path = run.replay / name
        if not path.is_file() or sha256(path) != expected:
            raise KstepError(f"replay/{name} is missing or damaged")
    return state


def _whole(folder: Path) -> bool:
    return folder.name.isdigit() and (folder / "state.json").is_file()


def _load_agent(agent: Agent, folder: Path, state: dict[str, Any]) -> None:
    tensors = safetensors.torch.load_file(folder / "agent.safetensors")
    agent.load_state(tensors, updates=state["counts"]["updates"], phase=state["phase"])


def _write_new_frames(run: Run, replay: Replay) -> dict[str, str]:
    """Write what no segment holds yet and return the checksums of all segments still needed."""
    known: dict[str, str] = {}
    checkpoints = sorted(path for path in run.checkpoints.glob("[0-9]*") if _whole(path))
    if checkpoints:
        state = json.loads((checkpoints[-1] / "state.json").read_text())
        known = state["replay"]["segments"]
    written = max((_range(name)[1] for name in known), default=0)
    # The newest frame of the last segment had no action yet, so it is written once more.
    start = max(written - 1, replay.oldest_frame, 0)
    arrays = replay.export(start)
    name = f"frames-{start:012d}-{replay.total:012d}.safetensors"
    path = run.replay / name
    write_atomically(path, safetensors.numpy.save(arrays))
    sync_folder(run.replay)
    kept = {key: value for key, value in known.items() if _range(key)[1] > replay.oldest_frame}
    return {**kept, name: sha256(path)}


def _range(segment: str) -> tuple[int, int]:
    start, stop = segment.removeprefix("frames-").removesuffix(".safetensors").split("-")
    return int(start), int(stop)


def _forget_old(run: Run) -> None:
    checkpoints = sorted(path for path in run.checkpoints.glob("[0-9]*") if _whole(path))
    for path in checkpoints[:-KEEP]:
        shutil.rmtree(path)
    needed: set[str] = set()
    for path in checkpoints[-KEEP:]:
        needed |= set(json.loads((path / "state.json").read_text())["replay"]["segments"])
    for path in run.replay.glob("frames-*.safetensors"):
        if path.name not in needed:
            path.unlink()
