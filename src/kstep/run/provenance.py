"""Where a checkpoint comes from: what decides a run's bits beside its experiment.

Versions change numbers and renderers change pixels, silently. So a checkpoint records both, and
resuming it under others is refused with the difference unless a flag allows it. What at most
changes rounding (device, threads) or may change nothing at all (the commit) is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kstep import envs
from kstep.envs import EnvConfig
from kstep.run import system
from kstep.types import KstepError

DECIDING = ("kstep", "torch", "numpy", "mujoco", "dm-control")
"""Packages whose version decides what is computed."""


@dataclass(frozen=True)
class Allowed:
    """Differences that the user accepts when resuming."""

    force_version: bool = False
    """Resume a checkpoint of other versions; the run is no longer reproducible."""
    force_renderer: bool = False
    """Resume with frames of another renderer; the run is no longer reproducible."""

    @property
    def any(self) -> bool:
        return self.force_version or self.force_renderer


@dataclass(frozen=True)
class Provenance:
    """What computed a checkpoint."""

    renderer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    threads: int = 1
    commit: str = ""

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "versions": dict(self.versions)}

    def refuse_other(self, saved: Provenance, allowed: Allowed) -> list[str]:
        """Raise where `saved` cannot be resumed here bit for bit; return what to report."""
        versions = [
            f"  {name}: there {saved.versions.get(name)}, here {self.versions.get(name)}"
            for name in dict.fromkeys([*saved.versions, *self.versions])
            if saved.versions.get(name) != self.versions.get(name)
        ]
        renderers = (
            [f"  renderer: there {saved.renderer}, here {self.renderer}"]
            if saved.renderer != self.renderer
            else []
        )
        refused = [] if allowed.force_version else versions
        refused += [] if allowed.force_renderer else renderers
        if refused:
            options = (["--force-version"] if versions and not allowed.force_version else []) + (
                ["--force-renderer"] if renderers and not allowed.force_renderer else []
            )
            raise KstepError(
                "the checkpoint was made with different versions, so resuming would give other "
                "results:\n" + "\n".join(refused) + "\nGo back to those, or accept a run that is "
                f"no longer reproducible with {' '.join(options)}"
            )
        notes = [f"resuming all the same:{line[1:]}" for line in versions + renderers]
        for name in ("device", "threads", "commit"):
            there, here = getattr(saved, name), getattr(self, name)
            if there != here:
                notes.append(f"note: {name} was {there}, is {here}")
        return notes


def here(env: EnvConfig, device: str, threads: int | None) -> Provenance:
    """What would compute a run in this process."""
    versions = system.versions()
    return Provenance(
        renderer=envs.renderer(env),
        versions={name: versions[name] for name in DECIDING},
        device=device,
        threads=threads or torch.get_num_threads(),
        commit=system.commit(),
    )
