"""One table of evaluations: a row per evaluation episode, as Parquet that any tool reads.

Run folders stay the truth. `collect` reads them, replaces what the table had of the same runs and
keeps the rest, so repeating it changes nothing, not a byte. `import_csv` puts other people's
results beside ours under a source of their own. Seeds, not episodes, are the unit of every
statistic: `scores` gives one number per seed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kstep import config
from kstep.files import write_atomically
from kstep.run.folder import Run
from kstep.run.saved_encoders import phases_of
from kstep.types import KstepError

if TYPE_CHECKING:
    import polars as pl

OURS = "runs"
"""The source of what run folders hold."""

COLUMNS: Mapping[str, str] = {
    "source": "String",
    "method": "String",
    "variant": "String",
    "preset": "String",
    "renderer": "String",
    "task": "String",
    "seed": "Int64",
    "mark": "Int64",
    "env_steps": "Int64",
    "decisions": "Int64",
    "updates": "Int64",
    "episode": "Int64",
    "return": "Float64",
    "setting": "String",
    "digest": "String",
    "commit": "String",
}
"""Name to polars type. `setting` is the digest without the seed: what one curve consists of."""

KEY = ("source", "digest", "mark", "episode")
ORDER = ("source", "task", "method", "variant", "preset", "setting", "seed", "mark", "episode")
REQUIRED = ("method", "task", "seed", "env_steps", "return")
OPTIONAL = ("variant", "preset", "renderer", "mark", "decisions", "updates", "episode")


@dataclass(frozen=True)
class Gathered:
    """What a table holds after something was added."""

    table: Path
    runs: int
    """Runs, or curves of other people, that were read."""
    rows: int
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.table}: {self.runs} runs read, {self.rows:,} rows in all"]
        return "\n".join([*lines, *(f"left out: {problem}" for problem in self.problems)])


def collect(runs: Path, output: Path) -> Gathered:
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
        # A copy of a run is the same run; the one that went further counts.
        if len(rows) >= len(found.get(run.digest, ())):
            found[run.digest] = rows
    new = _frame([row for rows in found.values() for row in rows])
    rows_in_all = _merge(output, new, OURS, set(found))
    return Gathered(output, len(found), rows_in_all, tuple(problems))


def import_csv(file: Path, source: str, output: Path) -> Gathered:
    """Read results of others, replacing what the table had of that source."""
    import polars as pl

    if source == OURS or not source.strip():
        raise KstepError(f"--source must name where the numbers come from, not '{source}'")
    if not file.is_file():
        raise KstepError(f"{file} is not a file")
    try:
        given = pl.read_csv(file, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise KstepError(f"{file} cannot be read as CSV: {error}") from error
    missing = [name for name in REQUIRED if name not in given.columns]
    unknown = [name for name in given.columns if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        said = [f"lacks {', '.join(missing)}"] * bool(missing)
        said += [f"has unknown {', '.join(unknown)}"] * bool(unknown)
        raise KstepError(
            f"{file} {' and '.join(said)}; required: {', '.join(REQUIRED)}; "
            f"known as well: {', '.join(OPTIONAL)}"
        )
    rows = []
    for number, row in enumerate(given.iter_rows(named=True), start=2):
        try:
            rows.append(_imported(row, source))
        except (ValueError, TypeError) as error:
            raise KstepError(f"{file}, line {number}: {error}") from error
    new = _frame(rows)
    doubled = new.height - new.unique(subset=KEY).height
    if doubled:
        raise KstepError(
            f"{file} has {doubled} rows with the same method, task, seed, env_steps and episode"
        )
    rows_in_all = _merge(output, new, source, None)
    return Gathered(output, new["digest"].n_unique(), rows_in_all)


def read(table: Path) -> pl.DataFrame:
    """Read a table, checking that it is one."""
    import polars as pl

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
    import polars as pl

    point = ["source", "method", "variant", "preset", "task", "setting", "seed", "mark"]
    return (
        frame.group_by(point)
        .agg(pl.col("return").mean().alias("score"), pl.len().alias("episodes"))
        .sort(point)
    )


def run_folders(root: Path) -> Iterator[Path]:
    """Yield every run folder below a folder, in order; does not look inside runs."""
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
        **_where(run.folder / "system.json"),
        "task": experiment.env.task,
        "seed": experiment.seed,
        "setting": config.setting(experiment),
        "digest": run.digest,
    }
    for row in run.evaluations():
        counted = {name: row[name] for name in ("mark", "env_steps", "decisions", "updates")}
        for episode, value in enumerate(row["returns"]):
            yield {**identity, **counted, "episode": episode, "return": float(value)}


def _where(system: Path) -> dict[str, str]:
    """Return renderer and commit; several, joined, if a run was carried on elsewhere."""
    try:
        history = json.loads(system.read_text())
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
    setting = _name(identity)
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
        "digest": _name({"setting": setting, "seed": seed}),
    }


def _name(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    schema = {name: getattr(pl, kind) for name, kind in COLUMNS.items()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _merge(output: Path, new: pl.DataFrame, source: str, digests: set[str] | None) -> int:
    """Write the table with `new` in place of what it had of these runs; None: of this source."""
    import io

    import polars as pl

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
