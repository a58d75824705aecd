"""What to measure and how long. The fields are flags of `kstep bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from kstep.style import ThemeName
from kstep.values import Positive, Threads

Section: TypeAlias = Literal[
    "methods", "split", "encoder", "busy", "plain", "memory", "renderers", "cost"
]
SECTIONS: tuple[Section, ...] = get_args(Section)


@dataclass(frozen=True)
class Options:
    """What to measure and how long."""

    only: tuple[Section, ...] = ()
    """Sections to measure; the default is all of them."""
    threads: tuple[Threads, ...] = ()
    """Numbers of threads; the default is 1 and all cores. The encoder, and a step
    beside other work, are measured with each, everything else with the largest."""
    rounds: Positive | None = None
    """How often everything is measured; the medians are reported."""
    backend: Literal["both", "torch", "native"] = "both"
    """What computes the convolutions."""
    quick: bool = False
    """A small size and two rounds, to see whether it works, not how fast it is."""
    out: Path | None = None
    """The JSON file, the figure beside it; default bench.json, with a date where that exists."""
    theme: ThemeName = "light"
    """The background of the figure: light or dark."""

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(section for section in SECTIONS if not self.only or section in self.only)
