"""Results to look at: report, watch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import annotated_types
import tyro
from tyro.conf import Positional

from kstep.signals import Terminated
from kstep.terminal import say, terminal
from kstep.values import Count

Sources = Positional[tuple[Path, ...]]
Marks = tuple[Count, ...]
Port = Annotated[int, annotated_types.Ge(0), annotated_types.Le(65535)]


@dataclass(frozen=True)
class Report:
    """Turn folders of runs into one page that opens from disk, to look at or to send.

    Example: kstep report runs --output report
    """

    sources: Sources = (Path("runs"),)
    """Folders with run folders or with the tables of kstep analyze somewhere below them, and tables
    of evaluations (kstep collect)."""
    output: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("report")
    """A folder; the page is index.html in it."""
    title: str = ""
    at: Marks = ()
    """Tabulate returns at these env steps; none: the paper's, or the last that all runs reached."""

    def __call__(self) -> None:
        from kstep.report.page import gather, html

        console = terminal()
        data = gather.gather(
            self.sources, lambda text: say(console, text), title=self.title, at=self.at
        )
        page = html.write(data, self.output)
        say(console, f"{page}: {data.summary}; {page.stat().st_size / 1e6:.1f} MB")


@dataclass(frozen=True)
class Watch:
    """Show the page of kstep report in a browser while runs are being trained, and stop them there.

    Example: kstep watch runs
    """

    sources: Sources = (Path("runs"),)
    """Folders and tables, as for kstep report; runs that begin later appear on the page."""
    port: Port = 8475
    """The port of this machine at which the page is served; 0: any that is free."""
    title: str = ""
    at: Marks = ()
    """Tabulate returns at these env steps, once they are reached; none: as kstep report does."""

    def __call__(self) -> None:
        from kstep.report.live import newest, server

        console = terminal()
        with server.listening(self.port) as taken:
            found = newest.Newest(
                self.sources, lambda text: say(console, text), title=self.title, at=self.at
            )
            say(console, f"watching {found.state.summary}")
            try:
                server.serve(found, taken, lambda text: say(console, text), self.title)
            except Terminated:
                raise
            except KeyboardInterrupt:  # the way in which it is meant to end
                pass
        say(console, "no longer watching; the runs continue")
