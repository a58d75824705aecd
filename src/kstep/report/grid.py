"""Tables of results as values: made once, printed on a terminal, shown on a page, written as LaTeX.

A cell's text is what every reader of it sees, so that a page and a terminal cannot differ in a
digit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from kstep.terminal import clean


@dataclass(frozen=True)
class Cell:
    """One entry of a table."""

    text: str
    bold: bool = False
    value: float | None = None
    """What a column is sorted by; None: the text."""
    below: str = ""
    """A second line, such as the paper's number."""
    below_bold: bool = False


@dataclass(frozen=True)
class Grid:
    """A table with a name for its files and a sentence or two about it."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    name: str = ""
    title: str = ""
    caption: str = ""

    @classmethod
    def of(cls, head: Iterable[str], rows: Iterable[Iterable[Cell | str]], **about: str) -> Grid:
        cells = (
            tuple(entry if isinstance(entry, Cell) else Cell(entry) for entry in row)
            for row in rows
        )
        return cls(tuple(head), tuple(cells), **about)

    def printed(self) -> Table:
        """Return the table for a terminal."""
        table = Table(*self.head, box=None)
        for row in self.rows:
            table.add_row(*(Text(cell.text, "bold" if cell.bold else "") for cell in row))
        return table

    def latex(self) -> str:
        """Return the table for a paper; it needs the package booktabs."""
        lines = [_line([Cell(word) for word in self.head])]
        body = []
        for row in self.rows:
            body.append(_line(row))
            if any(cell.below for cell in row):
                body.append(_line([Cell(cell.below, cell.below_bold) for cell in row]))
        return "\n".join(
            [
                f"% {clean(self.title)}. {clean(self.caption)}".replace("\n", " "),
                f"\\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
                "\\toprule",
                *lines,
                "\\midrule",
                *body,
                "\\bottomrule",
                "\\end{tabular}",
                "",
            ]
        )


def _line(row: Sequence[Cell]) -> str:
    shown = (
        f"\\textbf{{{latex_text(cell.text)}}}" if cell.bold else latex_text(cell.text)
        for cell in row
    )
    return f"{' & '.join(shown)} \\\\"


_SPECIAL = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "±": "$\\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def latex_text(text: str) -> str:
    """Return a text that LaTeX prints as it is: no command, no end of a cell."""
    line = " ".join(clean(text).split())
    return re.sub(r"[\\~^±&%$#_{}]", lambda found: _SPECIAL[found[0]], line)
