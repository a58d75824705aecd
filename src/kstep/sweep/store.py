"""One table of evaluations: a row per evaluation episode, as Parquet that any tool reads.

Run folders remain the record. `collect` reads them, replaces the table's rows of the same runs and
keeps the rest, so repeating it does not change a byte. `import_csv` puts other people's results
beside ours under a source of their own. Seeds, not episodes, are the unit of every statistic:
`scores` returns one number per seed.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from kstep import config
from kstep.files import fingerprint, write_atomically
from kstep.run.folder import Run
from kstep.run.saved_encoders import phases_of
from kstep.types import KstepError

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
    }
)
"""`setting` is the digest without the seed: what the runs of a curve share."""

KEY = ("source", "digest", "mark", "episode")
ORDER = ("source", "task", "method", "variant", "preset", "setting", "seed", "mark", "episode")
REQUIRED = ("method", "task", "seed", "env_steps", "return")
OPTIONAL = ("variant", "preset", "renderer", "mark", "decisions", "updates", "episode")


@dataclass(frozen=True)
class TableUpdate:
    """What was added to a table."""

    table: Path
    runs: int
    """Runs, or other people's curves, that were read."""
    rows: int
    """In the table now."""
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        read = f"{self.table}: {self.runs} runs read, {self.rows:,} rows in all"
        return "\n".join([read, *(f"left out: {problem}" for problem in self.problems)])


def collect(runs: Path, output: Path) -> TableUpdate:
    """Read every run below a folder into the table."""
    if not runs.is_dir():
        raise KstepError(f"{runs} is not a folder")
    found: dict[str, list[dict[str, Any]]] = {}
    problems = []
    for folder in run_folders(runs):
        try:
            run = Run.open(folder)
            rows = list(_rows(run))
        except (KstepError, json.JSONDecodeError, KeyError) as error:
            problems.append(f"{folder}: {error}")
            continue
        # Copies of a run are the same run; the longer one counts.
        if len(rows) >= len(found.get(run.digest, ())):
            found[run.digest] = rows
    new = _frame([row for rows in found.values() for row in rows])
    rows_in_all = _merge(output, new, OURS, set(found))
    return TableUpdate(output, len(found), rows_in_all, tuple(problems))


def import_csv(file: Path, source: str, output: Path) -> TableUpdate:
    """Read other people's results, replacing the table's rows of that source."""
    if source == OURS or not source.strip():
        raise KstepError(f"--source must name where the numbers come from, not '{source}'")
    if not file.is_file():
        raise KstepError(f"{file} is not a file")
    try:
        table = pl.read_csv(file, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise KstepError(f"{file} cannot be read as CSV: {error}") from error
    missing = [name for name in REQUIRED if name not in table.columns]
    unknown = [name for name in table.columns if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        problems = [f"lacks {', '.join(missing)}"] * bool(missing)
        problems += [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise KstepError(
            f"{file} {' and '.join(problems)}; required: {', '.join(REQUIRED)}; "
            f"optional: {', '.join(OPTIONAL)}"
        )
    rows = []
    for number, row in enumerate(table.iter_rows(named=True), start=2):
        try:
            rows.append(_imported(row, source))
        except (ValueError, TypeError) as error:
            raise KstepError(f"{file}, line {number}: {error}") from error
    new = _frame(rows)
    duplicates = new.height - new.unique(subset=KEY).height
    if duplicates:
        raise KstepError(
            f"{file} has {duplicates} rows with the same method, task, seed, env_steps and episode"
        )
    rows_in_all = _merge(output, new, source, None)
    return TableUpdate(output, new["digest"].n_unique(), rows_in_all)


def read(table: Path) -> pl.DataFrame:
    """Read a table of evaluations, refusing any other file."""
    if not table.is_file():
        raise KstepError(f"{table} does not exist; kstep collect makes it")
    try:
        frame = pl.read_parquet(table)
    except pl.exceptions.PolarsError as error:
        raise KstepError(f"{table} is not a Parquet table: {error}") from error
    if tuple(frame.columns) != tuple(COLUMNS):
        raise KstepError(f"{table} is not a table of evaluations: it has {frame.columns}")
    return frame


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


def run_folders(root: Path) -> Iterator[Path]:
    """Yield every run folder below a folder, in order; does not descend into runs."""
    for path, folders, names in os.walk(root):
        if "config.json" in names:
            folders.clear()
            yield Path(path)
        folders.sort()


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    experiment = run.experiment
    method, variant = experiment.method.base, experiment.method.variant
    identity = {
        "source": OURS,
        "method": method,
        "variant": " ".join(filter(None, (variant, phases_of(experiment)))) or "controlled",
        "preset": experiment.preset,
        **_where(run),
        "task": experiment.env.task,
        "seed": experiment.seed,
        "setting": config.setting(experiment),
        "digest": run.digest,
    }
    for row in run.evaluations():
        counted = {name: row[name] for name in ("mark", "env_steps", "decisions", "updates")}
        for episode, value in enumerate(row["returns"]):
            yield {**identity, **counted, "episode": episode, "return": float(value)}


def _where(run: Run) -> dict[str, str]:
    """Return renderer and commit; several, joined, if a run was resumed elsewhere."""
    try:
        history = json.loads(run.system_file.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        history = []
    return {
        name: " then ".join(dict.fromkeys(str(entry[key]) for entry in history if key in entry))
        for name, key in (("renderer", "rendering"), ("commit", "commit"))
    }


def _imported(row: Mapping[str, str | None], source: str) -> dict[str, Any]:
    def whole(name: str, otherwise: int | None) -> int | None:
        text = row.get(name)
        return otherwise if text is None or not text.strip() else int(float(text))

    def word(name: str, otherwise: str) -> str:
        return (row.get(name) or "").strip() or otherwise

    for name in REQUIRED:
        if not (row[name] or "").strip():
            raise ValueError(f"{name} is empty")
    base, _, suffix = word("method", "").partition("-")
    steps = whole("env_steps", None)
    identity = {
        "source": source,
        "method": base,
        "variant": word("variant", suffix or "published"),
        "preset": word("preset", "published"),
        "renderer": word("renderer", ""),
        "task": word("task", ""),
        "commit": "",
    }
    setting = fingerprint(identity)[:16]
    seed = whole("seed", None)
    return {
        **identity,
        "seed": seed,
        "mark": whole("mark", steps),
        "env_steps": steps,
        "decisions": whole("decisions", None),
        "updates": whole("updates", None),
        "episode": whole("episode", 0),
        "return": float(row["return"] or ""),
        "setting": setting,
        "digest": fingerprint({"setting": setting, "seed": seed})[:16],
    }


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def _merge(output: Path, new: pl.DataFrame, source: str, digests: set[str] | None) -> int:
    """Write the table with `new` in place of its rows of these runs; None: of this source."""
    frames = [new]
    if output.exists():
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
