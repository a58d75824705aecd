"""Where a checkpoint comes from: what decides a run's bits beside its experiment.

Versions change numbers and renderers change pixels, silently. So a checkpoint remembers both and a
run that would go on under others is refused with the difference; whoever wants that anyway says so.
What at most changes rounding (device, threads) or may change nothing at all (the commit) is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from kstep import envs, system
from kstep.envs import EnvConfig
from kstep.types import KstepError

DECIDING = ("kstep", "torch", "numpy", "mujoco", "dm-control")
"""Packages whose version decides what is computed."""


@dataclass(frozen=True)
class Allowed:
    """Differences that the user asked to go on with."""

    version: bool = False
    renderer: bool = False

    @property
    def any(self) -> bool:
        return self.version or self.renderer


@dataclass(frozen=True)
class Origin:
    """What computed a checkpoint."""

    renderer: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    threads: int = 1
    commit: str = ""

    def state(self) -> dict[str, Any]:
        return {**asdict(self), "versions": dict(self.versions)}

    def refuse_other(self, saved: Origin, allowed: Allowed) -> list[str]:
        """Raise where `saved` cannot be continued here bit for bit; return what is worth saying."""
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
        refused = [] if allowed.version else versions
        refused += [] if allowed.renderer else renderers
        if refused:
            options = (["--force-version"] if versions and not allowed.version else []) + (
                ["--force-renderer"] if renderers and not allowed.renderer else []
            )
            raise KstepError(
                "the checkpoint was computed by other means, so going on would give other "
                "results:\n" + "\n".join(refused) + "\nGo back to those, or accept a run that is "
                f"no longer reproducible with {' '.join(options)}"
            )
        notes = [f"going on all the same:{line[1:]}" for line in versions + renderers]
        for name in ("device", "threads", "commit"):
            there, here = getattr(saved, name), getattr(self, name)
            if there != here:
                notes.append(f"note: {name} was {there}, is {here}")
        return notes


def here(env: EnvConfig, device: str, threads: int | None) -> Origin:
    """What would compute a run in this process."""
    versions = system.versions()
    return Origin(
        renderer=envs.renderer(env),
        versions={name: versions[name] for name in DECIDING},
        device=device,
        threads=threads or torch.get_num_threads(),
        commit=system.commit(),
    )
