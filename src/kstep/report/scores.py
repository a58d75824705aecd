"""Scores of runs: one row per evaluation of a run, and what follows from them at a mark.

In: run folders, or the table of evaluations and the runs it should hold. Out: rows with `label`,
`method`, `task`, `seed`, `exploration` (env_steps spent before the task's reward counts), whatever
else distinguishes two runs, `env_steps` and `score`; from these a cell per mark, task and label
with its tests and the paper's. Seeds are the unit: a run's score is the mean return of its
evaluation episodes. Evaluations during exploration are drawn in curves and tabulated nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from kstep.analysis.tables import Row, grouped
from kstep.config import Experiment
from kstep.report import paper
from kstep.report.paper import PaperCell
from kstep.report.statistics import summarize
from kstep.run.folder import Run
from kstep.sweep import store
from kstep.sweep.plan import RunSpec
from kstep.types import KstepError

Identify: TypeAlias = Callable[[Experiment], Row]
"""The identity of a run in a comparison; raises for one that does not belong in it."""
Beside: TypeAlias = Callable[[Row, int], PaperCell | None]
"""The paper's cell for a row and a mark, if it has one."""

OF_ONE_RUN = ("env_steps", "score")
"""What differs between the rows of one run."""


def from_runs(folders: Iterable[Path], identify: Identify) -> list[Row]:
    """Read every evaluation of every run."""
    rows: list[Row] = []
    seen: dict[tuple[object, ...], Path] = {}
    for folder in folders:
        run = Run.open(folder)
        try:
            identity = identify(run.experiment)
        except KstepError as error:
            raise KstepError(f"{folder} {error}") from error
        evaluations = run.evaluations()
        if not evaluations:
            raise KstepError(f"{folder} was not evaluated yet")
        key = tuple(identity.values())
        if key in seen:
            raise KstepError(
                f"{seen[key]} and {folder} are both {identity['label']} on {identity['task']} with "
                f"seed {identity['seed']}; compare one of them"
            )
        seen[key] = folder
        rows += [
            {**identity, "env_steps": found["mark"], "score": float(np.mean(found["returns"]))}
            for found in evaluations
        ]
    return rows


def identities(specs: Iterable[RunSpec], identify: Identify) -> dict[str, Row]:
    """Return the identities of planned runs, by their setting."""
    found: dict[str, Row] = {}
    for spec in specs:
        if spec.setting not in found:
            found[spec.setting] = identify(spec.experiment())
    return found


def from_table(frame: pl.DataFrame, who: Mapping[str, Row], tasks: Sequence[str] = ()) -> list[Row]:
    """Return the table's rows of runs with these settings, in their order and whatever their seed,
    and those imported from others."""
    rows: list[Row] = []
    settings: dict[tuple[object, ...], str] = {}
    for found in store.scores(frame).iter_rows(named=True):
        if tasks and found["task"] not in tasks:
            continue
        ours = found["source"] == store.OURS
        identity = who.get(found["setting"]) if ours else _imported(found)
        if identity is None:
            continue
        key = (identity["label"], found["task"])
        if settings.setdefault(key, found["setting"]) != found["setting"]:
            raise KstepError(
                f"the table holds {key[0]} on {key[1]} with several settings; collect the runs to "
                "be compared into a table of their own"
            )
        row = {**identity, "seed": found["seed"], "env_steps": found["mark"]}
        rows.append({**row, "score": found["score"]})
    order = {(row["task"], row["label"]): index for index, row in enumerate(who.values())}
    return sorted(rows, key=lambda row: order.get((row["task"], row["label"]), len(order)))


def _imported(found: Mapping[str, Any]) -> Row:
    name = found["method"]
    if found["variant"] not in ("controlled", "published"):
        name += f"-{found['variant']}"
    label = f"{name} ({found['source']})"
    return {"label": label, "method": name, "task": found["task"], "seed": 0, "exploration": 0}


def exploring(row: Row) -> bool:
    """Whether an evaluation dates from before the task's reward was learned from."""
    return 0 < int(row["exploration"]) >= int(row["env_steps"])


def table_marks(rows: Sequence[Row], at: Sequence[int]) -> list[int]:
    """Return the marks to tabulate: the requested ones, else the paper's that were reached, else
    the last that all runs have."""
    runs: dict[tuple[object, ...], set[int]] = {}
    for row in rows:
        if not exploring(row):
            key = tuple(value for name, value in row.items() if name not in OF_ONE_RUN)
            runs.setdefault(key, set()).add(int(row["env_steps"]))
    reached = set.union(*runs.values()) if runs else set()
    missing = [mark for mark in at if mark not in reached]
    if missing:
        marks = ", ".join(f"{mark:,}" for mark in sorted(reached))
        raise KstepError(f"no run was evaluated at {missing[0]:,} env steps, but at {marks}")
    chosen = list(at) or [mark for mark in paper.MARKS if mark in reached]
    shared = set.intersection(*runs.values()) if runs else set()
    if not chosen and not shared:
        raise KstepError("the runs have no evaluation at a common mark; name one with --at")
    return chosen or [max(shared)]


def summary(rows: Sequence[Row], marks: Sequence[int], beside: Beside) -> list[Row]:
    """Return a row per mark, task and label: mean, standard deviation and number of runs, the tests
    of the paper, and the paper's cell.

    `best` is 1 for the highest mean of a method that sees images, with `stars` against its closest
    rival; `p` and `p_holm` are Welch's test of the best against this one.
    """
    table: list[Row] = []
    counted = grouped((row for row in rows if not exploring(row)), "env_steps", "task")
    for mark in marks:
        for task in dict.fromkeys(row["task"] for row in rows):
            here = grouped(counted.get((mark, task), ()), "label")
            cells = {
                str(label): summarize([float(row["score"]) for row in own])
                for (label,), own in here.items()
            }
            methods = {str(label): str(own[0]["method"]) for (label,), own in here.items()}
            best = paper.contest(cells, methods)
            for label, ours in cells.items():
                first = here[label,][0]
                theirs = beside(first, mark)
                won = best is not None and best.name == label
                table.append(
                    {
                        "task": task,
                        "label": label,
                        "method": first["method"],
                        "env_steps": mark,
                        "mean": ours.mean,
                        "std": ours.sd,
                        "runs": ours.n,
                        "best": int(won),
                        "stars": best.stars if best and won else "",
                        "p": best.p.get(label, float("nan")) if best else float("nan"),
                        "p_holm": best.corrected.get(label, float("nan")) if best else float("nan"),
                        "paper_mean": theirs.mean if theirs else float("nan"),
                        "paper_std": theirs.sd if theirs else float("nan"),
                        "paper_runs": theirs.n if theirs else 0,
                        "paper_best": int(theirs.best) if theirs else 0,
                        "paper_stars": theirs.stars if theirs else "",
                        "place": paper.place(ours, theirs) if theirs else "",
                    }
                )
    return table


def improvements(table: Sequence[Row]) -> list[Row]:
    """Return by how many percent KSL's mean is above that of each other method that sees images,
    averaged over the tasks that both have; beside it the same from the paper's own tables."""
    found: list[Row] = []
    for mark in dict.fromkeys(int(row["env_steps"]) for row in table):
        means: dict[str, dict[str, float]] = {}
        for row in table:
            if row["env_steps"] == mark and not paper.sees_state(str(row["method"])):
                means.setdefault(str(row["label"]), {})[str(row["task"])] = float(row["mean"])
        for label, own in means.items():
            for over, rival in means.items():
                if paper.name_of(label) == "ksl" != paper.name_of(over):
                    both = [task for task in own if task in rival]
                    theirs = paper_improvement(paper.name_of(over), mark)
                    found.append(
                        {
                            "label": label,
                            "over": over,
                            "env_steps": mark,
                            "tasks": len(both),
                            "percent": _percent([(own[task], rival[task]) for task in both]),
                            "paper_percent": theirs,
                        }
                    )
    return found


def paper_improvement(over: str, mark: int) -> float:
    """Return KSL's average improvement over a method in the paper's tables; nan if it has none."""
    for name in ("main", "tangential"):
        if (name, mark) in paper.BOLD:
            rows = paper.cells(name, mark).values()
            pairs = [(row["ksl"].mean, row[over].mean) for row in rows if over in row]
            if pairs:
                return _percent(pairs)
    return float("nan")


def _percent(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean over tasks of how much the first is above the second; nan where that is
    meaningless because a return to improve on is not positive."""
    if not pairs or min(second for _, second in pairs) <= 0.0:
        return float("nan")
    return float(np.mean([100.0 * (first / second - 1.0) for first, second in pairs]))
