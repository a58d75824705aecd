"""Results as tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kstep.bench.parts import PARTS
from kstep.terminal import say

WAYS = ("forward", "backward", "all")


def show(document: dict[str, Any], console: Console) -> None:
    """Print every section that was measured, promises last."""
    machine = document["system"]
    threads = ", ".join(map(str, document["threads"]))
    sets = ", ".join(f"{name} {used}" for name, used in document["instructions"].items())
    say(
        console,
        f"{machine['processor']}; instructions: {sets}; torch {machine['versions']['torch']}; "
        f"threads {threads}; medians of {document['rounds']} rounds in turns",
    )
    if document["size"] != "paper":
        say(console, "debug size: this shows whether it works, not how fast it is")
    for section, table in (
        ("methods", _methods),
        ("split", _split),
        ("convolutions", _convolutions),
        ("plain", _plain),
        ("encoder", _encoder),
        ("busy", _busy),
        ("cost", _cost),
        ("memory", _memory),
        ("renderers", _renderers),
    ):
        if document.get(section):
            console.print(table(document[section]))
    if document["promises"]:
        console.print(_promises(document["promises"], sets))


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _methods(rows: list[dict[str, Any]]) -> Table:
    backends = dict.fromkeys(row["backend"] for row in rows)
    columns = [f"{what}, {b}" for b in backends for what in ("ms", "over sac_pixel")]
    table = _table("a learning step", ("method", *columns, "paper"))
    for method, of_method in groupby(rows, lambda row: row["method"]):
        own = list(of_method)
        cells = [text for r in own for text in (f"{r['ms']:.1f}", f"{r['normalized']:.2f}")]
        paper = own[0]["paper"]
        table.add_row(method, *cells, "" if paper is None else f"{paper:.1f}")
    return table


def _split(split: dict[str, Any]) -> Table:
    backends = [name for name in split if name not in ("environment", "sequences")]
    columns = [f"{what}, {b}" for b in backends for what in ("ms", "share")]
    table = _table("what a step of ksl spends its time on", ("part", *columns))

    def add(name: str, spent: dict[str, float]) -> None:
        shares = {b: f"{100 * spent[b] / split[b]['total']:.1f} %" for b in backends}
        table.add_row(name, *(text for b in backends for text in (f"{spent[b]:.1f}", shares[b])))

    for part in PARTS:
        add(part, {b: split[b]["ms"][part] for b in backends})
    if "environment" in split:
        # Relative to the step: the environment runs beside it or after it, so it is no part of it.
        table.add_section()
        add("environment: step and render", dict.fromkeys(backends, split["environment"]["ms"]))
    return table


def _convolutions(found: dict[str, Any]) -> Table:
    rate = found["product_gflops"]
    return _table(
        f"convolutions of a ksl step, GFLOP/s; a matrix product: {rate:.0f}",
        ("backend", "GFLOP", *WAYS, "with conversion, ReLU", "of the product"),
        (
            (
                backend,
                f"{row['gflop']:.1f}",
                *(f"{row['gflops'][way]:.0f}" for way in WAYS),
                f"{row['gflops_with_conversion_and_relu']['all']:.0f}",
                f"{100 * row['of_product']:.0f} %",
            )
            for backend, row in found["backends"].items()
        ),
    )


def _ratio(row: dict[str, Any]) -> tuple[str, str]:
    if "ratio" not in row:
        return "", ""
    low, high = row["rounds"]
    return f"{row['ratio']:.2f}", f"{low:.2f} to {high:.2f}"


def _plain(rows: list[dict[str, Any]]) -> Table:
    return _table(
        "ours and the plain reference",
        ("method", "backend", "plain ms", "ours ms", "ratio", "rounds"),
        (
            (r["method"], r["backend"], f"{r['plain']:.1f}", f"{r['ours']:.1f}", *_ratio(r))
            for r in rows
        ),
    )


def _encoder(rows: list[dict[str, Any]]) -> Table:
    backends = [backend for backend in ("torch", "native") if backend in rows[0]]
    return _table(
        "PyTorch and our kernels",
        ("", "threads", *(f"{backend} ms" for backend in backends), "ratio", "rounds"),
        (
            (r["what"], str(r["threads"]), *(f"{r[b]:.1f}" for b in backends), *_ratio(r))
            for r in rows
        ),
    )


def _busy(rows: list[dict[str, Any]]) -> Table:
    columns = ("backend", "threads", "ms alone", "ms busy", "over one, alone", "over one, busy")
    table = _table("a step of ksl alone and beside a busy process", (*columns, "rounds, busy"))
    for r in rows:
        gain = r.get("gain", {"alone": {}, "busy": {}})
        (alone, _), (busy, rounds) = _ratio(gain["alone"]), _ratio(gain["busy"])
        ms = (f"{r[how]:.1f}" for how in ("alone", "busy"))
        table.add_row(r["backend"], str(r["threads"]), *ms, alone, busy, rounds)
    return table


def _cost(cost: dict[str, Any]) -> Table:
    table = _table(f"how a step of ksl grows ({cost['backend']})", ("", "ms", "over the smallest"))
    for what in ("k", "batch"):
        if what in cost:
            ms = cost[what]["ms"]
            smallest = next(iter(ms.values()))
            for value, spent in ms.items():
                table.add_row(f"{what} = {value}", f"{spent:.1f}", f"{spent / smallest:.2f}")
            table.add_row(f"largest {what} over a line", "", f"{cost[what]['over_a_line']:.2f}")
            table.add_section()
    return table


def _memory(found: dict[str, Any]) -> Table:
    sizes = {
        f"replay, {found['decisions']:,} decisions": "replay_bytes",
        "  as computed": "replay_bytes_computed",
        "training process, peak": "process_bytes",
    }
    rows = ((what, f"{found[key] / 1e9:.2f}") for what, key in sizes.items())
    return _table("memory, resident", ("", "GB"), rows)


def _renderers(rows: list[dict[str, Any]]) -> Table:
    return _table(
        "rendering",
        ("renderer", "frames/s", "ms per decision"),
        ((r["renderer"], f"{r['frames_per_second']:.0f}", f"{r['decision_ms']:.1f}") for r in rows),
    )


def _promises(rows: list[dict[str, Any]], instructions: str) -> Table:
    table = _table(f"promises ({instructions})", ("", "measured", "promised", "kept"))
    for row in rows:
        unit = f" {row['unit']}" if row["unit"] else ""
        bound = f"{'at least' if row['at_least'] else 'at most'} {row['bound']:g}{unit}"
        digits = 3 if row["bound"] < 0.1 else 2
        kept = Text("yes", "green") if row["holds"] else Text("no", "red")
        table.add_row(row["text"], f"{row['measured']:.{digits}f}{unit}", bound, kept)
    return table
