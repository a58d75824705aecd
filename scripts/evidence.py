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
from kstep.report.statistics import FEWEST_SEEDS, Summary, summarize, welch
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
READINGS_TASK = "cartpole_swingup"

EARLIER = {
    "cartpole_swingup_cpu.csv": {"ksl": "82e0c72", "sac_pixel": "82e0c72"},
    "cartpole_swingup_paper.csv": {"ksl": "before 908a203", "ksl-results": "9f2a047"},
}
"""Runs from before there was a table, by the file that holds them: the commit of each method's."""
EARLIER_PROCESSOR = "Intel Xeon with AVX-512"
LOST = {("ksl-results-cpu", 1, 20_000): 239.4}
"""Means of evaluations of an attempt that was lost, by label, seed and mark."""
PAIRS = RESULTS / "cartpole_swingup_pair.csv"
"""Runs of `ksl`, preset cpu, on the same task and some of the same seeds, to 20,000 or 40,000."""
PAIRS_LINK = "README.md#the-same-seeds-with-pytorchs-and-with-the-native-convolutions"
AGAIN = "Other attempts at the same runs"
BEGUN_AGAIN = f"""A run whose machine was lost was begun again from its start. On another \
processor the same seed becomes another run, so here is what is known of the lost attempts, and of \
earlier runs with the same settings:

- `ksl`, preset cpu, cartpole_swingup, seeds 2 and 3: three attempts at each, up to about 35,000, \
43,552 and about 31,000 env steps. Known are the first episodes of the second attempt at 40,000: \
244 and 369.
- `ksl-results`, preset cpu, cartpole_swingup: seed 1 up to 50,200 env steps, 47 at 0 and 239 at \
20,000 where the run in the table has 308; seed 2 up to 9,900.
- `ksl`, preset cpu, cartpole_swingup, seeds 1 to 5, each with PyTorch's and with the native \
convolutions, up to 20,000 env steps, seed 1 up to 40,000: [ten earlier runs]({PAIRS_LINK}), made \
to compare the two."""
PROVENANCE = """The table names the commit, the processor and the renderer of every run. The four \
runs from before there was a table have no times; `ksl` and `sac_pixel`, preset cpu, seed 1 among \
them were computed with PyTorch's convolutions, all other runs with the native ones. Of `ksl` at \
the paper's size it is only known that its commit lies before 908a203. The commit of the three \
`drq` runs on cartpole_swingup, 2d96fa2, is not in this repository: it lay between 9a16081 and \
21ff888, and what it changed came with the latter."""
CAPTION = (
    "Thick lines are means over seeds, thin lines the single runs; dashes and bands are the "
    "paper's mean and one standard deviation (ten seeds, the paper's encoder)."
)


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
            name = f"{spec.task} `{spec.folder.parent.name}` seed {spec.seed}"
            parts.append(f"{name} (return {reached} env steps)")
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
        "docs/results/evidence.parquet` prints the comparisons. When the order of the runs was "
        "fixed, the results of the four earliest were known (`ksl` and `sac_pixel`, preset cpu, "
        "and `ksl` and `ksl-results` at the paper's size, seed 1 each, all on cartpole_swingup), "
        f"those of [ten shorter runs]({PAIRS_LINK}) of `ksl` on it, and those of [one short run]"
        "(representations/README.md) each of `ksl`, `drq` and `sac_pixel` on walker_walk and "
        "cartpole_swingup. Nothing was tuned on these tasks, and no complete run was left out.",
        f"{len(done)} of {len(specs)} runs are complete.",
        under_way(table),
        f"Not begun: {_names(missing)}.",
        "![returns over env steps beside the paper's](evidence.png)",
        CAPTION,
        "## Every mark",
        "Mean ± standard deviation over seeds (number of seeds). A single seed has no deviation. "
        "The second row is the paper's, with the place of our mean relative to its band of one "
        "standard deviation. The band is no test: about one in three of the paper's own seeds "
        "would lie outside it. At 0 nothing has been learned, and no place is given.",
        *(tables_of(str(task), own) for (task,), own in grouped(cells, "task").items()),
        "## The two readings of KSL",
        "The p of Welch's test on cartpole_swingup, preset cpu: each reading against the paper's "
        "ten seeds, and one against the other; it needs two seeds on each side. What the names "
        "mean, and why: [D62](../decisions/D62.md).",
        readings(cells),
        with_other_attempts(evaluations(table)),
        "## Claims of the paper",
        "At 100,000 env steps, preset cpu: our mean ± standard deviation (seeds). A difference "
        f"counts if Welch's test gives p < 0.05, and is tested only where each side has at least "
        f"{FEWEST_SEEDS} seeds; nothing corrects for the number of tests.",
        "\n".join(f"- {sentence}" for sentence in claims(cells)),
        f"## {AGAIN}",
        BEGUN_AGAIN,
        "## Where the runs come from",
        PROVENANCE,
        "## What a decision costs",
        "Seconds and core-seconds per decision of complete runs, evaluations included, beside "
        "other work on the same two cores. One name of a processor stands for several generations "
        "of it, and frames are drawn faster from 21ff888 on. So methods can be compared only in "
        "rows of one task whose processor, commit and evaluation at 0 (mostly drawing, before "
        "anything is learned) agree; what learning steps cost beside each other, measured on one "
        "machine, is in `src/kstep/sweep/speeds.toml`.",
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
    return label.replace(f"-{paper.preset_of(label)}", "", 1)


def _named(label: str) -> str:
    return f"`{_method(label)}`, preset {paper.preset_of(label)}"


def _cell(row: Row) -> str:
    spread = f" ± {row['std']:.0f}" if int(row["runs"]) > 1 else ""
    return f"{row['mean']:.0f}{spread} ({row['runs']})"


def _paper(row: Row) -> str:
    if not row["paper_runs"]:
        return "-"
    mean, deviation = float(row["paper_mean"]), float(row["paper_std"])
    theirs = f"{mean:.0f} ± {deviation:.0f}"
    return f"{theirs}: {band(float(row['mean']), mean, deviation)}" if row["env_steps"] else theirs


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
        if row["task"] == READINGS_TASK
    }
    text, figure = ([at.get((f"{name}-cpu", mark)) for mark in MARKS[1:]] for name in READINGS)
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
    return markdown(["", *(f"{mark:,}" for mark in MARKS[1:])], lines)


def _theirs(row: Row | None) -> Summary | None:
    if row is None or not row["paper_runs"]:
        return None
    return Summary(float(row["paper_mean"]), float(row["paper_std"]), int(row["paper_runs"]))


def _p(row: Row | None, other: Summary | None) -> str:
    if row is None or other is None or min(int(row["runs"]), other.n) < 2:
        return "-"
    return _shown(welch(_summary(row), other))


def _shown(p: float) -> str:
    return "-" if np.isnan(p) else f"{p:.2g}"


def with_other_attempts(rows: Sequence[Row]) -> str:
    """Return what becomes of the p between the two readings with other attempts at the same runs:
    one that was lost, in its run's place, and the earlier pairs, in place of the text's reading."""
    parts = []
    pairs = _pairs()
    link = f"[{AGAIN.lower()}](#{AGAIN.lower().replace(' ', '-')})"
    for (label, seed, mark), lost in LOST.items():
        here = [row for row in rows if row["env_steps"] == mark and row["task"] == READINGS_TASK]
        text, figure = (
            {int(row["seed"]): float(row["score"]) for row in here if row["label"] == f"{name}-cpu"}
            for name in READINGS
        )
        if seed not in figure or min(len(text), len(figure)) < 2:
            continue
        ours, again = summarize([*text.values()]), summarize([*(figure | {seed: lost}).values()])
        theirs, earlier = summarize([*figure.values()]), summarize([*pairs[mark].values()])
        parts.append(
            f"With {link} the last row has other values at {mark:,}: with the {lost:.0f} of the "
            f"lost attempt at seed {seed} of `{_method(label)}` in place of {figure[seed]:.0f}, "
            f"p = {_shown(welch(ours, again))}; with the {earlier.n} earlier runs of `ksl` that "
            f"had the native convolutions too, {earlier.mean:.0f} ± {earlier.sd:.0f}, in place of "
            f"those in the table, p = {_shown(welch(earlier, theirs))}; with both, p = "
            f"{_shown(welch(earlier, again))}."
        )
    return " ".join(parts)


def _pairs() -> dict[int, dict[int, float]]:
    """Return the mean returns of the native runs of the pairs, by mark and seed."""
    table = pl.read_csv(PAIRS).filter(pl.col("backend") == "native")
    means = table.group_by("env_steps", "seed").agg(pl.col("return").mean())
    found: dict[int, dict[int, float]] = {}
    for steps, seed, mean in means.sort("env_steps", "seed").iter_rows():
        found.setdefault(steps // MARKS.step * MARKS.step, {})[seed] = mean
    return found


def claims(cells: Sequence[Row]) -> list[str]:
    """Return what our runs say of the paper's tables at 100,000 env steps: a sentence for every
    pair that was tested, and one per task and reading about those that were not."""
    ours: dict[tuple[str, str], Row] = {
        (str(row["task"]), paper.bare(str(row["label"]))): row
        for row in cells
        if row["env_steps"] == BUDGET and paper.preset_of(str(row["label"])) == "cpu"
    }
    sentences = []
    theirs = paper.cells("main", BUDGET)
    for task, row in theirs.items():
        others = {**row, **paper.cells("tangential", BUDGET)[task]}
        rivals = [name for name in others if name not in ("ksl", "sac_state")]
        for label in READINGS:
            if (own := ours.get((task, label))) is None:
                continue
            untested = []
            for rival in rivals:
                other = ours.get((task, rival))
                known = f"`{rival}` {others[rival].mean:.0f}"
                if other is None:
                    untested.append(known)
                elif min(int(own["runs"]), int(other["runs"])) < FEWEST_SEEDS:
                    untested.append(f"{known} (ours so far {_cell(other)})")
                else:
                    claim = f"`{label}` above `{rival}` on {task} (the paper: "
                    claim += f"{row['ksl'].mean:.0f} and {others[rival].mean:.0f})"
                    sentences.append(f"{claim}: {_verdict(own, other)}.")
            if untested:
                sentences.append(
                    f"`{label}` (the paper {row['ksl'].mean:.0f}, ours {_cell(own)}) above "
                    f"{', '.join(untested)} on {task}: untested."
                )
    without = [task for task in theirs if (task, "ksl") not in ours]
    if without:
        sentences.append(f"KSL above the others on {', '.join(without)}: untested.")
    for rival, name in (("drq", "DrQ"), ("rad", "RAD")):
        sentences.append(
            f"KSL's average improvement over {name} on the six tasks (the paper: "
            f"{scores.paper_improvement(rival, BUDGET):.1f} %): "
            f"{_average(ours, rival, [*theirs])}."
        )
    sentences.append(
        "Every claim about 500,000 env steps, the ablations, transfer, time, representations and "
        "gradients: untested ([one seed](representations/README.md) each of some analyses)."
    )
    return sentences


def _verdict(first: Row, second: Row) -> str:
    p = welch(_summary(first), _summary(second))
    numbers = f"ours {_cell(first)} and {_cell(second)}"
    if np.isnan(p):
        return f"not tested, both are constant ({numbers})"
    numbers += f", p = {p:.2g}"
    if p < 0.05:
        above = float(first["mean"]) > float(second["mean"])
        return f"{'supported' if above else 'contradicted'} ({numbers})"
    return f"not supported, no difference is shown ({numbers})"


def _summary(row: Row) -> Summary:
    return Summary(float(row["mean"]), float(row["std"]), int(row["runs"]))


def _average(ours: dict[tuple[str, str], Row], rival: str, tasks: Sequence[str]) -> str:
    """Return our average over the tasks that have both; that of all six, with enough seeds, is what
    the paper speaks of."""
    both = {
        task: (ours[task, "ksl"], ours[task, rival])
        for task in tasks
        if (task, "ksl") in ours and (task, rival) in ours
    }
    if not both:
        return "untested"
    means = {task: (float(ksl["mean"]), float(own["mean"])) for task, (ksl, own) in both.items()}
    if zero := [task for task, (_, own) in means.items() if own <= 0]:
        return f"undefined in ours, as `{rival}` has no positive return on {', '.join(zero)}"
    each = ", ".join(f"{scores.improvement([pair]):.1f} on {task}" for task, pair in means.items())
    seeds = [int(row["runs"]) for pair in both.values() for row in pair]
    of_each = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else f"{min(seeds)}"
    found = f"{scores.improvement([*means.values()]):.1f} % in ours ({each}; seeds: {of_each})"
    if len(both) == len(tasks) and min(seeds) >= FEWEST_SEEDS:
        return f"{found}, without a test"
    theirs = scores.paper_improvement(rival, BUDGET, [*both])
    return f"untested; so far, on {len(both)} of them, {found} where the paper has {theirs:.1f} %"


def costs(table: pl.DataFrame) -> str:
    """Return the measured core-seconds per decision of every complete run."""
    timed = table.drop_nulls("core_seconds").unique(subset=["digest", "mark"])
    first = timed.filter(pl.col("mark") == 0).select("digest", before="core_seconds")
    ends = timed.filter(pl.col("mark") == BUDGET).join(first, on="digest")
    what = ["method", "variant", "preset", "task", "seed", "processor", "commit"]
    per_decision = (
        (pl.col(name) / pl.col("decisions")).name.keep() for name in ("seconds", "core_seconds")
    )
    lines = [
        [f"`{method}`", *rest, f"{wall:.3f}", f"{core:.3f}", f"{before:.0f}"]
        for method, *rest, wall, core, before in ends.sort(what)
        .select(*what[:-1], pl.col("commit").str.slice(0, 7), *per_decision, "before")
        .iter_rows()
    ]
    head = [*what, "seconds per decision", "core-seconds per decision"]
    head.append("core-seconds of the evaluation at 0")
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
        ours = [
            f"`{_method(label)}`",
            paper.preset_of(label),
            row["runs"],
            f"{row['mean']:.0f}{spread}",
        ]
        lines.append([row["task"], *ours, theirs, where])
    head = ["task", "method", "preset", "n (seeds)", f"return at {BUDGET:,} env steps"]
    theirs = "the paper's (preset paper, n = 10)"
    return f"{CAPTION}\n\n{markdown([*head, theirs, 'ours, of its mean ± 1 SD'], lines)}"


def draw(rows: Sequence[Row], target: Path) -> None:
    """Draw a panel per task and preset: our runs, their mean, and the paper's curves of KSL and
    DrQ with their bands."""
    presets = [
        {**row, "preset": paper.preset_of(str(row["label"]))}
        for row in rows
        if not scores.exploring(row)
    ]
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
                    thin = {**look.line(), "marker": "", "linewidth": 0.7, "alpha": 0.7}
                    axes.plot(*_points(run), **thin)
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
