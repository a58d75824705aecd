"""Tables: rows of numbers, as CSV, and the paper's own numbers to put beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

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


def reference(table: str) -> dict[str, Any]:
    """Return one of the paper's tables."""
    data = resources.files("kstep").joinpath("data/reference_results.json").read_text()
    found: dict[str, Any] = json.loads(data)[table]
    return found


def base_of(label: str) -> str:
    """Return the method of a label, without a preset."""
    return label.removesuffix("-cpu").removesuffix("-debug")


def _rounded(value: Value) -> Value:
    return float(f"{value:.6g}") if isinstance(value, float) else value
