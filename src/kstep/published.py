"""The KSL paper's numbers, as they ship with the package.

In: `data/reference_results.json` (tables) and `data/ksl_paper_curves.csv` (curves). Out: the same
under our names of tasks and methods. What they mean beside ours is said elsewhere.
"""

from __future__ import annotations

import csv
import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Point(NamedTuple):
    """A point of a learning curve: mean and standard deviation over the paper's seeds."""

    mean: float
    std: float


def table(name: str) -> dict[str, Any]:
    """Return one of the paper's tables, as the data file has it."""
    found: dict[str, Any] = _tables()[name]
    return found


def seeds() -> int:
    """Return how many seeds the paper's main table and curves are means over."""
    return int(table("main")["seeds"])


@cache
def curves() -> dict[tuple[str, str], dict[int, Point]]:
    """Return the paper's main curves: by task and method, points by env_steps."""
    found: dict[tuple[str, str], dict[int, Point]] = {}
    for row in csv.DictReader(_shipped("ksl_paper_curves.csv").splitlines()):
        # "Ball in Cup, Catch" is ball_in_cup_catch, "SAC-AE" is sac_ae.
        task = row["task"].lower().replace(",", "").replace(" ", "_")
        method = row["method"].lower().replace("-", "_")
        point = Point(float(row["mean"]), float(row["std"]))
        found.setdefault((task, method), {})[int(row["env_steps"])] = point
    return found


@cache
def _tables() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_shipped("reference_results.json"))
    return data


def _shipped(name: str) -> str:
    return files("kstep").joinpath("data", name).read_text()
