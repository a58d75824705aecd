"""The paper's comparisons of returns: its tables and figures from our runs, its numbers alongside.

- main, tangential: every method on every task;
- k-l-grid: k predictions by l layers shared with the critic (D20);
- conv-transition, optimizers: KSL against one change of it. For the changed KSL the paper prints
  curves but no number, so only plain KSL has something beside it;
- generalization: encoders trained on one task, frozen, a plain SAC agent trained on top in every
  other task; mean over source tasks and seeds. What is frozen: convolutions, linear layer and
  LayerNorm, for fast and slow values; everything else starts afresh (D35). Such a run is `kstep
  train sac_pixel TASK --frozen-encoder FILE`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kstep import published
from kstep.analysis.returns import (
    Cell,
    Paper,
    Place,
    figure,
    markdown,
    rows_of,
    summary,
    table_marks,
)
from kstep.analysis.tables import Row, base_of, write_table
from kstep.auxiliary.ksl import KSLConfig
from kstep.config import difference, resolve
from kstep.encoders import label_of, with_preset
from kstep.run import Run
from kstep.types import KstepError

MARKS = {100_000: "steps_100k", 500_000: "steps_500k"}
"""Where the paper's tables look, and what the data calls it."""
CURVE_MARKS = range(0, 500_001, 20_000)
"""Where its curves have points."""
GRID_TASK = "cheetah_run"


@dataclass(frozen=True)
class Comparison:
    """Which runs belong in it, what they are called there, and what the paper has."""

    name: str
    summary: str
    identify: Callable[[Run], Row]
    paper: Paper
    place: Place = lambda task, label: (task, label)

    def write(self, folders: Sequence[Path], output: Path, at: Sequence[int] = ()) -> list[Path]:
        """Write the evaluations and the table, the table to read, and curves; return the files."""
        rows = [row for row in rows_of(folders, self.identify) if row.get("source") != row["task"]]
        if not rows:
            raise KstepError("every run has an encoder of its own task: nothing was carried over")
        _refuse_several_ages(rows)
        table = summary(rows, table_marks(rows, at, [*MARKS]), self.paper)
        output.mkdir(parents=True, exist_ok=True)
        text, picture = output / f"{self.name}.md", output / f"{self.name}.png"
        text.write_text(markdown(table, self.place))
        figure(rows, self.place, self.paper, CURVE_MARKS).savefig(picture, dpi=120)
        return [
            write_table(output / f"{self.name}-runs.csv", rows),
            write_table(output / f"{self.name}.csv", table),
            text,
            picture,
        ]


def _refuse_several_ages(rows: Sequence[Row]) -> None:
    """Frozen encoders of one cell must have been trained equally long."""
    ages: dict[object, int] = {}
    for row in rows:
        if "source_env_steps" in row:
            age = int(row["source_env_steps"])
            known = ages.setdefault(row["label"], age)
            if known != age:
                raise KstepError(
                    f"some encoders of {row['label']} were trained for {known:,} env steps, some "
                    f"for {age:,}; their returns do not belong in one mean"
                )


def by_method(run: Run) -> Row:
    if run.experiment.frozen_encoder is not None:
        raise KstepError(f"{run.folder} has a frozen encoder: that is for generalization")
    return {
        "label": label_of(run),
        "task": run.experiment.env.task,
        "seed": run.experiment.seed,
    }


def only(*methods: str) -> Callable[[Run], Row]:
    """Return an identification that refuses other methods than these."""

    def identify(run: Run) -> Row:
        name = run.experiment.method.name
        if name not in methods:
            raise KstepError(f"{run.folder} is {name}; this compares {', '.join(methods)}")
        return by_method(run)

    return identify


def by_k_and_l(run: Run) -> Row:
    experiment, method = run.experiment, run.experiment.method
    task = method.auxiliary
    if not isinstance(task, KSLConfig):
        raise KstepError(f"{run.folder} is {method.name}, which has no k and l")
    plain = resolve("ksl", experiment.env.task, preset=experiment.preset).method
    assert isinstance(plain.auxiliary, KSLConfig)
    cell = replace(plain.auxiliary, k=task.k, knowledge_sharing=task.knowledge_sharing)
    changed = replace(plain, name=method.name, summary=method.summary, auxiliary=cell)
    more = difference(method, changed)
    if more:
        key, here, there = more[0]
        raise KstepError(
            f"{run.folder} is {method.name}, which is not ksl with another k and l: {key} is "
            f"{here!r}, not {there!r}"
        )
    label = with_preset(f"k{task.k}-l{task.knowledge_sharing}", experiment)
    return {**by_method(run), "label": label}


def by_source(run: Run) -> Row:
    source = run.experiment.frozen_encoder
    if source is None:
        raise KstepError(f"{run.folder} has no frozen encoder: kstep train --frozen-encoder FILE")
    on_top = run.experiment.method.name
    if on_top != "sac_pixel":
        raise KstepError(f"{run.folder} has {on_top} on its frozen encoder; this is of sac_pixel")
    return {
        "label": source.label,
        "source": source.task,
        "source_seed": source.seed,
        "source_env_steps": source.env_steps,
        "task": run.experiment.env.task,
        "seed": run.experiment.seed,
    }


def grid_place(task: str, label: str) -> tuple[str, str]:
    found = re.fullmatch(r"k(\d+)-l(\d+)(.*)", label)
    assert found, label
    return f"{task}, k = {found[1]}{found[3]}", f"l = {found[2]}"


def paper_return(task: str, label: str, mark: int) -> Cell | None:
    """Return a cell of the paper's two tables of returns or, between their marks, of its curves."""
    method = base_of(label)
    for table, names in (("main", {}), ("tangential", {"proto_rl": "prl"})):
        data = published.table(table)
        found = data.get(MARKS.get(mark, ""), {}).get(task, {}).get(names.get(method, method))
        if found:
            return Cell(found["mean"], found["std"], data["seeds"])
    point = published.curves().get((task, method), {}).get(mark)
    return Cell(point.mean, point.std, published.seeds()) if point else None


def paper_grid(task: str, label: str, mark: int) -> Cell | None:
    if task != GRID_TASK or mark not in MARKS:
        return None
    data = published.table("ablation_k_l_cheetah_run")
    k, _, l = base_of(label).partition("-")  # noqa: E741 - the paper's letter
    found = data[MARKS[mark]].get(k, {}).get(l)
    return Cell(found[0], found[1], data["seeds"]) if found else None


def paper_generalization(task: str, label: str, mark: int) -> Cell | None:
    data = published.table("generalization_100k")
    found = data["rows"].get(task, {}).get(base_of(label))
    if mark != 100_000 or not found:
        return None
    # Five source tasks, each with so many seeds.
    return Cell(found["mean"], found["std"], data["seeds"] * (len(data["rows"]) - 1))


COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison("main", "returns of methods per task", by_method, paper_return),
        Comparison(
            "tangential",
            "KSL against PI-SAC and Proto-RL",
            only("ksl", "ksl-results", "ksl-released", "pi_sac", "proto_rl"),
            paper_return,
        ),
        Comparison(
            "k-l-grid", "k predictions by l shared layers", by_k_and_l, paper_grid, grid_place
        ),
        Comparison(
            "conv-transition",
            "dense against convolutional transition model",
            only("ksl", "ksl-conv"),
            paper_return,
        ),
        Comparison(
            "optimizers",
            "separate optimizers against one",
            only("ksl", "ksl-one-optimizer"),
            paper_return,
        ),
        Comparison(
            "generalization",
            "frozen encoders on other tasks than their own",
            by_source,
            paper_generalization,
        ),
    )
}
