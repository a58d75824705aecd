"""Measure what a plan assumes: core-seconds of a learning step, for src/kstep/sweep/speeds.toml.

Every method of the table in docs/speed.md, both presets, both backends, one thread, in turns; the
median of a few rounds. Prints tables of TOML. Takes a minute per round; leave the machine alone.

    python scripts/speeds.py [ROUNDS]
"""

from __future__ import annotations

import sys
from dataclasses import replace

from kstep.bench import steps
from kstep.bench.measure import instructions
from kstep.bench.sizes import PAPER
from kstep.bench.steps import Steps
from kstep.bench.timing import interleave
from kstep.native import Backend
from kstep.run import system

BACKENDS: tuple[Backend, ...] = ("torch", "native")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    system.keep_freed_memory()
    found, names = [], {}
    for preset in ("paper", "cpu"):
        made = Steps(replace(PAPER, preset=preset))
        for backend in BACKENDS:
            for workload in steps.METHODS:
                candidate = made.step(workload, backend, 1)
                name = f"{preset} {candidate.name}"
                names[backend, preset, workload.name] = name
                found.append(replace(candidate, name=name))
    times = interleave(found, rounds)
    print(f"# {system.processor()}, {instructions()}, medians of {rounds} rounds")
    for backend in BACKENDS:
        for preset in ("paper", "cpu"):
            print(f"\n[step.{backend}.{preset}]")
            for workload in steps.METHODS:
                seconds = times.ms(names[backend, preset, workload.name]) / 1000
                print(f"{workload.name} = {seconds:.3f}")


if __name__ == "__main__":
    main()
