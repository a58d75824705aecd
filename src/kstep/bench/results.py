"""Medians to results, results to promises: pure functions of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kstep.bench import encoder, renderers, steps
from kstep.bench.parts import BACKWARD, FORWARD, PARTS, convolution_flops
from kstep.bench.sizes import Size
from kstep.bench.steps import KSL, RELEASED, SAC_PIXEL, Workload, step_name
from kstep.bench.timing import Times, name_of
from kstep.methods import find
from kstep.native import Backend

LINEAR = 1.1
"""How far above a straight line the largest case may lie and still count as linear: noise."""


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured, and under which conditions."""

    times: Times
    size: Size
    threads: tuple[int, ...]
    backends: tuple[Backend, ...]
    memory: dict[str, Any] | None = None

    @property
    def most(self) -> int:
        """Threads of everything that is measured with one number of them only."""
        return max(self.threads)

    def step(self, workload: Workload, backend: Backend) -> str:
        return step_name(workload, backend, self.most)

    def splits(self) -> dict[Backend, dict[str, float]]:
        """Return the parts of a step of `ksl`, by backend."""
        names = {backend: steps.split_name(KSL, backend) for backend in self.backends}
        return {b: self.times.parts(name) for b, name in names.items() if name in self.times}


def results(found: Measurements) -> dict[str, Any]:
    """Return the results by section; sections that were not measured are left out."""
    everything = {
        "methods": _methods(found),
        "split": _split(found),
        "convolutions": _convolutions(found),
        "encoder": _encoder(found),
        "busy": _busy(found),
        "plain": _plain(found),
        "memory": found.memory,
        "renderers": _renderers(found),
        "cost": _cost(found),
    }
    made = {name: value for name, value in everything.items() if value}
    return {**made, "promises": list(promises(made))}


def _methods(found: Measurements) -> list[dict[str, Any]]:
    """Per method and backend: ms per learning step, and over SAC from pixels beside the paper's."""
    times, paper, rows = found.times, steps.paper_table(), []
    for workload in steps.METHODS:
        for backend in found.backends:
            name, base = found.step(workload, backend), found.step(SAC_PIXEL, backend)
            if name in times and base in times:
                rows.append(
                    {
                        "method": workload.name,
                        "backend": backend,
                        "ms": times.ms(name),
                        "normalized": times.ratio(name, base)["ratio"],
                        "paper": paper.get(find(workload.method).base),
                    }
                )
    return rows


def _split(found: Measurements) -> dict[str, Any]:
    """Return what a step of `ksl` spends its time on, by backend."""
    split: dict[str, Any] = {}
    times = found.times
    for backend, inside in found.splits().items():
        ms = {part: inside[part] for part in PARTS}
        total = sum(ms.values())
        shares = {part: spent / total for part, spent in ms.items()}
        split[backend] = {"ms": ms, "share": shares, "total": total}
    _, decision = renderers.names_of(renderers.USUAL)
    if split and decision in times:
        split["environment"] = {"ms": times.ms(decision)}
    if split and steps.SEQUENCES in times:
        spent, own = times.ms(steps.SEQUENCES), {b: found.step(KSL, b) for b in found.backends}
        shares = {b: spent / times.ms(step) for b, step in own.items() if step in times}
        split["sequences"] = {"ms": spent, "share": shares}
    return split


def _convolutions(found: Measurements) -> dict[str, Any]:
    """GFLOP/s of all convolutions in a step of `ksl`, over those of a matrix product."""
    product, splits = encoder.product_name(found.most), found.splits()
    if product not in found.times or not splits:
        return {}
    peak = 2 * found.size.matrix**3 / found.times.ms(product) / 1e6
    forward, backward = convolution_flops(found.size.encoder_shape())
    rows = {}
    for backend, inside in splits.items():
        work = {"forward": inside[FORWARD] * forward, "backward": inside[BACKWARD] * backward}
        row: dict[str, Any] = {
            "images": {"forward": inside[FORWARD], "backward": inside[BACKWARD]},
            "gflop": sum(work.values()) / 1e9,
        }
        # Alone, and with the conversion of bytes to floats and ReLU.
        for what, key in (("gflops", "convolve"), ("gflops_with_conversion_and_relu", "encode")):
            ms = {way: inside[f"{key} {way}"] for way in work}
            row[what] = {way: work[way] / ms[way] / 1e6 for way in work}
            row[what]["all"] = sum(work.values()) / sum(ms.values()) / 1e6
        row["of_product"] = row["gflops"]["all"] / peak
        rows[backend] = row
    return {"product_gflops": peak, "backends": rows}


def _encoder(found: Measurements) -> list[dict[str, Any]]:
    """PyTorch over our kernels, per number of threads."""
    passes = [f"{name}, {way}" for name in encoder.STRIDES for way in encoder.WAYS]
    timed = {what: what for what in passes}
    timed |= {f"a learning step of {w.name}": f"step {w.name}" for w in (KSL, steps.COMPACT)}
    rows = []
    for threads in found.threads:
        for what, name in timed.items():
            names = {b: name_of(name, b, threads) for b in found.backends}
            if all(each in found.times for each in names.values()):
                row: dict[str, Any] = {"what": what, "threads": threads}
                row |= {backend: found.times.ms(each) for backend, each in names.items()}
                if len(names) == 2:
                    row |= found.times.ratio(*names.values())
                rows.append(row)
    # Rows about learning steps alone would only repeat the table of methods.
    return rows if any(row["what"] in passes for row in rows) else []


def _busy(found: Measurements) -> list[dict[str, Any]]:
    """A step of `ksl` alone and beside a busy process, and what more threads than one bring."""
    times, fewest, rows = found.times, min(found.threads), []
    for backend in found.backends:
        one = {
            "alone": step_name(KSL, backend, fewest),
            "busy": steps.busy_name(KSL, backend, fewest),
        }
        for threads in found.threads:
            names = {
                "alone": step_name(KSL, backend, threads),
                "busy": steps.busy_name(KSL, backend, threads),
            }
            if names["busy"] not in times:
                continue
            row: dict[str, Any] = {"backend": backend, "threads": threads}
            row |= {how: times.ms(name) for how, name in names.items()}
            if threads > fewest:
                row["gain"] = {how: times.ratio(one[how], name) for how, name in names.items()}
            rows.append(row)
    return rows


def _plain(found: Measurements) -> list[dict[str, Any]]:
    """The plain reference over ours."""
    return [
        {
            "method": workload.name,
            "backend": backend,
            "plain": found.times.ms(plain),
            "ours": found.times.ms(ours),
            **found.times.ratio(plain, ours),
        }
        for workload in (KSL, RELEASED)
        for backend in found.backends
        if (plain := steps.plain_name(workload)) in found.times
        and (ours := found.step(workload, backend)) in found.times
    ]


def _renderers(found: Measurements) -> list[dict[str, Any]]:
    times, rows = found.times, []
    for name in renderers.NAMES:
        frame, decision = renderers.names_of(name)
        if frame in times:
            rate, ms = 1000 / times.ms(frame), times.ms(decision)
            rows.append({"renderer": name, "frames_per_second": rate, "decision_ms": ms})
    return rows


def _cost(found: Measurements) -> dict[str, Any]:
    """Return how the time of a step grows, for the backend that a run would use."""
    backend, costs = found.backends[-1], {}
    for what, cases in steps.cost_cases(found.size).items():
        names = {value: found.step(workload, backend) for value, workload in cases.items()}
        if all(name in found.times for name in names.values()):
            ms = {value: found.times.ms(name) for value, name in names.items()}
            costs[what] = {"ms": ms, "over_a_line": over_a_line(ms)}
    return {"backend": backend, **costs} if costs else {}


def over_a_line(ms: dict[int, float]) -> float:
    """Return the largest case over the straight line (least squares) through all smaller ones."""
    *smaller, largest = sorted(ms)
    slope, intercept = statistics.linear_regression(smaller, [ms[x] for x in smaller])
    return ms[largest] / (slope * largest + intercept)


def promise(
    text: str, measured: float, bound: float, at_least: bool, unit: str = ""
) -> dict[str, Any]:
    """Return a documented claim about speed or memory, what was measured, and whether it holds.

    `at_least`: whether the bound is a minimum; otherwise it is a maximum.
    """
    return {
        "text": text,
        "measured": measured,
        "bound": bound,
        "at_least": at_least,
        "unit": unit,
        "holds": measured >= bound if at_least else measured <= bound,
    }


NORMALIZED = {KSL.name: 2.2}
"""At most this multiple of SAC from pixels; the paper's KSL takes 3.9."""
OVER_PLAIN = {"native": 2.4, "torch": 1.1}
"""Backend -> at least this many times as fast as the plain reference, KSL's text and release."""
OVER_TORCH = {
    "encoder, forward": (2.0, 2.0),
    "encoder, forward + backward": (2.5, 2.2),
    "compact encoder, forward + backward": (1.5, 1.5),
    f"a learning step of {KSL.name}": (1.9, 1.9),
}
"""At least this many times as fast as PyTorch: on one thread, on several."""


def promises(made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every promise that these results bear on."""
    for row in made.get("plain", ()):
        text = f"{row['method']}: times as fast as the plain reference ({row['backend']})"
        yield promise(text, row["ratio"], OVER_PLAIN[row["backend"]], True)
    for row in made.get("methods", ()):
        if row["method"] in NORMALIZED:
            text = f"{row['method']}: over SAC from pixels ({row['backend']})"
            yield promise(text, row["normalized"], NORMALIZED[row["method"]], False)
    for backend, row in made.get("convolutions", {}).get("backends", {}).items():
        text = f"all convolutions of a ksl step over the matrix product's rate ({backend})"
        yield promise(text, row["of_product"], 0.7, True)
    for backend, share in made.get("split", {}).get("sequences", {}).get("share", {}).items():
        text = f"sequences drawn and shifted, share of a ksl step ({backend})"
        yield promise(text, share, 0.03, False)
    cost = made.get("cost", {})
    for what in ("k", "batch"):
        if what in cost:
            text = f"cost in {what}: largest case over a straight line ({cost['backend']})"
            yield promise(text, cost[what]["over_a_line"], LINEAR, False)
    if memory := made.get("memory"):
        text = f"replay of {memory['decisions']:,} decisions, resident"
        yield promise(text, memory["replay_bytes"] / 1e9, 2.3, False, "GB")
        yield promise("whole training process", memory["process_bytes"] / 1e9, 4.0, False, "GB")
    for row in made.get("busy", ()):
        if row["backend"] == "native" and "gain" in row:
            text = (
                f"a step of ksl beside a busy process: {row['threads']} threads over one (native)"
            )
            yield promise(text, row["gain"]["busy"]["ratio"], 1.0, True)
    for row in made.get("encoder", ()):
        if row["what"] in OVER_TORCH and "ratio" in row:
            number = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
            text = f"{row['what']}: native times as fast as PyTorch ({number})"
            yield promise(text, row["ratio"], OVER_TORCH[row["what"]][row["threads"] > 1], True)
