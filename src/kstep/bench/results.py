"""Medians to results, results to promises: pure functions of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kstep.bench import encoder, renderers, steps
from kstep.bench.parts import BACKWARD, FORWARD, PARTS, convolution_flops
from kstep.bench.steps import KSL, RELEASED, SAC_PIXEL, Workload, step_name
from kstep.bench.timing import Times
from kstep.native import Backend

LINEAR = 1.1
"""How far above a straight line the largest case may lie and still count as linear: noise."""


@dataclass(frozen=True)
class Promise:
    """A documented claim about speed or memory, and what was measured."""

    text: str
    measured: float
    bound: float
    at_least: bool
    """Whether the bound is a minimum; otherwise a maximum."""
    unit: str = ""

    @property
    def holds(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured, and under which conditions."""

    times: Times
    threads: tuple[int, ...]
    backends: tuple[Backend, ...]
    workloads: Sequence[Workload]
    ks: dict[int, Workload]
    batches: dict[int, Workload]
    memory: dict[str, Any] | None
    product_flops: int
    convolution_inputs: int
    """Input channels of the encoder of `ksl`; below, its maps (H, W, C)."""
    convolution_maps: tuple[tuple[int, ...], ...]

    @property
    def most(self) -> int:
        """Threads of everything that is measured with one number of them only."""
        return max(self.threads)

    def step(self, workload: Workload, backend: Backend) -> str:
        return step_name(workload, backend, self.most)


def results(found: Measurements) -> dict[str, Any]:
    """Return the results by section; sections that were not measured are left out."""
    everything = {
        "methods": _methods(found),
        "split": _split(found),
        "convolutions": _convolutions(found),
        "encoder": _encoder(found),
        "plain": _plain(found),
        "memory": found.memory,
        "renderers": _renderers(found),
        "cost": _cost(found),
    }
    made = {name: value for name, value in everything.items() if value}
    return {**made, "promises": [promise.state() for promise in promises(made)]}


def _methods(found: Measurements) -> list[dict[str, Any]]:
    """Per method and backend: ms per learning step, and over SAC from pixels beside the paper's."""
    times, paper, rows = found.times, steps.paper_table(), []
    for workload in found.workloads:
        for backend in found.backends:
            name, base = found.step(workload, backend), found.step(SAC_PIXEL, backend)
            if name not in times or base not in times:
                continue
            rows.append(
                {
                    "method": workload.name,
                    "backend": backend,
                    "ms": times.ms(name),
                    "normalized": times.ratio(name, base)["ratio"],
                    "paper": paper[workload.paper] if workload.paper else None,
                }
            )
    return rows


def _split(found: Measurements) -> dict[str, Any]:
    """Return what a step of `ksl` spends its time on, by backend."""
    split: dict[str, Any] = {}
    times = found.times
    for backend in found.backends:
        name = f"split {KSL.name}/{backend}"
        if name not in times:
            continue
        inside = times.parts(name)
        total = sum(inside[part] for part in PARTS)
        split[backend] = {
            "ms": {part: inside[part] for part in PARTS},
            "share": {part: inside[part] / total for part in PARTS},
            "total": total,
        }
    decision = renderers.decision_name(renderers.USUAL)
    if split and decision in times:
        split["environment"] = {"ms": times.ms(decision)}
    if split and steps.SEQUENCES in times:
        spent = times.ms(steps.SEQUENCES)
        split["sequences"] = {
            "ms": spent,
            "share": {
                backend: spent / times.ms(found.step(KSL, backend))
                for backend in found.backends
                if found.step(KSL, backend) in times
            },
        }
    return split


def _convolutions(found: Measurements) -> dict[str, Any]:
    """GFLOP/s of all convolutions in a step of `ksl`, over those of a matrix product."""
    times, rows = found.times, {}
    product = encoder.product_name(found.most)
    if product not in times:
        return {}
    peak = found.product_flops / times.ms(product) / 1e6
    forward, backward = convolution_flops(found.convolution_inputs, found.convolution_maps)
    for backend in found.backends:
        name = f"split {KSL.name}/{backend}"
        if name not in times:
            continue
        inside = times.parts(name)
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
    return {"product_gflops": peak, "backends": rows} if rows else {}


def _encoder(found: Measurements) -> list[dict[str, Any]]:
    """PyTorch over our kernels, per number of threads."""
    rows = []
    for threads in found.threads:
        pairs = [
            (f"{name}, {way}", *(encoder.pass_name(name, way, b, threads) for b in found.backends))
            for name in encoder.STRIDES
            for way in encoder.WAYS
        ]
        pairs += [
            (
                f"a learning step of {workload.name}",
                *(step_name(workload, b, threads) for b in found.backends),
            )
            for workload in (KSL, steps.COMPACT)
        ]
        for what, *names in pairs:
            if not all(name in found.times for name in names):
                continue
            row: dict[str, Any] = {"what": what, "threads": threads}
            row |= {b: found.times.ms(n) for b, n in zip(found.backends, names, strict=True)}
            if len(names) == 2:
                row |= found.times.ratio(*names)
            rows.append(row)
    # Rows about learning steps alone would only repeat the table of methods.
    return rows if any("encoder" in row["what"] for row in rows) else []


def _plain(found: Measurements) -> list[dict[str, Any]]:
    """The plain reference over ours."""
    rows = []
    for workload in (KSL, RELEASED):
        plain = steps.plain_name(workload)
        for backend in found.backends:
            ours = found.step(workload, backend)
            if plain in found.times and ours in found.times:
                rows.append(
                    {
                        "method": workload.name,
                        "backend": backend,
                        "plain": found.times.ms(plain),
                        "ours": found.times.ms(ours),
                        **found.times.ratio(plain, ours),
                    }
                )
    return rows


def _renderers(found: Measurements) -> list[dict[str, Any]]:
    return [
        {
            "renderer": name,
            "frames_per_second": 1000 / found.times.ms(renderers.frame_name(name)),
            "decision_ms": found.times.ms(renderers.decision_name(name)),
        }
        for name in renderers.NAMES
        if renderers.frame_name(name) in found.times
    ]


def _cost(found: Measurements) -> dict[str, Any]:
    """Return how the time of a step grows, for the backend that a run would use."""
    backend, costs = found.backends[-1], {}
    for what, cases in (("k", found.ks), ("batch", found.batches)):
        names = {value: found.step(workload, backend) for value, workload in cases.items()}
        if len(names) > 2 and all(name in found.times for name in names.values()):
            ms = {value: found.times.ms(name) for value, name in names.items()}
            costs[what] = {"ms": ms, "over_a_line": over_a_line(ms)}
    return {"backend": backend, **costs} if costs else {}


def over_a_line(ms: dict[int, float]) -> float:
    """Return the largest case over the straight line (least squares) through all smaller ones."""
    *smaller, largest = sorted(ms)
    middle = sum(smaller) / len(smaller)
    level = sum(ms[x] for x in smaller) / len(smaller)
    slope = sum((x - middle) * (ms[x] - level) for x in smaller)
    slope /= sum((x - middle) ** 2 for x in smaller)
    return ms[largest] / (level + slope * (largest - middle))


NORMALIZED = {KSL.name: 2.2}
"""At most this multiple of SAC from pixels; the paper's KSL takes 3.9."""
OVER_PLAIN = {KSL.name: 1.8, RELEASED.name: 1.6}
OVER_TORCH = {
    "encoder, forward": 2.0,
    "encoder, forward + backward": 2.5,
    "compact encoder, forward + backward": 1.5,
    f"a learning step of {KSL.name}": 1.9,
}


def promises(made: dict[str, Any]) -> Iterator[Promise]:
    """Yield every promise that these results bear on."""
    for row in made.get("plain", ()):
        text = f"{row['method']}: times as fast as the plain reference ({row['backend']})"
        yield Promise(text, row["ratio"], OVER_PLAIN[row["method"]], True)
    for row in made.get("methods", ()):
        if row["method"] in NORMALIZED:
            text = f"{row['method']}: over SAC from pixels ({row['backend']})"
            yield Promise(text, row["normalized"], NORMALIZED[row["method"]], False)
    for backend, row in made.get("convolutions", {}).get("backends", {}).items():
        text = f"all convolutions of a ksl step over the matrix product's rate ({backend})"
        yield Promise(text, row["of_product"], 0.7, True)
    for backend, share in made.get("split", {}).get("sequences", {}).get("share", {}).items():
        text = f"sequences drawn and shifted, share of a ksl step ({backend})"
        yield Promise(text, share, 0.03, False)
    cost = made.get("cost", {})
    for what in ("k", "batch"):
        if what in cost:
            text = f"cost in {what}: largest case over a straight line ({cost['backend']})"
            yield Promise(text, cost[what]["over_a_line"], LINEAR, False)
    if memory := made.get("memory"):
        text = f"replay of {memory['decisions']:,} decisions, resident"
        yield Promise(text, memory["replay_bytes"] / 1e9, 2.3, False, "GB")
        yield Promise("whole training process", memory["process_bytes"] / 1e9, 4.0, False, "GB")
    for row in made.get("encoder", ()):
        if row["what"] in OVER_TORCH and "ratio" in row:
            number = f"{row['threads']} thread{'s' * (row['threads'] > 1)}"
            text = f"{row['what']}: native times as fast as PyTorch ({number})"
            yield Promise(text, row["ratio"], OVER_TORCH[row["what"]], True)
