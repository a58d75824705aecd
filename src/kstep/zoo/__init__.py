"""Trained agents that come with the package: `zoo:NAME` wherever a run folder is expected.

Each is a folder here, with the config.json of the run it is from, policy.safetensors (encoder and
actor, rounded to half precision), card.json (what it is, how it was trained, what it is rewarded,
checksums) and README.md (the card, for people). `scripts/zoo.py` adds one. Nothing here needs
PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import annotated_types as at

from kstep import names, reading
from kstep.errors import KstepError
from kstep.values import Count, Name

PREFIX = "zoo:"
HOME = Path(str(files("kstep").joinpath("zoo")))


@dataclass(frozen=True)
class Card:
    """What is known of an agent."""

    method: Name
    preset: Name
    task: Name
    seed: Count
    env_steps: Count
    decisions: Count
    updates: Count
    returns: Annotated[tuple[float, ...], at.MinLen(1)]
    """Of greedy episodes with the weights as they are here."""
    return_in_training: float
    """The mean of the run's own last evaluation."""
    command: str
    """What trained it."""
    kstep: str
    """The version that trained it."""
    commits: tuple[str, ...]
    rendering: tuple[str, ...]
    processors: tuple[str, ...]
    hours: float | None
    """It took, if that was written down."""
    digest: str
    """Of the experiment."""
    sha256: dict[str, str]
    """Of the other files that loading reads."""

    @property
    def mean(self) -> float:
        return sum(self.returns) / len(self.returns)

    @property
    def deviation(self) -> float:
        """Over episodes."""
        return math.sqrt(sum((r - self.mean) ** 2 for r in self.returns) / len(self.returns))

    def line(self) -> str:
        return (
            f"{self.method}-{self.preset} seed {self.seed} after {self.env_steps:,} env steps: "
            f"return {self.mean:.0f} ± {self.deviation:.0f} over {len(self.returns)} episodes"
        )

    def text(self, name: str) -> str:
        """Return the card as a page."""
        hours = "" if self.hours is None else f", {self.hours:.1f} hours"
        rows = {
            "method": f"`{self.method}`, preset `{self.preset}`",
            "task": f"`{self.task}`",
            "seed": str(self.seed),
            "trained for": f"{self.env_steps:,} env steps, {self.decisions:,} decisions, "
            f"{self.updates:,} updates{hours}",
            "return": f"{self.mean:.1f} ± {self.deviation:.1f} (standard deviation over "
            f"{len(self.returns)} greedy episodes, with these weights); "
            f"{self.return_in_training:.1f} in the last evaluation while it was trained",
            "trained by": f"`{self.command}`",
            "version": f"kstep {self.kstep}, commit {', '.join(self.commits) or 'unknown'}",
            "rendering": ", ".join(self.rendering) or "unknown",
            "processor": ", ".join(self.processors) or "unknown",
            "digest of the experiment": f"`{self.digest}`",
            **{f"SHA-256 of {file}": f"`{value}`" for file, value in self.sha256.items()},
        }
        table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
        return (
            f"# {name}\n\n`kstep film {PREFIX}{name}` shows what it does. Encoder and actor alone, "
            "rounded to half precision: it acts, it cannot be trained further. One seed of one "
            "method: it says nothing of how methods compare.\n\n"
            f"| | |\n|---|---|\n{table}\n"
        )


def agents() -> list[str]:
    """Return the names of all agents."""
    return sorted(path.parent.name for path in HOME.glob("*/card.json"))


def card(folder: Path) -> Card:
    """Read what is known of the agent in a folder."""
    found: Card = reading.json_file(folder / "card.json", Card)
    return found


def located(run: Path) -> Path:
    """Return the folder of `zoo:NAME` once its files are known to be what was added; any other path
    as it is."""
    text = str(run)
    if not text.startswith(PREFIX):
        return run
    name, known = text.removeprefix(PREFIX), agents()
    if not known:
        raise KstepError(f"there is no '{text}': this installation comes without trained agents")
    names.require(name, known, "agent")
    folder = HOME / name
    for file, expected in card(folder).sha256.items():
        if reading.sha256(folder / file) != expected:
            raise KstepError(f"{folder / file} is damaged: it is not the file that was added")
    return folder


def check(run: Path) -> None:
    """Refuse a folder that is no run before anything that takes long is imported."""
    if not (located(run) / "config.json").exists():
        raise KstepError(f"{run} is not a run: it has no config.json")
