"""Tables: rows of numbers, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

Value: TypeAlias = str | int | float
Row: TypeAlias = Mapping[str, Value]
"""One line of a table: `label`, `task`, `seed` and `env_steps` say of which encoder."""


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows as CSV, numbers to six digits."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _rounded(value) for key, value in row.items()} for row in rows)
    return path


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation over runs, with n - 1; nan of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def base_of(label: str) -> str:
    """Return the method of a label, without a preset."""
    return label.removesuffix("-cpu").removesuffix("-debug")


def _rounded(value: Value) -> Value:
    return float(f"{value:.6g}") if isinstance(value, float) else value
