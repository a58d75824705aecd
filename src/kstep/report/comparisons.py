"""The paper's comparisons of returns: its tables and figures from our runs, beside its numbers.

- main: every method on every task, and KSL's average improvement over each other one;
- tangential: KSL against PI-SAC and Proto-RL, which explores first: each split of the budget is a
  column, and lines in the figure show where it begins to receive the task's reward;
- k-l-grid: k predictions by l layers shared with the critic (D20);
- conv-transition: KSL against one change of it, and how many runs collapsed; optimizers likewise,
  without that count. For the changed KSL the paper prints curves but no numbers;
- generalization: encoders trained on one task, frozen, under a plain SAC agent in every other task;
  mean over source tasks and seeds. Convolutions, linear layer and LayerNorm are frozen, for critic
  and target critic; everything else starts from scratch (D35).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kstep.analysis.curves import save
from kstep.analysis.tables import Row, markdown, plain, write_table, write_text
from kstep.auxiliary.ksl import DenseTransitionConfig, KSLConfig
from kstep.auxiliary.ksl_transitions import SharedTransitionConfig
from kstep.config import Experiment, resolve
from kstep.envs.tasks import OF_SUITE
from kstep.methods import VARIANT_OF
from kstep.report import paper, scores
from kstep.report.collapsed import collapsed_runs
from kstep.report.figures import Layout, curves
from kstep.report.paper import PaperCell
from kstep.report.scores import Identify
from kstep.run.saved_encoders import label_of, with_preset
from kstep.terminal import decimals
from kstep.types import KstepError
from kstep.values import difference


@dataclass(frozen=True)
class Comparison:
    """Which runs belong in it, their labels, and the paper's numbers beside them."""

    name: str
    identify: Identify
    tables: tuple[str, ...]
    """The paper's, in the order in which they are asked for its numbers."""
    layout: Layout = lambda task, label: (task, label)
    variants: bool = False
    """Whether other variants of its methods belong in it as well."""
    more: Callable[[Sequence[Row]], dict[str, list[Row]]] = lambda table: {}
    """Further tables, from the table of cells, by name."""
    collapse: bool = False
    """Whether the runs that collapsed are counted as well."""

    def beside(self, row: Row, mark: int) -> PaperCell | None:
        """Return the paper's cell for a row at a mark, if it has one."""
        return paper.beside(row, mark, self.tables)

    def write(
        self,
        folders: Sequence[Path],
        output: Path,
        at: Sequence[int] = (),
        left_out: Callable[[str], None] | None = None,
    ) -> list[Path]:
        """Write every evaluation, the table (as CSV and as Markdown) and the curves. Runs that
        cannot be read are refused, or left out where `left_out` is to be told of them."""
        rows = scores.from_runs(folders, self.identify, left_out)
        rows = [row for row in rows if row.get("source") != row["task"]]
        if not rows:
            raise KstepError("every run has an encoder of its own task: none of them transfers one")
        _refuse_several_ages(rows)
        marks = scores.table_marks(rows, at)
        chosen = {mark: scores.near(rows, mark) for mark in marks}
        table = [row for mark in marks for row in scores.summary(chosen[mark], [mark], self.beside)]
        more = self.more(table)
        if self.collapse:
            more |= {"collapse": collapsed_runs(folders, left_out)}
        more = {name: found for name, found in more.items() if found}
        tables = {f"{self.name}-runs": rows, self.name: table}
        tables |= {f"{self.name}-{name}": found for name, found in more.items()}
        blocks = [as_markdown(table, self.layout)]
        for mark, found in chosen.items():
            remarks = (scores.taken_elsewhere(found), scores.left_out(rows, found, mark))
            blocks += [f"{mark:,} env_steps: {plain(remark)}.\n" for remark in remarks if remark]
        blocks += [markdown([*own[0]], (row.values() for row in own)) for own in more.values()]
        output.mkdir(parents=True, exist_ok=True)
        written = [write_table(output / f"{name}.csv", found) for name, found in tables.items()]
        written.append(write_text(output / f"{self.name}.md", "\n".join(blocks)))
        drawn = curves(rows, self.layout, self.beside)
        return [*written, save(drawn, output / f"{self.name}.png")]


def _refuse_several_ages(rows: Sequence[Row]) -> None:
    """Raise if frozen encoders of one cell were not trained equally long."""
    ages: dict[object, int] = {}
    for row in rows:
        if "source_env_steps" in row:
            age = int(row["source_env_steps"])
            known = ages.setdefault(row["label"], age)
            if known != age:
                raise KstepError(
                    f"some encoders of {row['label']} were trained for {known:,} env steps, some "
                    f"for {age:,}; their returns cannot be averaged"
                )


LEGEND = (
    "mean ± standard deviation (number of runs) [the paper's]. **Bold**: the highest mean of those "
    "that see images; \\* p < 0.05, \\*\\* p < 0.01 against its closest rival (Welch)."
)


def as_markdown(table: Sequence[Row], layout: Layout) -> str:
    """Return the table as Markdown: ours and, in brackets, the paper's; a block per mark."""
    blocks = []
    for mark in dict.fromkeys(int(row["env_steps"]) for row in table):
        cells = {
            layout(str(row["task"]), str(row["label"])): _shown(row)
            for row in table
            if row["env_steps"] == mark
        }
        columns = list(dict.fromkeys(column for _, column in cells))
        lines = [
            [line, *(cells.get((line, column), "-") for column in columns)]
            for line in dict.fromkeys(line for line, _ in cells)
        ]
        blocks.append(markdown([f"{mark:,} env_steps", *columns], lines))
    return "\n".join([*blocks, f"{LEGEND}\n"])


def _shown(row: Row) -> str:
    ours = cell(row).replace("*", "\\*")
    shown = f"**{ours}**" if row["best"] else ours
    if not row["paper_runs"]:
        return shown
    theirs = cell(row, "paper_").replace("*", "\\*")
    return f"{shown} [{f'**{theirs}**' if row['paper_best'] else theirs}]"


def cell(row: Row, whose: str = "") -> str:
    """Return our cell of a summary's row, or the paper's, as 841 ± 33** (n = 10)."""
    mean, std = float(row[f"{whose}mean"]), float(row[f"{whose}std"])
    own = row["task"] not in OF_SUITE  # of the suite's returns, the paper prints no decimals
    digits = decimals(max(abs(mean), 0.0 if std != std else std)) if own else 0
    deviation = "" if std != std else f" ± {std:.{digits}f}"
    stars, runs = (row[whose + name] for name in ("stars", "runs"))
    return f"{mean:.{digits}f}{deviation}{stars} (n = {runs})"


def by_method(experiment: Experiment) -> Row:
    if experiment.frozen_encoder is not None:
        raise KstepError("has a frozen encoder: that is for generalization")
    exploration = experiment.method.exploration
    return {
        "label": label_of(experiment),
        "method": experiment.method.name,
        "task": experiment.env.task,
        "seed": experiment.seed,
        "exploration": (exploration.env_steps or 0) if exploration else 0,
    }


def only(*methods: str) -> Identify:
    """Return an identification that raises for other methods than these."""

    def identify(experiment: Experiment) -> Row:
        name = experiment.method.name
        if name not in methods:
            raise KstepError(f"is {name}; this compares {', '.join(methods)}")
        return by_method(experiment)

    return identify


def by_k_and_l(experiment: Experiment) -> Row:
    method = experiment.method
    ksl = method.auxiliary
    if not isinstance(ksl, KSLConfig):
        raise KstepError(f"is {method.name}, which has no k and l")
    plain = resolve("ksl", experiment.env.task, preset=experiment.preset).method
    assert isinstance(plain.auxiliary, KSLConfig)
    transition, layers = plain.auxiliary.transition, ksl.transition.borrowed_layers
    assert isinstance(transition, DenseTransitionConfig)
    of_grid = replace(plain.auxiliary, k=ksl.k)
    if layers:
        of_grid = replace(of_grid, transition=SharedTransitionConfig(layers, transition.hidden))
    changed = replace(plain, variant=method.variant, auxiliary=of_grid)
    more = difference(method, changed)
    if more:
        key, here, there = more[0]
        raise KstepError(
            f"is {method.name}, which is not ksl with another k and l: {key} is {here!r}, not "
            f"{there!r}"
        )
    label = with_preset(f"k{ksl.k}-l{layers}", experiment)
    return {**by_method(experiment), "label": label}


def by_source(experiment: Experiment) -> Row:
    source, on_top = experiment.frozen_encoder, experiment.method.name
    if source is None:
        raise KstepError("has no frozen encoder: kstep train --frozen-encoder FILE")
    if on_top != "sac_pixel":
        raise KstepError(f"has {on_top} on its frozen encoder; this compares sac_pixel")
    return {
        **by_method(replace(experiment, frozen_encoder=None)),
        "label": source.label,
        "source": source.task,
        "source_seed": source.seed,
        "source_env_steps": source.env_steps,
    }


def grid_layout(task: str, label: str) -> tuple[str, str]:
    found = re.fullmatch(r"k(\d+)-l(\d+)(.*)", label)
    assert found, label
    return f"{task}, k = {found[1]}{found[3]}", f"l = {found[2]}"


COMPARISONS = {
    comparison.name: comparison
    for comparison in (
        Comparison(
            "main",
            by_method,
            ("main", "tangential"),
            variants=True,
            more=lambda table: {"improvement": scores.improvements(table)},
        ),
        Comparison(
            "tangential",
            only(*(n for n, of in VARIANT_OF.items() if of in ("ksl", "pi_sac", "proto_rl"))),
            ("tangential", "main"),
            variants=True,
        ),
        Comparison("k-l-grid", by_k_and_l, ("k-l-grid",), grid_layout),
        Comparison(
            "conv-transition",
            only("ksl", "ksl-conv"),
            ("main",),
            collapse=True,
        ),
        Comparison("optimizers", only("ksl", "ksl-one-optimizer"), ("main",)),
        Comparison("generalization", by_source, ("generalization",)),
    )
}


def comparison_of(paper_key: str) -> Comparison:
    """Return the comparison that an experiment's key `paper` names; without one, `main`."""
    if paper_key not in ("", *COMPARISONS):
        raise KstepError(f"paper = '{paper_key}' is none of {', '.join(COMPARISONS)}")
    return COMPARISONS[paper_key or "main"]
