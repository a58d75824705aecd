"""What a page shows, as plain data: sections of figures, tables, point clouds and films.

The page's script draws these kinds and knows nothing of methods, tasks or statistics. Every number
that a table shows is a text already, made by the functions that the terminal prints with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeAlias

from kstep.report.grid import Grid

Numbers: TypeAlias = tuple[float | None, ...]
Band: TypeAlias = tuple[Numbers, Numbers]
"""Lower and upper ends."""
Kind: TypeAlias = Literal["mean", "fewer", "run", "paper"]
"""Of a line: the mean of the seeds, of fewer seeds than elsewhere on the curve, one run, or the
paper's."""


@dataclass(frozen=True)
class Line:
    """One line of a figure. It ends where the set of seeds behind it changes."""

    label: str
    """Whose colour and marker it has, and by what it is switched off."""
    name: str
    x: Mapping[str, Numbers]
    """By axis; None where that is not known."""
    y: Numbers
    n: tuple[int, ...]
    """Seeds behind each point."""
    bands: Mapping[str, Band] = field(default_factory=dict)
    kind: Kind = "mean"


@dataclass(frozen=True)
class Figure:
    """Lines over one of several axes."""

    name: str
    """Of its files."""
    title: str
    axes: Mapping[str, str]
    """Axis to title; the first is shown first."""
    y_title: str
    lines: tuple[Line, ...]
    note: str = ""
    usual_n: int | None = None
    """Lines with another number of seeds have it written at their end."""
    rules: tuple[tuple[str, float], ...] = ()
    """Labels, and where on the first axis a vertical line of theirs is."""
    y_range: tuple[float, float] | None = None
    group: str = ""
    """Where a section has several groups, the reader chooses which one is shown."""


@dataclass(frozen=True)
class Cloud:
    """States as points in three principal components, coloured by their reward."""

    name: str
    points: tuple[tuple[float, float, float, float], ...]
    """pc1, pc2, pc3, reward."""
    note: str = ""


@dataclass(frozen=True)
class Film:
    """A film of a policy."""

    label: str
    task: str
    seed: int
    name: str
    """What it shows, such as a checkpoint's env steps."""
    env_steps: int
    address: str
    """Where the page finds it: a data: address, or a path of the server."""
    moving_picture: bool = False
    """A GIF or WebP, which plays by itself."""


@dataclass(frozen=True)
class Live:
    """A run that is being trained, for whoever watches."""

    address: str
    """What to ask the server to stop; empty once it was asked."""
    label: str
    task: str
    seed: int
    env_steps: int
    budget: int
    left: str
    """Time left, as a text; empty if unknown."""
    score: str
    """The newest evaluation."""
    film: str
    """What its newest film shows; empty without any."""


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading of its own."""

    name: str
    title: str
    text: str = ""
    figures: tuple[Figure, ...] = ()
    tables: tuple[Grid, ...] = ()
    clouds: tuple[Cloud, ...] = ()
    films: tuple[Film, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not (self.figures or self.tables or self.clouds or self.films or self.remarks)


@dataclass(frozen=True)
class Style:
    """A method's look, as the plotting library names it."""

    light: str
    dark: str
    symbol: str
    dash: str


@dataclass(frozen=True)
class PageData:
    """Everything on a page."""

    title: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    """What was run: terms and their texts."""
    sections: tuple[Section, ...]
    styles: Mapping[str, Style]
    alarms: tuple[str, ...] = ()
    live: tuple[Live, ...] = ()
    made: str = ""
    """When, and by which version."""


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it: numbers to six digits, nothing that is not finite, tables
    with their LaTeX, and no fields that are at their defaults of nothing."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        found = {item.name: plain(getattr(value, item.name)) for item in fields(value)}
        if isinstance(value, Grid):
            found["latex"] = value.latex()
        return {name: item for name, item in found.items() if not _nothing(item)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _nothing(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})
