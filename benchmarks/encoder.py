"""How much faster the native encoder is, and what a learning step still spends its time on.

PyTorch (channels last) and native are timed in turns, so that whatever else the machine does
happens to both; what is printed is the ratio of their medians. Below a learning step stand the
shares of its time that its parts take.

    python benchmarks/encoder.py --threads 1 2 --rounds 7
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from kstep import native, system
from kstep.agent import Agent
from kstep.config import resolve
from kstep.native import Backend, Shape
from kstep.native.choice import Trial
from kstep.replay import Replay, ReplayConfig
from kstep.rng import Streams
from kstep.types import EnvSpec

PAPER = Shape(3, 84, 84, 3, (2, 1, 1, 1))
COMPACT = Shape(3, 84, 84, 3, (2, 2, 1, 1))
BACKENDS: tuple[Backend, ...] = ("torch", "native")


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def compare(name: str, work: dict[Backend, Callable[[], object]], rounds: int) -> None:
    """Time both in turns, after one round that does not count, and print a row."""
    taken: dict[Backend, list[float]] = {backend: [] for backend in BACKENDS}
    for count in range(rounds + 1):
        for backend in BACKENDS:
            spent = milliseconds(work[backend])
            if count:
                taken[backend].append(spent)
    slow, fast = (statistics.median(taken[backend]) for backend in BACKENDS)
    ratios = sorted(a / b for a, b in zip(taken["torch"], taken["native"], strict=True))
    print(
        f"  {name:34} torch {slow:8.1f} ms   native {fast:8.1f} ms   ratio {slow / fast:4.2f}"
        f"   (rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def passes(name: str, shape: Shape, batch: int, rounds: int) -> None:
    trial = Trial(shape, batch)

    def forward(features: Callable[[], torch.Tensor]) -> None:
        with torch.no_grad():
            features()

    compare(
        f"{name}, forward",
        {"torch": lambda: forward(trial.by_torch), "native": lambda: forward(trial.by_native)},
        rounds,
    )
    compare(
        f"{name}, forward + backward",
        {
            "torch": lambda: trial.both_ways(trial.by_torch),
            "native": lambda: trial.both_ways(trial.by_native),
        },
        rounds,
    )


def filled(spec: EnvSpec, stack: int) -> Replay:
    replay = Replay(ReplayConfig(capacity=1_000), spec, stack)
    draw = torch.Generator().manual_seed(0)

    def frame() -> object:
        size = spec.frame_shape
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=draw).numpy()

    for _ in range(4):
        replay.begin(frame())  # type: ignore[arg-type]
        for t in range(125):
            action = (2 * torch.rand(spec.action_dim, generator=draw) - 1).numpy()
            replay.add(action, 0.5, False, t == 124, frame())  # type: ignore[arg-type]
    return replay


PARTS = {
    "convolutions": (
        "aten::conv2d",
        "aten::convolution_backward",
        "_Features",
        "_FeaturesBackward",
    ),
    "linear layers": ("aten::mm", "aten::addmm"),
    "optimizers": ("Optimizer.step#Adam.step",),
    "drawing batches": ("draw",),
}
"""What PyTorch's profiler calls the parts of a learning step."""


def shares(agent: Agent, work: Callable[[], object]) -> str:
    """The part of the time that each part takes."""
    batches = agent.batches
    originals = {"draw": batches.draw, "sequences": batches.sequences}

    def recorded(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            with record_function("draw"):
                return original(*arguments)

        return call

    for name, original in originals.items():
        setattr(batches, name, recorded(original))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        spent = milliseconds(work)
    for name in originals:
        delattr(batches, name)
    times = {row.key: row.cpu_time_total / 1000 for row in found.key_averages()}
    taken = {part: sum(times.get(key, 0.0) for key in keys) for part, keys in PARTS.items()}
    taken["all else"] = spent - sum(taken.values())
    return ", ".join(f"{part} {100 * ms / spent:.0f} %" for part, ms in taken.items())


def learning(preset: str, rounds: int) -> None:
    """A whole learning step of `ksl`: sampling, views, losses, optimizers, slow copies."""
    experiment = resolve("ksl", "cartpole_swingup", preset=preset)
    spec = EnvSpec("pixels", (84, 84, 3), 1, 8, 125)
    replay = filled(spec, experiment.method.stack)
    agents = {b: Agent(experiment.method, spec, Streams(0), "cpu", b) for b in BACKENDS}

    # Two updates: the actor learns in every second one.
    def step(agent: Agent) -> None:
        agent.update(replay)
        agent.update(replay)

    compare(
        f"ksl, {preset}: two learning steps",
        {b: lambda agent=agents[b]: step(agent) for b in BACKENDS},  # type: ignore[misc]
        rounds,
    )
    for backend in BACKENDS:
        agent = agents[backend]
        print(f"    {backend}: {shares(agent, lambda agent=agent: step(agent))}", flush=True)  # type: ignore[misc]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=128, help="stacks; the paper's batch is 128")
    parser.add_argument("--only", choices=["passes", "learning"])
    options = parser.parse_args()
    system.keep_freed_memory()
    print(f"{system.processor()}; {native.load().instructions}; torch {torch.__version__}")
    for threads in options.threads:
        torch.set_num_threads(threads)
        print(f"{threads} thread{'s' * (threads > 1)}, {options.batch} stacks")
        if options.only != "learning":
            passes("encoder", PAPER, options.batch, options.rounds)
            passes("compact encoder", COMPACT, options.batch, options.rounds)
        if options.only != "passes":
            learning("paper", options.rounds)
            learning("cpu", options.rounds)


if __name__ == "__main__":
    main()
