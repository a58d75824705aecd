"""The KSL paper's own numbers under our names, and ours beside them.

In: `data/reference_results.json` (tables) and `data/ksl_paper_curves.csv` (curves), and which cells
the paper prints bold and with how many stars. Out: cells as summaries with that verdict, the cell
that belongs beside one of ours, and a word for where ours stands.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Literal

from kstep.analysis.tables import Row
from kstep.config import PRESETS
from kstep.methods import METHODS, VARIANT_OF
from kstep.report.statistics import Best, Summary, best_against, welch
from kstep.types import KstepError

Place = Literal["inside", "above", "below"]

MARKS: Mapping[int, str] = MappingProxyType({100_000: "steps_100k", 500_000: "steps_500k"})
"""Where its tables look, and what the data calls it."""
CURVE_MARKS = range(0, 500_001, 20_000)
"""Where its curves have points."""
GRID_TASK = "cheetah_run"

VERDICTS: Mapping[tuple[str, int], str] = MappingProxyType(
    {
        ("main", 100_000): "ksl** ksl** ksl** ksl** ksl** ksl**",
        ("main", 500_000): "ksl ksl* ksl ksl** ksl* ksl*",
        ("tangential", 100_000): "ksl** ksl** ksl** ksl** ksl** ksl**",
        ("tangential", 500_000): "ksl ksl** ksl** ksl** ksl* ksl**",
        ("generalization", 100_000): "curl ksl ksl** ksl ksl* ksl*",
        ("k-l-grid", 100_000): "k3-l0",
        ("k-l-grid", 500_000): "k3-l0",
    }
)
"""Per table and mark: what it prints bold in each of the table's tasks, and the stars on it."""


@dataclass(frozen=True)
class Printed(Summary):
    """A cell of the paper: mean, standard deviation, number of runs, and its verdict."""

    best: bool = False
    """Bold."""
    stars: str = ""


@cache
def table(name: str) -> dict[str, Any]:
    """Return one of the paper's tables, as the data file has it."""
    found: dict[str, Any] = json.loads(_shipped("reference_results.json"))[name]
    return found


@cache
def cells(name: str, mark: int) -> dict[str, dict[str, Printed]]:
    """Return one of the paper's tables of returns as task -> method -> cell."""
    if (name, mark) not in VERDICTS:
        there = ", ".join(f"{table} at {at:,}" for table, at in VERDICTS)
        raise KstepError(f"the paper has no table '{name}' at {mark:,} env steps; it has {there}")
    runs, rows = _rows(name, mark)
    return {
        task: {
            method: Printed(
                float(mean),
                float(std),
                runs,
                best=method == bold.rstrip("*"),
                stars="*" * bold.count("*") * (method == bold.rstrip("*")),
            )
            for method, (mean, std) in row.items()
        }
        for (task, row), bold in zip(rows.items(), VERDICTS[name, mark].split(), strict=True)
    }


def _rows(name: str, mark: int) -> tuple[int, dict[str, dict[str, tuple[float, float]]]]:
    """Return the number of runs behind each cell, and mean and deviation by task and method."""
    if name == "k-l-grid":
        data = table("ablation_k_l_cheetah_run")
        grid = data[MARKS[mark]].items()
        return data["seeds"], {
            GRID_TASK: {f"{k}-{l}": pair for k, row in grid for l, pair in row.items()}  # noqa: E741
        }
    data = table({"generalization": "generalization_100k"}.get(name, name))
    rows, runs = data.get("rows") or data[MARKS[mark]], data["seeds"]
    if name == "generalization":
        runs *= len(rows) - 1  # each encoder was carried to every other task
    return runs, {
        task: {
            {"prl": "proto_rl"}.get(method, method): (cell["mean"], cell["std"])
            for method, cell in row.items()
        }
        for task, row in rows.items()
    }


@cache
def curves() -> dict[tuple[str, str], dict[int, Summary]]:
    """Return the paper's main curves: by task and method, points by env_steps."""
    found: dict[tuple[str, str], dict[int, Summary]] = {}
    for row in csv.DictReader(_shipped("ksl_paper_curves.csv").splitlines()):
        # "Ball in Cup, Catch" is ball_in_cup_catch, "SAC-AE" is sac_ae.
        task = row["task"].lower().replace(",", "").replace(" ", "_")
        method = row["method"].lower().replace("-", "_")
        point = Summary(float(row["mean"]), float(row["std"]), table("main")["seeds"])
        found.setdefault((task, method), {})[int(row["env_steps"])] = point
    return found


def name_of(label: str) -> str:
    """Return what the paper calls a method: KSL's three readings stand beside the same column, and
    so do a peer's two settings. Empty for what it has no column for."""
    return VARIANT_OF.get(_bare(label), "")


def _bare(label: str) -> str:
    """Return a label without a preset and without the lengths of two phases."""
    return re.sub(rf"(-({'|'.join(PRESETS)}))?( \d+k?/\d+k?)?$", "", label)


def beside(row: Row, mark: int, tables: Sequence[str]) -> Printed | None:
    """Return the paper's cell for one of our rows, from the first of these tables that has one.

    Between the tables' marks it is a point of the paper's curves. Proto-RL's cell at a mark is of
    the run that explored for half of it.
    """
    task, label = str(row["task"]), str(row["label"])
    explored = int(row.get("exploration", 0))
    if explored and 2 * explored != mark:
        return None
    for name in tables:
        if (name, mark) in VERDICTS:
            method = _bare(label) if name == "k-l-grid" else name_of(label)
            found = cells(name, mark).get(task, {}).get(method)
            if found is not None:
                return found
    point = None if "main" not in tables else curves().get((task, name_of(label)), {}).get(mark)
    return None if point is None else Printed(point.mean, point.sd, point.n)


def contest(found: Mapping[str, Summary], methods: Mapping[str, str]) -> Best | None:
    """Find the best of those that see images and test it, as the paper does; None if none does.

    `methods`: which method each label is. SAC from state is not in the running, and neither is
    another variant of the best one its rival.
    """
    seen = [label for label in found if not sees_state(methods[label])]
    if not seen:
        return None
    best = max(seen, key=lambda label: found[label].mean)
    own = name_of(best) or best
    rivals = [label for label in seen if (name_of(label) or label) != own]
    return best_against(best, found, rivals)


def sees_state(method: str) -> bool:
    return method in METHODS and METHODS[method].observation == "state"


def place(ours: Summary, theirs: Summary, level: float = 0.05) -> Place:
    """Say whether our mean differs from the paper's (Welch): inside if it does not."""
    if not welch(ours, theirs) < level:
        return "inside"
    return "above" if ours.mean > theirs.mean else "below"


def _shipped(name: str) -> str:
    return files("kstep").joinpath("data", name).read_text()
