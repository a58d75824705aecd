"""The KSL paper's own numbers under our names, and ours beside them.

In: the folder `paper_data` (tables as JSON, curves as CSV), and which cells the paper prints bold
and with how many stars. Out: its cells, the one that belongs beside one of ours, and the place of
ours relative to it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from kstep import reading
from kstep.analysis.tables import Row
from kstep.methods import METHODS, VARIANT_OF
from kstep.names import PRESET_SUMMARIES
from kstep.report.statistics import FEWEST_SEEDS, Best, Summary, best_against, welch
from kstep.types import KstepError

Place = Literal["none shown", "above", "below", "too few seeds"]
"""How our mean differs from the paper's."""

MARKS: Mapping[int, str] = {100_000: "steps_100k", 500_000: "steps_500k"}
"""env_steps of its tables, and their keys in the data file."""
CURVE_MARKS = range(0, 500_001, 20_000)
"""env_steps of the points of its curves."""
GRID_TASK = "cheetah_run"

AFTER_METHOD = re.compile(rf"(-(?P<preset>{'|'.join(PRESET_SUMMARIES)}))?( \d+k?/\d+k?)?$")
"""What follows the method in a label: a preset, and the lengths of two phases."""

BOLD: Mapping[tuple[str, int], str] = {
    ("main", 100_000): "ksl** ksl** ksl** ksl** ksl** ksl**",
    ("main", 500_000): "ksl ksl* ksl ksl** ksl* ksl*",
    ("tangential", 100_000): "ksl** ksl** ksl** ksl** ksl** ksl**",
    ("tangential", 500_000): "ksl ksl** ksl** ksl** ksl* ksl**",
    ("generalization", 100_000): "curl ksl ksl** ksl ksl* ksl*",
    ("k-l-grid", 100_000): "k3-l0",
    ("k-l-grid", 500_000): "k3-l0",
}
"""Per table and mark: which method it prints bold in each of the table's tasks, with its stars."""


@dataclass(frozen=True)
class PaperCell(Summary):
    """A cell of the paper: mean, standard deviation, number of runs, and how it is printed."""

    best: bool = False
    """Bold."""
    stars: str = ""


@cache
def table(name: str) -> dict[str, Any]:
    """Return one of the paper's tables, as the data file has it."""
    found: dict[str, Any] = reading.json_file(_shipped("reference_results.json"))[name]
    return found


@cache
def cells(name: str, mark: int) -> dict[str, dict[str, PaperCell]]:
    """Return one of the paper's tables of returns as task -> method -> cell."""
    if (name, mark) not in BOLD:
        known = ", ".join(f"{table} at {at:,}" for table, at in BOLD)
        raise KstepError(f"the paper has no table '{name}' at {mark:,} env steps; it has {known}")
    runs, rows = _rows(name, mark)
    return {
        task: {
            method: PaperCell(
                float(mean),
                float(std),
                runs,
                best=method == bold.rstrip("*"),
                stars="*" * bold.count("*") * (method == bold.rstrip("*")),
            )
            for method, (mean, std) in row.items()
        }
        for (task, row), bold in zip(rows.items(), BOLD[name, mark].split(), strict=True)
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
        runs *= len(rows) - 1  # each encoder was used in every other task
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
    for row in csv.DictReader(reading.text(_shipped("ksl_paper_curves.csv")).splitlines()):
        # "Ball in Cup, Catch" is ball_in_cup_catch, "SAC-AE" is sac_ae.
        task = row["task"].lower().replace(",", "").replace(" ", "_")
        method = row["method"].lower().replace("-", "_")
        point = Summary(float(row["mean"]), float(row["std"]), table("main")["seeds"])
        found.setdefault((task, method), {})[int(row["env_steps"])] = point
    return found


def name_of(label: str) -> str:
    """Return the paper's column for a method: KSL's three readings share one, and so do a peer's
    two settings. Empty where it has none."""
    return VARIANT_OF.get(bare(label), "")


def bare(label: str) -> str:
    """Return a label without a preset and without the lengths of two phases."""
    return AFTER_METHOD.sub("", label)


def preset_of(label: str) -> str:
    """Return the preset of a label; those of the paper's size do not say so."""
    found = AFTER_METHOD.search(label)
    return (found and found["preset"]) or "paper"


def beside(row: Row, mark: int, tables: Sequence[str]) -> PaperCell | None:
    """Return the paper's cell for one of our rows, from the first of these tables that has one.

    Between the tables' marks it is a point of the paper's curves. Proto-RL's cell at a mark belongs
    to the run that explored for half of it.
    """
    task, label = str(row["task"]), str(row["label"])
    explored = int(row.get("exploration", 0))
    if explored and 2 * explored != mark:
        return None
    for name in tables:
        if (name, mark) in BOLD:
            method = bare(label) if name == "k-l-grid" else name_of(label)
            found = cells(name, mark).get(task, {}).get(method)
            if found is not None:
                return found
    point = None if "main" not in tables else curves().get((task, name_of(label)), {}).get(mark)
    return None if point is None else PaperCell(point.mean, point.sd, point.n)


def contest(found: Mapping[str, Summary], methods: Mapping[str, str]) -> Best | None:
    """Find the best of those that see images and test it, as the paper does; None if none does.

    `methods`: which method each label is. SAC from state does not compete, and other variants of
    the best one are not its rivals, nor are runs with another preset.
    """
    entrants = [label for label in found if not sees_state(methods[label])]
    if not entrants:
        return None
    best = max(entrants, key=lambda label: found[label].mean)
    own = name_of(best) or best
    rivals = [
        label
        for label in entrants
        if (name_of(label) or label) != own and preset_of(label) == preset_of(best)
    ]
    return best_against(best, found, rivals)


def sees_state(method: str) -> bool:
    return method in METHODS and METHODS[method].observation == "state"


def place(ours: Summary, theirs: Summary, level: float = 0.05) -> Place:
    """Return how our mean differs from the paper's, if Welch's test shows that it does."""
    if ours.n < FEWEST_SEEDS:
        return "too few seeds"
    if not welch(ours, theirs) < level:
        return "none shown"
    return "above" if ours.mean > theirs.mean else "below"


def _shipped(name: str) -> Path:
    return Path(str(files("kstep").joinpath("paper_data", name)))
