"""Tables: rows of numbers, as CSV for programs and as Markdown for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kstep.files import write_atomically
from kstep.terminal import clean

Value: TypeAlias = str | int | float
Row: TypeAlias = Mapping[str, Value]
"""One line of a table; `label`, `task`, `seed` and `env_steps` identify the encoder."""

FORMULA = ("=", "+", "-", "@")
LEADING = ("\t", "\r", "\n")
"""Spreadsheets skip these."""


def grouped(rows: Iterable[Row], *columns: str) -> dict[tuple[Value, ...], list[Row]]:
    """Return the rows by their values in these columns, in order of appearance."""
    groups: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV, numbers to six digits, texts so that no spreadsheet executes them."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return write_text(path, text.getvalue())


def write_text(path: Path, text: str) -> Path:
    """Write a text completely or not at all."""
    write_atomically(path, text.encode())
    return path


def markdown(head: Sequence[str], lines: Iterable[Iterable[Value]]) -> str:
    """Return a table in Markdown, numbers to three digits."""
    every = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(map(_shown, line))} |\n" for line in every)


def write_both(path: Path, rows: Sequence[Row]) -> list[Path]:
    """Write rows as CSV and as Markdown; `path` has no suffix yet."""
    text = markdown([*rows[0]], (row.values() for row in rows))
    return [
        write_table(path.with_suffix(".csv"), rows),
        write_text(path.with_suffix(".md"), text),
    ]


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return "-" if np.isnan(value) else f"{value:.3g}"
    return plain(str(value))


def plain(text: str) -> str:
    """Return a text for Markdown: neither the end of a cell nor the beginning of a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation over runs, with n - 1; nan for a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def _cell(value: Value) -> Value:
    """Return what a CSV holds of a value. A spreadsheet takes a text that begins like a formula for
    one; behind an apostrophe it is shown as it is. Control characters are shown by their number."""
    if isinstance(value, str):
        formula = value.lstrip()[:1] in FORMULA or value[:1] in LEADING
        return f"'{clean(value)}" if formula else clean(value)
    return float(f"{value:.6g}") if isinstance(value, float) else value
