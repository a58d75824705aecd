"""Results to look at: report, watch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from kstep.terminal import say, terminal
from kstep.values import Count


@dataclass(frozen=True)
class Report:
    """Turn folders of runs into one page that opens from disk, to look at or to send.

    Example: kstep report runs --output report
    """

    sources: Positional[tuple[Path, ...]] = (Path("runs"),)
    """Folders with run folders or with the tables of kstep analyze somewhere below them, and tables
    of evaluations (kstep collect)."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report")
    """A folder; the page is index.html in it."""
    title: str = ""
    at: tuple[Count, ...] = ()
    """Tabulate returns at these env steps; none: the paper's, or the last that all runs reached."""

    def __call__(self) -> None:
        from kstep.report.page import gather, html

        console = terminal()
        data = gather.gather(
            self.sources, lambda text: say(console, text), title=self.title, at=self.at
        )
        page = html.write(data, self.output)
        say(console, f"{page}: {data.summary}; {page.stat().st_size / 1e6:.1f} MB")
