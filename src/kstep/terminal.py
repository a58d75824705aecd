"""What is printed: one way to a terminal, in which a text is a text.

Names of folders, titles and ids are somebody's choice, and files may be anybody's. So nothing in
them is markup, and no control character of theirs reaches a terminal: it is shown by its number.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # escape sequences begin with one of these; tab and newline stay
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these reorder what is around them
    "\ud800-\udfff]"  # bytes of a file's name that are no text
)


class OutputClosed(Exception):
    """Whoever read what is printed has stopped reading."""


def clean(text: str) -> str:
    """Return a text with every control character shown by its number."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class Terminal(Console):
    """A console that prints texts as they are: no markup, no colours of numbers, no control
    characters."""

    def __init__(
        self, *, width: int | None = None, stderr: bool = False, file: TextIO | None = None
    ) -> None:
        super().__init__(
            width=width, stderr=stderr, file=file, markup=False, emoji=False, highlight=False
        )

    def render_str(self, text: str, **options: Any) -> Text:
        """Clean a text before its width is measured, such as that of a table's cell."""
        return super().render_str(clean(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Clean whatever else is rendered."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

    def on_broken_pipe(self) -> None:
        raise OutputClosed


def say(console: Console, text: str | Text, style: str | None = None) -> None:
    """Print a plain line: no colours of numbers, no markup. On a terminal it is wrapped between
    words, unless one of them, such as a path, is longer than a line; elsewhere it is one line."""
    words = str(text).split()
    wraps = console.is_terminal and max(map(cell_len, words), default=0) <= console.width
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=not wraps)


@dataclass(frozen=True)
class Column:
    """Of a table that adapts to the terminal."""

    title: str
    justify: Literal["left", "right"] = "left"
    rank: int = 0
    """Where there is not enough room, columns of the highest rank are left out first; those of rank
    0 never."""


def table(columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], width: int) -> Table:
    """Return a table with as many of the columns as fit; no cell is cut or broken into lines."""
    kept = list(range(len(columns)))
    widths = [
        max([cell_len(column.title), *(_width(row[i]) for row in rows)])
        for i, column in enumerate(columns)
    ]
    while sum(widths[i] + 2 for i in kept) > width + 2:
        last = max(kept, key=lambda i: columns[i].rank)
        if columns[last].rank == 0:
            break
        kept.remove(last)
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i in kept:
        column = columns[i]
        made.add_column(column.title, justify=column.justify, no_wrap=True, min_width=widths[i])
    for row in rows:
        made.add_row(*(row[i] for i in kept))
    return made


def _width(cell: str | Text) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(clean(cell))


BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float | None], low: float, high: float) -> str:
    """Return a bar of one character for each value between low and high, a space for None."""
    top = len(BARS) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(
        " " if value is None else BARS[min(max(round((value - low) * scale), 0), top)]
        for value in values
    )


def counted(number: int, noun: str) -> str:
    """Return a number of things, as `1 run` or `1,430 runs`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decimals(size: float) -> int:
    """Return with how many decimals a number of this size is printed in three digits."""
    return min(2 - math.floor(math.log10(size)), 6) if 0.0 < size < 100.0 else 0


def terminal(width: int | None = None) -> Terminal:
    """Return the console: as wide as the terminal, `width` (for tables) in files and pipes."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=width)


def abandon_output() -> None:
    """Drop what could not be printed: otherwise the interpreter tries again when it ends."""
    with suppress(OSError, ValueError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)
