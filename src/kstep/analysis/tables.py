"""Tables: rows of numbers, as CSV, and the paper's own numbers to put beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

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


def reference(table: str) -> dict[str, Any]:
    """Return one of the paper's tables."""
    found: dict[str, Any] = _reference_results()[table]
    return found


@cache
def _reference_results() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_shipped("reference_results.json"))
    return data


@cache
def paper_curves() -> dict[tuple[str, str], dict[int, tuple[float, float]]]:
    """Return the paper's main curves: by task and method, mean and deviation by env_steps."""
    found: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in csv.DictReader(_shipped("ksl_paper_curves.csv").splitlines()):
        # "Ball in Cup, Catch" is ball_in_cup_catch, "SAC-AE" is sac_ae.
        task = row["task"].lower().replace(",", "").replace(" ", "_")
        method = row["method"].lower().replace("-", "_")
        point = float(row["mean"]), float(row["std"])
        found.setdefault((task, method), {})[int(row["env_steps"])] = point
    return found


def _shipped(name: str) -> str:
    return resources.files("kstep").joinpath("data", name).read_text()


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation over runs, with n - 1; nan of a single one."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")


def base_of(label: str) -> str:
    """Return the method of a label, without a preset."""
    return label.removesuffix("-cpu").removesuffix("-debug")


def _rounded(value: Value) -> Value:
    return float(f"{value:.6g}") if isinstance(value, float) else value
