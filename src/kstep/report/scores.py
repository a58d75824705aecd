"""Scores of runs: one row per evaluation of a run, and what follows from them at a mark.

In: run folders, or the table of evaluations and the runs it should hold. Out: rows with `label`,
`method`, `task`, `seed`, `exploration` (env_steps spent before the task's reward counts), whatever
else distinguishes two runs, `env_steps` and `score`; from these a cell per mark, task and label
with its tests and the paper's. Seeds are the unit: a run's score is the mean return of its
evaluation episodes. Evaluations during exploration are drawn in curves and tabulated nowhere.

Others evaluate at other env_steps than we do. Where a method has no evaluation at exactly a mark,
`near` takes the nearest, `taken_elsewhere` says which, and `left_out` names what has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from kstep import reading
from kstep.analysis.tables import Row, grouped
from kstep.config import Experiment
from kstep.envs.tasks import PLANET
from kstep.report import paper
from kstep.report.paper import PaperCell
from kstep.report.statistics import summarize
from kstep.run.folder import Evaluated, Run
from kstep.sweep import store
from kstep.sweep.plan import RunSpec
from kstep.types import KstepError

Identify: TypeAlias = Callable[[Experiment], Row]
"""The identity of a run in a comparison; raises for one that does not belong in it."""
Beside: TypeAlias = Callable[[Row, int], PaperCell | None]
"""The paper's cell for a row and a mark, if it has one."""

OF_ONE_RUN = ("env_steps", "score", "taken")
"""What differs between the rows of one run."""
PART = 10
"""The nearest evaluation counts for a mark if it is at most a tenth of the mark away."""
RULE = "the nearest counts, at most a tenth of the mark and half an evaluation interval away"


def from_runs(
    folders: Iterable[Path], identify: Identify, left_out: Callable[[str], None] | None = None
) -> list[Row]:
    """Read every evaluation of every run; one that cannot be read is refused, or left out where
    `left_out` is to be told of it."""

    def read(folder: Path) -> tuple[Path, Row, list[Evaluated]]:
        run = Run.open(folder)
        try:
            identity = identify(run.experiment)
        except KstepError as error:
            raise KstepError(f"{folder} {error}") from error
        if not (evaluations := run.evaluations()):
            raise KstepError(f"{folder} was not evaluated yet")
        return folder, identity, evaluations

    rows: list[Row] = []
    seen: dict[tuple[object, ...], Path] = {}
    for folder, identity, evaluations in reading.each(folders, read, left_out):
        key = tuple(identity.values())
        if key in seen:
            raise KstepError(
                f"{seen[key]} and {folder} are both {identity['label']} on {identity['task']} with "
                f"seed {identity['seed']}; compare one of them"
            )
        seen[key] = folder
        rows += [
            {**identity, "env_steps": found.mark, "score": found.mean} for found in evaluations
        ]
    return rows


def near(rows: Sequence[Row], mark: int) -> list[Row]:
    """Return the rows that count at a mark, one per run, with `env_steps` the mark and `taken` the
    env_steps of the evaluation.

    Where some run of a label and task has an evaluation at exactly the mark, those count and no
    others. Where none has, each of its runs counts with its nearest evaluation (the earlier of
    two), provided that this is at most a tenth of the mark away, and at most half of the median
    interval between the run's evaluations: so a curve that passes the mark counts, and one that
    stopped short of it does not.
    """
    chosen: list[Row] = []
    for cell in grouped((row for row in rows if not exploring(row)), "task", "label").values():
        exact = [row for row in cell if row["env_steps"] == mark]
        nearest = (_nearest(run, mark) for run in _by_run(cell).values())
        chosen += [
            {**row, "env_steps": mark, "taken": row["env_steps"]}
            for row in exact or filter(None, nearest)
            if not exploring({**row, "env_steps": mark})
        ]
    return chosen


def _by_run(rows: Iterable[Row]) -> dict[tuple[object, ...], list[Row]]:
    runs: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        key = tuple(value for name, value in row.items() if name not in OF_ONE_RUN)
        runs.setdefault(key, []).append(row)
    return runs


def _nearest(run: Sequence[Row], mark: int) -> Row | None:
    """Return a run's evaluation nearest to a mark, if it is near enough to count for it."""
    found = min(run, key=lambda row: (_away(row, mark), int(row["env_steps"])))
    gaps = np.diff(sorted({int(row["env_steps"]) for row in run}))
    near_enough = PART * _away(found, mark) <= mark
    if gaps.size:
        near_enough &= bool(2 * _away(found, mark) <= np.median(gaps))
    return found if near_enough else None


def _away(row: Row, mark: int) -> int:
    return abs(int(row["env_steps"]) - mark)


def taken_elsewhere(chosen: Sequence[Row]) -> str:
    """Return a sentence about evaluations that count for a mark though they are not at it; empty
    if there are none."""
    moved = [row for row in chosen if row["taken"] != row["env_steps"]]
    if not moved:
        return ""
    parts = [
        f"{label} on {task} at {_places(own)}"
        for (label, task), own in grouped(moved, "label", "task").items()
    ]
    return f"no evaluation at exactly this mark; {RULE}: {', '.join(parts)}"


def _places(rows: Iterable[Row]) -> str:
    places = sorted({int(row["taken"]) for row in rows})
    return f"{places[0]:,}" + (f" to {places[-1]:,}" if len(places) > 1 else "")


def left_out(rows: Sequence[Row], chosen: Sequence[Row], mark: int) -> str:
    """Return a sentence about the runs that do not count at a mark, and why; empty if all do. Those
    that are still exploring at the mark are not missed."""
    counted, parts = set(_by_run(chosen)), []
    for (label, task), cell in grouped(rows, "label", "task").items():
        runs = {
            key: own
            for key, own in _by_run(cell).items()
            if key not in counted and not exploring({**own[0], "env_steps": mark})
        }
        if runs:
            seeds = sorted({int(own[0]["seed"]) for own in runs.values()})
            some = len(runs) < len(_by_run(cell))
            which = f" with seed {', '.join(map(str, seeds))}" if some else ""
            nearest = [min(own, key=lambda row: _away(row, mark)) for own in runs.values()]
            at = _places({**row, "taken": row["env_steps"]} for row in nearest)
            parts.append(f"{label} on {task}{which} (nearest evaluation at {at})")
    return f"left out at this mark: {', '.join(parts)}" if parts else ""


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
        identity = who.get(found["setting"]) if ours else imported(found)
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


def strangers(frame: pl.DataFrame, who: Mapping[str, Row], tasks: Sequence[str] = ()) -> str:
    """Return a sentence about the runs in the table that belong to none of these settings, or to
    other tasks; empty if there are none."""
    ours = pl.col("source") == store.OURS
    known = ~ours | pl.col("setting").is_in([*who])
    if tasks:
        known &= pl.col("task").is_in([*tasks])
    what = ["source", "method", "variant", "preset", "task"]
    others = frame.filter(~known).group_by(what).agg(pl.col("digest").n_unique()).sort(what)
    if others.is_empty():
        return ""
    parts = []
    for source, method, variant, preset, task, runs in others.iter_rows():
        origin = "" if source == store.OURS else f" ({source})"
        parts.append(f"{runs} of {method} {variant} {preset} on {task}{origin}")
    return f"left out, not runs of this experiment: {', '.join(parts)}"


def imported(found: Mapping[str, Any]) -> Row:
    """Return what other people's runs in a table are called."""
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
    by_run = _by_run(row for row in rows if not exploring(row)).values()
    runs = [{int(row["env_steps"]) for row in run} for run in by_run]
    missing = [mark for mark in at if not near(rows, mark)]
    if missing:
        reached = set.union(*runs) if runs else set()
        marks = ", ".join(f"{mark:,}" for mark in sorted(reached))
        raise KstepError(f"no run was evaluated at {missing[0]:,} env steps, but at {marks}")
    chosen = list(at) or [mark for mark in paper.MARKS if near(rows, mark)]
    shared = set.intersection(*runs) if runs else set()
    if not chosen and not shared:
        raise KstepError("the runs have no evaluation at a common mark; name one with --at")
    return chosen or [max(shared)]


def summary(rows: Sequence[Row], marks: Sequence[int], beside: Beside) -> list[Row]:
    """Return a row per mark, task and label: mean, standard deviation and number of runs, the tests
    of the paper, and the paper's cell.

    `evaluated_at` is where the evaluations were that count for the mark (`near`); `best` is 1 for
    the highest mean of a method that sees images, with `stars` against its closest rival; `p` and
    `p_holm` are Welch's test of the best against this one.
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
                        "evaluated_at": _places({"taken": mark, **row} for row in here[label,]),
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
    with the same preset, averaged over the tasks that both have; beside it the same from the
    paper's own tables, over the same tasks."""
    found: list[Row] = []
    for mark in dict.fromkeys(int(row["env_steps"]) for row in table):
        means: dict[str, dict[str, float]] = {}
        for row in table:
            if row["env_steps"] == mark and not paper.sees_state(str(row["method"])):
                means.setdefault(str(row["label"]), {})[str(row["task"])] = float(row["mean"])
        for label, own in means.items():
            for over, rival in means.items():
                apart = paper.name_of(label) == "ksl" != paper.name_of(over)
                if apart and paper.preset_of(label) == paper.preset_of(over):
                    both = [task for task in own if task in rival]
                    theirs = paper_improvement(paper.name_of(over), mark, both)
                    found.append(
                        {
                            "label": label,
                            "over": over,
                            "env_steps": mark,
                            "tasks": len(both),
                            "percent": improvement([(own[task], rival[task]) for task in both]),
                            "paper_percent": theirs,
                        }
                    )
    return found


def paper_improvement(over: str, mark: int, tasks: Iterable[str] = tuple(PLANET)) -> float:
    """Return KSL's average improvement over a method in the paper's tables; nan if they do not have
    all these tasks."""
    for name in ("main", "tangential"):
        if (name, mark) in paper.BOLD:
            rows = paper.cells(name, mark)
            found = [rows.get(task, {}) for task in tasks]
            if all(over in row for row in found):
                return improvement([(row["ksl"].mean, row[over].mean) for row in found])
    return float("nan")


def improvement(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean over tasks of how much the first is above the second; nan where that is
    meaningless because a return to improve on is not positive."""
    if not pairs or min(second for _, second in pairs) <= 0.0:
        return float("nan")
    return float(np.mean([100.0 * (first / second - 1.0) for first, second in pairs]))
