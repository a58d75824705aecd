"""What is printed is a text: no markup, no escape sequence, no lost letter."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.table import Table
from rich.text import Text

from kstep.run.progress import ProgressReport
from kstep.terminal import Terminal, clean, say

HOSTILE = "[/bold] [red]x[/] \x1b[31mred\x1b]0;title\x9c \x9b2J \udc80 \u202eabc :smile: 12"
SHOWN = r"[/bold] [red]x[/] \x1b[31mred\x1b]0;title\x9c \x9b2J \udc80 \u202eabc :smile: 12"


@pytest.fixture
def said() -> StringIO:
    return StringIO()


def test_lines_and_tables_show_every_letter_and_no_escape_sequence(said: StringIO) -> None:
    console = Terminal(file=said, width=200)
    say(console, HOSTILE)
    say(console, Text.assemble((HOSTILE, "bold"), " after"))
    table = Table(HOSTILE, "b", title=f"title {HOSTILE}")
    table.add_row("1", HOSTILE)
    console.print(table)
    assert said.getvalue().count(SHOWN) == 5
    assert "\x1b" not in said.getvalue()
    said.getvalue().encode()  # would fail for half a character


def test_a_progress_bar_shows_the_title_as_it_is(
    said: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = Terminal(file=said, width=200)
    assert console.is_terminal
    with ProgressReport("ksl (debug) gym:[/bold]Odd[x]-v0", 10, console).bar:
        pass
    assert "gym:[/bold]Odd[x]-v0" in said.getvalue()


def test_plain_text_stays_as_it_is() -> None:
    text = "841 ± 33** (n = 10)\n\tä \U0001f600 [0.1, 0.2] C:\\x"
    assert clean(text) == text
