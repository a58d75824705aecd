"""Where a checkpoint comes from: what decides a run's bits beside its experiment.

Versions change numbers and renderers change pixels, silently. So a checkpoint records both, and
resuming it under others is refused with the difference unless a flag allows it. What at most
changes rounding (device, PyTorch's threads) or may change nothing at all (the commit) is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from kstep import envs, plugins
from kstep.config import Experiment
from kstep.run import system
from kstep.run.runtime import Allowed as Allowed
from kstep.types import KstepError
from kstep.values import Count

DECIDING = ("kstep", "torch", "numpy", "mujoco", "dm-control")
"""Packages whose version decides what is computed, beside those that parts of the method are from.
"""
OF_TASKS = {"atari": ("ale-py",), "minatar": ("minatar",)}
"""Those of single kinds of tasks."""


@dataclass(frozen=True)
class Provenance:
    """What computed a checkpoint."""

    renderer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    threads: Count = 1
    """Of PyTorch: 1 with the native backend, whose own threads decide nothing."""
    commit: str = ""

    def refuse_other(self, saved: Provenance, allowed: Allowed) -> list[str]:
        """Raise where `saved` cannot be resumed here bit for bit; return what to report."""
        found = [
            (f"{name}: there {saved.versions.get(name)}, here {self.versions.get(name)}", "version")
            for name in dict.fromkeys([*saved.versions, *self.versions])
            if saved.versions.get(name) != self.versions.get(name)
        ]
        if saved.renderer != self.renderer:
            found.append((f"renderer: there {saved.renderer}, here {self.renderer}", "renderer"))
        forced = {"version": allowed.force_version, "renderer": allowed.force_renderer}
        refused = [(line, what) for line, what in found if not forced[what]]
        if refused:
            options = dict.fromkeys(f"--force-{what}" for _, what in refused)
            raise KstepError(
                "the checkpoint was made with different versions, so resuming would give other "
                "results:\n" + "\n".join(f"  {line}" for line, _ in refused) + "\nGo back to "
                f"those, or accept a run that is no longer reproducible with {' '.join(options)}"
            )
        notes = [f"resuming all the same: {line}" for line, _ in found]
        for name in ("device", "threads", "commit"):
            there, here = getattr(saved, name), getattr(self, name)
            if there != here:
                notes.append(f"note: {name} was {there}, is {here}")
        return notes


def here(experiment: Experiment, device: str, threads: int | None) -> Provenance:
    """What would compute a run in this process."""
    versions, others = system.versions(), plugins.versions(experiment.method)
    deciding = (*DECIDING, *OF_TASKS.get(envs.parse(experiment.env.task).kind, ()))
    return Provenance(
        renderer=envs.renderer(experiment.env),
        versions={name: versions[name] for name in deciding} | others,
        device=device,
        threads=threads or torch.get_num_threads(),
        commit=system.commit(),
    )
