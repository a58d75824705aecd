"""What is printed: one way to a terminal, in which a text is a text.

Names of folders, titles and ids are somebody's choice, and files may be anybody's. So nothing in
them is markup, and no control character of theirs reaches a terminal: it is shown by its number.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
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
    """Print a plain line: no colours of numbers, no markup, wrapped by the terminal only."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


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
