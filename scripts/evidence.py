"""Our own runs beside the paper's: the table of everything, its page, figure and costs.

    python scripts/evidence.py [RUNS]

gathers the run folders below RUNS into docs/results/evidence.parquet (rows of runs that are gone
stay), and writes from that table alone docs/results/evidence.md, evidence.png and the block in
README.md between the two comments that name this script. `kstep sweep evidence` makes the runs.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from kstep import config, style
from kstep.analysis.curves import canvas, save
from kstep.analysis.tables import Row, grouped, markdown
from kstep.report import paper, scores
from kstep.report.comparisons import comparison_of
from kstep.report.statistics import Summary, summarize, welch
from kstep.sweep import store
from kstep.sweep.experiments import read as read_experiment
from kstep.sweep.plan import RunSpec, plan

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
TABLE = RESULTS / "evidence.parquet"
BEGIN, END = "<!-- scripts/evidence.py: begin -->", "<!-- scripts/evidence.py: end -->"
MARKS = range(0, 100_001, 20_000)
BUDGET = 100_000
READINGS = ("ksl", "ksl-results")
"""The paper's text, and the code behind its figure."""

EARLIER = {
    "cartpole_swingup_cpu.csv": {"ksl": "82e0c72", "sac_pixel": "82e0c72"},
    "cartpole_swingup_paper.csv": {"ksl": "before 908a203", "ksl-results": "9f2a047"},
}
"""Runs from before there was a table, by the file that holds them: the commit of each method's."""
EARLIER_PROCESSOR = "Intel Xeon with AVX-512"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="?", type=Path, help="a folder with run folders below it")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        print(store.collect(arguments.runs, TABLE))
        add_earlier()
    for path, text in pages(store.read(TABLE)).items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    draw(evaluations(store.read(TABLE)), RESULTS / "evidence.png")


def add_earlier() -> None:
    """Put the runs of `EARLIER` into the table, unless the same runs were made again."""
    table = store.read(TABLE)
    rows = [row for name in EARLIER for row in _earlier(name)]
    new = pl.DataFrame(rows, schema=store.COLUMNS, orient="row")
    new = new.filter(~pl.col("digest").is_in(table["digest"].unique().to_list()))
    pl.concat([table, new]).sort(store.ORDER).write_parquet(TABLE, compression="zstd")


def _earlier(name: str) -> Iterator[dict[str, Any]]:
    with (RESULTS / name).open(newline="") as file:
        for row in csv.DictReader(file):
            who = config.resolve(
                row["method"], row["task"], preset=row["preset"], seed=int(row["seed"])
            )
            counts = {key: int(row[key]) for key in ("env_steps", "decisions", "updates")}
            yield {
                "source": store.OURS,
                "method": who.method.base,
                "variant": who.method.variant or "controlled",
                "preset": row["preset"],
                "renderer": "rendering: EGL (software)",
                "task": row["task"],
                "seed": int(row["seed"]),
                "mark": counts["env_steps"] // MARKS.step * MARKS.step,
                **counts,
                "episode": int(row["episode"]),
                "return": float(row["return"]),
                "setting": config.setting(who),
                "digest": config.digest(who),
                "commit": EARLIER[name][row["method"]],
                "processor": EARLIER_PROCESSOR,
            }


def evaluations(table: pl.DataFrame) -> list[Row]:
    """Return one row per evaluation of every complete run of the experiment: with those under way,
    means would be over a changing set of seeds."""
    specs, done = progress(table)
    who = scores.identities(specs, comparison_of("main").identify)
    return scores.from_table(table.filter(pl.col("digest").is_in([s.digest for s in done])), who)


def under_way(table: pl.DataFrame) -> str:
    """Return a sentence about the runs that are not complete."""
    specs, done = progress(table)
    parts = []
    for spec in specs:
        own = table.filter(pl.col("digest") == spec.digest)
        if spec not in done and own.height:
            means = own.group_by("mark").agg(pl.col("return").mean()).sort("mark").iter_rows()
            reached = ", ".join(f"{mean:.0f} at {mark:,}" for mark, mean in means)
            parts.append(f"{spec.task} `{spec.folder.parent.name}` seed {spec.seed} ({reached})")
    return f"Under way, in no table below: {'; '.join(parts)}." if parts else ""


def pages(table: pl.DataFrame) -> dict[Path, str]:
    """Return the texts that are made from the table, by their files."""
    rows = evaluations(table)
    cells = scores.summary(rows, MARKS, comparison_of("main").beside)
    readme = (ROOT / "README.md").read_text()
    pattern = re.compile(f"({re.escape(BEGIN)}\n).*({re.escape(END)})", re.DOTALL)
    found = {RESULTS / "evidence.md": page(table, cells)}
    if pattern.search(readme):
        found[ROOT / "README.md"] = pattern.sub(rf"\g<1>{readme_block(cells)}\g<2>", readme)
    return found


def page(table: pl.DataFrame, cells: Sequence[Row]) -> str:
    specs, done = progress(table)
    begun = set(table["digest"])
    missing = [spec for spec in specs if spec.digest not in begun]
    parts = [
        "# Evidence: our own runs beside the paper's",
        "This page is made by `python scripts/evidence.py` from `evidence.parquet`, which has "
        "every evaluation episode of every run with its commit, digest, processor, renderer and "
        "time. `kstep sweep evidence --table docs/results/evidence.parquet --plan` says what "
        "is done and what is missing; `kstep compare evidence --paper --table "
        "docs/results/evidence.parquet` prints the comparisons. The order of the runs was fixed "
        "before any result was known; nothing was tuned on these tasks and no seed was left out.",
        f"{len(done)} of {len(specs)} runs are complete.",
        under_way(table),
        f"Not begun: {_names(missing)}.",
        "![returns over env steps beside the paper's](evidence.png)",
        "Thin lines are single runs, thick lines their mean, "
        "dashes and bands the paper's mean and one standard deviation (ten seeds, the paper's "
        "encoder).",
        "## Every mark",
        "Mean ± standard deviation over seeds (number of seeds). A single seed has no deviation. "
        "The second row is the paper's, with the place of our mean relative to its band of one "
        "standard deviation.",
        *(tables_of(str(task), own) for (task,), own in grouped(cells, "task").items()),
        "## The two readings of KSL",
        "The p of Welch's test on cartpole_swingup, preset cpu: each reading against the paper's "
        "ten seeds, and one against the other; it needs two seeds on each side. What the names "
        "mean, and why: [D62](../decisions/D62.md).",
        readings(cells),
        "## Claims of the paper",
        "At 100,000 env steps. A difference counts if Welch's test gives p < 0.05; it needs two "
        "seeds on each side.",
        "\n".join(f"- {sentence}" for sentence in claims(cells)),
        "## What a decision costs",
        "Core-seconds per decision of complete runs, evaluations included, one thread, beside one "
        "other run and often other work on the same two cores.",
        costs(table),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def progress(table: pl.DataFrame) -> tuple[list[RunSpec], list[RunSpec]]:
    """Return all runs of the experiment, and those with an evaluation at their budget."""
    specs = plan(read_experiment("evidence"))
    reached = store.reached(table)
    return specs, [spec for spec in specs if reached.get(spec.digest, 0) >= spec.env_steps]


def _names(specs: Sequence[RunSpec]) -> str:
    seeds: dict[str, list[str]] = {}
    for spec in specs:
        seeds.setdefault(f"{spec.task} `{spec.folder.parent.name}`", []).append(str(spec.seed))
    return "; ".join(f"{name} seed {', '.join(own)}" for name, own in seeds.items()) or "none"


def tables_of(task: str, cells: Sequence[Row]) -> str:
    """Return the table of one task: a row per label, a column per mark."""
    lines = []
    for (label,), own in grouped(cells, "label").items():
        at = {int(row["env_steps"]): row for row in own}
        for name, shown in ((_named(str(label)), _cell), ("the paper", _paper)):
            lines.append([name, *(shown(at[mark]) if mark in at else "" for mark in MARKS)])
    head = ["", *(f"{mark:,}" for mark in MARKS)]
    return f"### {task}\n\n{markdown(head, lines)}"


def _method(label: str) -> str:
    return label.removesuffix("-cpu")


def _preset(label: str) -> str:
    """Return the preset of a label; those of the paper's size do not say so."""
    return "cpu" if label.endswith("-cpu") else "paper"


def _named(label: str) -> str:
    return f"`{_method(label)}`, preset {_preset(label)}"


def _cell(row: Row) -> str:
    spread = f" ± {row['std']:.0f}" if int(row["runs"]) > 1 else ""
    return f"{row['mean']:.0f}{spread} ({row['runs']})"


def _paper(row: Row) -> str:
    if not row["paper_runs"]:
        return "-"
    mean, deviation = float(row["paper_mean"]), float(row["paper_std"])
    return f"{mean:.0f} ± {deviation:.0f}: {band(float(row['mean']), mean, deviation)}"


def band(ours: float, mean: float, deviation: float) -> str:
    """Return where a mean lies relative to the paper's mean ± one standard deviation."""
    if abs(ours - mean) <= deviation:
        return "inside"
    return "above" if ours > mean else "below"


def readings(cells: Sequence[Row]) -> str:
    """Return the table that tells `ksl` and `ksl-results` from the paper and from each other."""
    at = {
        (str(row["label"]), int(row["env_steps"])): row
        for row in cells
        if row["task"] == "cartpole_swingup"
    }
    text, figure = ([at.get((f"{name}-cpu", mark)) for mark in MARKS] for name in READINGS)
    lines = [
        ["`ksl` and the paper", *(_p(row, _theirs(row)) for row in text)],
        ["`ksl-results` and the paper", *(_p(row, _theirs(row)) for row in figure)],
        [
            "`ksl` and `ksl-results`",
            *(
                _p(first, None if second is None else _summary(second))
                for first, second in zip(text, figure, strict=True)
            ),
        ],
    ]
    return markdown(["", *(f"{mark:,}" for mark in MARKS)], lines)


def _theirs(row: Row | None) -> Summary | None:
    if row is None or not row["paper_runs"]:
        return None
    return Summary(float(row["paper_mean"]), float(row["paper_std"]), int(row["paper_runs"]))


def _p(row: Row | None, other: Summary | None) -> str:
    if row is None or other is None or min(int(row["runs"]), other.n) < 2:
        return "-"
    return f"{welch(_summary(row), other):.2g}"


def claims(cells: Sequence[Row]) -> list[str]:
    """Return a sentence per claim of the paper's Table 1 at 100,000 env steps: supported, not
    supported or untested by our runs."""
    ours: dict[tuple[str, str], Row] = {
        (str(row["task"]), str(row["label"])): row for row in cells if row["env_steps"] == BUDGET
    }
    sentences = []
    theirs = paper.cells("main", BUDGET)
    for task, row in theirs.items():
        for rival in row:
            if rival in ("ksl", "sac_state"):
                continue
            for label in READINGS:
                pair = [ours.get((task, f"{name}-cpu")) for name in (label, rival)]
                claim = f"`{label}` above `{rival}` on {task} (the paper: {row['ksl'].mean:.0f} "
                claim += f"and {row[rival].mean:.0f})"
                if pair[0] is None and pair[1] is None:
                    continue
                sentences.append(f"{claim}: {_verdict(pair[0], pair[1])}.")
    untested = [task for task in theirs if (task, "ksl-cpu") not in ours]
    if untested:
        sentences.append(f"KSL above the others on {', '.join(untested)}: untested.")
    average = f"{scores.paper_improvement('drq', BUDGET):.1f} %"
    sentences.append(
        f"KSL's average improvement over DrQ on the six tasks (the paper: {average}): "
        + _average(ours, [*theirs])
        + "."
    )
    sentences.append("Every claim about 500,000 env steps, the ablations and transfer: untested.")
    return sentences


def _verdict(first: Row | None, second: Row | None) -> str:
    if first is None or second is None or min(int(first["runs"]), int(second["runs"])) < 2:
        known = [f"{_cell(row)}" for row in (first, second) if row is not None]
        return f"untested (one seed at most on a side; so far {' and '.join(known)})"
    p = welch(_summary(first), _summary(second))
    numbers = f"{_cell(first)} and {_cell(second)}, p = {p:.2g}"
    if p < 0.05:
        above = float(first["mean"]) > float(second["mean"])
        return f"{'supported' if above else 'contradicted'} ({numbers})"
    return f"not supported, no difference is shown ({numbers})"


def _summary(row: Row) -> Summary:
    return Summary(float(row["mean"]), float(row["std"]), int(row["runs"]))


def _average(ours: dict[tuple[str, str], Row], tasks: Sequence[str]) -> str:
    pairs = [[ours.get((task, f"{name}-cpu")) for name in ("ksl", "drq")] for task in tasks]
    shares = [
        100 * (float(ksl["mean"]) / float(drq["mean"]) - 1) for ksl, drq in pairs if ksl and drq
    ]
    if len(shares) < len(tasks):
        return "untested"
    return f"{np.mean(shares):.1f} % in ours"


def costs(table: pl.DataFrame) -> str:
    """Return the measured core-seconds per decision of complete runs, by method and preset."""
    ends = (
        table.filter((pl.col("mark") == BUDGET) & pl.col("core_seconds").is_not_null())
        .unique(subset=["digest"])
        .with_columns((pl.col("core_seconds") / pl.col("decisions")).alias("cost"))
    )
    what = ["method", "variant", "preset", "task", "processor"]
    lines = [
        [f"`{method}`", variant, preset, task, processor, f"{cost:.3f}", runs]
        for method, variant, preset, task, processor, cost, runs in ends.group_by(what)
        .agg(pl.col("cost").median(), pl.len())
        .sort(what)
        .iter_rows()
    ]
    head = ["method", "variant", "preset", "task", "processor", "core-seconds per decision", "runs"]
    return markdown(head, lines) if lines else "None is complete with its time recorded."


def readme_block(cells: Sequence[Row]) -> str:
    """Return the table of the README: ours beside the paper's at the budget."""
    lines = []
    for row in cells:
        if row["env_steps"] != BUDGET:
            continue
        spread = f" ± {row['std']:.0f}" if int(row["runs"]) > 1 else ""
        theirs, where = ("-", "")
        if row["paper_runs"]:
            theirs, where = _paper(row).split(": ")
        label = str(row["label"])
        ours = [f"`{_method(label)}`", _preset(label), row["runs"], f"{row['mean']:.0f}{spread}"]
        lines.append([row["task"], *ours, theirs, where])
    head = ["task", "method", "preset", "n (seeds)", f"return at {BUDGET:,} env steps"]
    return markdown([*head, "the paper's (preset paper, n = 10)", "ours, of its ± 1 SD"], lines)


def draw(rows: Sequence[Row], target: Path) -> None:
    """Draw a panel per task and preset: our runs, their mean, and the paper's curves of KSL and
    DrQ with their bands."""
    presets = [{**row, "preset": _preset(str(row["label"]))} for row in rows]
    panels = grouped(presets, "task", "preset")
    looks = style.looks(dict.fromkeys(_method(str(row["label"])) for row in rows))
    across = min(2, len(panels))
    down = -(-len(panels) // across)
    figure = canvas(6.0 * across, 4.2 * down)
    grid = np.ravel(figure.subplots(down, across, squeeze=False))
    for axes, ((task, preset), here) in zip(grid, panels.items(), strict=False):
        for method in ("ksl", "drq"):
            points = {m: p for m, p in paper.curves()[str(task), method].items() if m <= BUDGET}
            means = np.array([point.mean for point in points.values()])
            spread = np.array([point.sd for point in points.values()])
            colour = style.look(method).colour
            axes.fill_between(
                [*points], means - spread, means + spread, color=colour, alpha=0.12, linewidth=0
            )
            dashed = {"color": colour, "linestyle": (0, style.PAPER)}
            axes.plot([*points], means, **dashed, label=f"{method}, the paper (n = 10)")
        for (label,), own in grouped(here, "label").items():
            look, runs = looks[_method(str(label))], grouped(own, "seed").values()
            if len(runs) > 1:
                for run in runs:
                    axes.plot(*_points(run), color=look.colour, linewidth=0.7, alpha=0.6)
            at_marks = sorted(grouped(own, "env_steps").items())
            xs = [int(mark) for (mark,), _ in at_marks]
            ys = [summarize([float(row["score"]) for row in at]).mean for _, at in at_marks]
            axes.plot(xs, ys, **look.line(), label=f"{_method(str(label))} (n = {len(runs)})")
        axes.set(title=f"{task}, preset {preset}", xlabel="env steps", ylabel="return")
        axes.set(xlim=(0, BUDGET), ylim=(0, None))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(fontsize="x-small")
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    save(figure, target)


def _points(run: Sequence[Row]) -> tuple[list[int], list[float]]:
    ordered = sorted(run, key=lambda row: int(row["env_steps"]))
    return [int(row["env_steps"]) for row in ordered], [float(row["score"]) for row in ordered]


if __name__ == "__main__":
    main()
