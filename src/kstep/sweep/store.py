"""One table of evaluations: a row per evaluation episode, as Parquet that any tool reads.

Run folders remain the record. `collect` reads them, replaces the table's rows of the same runs and
keeps the rest, so repeating it does not change a byte. `import_csv` puts other people's results
beside ours under a source of their own. Seeds, not episodes, are the unit of every statistic:
`scores` returns one number per seed.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kstep import config, reading
from kstep.files import fingerprint, write_atomically
from kstep.run import clock, system
from kstep.run.folder import LARGEST_RETURN, Return, Run
from kstep.run.saved_encoders import phases_of
from kstep.sweep import parquet
from kstep.terminal import counted
from kstep.types import KstepError
from kstep.values import Count, Name, decode, whole_number

OURS = "runs"
"""The source of rows that come from run folders."""

COLUMNS = pl.Schema(
    {
        "source": pl.String(),
        "method": pl.String(),
        "variant": pl.String(),
        "preset": pl.String(),
        "renderer": pl.String(),
        "task": pl.String(),
        "seed": pl.Int64(),
        "mark": pl.Int64(),
        "env_steps": pl.Int64(),
        "decisions": pl.Int64(),
        "updates": pl.Int64(),
        "episode": pl.Int64(),
        "return": pl.Float64(),
        "setting": pl.String(),
        "digest": pl.String(),
        "commit": pl.String(),
        "processor": pl.String(),
        "seconds": pl.Float64(),
        "core_seconds": pl.Float64(),
    }
)
"""`setting` is the digest without the seed: what the runs of a curve share. `seconds` of wall-clock
and `core_seconds` of processor time are what the run had taken by then, evaluations included."""

KEY = ("source", "digest", "mark", "episode")
ORDER = ("source", "task", "method", "variant", "preset", "setting", "seed", "mark", "episode")
REQUIRED = ("method", "task", "seed", "env_steps", "return")
OPTIONAL = ("variant", "preset", "renderer", "mark", "decisions", "updates", "episode")
TEXTS = ("method", "task", "variant", "preset", "renderer")
COUNTED = ("mark", "env_steps", "decisions", "updates")
ADDED = ("processor", "seconds", "core_seconds")
"""Tables of earlier versions lack these columns."""
MAY_LACK = ("renderer", "commit", "decisions", "updates", *ADDED)
"""What imported rows need not have."""


@dataclass(frozen=True)
class TableUpdate:
    """What was added to a table."""

    table: Path
    runs: int
    """Runs, or other people's curves, that were read."""
    rows: int
    """In the table now."""
    problems: tuple[str, ...] = ()
    """What was left out, and why."""

    def __str__(self) -> str:
        read = f"{self.table}: {counted(self.runs, 'run')} read, {self.rows:,} rows in all"
        return "\n".join([read, *self.problems])


def collect(runs: Path, output: Path) -> TableUpdate:
    """Read every run below a folder into the table; one that cannot be read is left out, and so is
    one of which the table has an attempt that got further."""
    if not runs.is_dir():
        raise KstepError(f"{runs} is not a folder")
    found: dict[str, list[dict[str, Any]]] = {}
    problems: list[str] = []

    def left_out(problem: str) -> None:
        problems.append(f"left out: {problem}")

    def read_run(folder: Path) -> tuple[str, list[dict[str, Any]]]:
        run = Run.open(folder)
        return run.digest, list(_rows(run, problems.append))

    for digest, rows in reading.each(run_folders(runs, left_out), read_run, left_out):
        # Copies of a run are the same run; the longer one counts.
        if len(rows) >= len(found.get(digest, ())):
            found[digest] = rows
    number = len(found)
    for digest, rows in _in_table(output, found).items():
        what, mark = _attempts(rows, found[digest])
        if mark < rows[-1]["mark"]:
            problems.append(f"left as it is in the table: {what}")
            del found[digest]
        elif not _agree(rows, found[digest]):
            problems.append(f"replaced in the table: {what}")
    new = _frame([row for rows in found.values() for row in rows])
    rows_in_all = _merge(output, new, OURS, set(found))
    return TableUpdate(output, number, rows_in_all, tuple(problems))


def _in_table(table: Path, digests: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows that the table has of these runs of ours, in the order of their marks."""
    if not os.path.lexists(table):
        return {}
    ours = read(table).filter(pl.col("source") == OURS, pl.col("digest").is_in([*digests]))
    parts = ours.sort(ORDER).partition_by("digest", as_dict=True)
    return {str(digest): part.rows(named=True) for (digest,), part in parts.items()}


def _attempts(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> tuple[str, int]:
    """Return a sentence about two attempts at one run, and how far the second got."""
    mark, run = max((row["mark"] for row in now), default=0), before[-1]
    name = " ".join(run[key] for key in ("task", "method", "variant", "preset"))
    what = f"{name} seed {run['seed']}: an attempt up to {run['mark']:,} env steps (commit "
    return f"{what}{run['commit'] or 'unknown'}); the folder has one up to {mark:,}", mark


def _agree(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the evaluations that the table had are among those of the run."""
    returns = {(row["mark"], row["episode"]): row["return"] for row in now}
    return all(returns.get((row["mark"], row["episode"])) == row["return"] for row in before)


def import_csv(file: Path, source: str, output: Path) -> TableUpdate:
    """Read other people's results, replacing the table's rows of that source."""
    decode(Name, source, "--source")
    if source == OURS or not source.strip():
        raise KstepError(f"--source must name where the numbers come from, not '{source}'")
    lines = _csv_rows(file)
    header = next(lines, (0, []))[1]
    missing = [name for name in REQUIRED if name not in header]
    unknown = [name for name in header if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown or len(set(header)) < len(header):
        problems = [f"lacks {', '.join(missing)}"] * bool(missing)
        problems += [f"has unknown {', '.join(unknown)[:200]}"] * bool(unknown)
        problems = problems or ["names a column twice"]
        raise KstepError(
            f"{file} {' and '.join(problems)}; required: {', '.join(REQUIRED)}; "
            f"optional: {', '.join(OPTIONAL)}"
        )
    rows = []
    for number, cells in lines:
        try:
            if len(cells) != len(header):
                raise KstepError(f"it has {len(cells)} cells, the first line has {len(header)}")
            rows.append(_imported(dict(zip(header, cells, strict=True)), source))
        except KstepError as error:
            raise KstepError(f"{file}, line {number}: {error}") from error
    if not rows:
        raise KstepError(f"{file} has no line but the first, with the names of columns")
    new = _frame(rows)
    duplicates = new.height - new.unique(subset=KEY).height
    if duplicates:
        raise KstepError(
            f"{file} has {duplicates} rows with the same method, task, seed, env_steps and episode"
        )
    rows_in_all = _merge(output, new, source, None)
    return TableUpdate(output, new["digest"].n_unique(), rows_in_all)


def _csv_rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of a CSV file that are not empty, with their numbers."""
    lines = csv.reader(io.StringIO(reading.text(file), newline=""), strict=True)
    try:
        for cells in lines:
            if cells:
                yield lines.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise KstepError(f"{file}, line {lines.line_num}: it is not valid CSV: {error}") from error


def read(table: Path) -> pl.DataFrame:
    """Read a table of evaluations, refusing any other file."""
    try:
        data = reading.contents(table, reading.LARGEST_TENSORS)
    except reading.Missing as error:
        raise KstepError(f"{table} does not exist; kstep collect makes it") from error
    with reading.naming(table):
        frame = parquet.decoded(data)
        if not any(name in frame.schema for name in ADDED):
            frame = frame.with_columns(pl.lit(None, COLUMNS[name]).alias(name) for name in ADDED)
        if frame.schema != COLUMNS:
            found = ", ".join(f"{name} {kind}" for name, kind in frame.schema.items())
            raise KstepError(f"it is not a table of evaluations: it has {found[:400]}")
        _check_values(frame)
    return frame


def _check_values(frame: pl.DataFrame) -> None:
    """Refuse numbers that no evaluation has, and the same evaluation twice."""
    for name in COLUMNS:
        column = frame[name]
        if name not in MAY_LACK and column.null_count():
            raise KstepError(f"the column {name} has empty cells")
        if column.dtype == pl.Int64 and (column < 0).any():
            raise KstepError(f"the column {name} has negative numbers")
    if not frame["return"].abs().le(LARGEST_RETURN).all():
        raise KstepError(f"the column return has numbers that are not within ±{LARGEST_RETURN:g}")
    for name in ("seconds", "core_seconds"):
        if not frame[name].drop_nulls().is_between(0.0, LARGEST_RETURN).all():
            raise KstepError(f"the column {name} has numbers that are no times")
    if frame.select(KEY).is_duplicated().any():
        raise KstepError("it has the same episode of the same run twice")


def scores(frame: pl.DataFrame) -> pl.DataFrame:
    """Return one score per seed and mark: the mean return over its evaluation's episodes."""
    point = ["source", "method", "variant", "preset", "task", "setting", "seed", "mark"]
    return (
        frame.group_by(point)
        .agg(pl.col("return").mean().alias("score"), pl.len().alias("episodes"))
        .sort(point)
    )


def reached(frame: pl.DataFrame) -> dict[str, int]:
    """Return the env_steps of the newest evaluation of each of our own runs, by its digest."""
    ours = frame.filter(pl.col("source") == OURS)
    return dict(ours.group_by("digest").agg(pl.col("mark").max()).sort("digest").iter_rows())


def core_seconds(frame: pl.DataFrame) -> dict[str, float]:
    """Return the processor time per decision of our own runs whose time was recorded: the median
    over the seeds of a setting."""
    timed = frame.filter(pl.col("source") == OURS, pl.col("decisions") > 0)
    newest = timed.drop_nulls("core_seconds").sort("decisions").unique("digest", keep="last")
    cost = pl.col("core_seconds") / pl.col("decisions")
    return dict(newest.group_by("setting").agg(cost.median()).sort("setting").iter_rows())


def run_folders(
    root: Path, left_out: Callable[[str], None] = lambda problem: None
) -> Iterator[Path]:
    """Yield every run folder below a folder, in order; does not descend into runs, nor into links.
    `left_out` is told of folders that cannot be looked into."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError as error:
            left_out(f"{folder} cannot be read: {error.strerror}")
            continue
        if "config.json" in found:
            yield folder
        else:
            waiting += [folder / name for name in sorted(found, reverse=True) if found[name]]


def _rows(run: Run, note: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    experiment = run.experiment
    method, variant = experiment.method.base, experiment.method.variant
    identity = {
        "source": OURS,
        "method": method,
        "variant": " ".join(filter(None, (variant, phases_of(experiment)))) or "controlled",
        "preset": experiment.preset,
        **_where(run, note),
        "task": experiment.env.task,
        "seed": experiment.seed,
        "setting": config.setting(experiment),
        "digest": run.digest,
    }
    marks, ticks = set[int](), clock.ticks(run)
    for row in run.evaluations():
        if row.mark in marks:
            raise KstepError(f"{run.evaluations_file} has two evaluations at {row.mark:,}")
        marks.add(row.mark)
        counted = {name: getattr(row, name) for name in COUNTED}
        spent = clock.spent(ticks, row.decisions) or (None, None)
        counted |= dict(zip(("seconds", "core_seconds"), spent, strict=True))
        for episode, value in enumerate(row.returns):
            yield {**identity, **counted, "episode": episode, "return": value}


def _where(run: Run, note: Callable[[str], None]) -> dict[str, str]:
    """Return renderer, commit and processor; several, joined, if a run was resumed elsewhere."""
    try:
        history = system.history(run.system_file)
    except KstepError as error:
        note(f"{error}; renderer, commit and processor of this run stay empty")
        history = ()
    columns = {"renderer": "rendering", "commit": "commit", "processor": "processor"}
    return {
        column: _joined(getattr(machine, key) for machine in history)
        for column, key in columns.items()
    }


def _joined(names: Iterable[str]) -> str:
    return " then ".join(dict.fromkeys(filter(None, names)))


@dataclass(frozen=True)
class ImportedRow:
    """A line of somebody's CSV but for its return; empty cells take the defaults."""

    method: Name
    task: Name
    seed: Count
    env_steps: Count
    variant: Name = ""
    preset: Name = "published"
    renderer: Name = ""
    mark: Count | None = None
    decisions: Count | None = None
    updates: Count | None = None
    episode: Count = 0


def _imported(cells: Mapping[str, str], source: str) -> dict[str, Any]:
    """Return a row of the table."""
    for name in REQUIRED:
        if not cells[name]:
            raise KstepError(f"{name} is empty")
    data = {name: _number(name, text) for name, text in cells.items() if text}
    score = decode(Return, data.pop("return"), "return")
    row: ImportedRow = decode(ImportedRow, data)
    base, _, suffix = row.method.partition("-")
    identity = {
        "source": source,
        "method": base,
        "variant": row.variant or suffix or "published",
        "preset": row.preset,
        "renderer": row.renderer,
        "task": row.task,
        "commit": "",
    }
    setting = fingerprint(identity)[:16]
    return {
        **identity,
        "seed": row.seed,
        "mark": row.env_steps if row.mark is None else row.mark,
        "env_steps": row.env_steps,
        "decisions": row.decisions,
        "updates": row.updates,
        "episode": row.episode,
        "return": score,
        "setting": setting,
        "digest": fingerprint({"setting": setting, "seed": row.seed})[:16],
    }


def _number(name: str, text: str) -> str | int | float:
    """Return a cell as what its column holds: a text, a whole number or a number."""
    if name in TEXTS:
        return text
    whole = name != "return"
    try:
        return whole_number(text) if whole else float(text)
    except (ValueError, OverflowError) as error:
        what = "a whole number such as 100000" if whole else "a finite number"
        raise KstepError(f"{name} must be {what}, not {text[:50]!r}") from error


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _merge(output: Path, new: pl.DataFrame, source: str, digests: set[str] | None) -> int:
    """Write the table with `new` in place of its rows of these runs; None: of this source."""
    frames = [new]
    if os.path.lexists(output):
        gone = pl.col("source") == source
        if digests is not None:
            gone &= pl.col("digest").is_in(sorted(digests))
        frames.insert(0, read(output).filter(~gone))
    merged = pl.concat(frames).sort(ORDER)
    buffer = io.BytesIO()
    merged.write_parquet(buffer, compression="zstd")
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, buffer.getvalue())
    return merged.height
