"""Results as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kstep import style
from kstep.analysis.curves import canvas, save
from kstep.bench.parts import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BACKENDS = ("torch", "native")


def _colours() -> dict[str, str]:
    return dict(zip(BACKENDS, style.palette(), strict=False))


def draw(document: dict[str, Any], path: Path) -> bool:
    """Write panels for methods, the split, rates of convolution and growth, if measured.

    Returns whether there was any of them.
    """
    every: tuple[tuple[str, Callable[[Axes, Any], None]], ...] = (
        ("methods", _methods),
        ("split", _split),
        ("convolutions", _convolutions),
        ("cost", _cost),
    )
    panels = [(section, panel) for section, panel in every if document.get(section)]
    if not panels:
        return False
    rows = (len(panels) + 1) // 2
    figure = canvas(12, 4.5 * rows)
    for number, (section, panel) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, 2, number)
        panel(axes, document[section])
    machine, threads = document["system"]["processor"], max(document["threads"])
    figure.suptitle(f"{machine}, {threads} threads, {document['size']} size", fontsize=10)
    save(figure, path)
    return True


def _methods(axes: Axes, rows: list[dict[str, Any]]) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    heights = {b: [row["normalized"] for row in rows if row["backend"] == b] for b in backends}
    middle = _bars(axes, methods, heights, rotation=60, ha="right")
    paper = {row["method"]: row["paper"] for row in rows if row["paper"] is not None}
    axes.plot(
        [methods.index(method) + middle for method in paper],
        list(paper.values()),
        "_",
        color=style.THEME.get().text,
        markersize=16,
        label="paper",
    )
    axes.set_ylabel("learning step, over sac_pixel's")
    axes.legend()


def _bars(axes: Axes, names: Sequence[str], heights: dict[str, list[float]], **text: Any) -> float:
    """Draw a group of bars per name, one per backend; return the middle of the first group."""
    width = 0.8 / len(heights)
    for i, (backend, values) in enumerate(heights.items()):
        positions = [position + i * width for position in range(len(names))]
        axes.bar(positions, values, width, color=_colours()[backend], label=backend)
    middle = 0.4 - width / 2
    axes.set_xticks([position + middle for position in range(len(names))], names, **text)
    return middle


def _split(axes: Axes, split: dict[str, Any]) -> None:
    backends = [name for name in split if name in BACKENDS]
    left = [0.0] * len(backends)
    for part, colour in zip(PARTS, style.palette(), strict=False):
        values = [split[backend]["ms"][part] for backend in backends]
        axes.barh(backends, values, left=left, color=colour, label=part)
        left = [a + b for a, b in zip(left, values, strict=True)]
    axes.set_xlabel("a learning step of ksl, ms")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _convolutions(axes: Axes, found: dict[str, Any]) -> None:
    ways = ("forward", "backward", "all")
    rates = {b: [row["gflops"][way] for way in ways] for b, row in found["backends"].items()}
    _bars(axes, ways, rates)
    axes.axhline(found["product_gflops"], **style.level(), label="matrix product")
    axes.set_ylabel("convolutions of a ksl step, GFLOP/s")
    axes.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _cost(axes: Axes, cost: dict[str, Any]) -> None:
    for what, marker in (("k", "o"), ("batch", "s")):
        if what in cost:
            values = list(cost[what]["ms"])
            first = float(values[-1])
            axes.plot(
                [float(value) / first for value in values],
                list(cost[what]["ms"].values()),
                f"{marker}-",
                label=f"{what} = {', '.join(map(str, values))}",
            )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("k or batch, over the largest")
    axes.set_ylabel(f"a learning step of ksl, ms ({cost['backend']})")
    axes.legend()
