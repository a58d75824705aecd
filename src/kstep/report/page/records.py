"""Runs as records, whether they come from a run folder or from a table of evaluations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from kstep import reading
from kstep.analysis.tables import Row
from kstep.config import Experiment, resolve, setting
from kstep.envs.tasks import OF_SUITE, parse
from kstep.report import scores
from kstep.report.comparisons import by_method
from kstep.run import clock, health, system
from kstep.run.folder import Run
from kstep.sweep import store
from kstep.sweep.plan import State, status_of
from kstep.sweep.status import rate
from kstep.types import KstepError

SAMPLED = 200
"""Logged updates that are read of a run, evenly spaced: a page has no room for more."""
WATCHED = ("latent/rank", "latent/spread", "critic/q", "actor/entropy")
"""What of them is shown."""
FILMS = re.compile(r"(\d+)?[\w .-]*\.(mp4|webm|gif|webp)")


@dataclass(frozen=True)
class Point:
    """An evaluation of a run."""

    mark: int
    decisions: int | None
    updates: int | None
    seconds: float | None
    """That the run had taken by then."""
    score: float
    """The mean return over its episodes."""


@dataclass(frozen=True)
class Record:
    """One run: what it is, how far it is, and what it returned."""

    identity: Row
    """`label`, `method`, `task`, `seed`, `exploration`."""
    digest: str
    preset: str
    points: tuple[Point, ...]
    state: State = "done"
    reached: int = 0
    budget: int | None = None
    problem: str = ""
    renderer: str = ""
    commit: str = ""
    machine: str = ""
    source: str = store.OURS
    folder: Path | None = None
    history: tuple[Mapping[str, float], ...] = ()
    """Some of its logged updates, with `env_steps`."""
    alarms: tuple[str, ...] = ()
    """What is wrong with its newest logged updates."""
    films: tuple[tuple[int, Path], ...] = ()
    """env_steps and file."""
    seconds_left: float | None = None
    """Until it has reached its budget; None if it is not running or its speed is not known yet."""

    @property
    def label(self) -> str:
        return str(self.identity["label"])

    @property
    def task(self) -> str:
        return str(self.identity["task"])

    @property
    def seed(self) -> int:
        return int(self.identity["seed"])

    @property
    def name(self) -> str:
        return f"{self.label} on {self.task}, seed {self.seed}"

    def rows(self) -> list[Row]:
        """Return a row per evaluation, as `report.scores` has them."""
        return [
            {**self.identity, "env_steps": point.mark, "score": point.score}
            for point in self.points
        ]


def identify(experiment: Experiment) -> Row:
    """Return what a run is called; one on a frozen encoder is named after that as well."""
    frozen = experiment.frozen_encoder
    row = by_method(replace(experiment, frozen_encoder=None))
    if frozen is None:
        return row
    return {**row, "label": f"{row['label']} on {frozen.label} of {frozen.task}"}


def of_folder(folder: Path) -> Record:
    """Read a run folder."""
    run = Run.open(folder)
    experiment = run.experiment
    status = status_of(run, experiment.env_steps)
    speed = rate(run, status) if status.state == "running" else None
    lines, points = _updates(run), tuple(_points(run))
    state = status.state
    if state == "partly" and points and points[-1].mark >= experiment.env_steps:
        state = "done"  # its checkpoints were not kept, but its results are complete
    try:
        machines = system.history(run.system_file)
    except KstepError:  # nothing but this depends on it
        machines = ()
    return Record(
        identify(experiment),
        run.digest,
        experiment.preset,
        points,
        state,
        status.env_steps,
        experiment.env_steps,
        status.problem,
        renderer=_joined(machine.rendering for machine in machines),
        commit=_joined(machine.commit for machine in machines),
        machine=_joined(machine.processor for machine in machines),
        folder=folder,
        history=tuple(_parsed(_spaced(lines))),
        alarms=tuple(_alarms(experiment, _parsed(lines[-health.PATIENCE :]))),
        films=tuple(_films(folder)),
        seconds_left=(experiment.env_steps - status.env_steps) / speed if speed else None,
    )


def _points(run: Run) -> Iterator[Point]:
    ticks = clock.ticks(run)
    for row in run.evaluations():
        spent = clock.spent(ticks, row.decisions)
        yield Point(row.mark, row.decisions, row.updates, spent and spent[0], row.mean)


def _updates(run: Run) -> list[bytes]:
    """Return the lines of the log that are about updates."""
    try:
        lines = reading.contents(run.metrics_file, reading.LARGEST_LOG).split(b"\n")[:-1]
    except reading.Missing:
        return []
    return [line for line in lines if b'"critic/' in line]


def _spaced(lines: list[bytes]) -> list[bytes]:
    if len(lines) <= SAMPLED:
        return lines
    return [lines[round(i * (len(lines) - 1) / (SAMPLED - 1))] for i in range(SAMPLED)]


def _parsed(lines: Iterable[bytes]) -> list[dict[str, float]]:
    """Return the numbers of logged updates that are shown or judged; damaged lines are left out."""
    counts, bounds = {"env_steps", "updates"}, {"reward/bonus", "temperature/value"}
    wanted = counts | bounds | {*WATCHED, *health.SPREADS}
    found = []
    for line in lines:
        try:
            row = reading.parse_json(line)
        except KstepError:
            continue
        if isinstance(row, dict):
            kept = {key: row[key] for key in wanted & row.keys()}
            if all(isinstance(value, int | float) for value in kept.values()):
                found.append(kept)
    return found


def _alarms(experiment: Experiment, newest: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield what the training watchdog would report at the newest logged updates, by its rules."""
    if len(newest) < health.PATIENCE:
        return
    flat = (
        row.keys() >= health.SPREADS and health.is_flat(row, row.get("updates", 0))
        for row in newest
    )
    if all(flat):
        yield "The representation has collapsed"
    # The folder does not hold the rewards; those of the suite are at most 1 per env step.
    if experiment.env.task in OF_SUITE:
        repeat = experiment.env.action_repeat or parse(experiment.env.task).action_repeat
        horizon = experiment.method.core.largest_horizon
        if all(
            abs(row.get("critic/q", 0.0))
            > health.RUNAWAY * health.largest_return(row, repeat, horizon)
            for row in newest
        ):
            yield "Q diverges"


def _films(folder: Path) -> list[tuple[int, Path]]:
    """Return the films of a run, from its first checkpoint to its last; no link is followed."""
    films, found = folder / "films", []
    for path in [] if films.is_symlink() else films.glob("*"):
        name = FILMS.fullmatch(path.name)
        if name and path.is_file() and not path.is_symlink():
            found.append((int(name[1] or 0), path))
    return sorted(found)


def _joined(texts: Iterable[str]) -> str:
    return " then ".join(dict.fromkeys(filter(None, texts)))


def of_table(frame: pl.DataFrame) -> list[Record]:
    """Return the runs of a table of evaluations, other people's included."""
    point = ["source", "digest", "mark"]
    first = [name for name in frame.columns if name not in (*point, "episode", "return")]
    scored = (
        frame.group_by(point)
        .agg(pl.col("return").mean().alias("score"), *(pl.col(name).first() for name in first))
        .sort("source", "task", "method", "variant", "preset", "seed", "digest", "mark")
    )
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in scored.iter_rows(named=True):
        runs.setdefault((row["source"], row["digest"]), []).append(row)
    return [_of_rows(rows) for rows in runs.values()]


def _of_rows(rows: list[dict[str, Any]]) -> Record:
    last = rows[-1]
    if last["source"] == store.OURS:
        columns = ("method", "variant", "preset", "task", "setting")
        identity = _identity_in_table(*(last[name] for name in columns))
    else:
        identity = scores.imported(last)
    return Record(
        {**identity, "seed": last["seed"]},
        last["digest"],
        last["preset"],
        tuple(
            Point(*(row["mark"], row["decisions"], row["updates"]), row["seconds"], row["score"])
            for row in rows
        ),
        reached=last["env_steps"],
        renderer=last["renderer"] or "",
        commit=last["commit"] or "",
        machine=last["processor"] or "",
        source=last["source"],
    )


@cache
def _identity_in_table(method: str, variant: str, preset: str, task: str, found: str) -> Row:
    """Return what a run in a table is called: as its folder would be, if its settings are those of
    a method that we have, and otherwise with the digest of its settings."""
    words = re.fullmatch(r"(.*?) ?(\d+k?/\d+k?)?", variant)
    assert words, variant
    name = method if words[1] in ("", "controlled") else f"{method}-{words[1]}"
    label = name if preset == "paper" else f"{name}-{preset}"
    phases = [int(part.replace("k", "000")) for part in (words[2] or "").split("/") if part]
    plain: Row = {"label": f"{label}-{found[:6]} {words[2] or ''}".strip(), "method": name}
    plain = {**plain, "task": task, "exploration": phases[0] if phases else 0}
    try:
        overrides = [f"method.exploration.env_steps={phases[0]}"] if phases else []
        budget = sum(phases) or None
        experiment = resolve(name, task, preset=preset, env_steps=budget, overrides=overrides)
        return identify(experiment) if setting(experiment) == found else plain
    except KstepError:  # a method or task of somebody else's
        return plain


def read(
    sources: Iterable[Path],
    left_out: Callable[[str], None],
    of_folder: Callable[[Path], Record] = of_folder,
) -> list[Record]:
    """Read all runs below folders and in tables; what cannot be read is left out. Copies of a run
    are the same run; the longest counts, of equally long ones the first."""
    found: dict[tuple[str, str], Record] = {}
    for source in sources:
        if source.is_dir():
            folders = store.run_folders(source, left_out)
            records = list(reading.each(folders, of_folder, left_out))
        else:
            records = of_table(store.read(source))
        for record in records:
            key = (record.source, record.digest)
            if key not in found or len(record.points) > len(found[key].points):
                found[key] = record
    return list(found.values())
