"""What the page shows now: computed again from whatever has changed on disk, in numbered versions.

Runs whose files are as they were are not read again, bootstraps of the same numbers are not drawn
again (`report.statistics`), and a page that knows a version is sent only what is newer.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from kstep.report.page import analyses, gather, records
from kstep.report.page.data import PageData, plain
from kstep.report.page.records import Record
from kstep.run import on_demand
from kstep.run.folder import RunFolder
from kstep.types import KstepError

T = TypeVar("T")

KINDS = ("figures", "tables", "clouds")
"""Of parts of a section that are sent only when they have changed; each has a name."""


class Remembered(Generic[T]):
    """A function of a path that is called again only when the files behind it have changed."""

    def __init__(self, read: Callable[[Path], T], stamp: Callable[[Path], object]) -> None:
        self._read, self._stamp = read, stamp
        self._kept: dict[Path, tuple[object, T]] = {}

    def __call__(self, path: Path) -> T:
        now = self._stamp(path)  # first: what changes while it is read is read again
        known = self._kept.get(path)
        if known is None or known[0] != now:
            known = self._kept[path] = now, self._read(path)
        return known[1]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what differs once a file was written to, or a folder's list of names has changed."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _stamp_of_run(folder: Path) -> object:
    run = RunFolder(folder)
    files = (run.config_file, run.system_file, run.evaluations_file, run.metrics_file)
    others = (run.clock_file, run.attempts_file, run.checkpoints, folder / "films")
    return run.is_locked(), *map(_stamp, (*files, *others))


@dataclass(frozen=True)
class Part:
    """A figure, table or point cloud as it is sent."""

    item: Any
    text: str
    """As JSON."""
    since: int
    """The version in which it became this."""


@dataclass(frozen=True)
class State:
    """One version of everything."""

    version: int
    summary: str
    top: dict[str, Any]
    """All but the sections."""
    sections: tuple[tuple[dict[str, Any], Mapping[str, tuple[Part, ...]]], ...]
    """Sections without their parts, and those by kind."""
    films: Mapping[str, Path]
    """By the last word of their address."""
    running: Mapping[str, Path]
    """Folders of the runs that can be stopped, in the same way."""

    def text(self, known: int) -> str:
        """Return it as JSON; parts that are the same as in a known version are only named."""
        sections = []
        for section, parts in self.sections:
            lists = "".join(
                f',"{kind}":[{",".join(_shown(part, known) for part in own)}]'
                for kind, own in parts.items()
                if own
            )
            sections.append(json.dumps(section)[:-1] + lists + "}")
        return json.dumps(self.top)[:-1] + f',"sections":[{",".join(sections)}]}}'


def _shown(part: Part, known: int) -> str:
    if part.since > known:
        return part.text
    return json.dumps({"name": part.item.name, "same": True})


class Newest:
    """Watches folders of runs, tables of evaluations and analyses."""

    def __init__(
        self,
        sources: Sequence[Path],
        say: Callable[[str], None] = lambda text: None,
        *,
        title: str = "",
        at: Sequence[int] = (),
    ) -> None:
        self._sources, self._title, self._at = sources, title, at
        self._say, self._said = say, set[str]()
        self._id = secrets.token_hex(4)
        """Of this process: its numbers mean nothing to another one."""
        self._films: dict[str, Path] = {}
        self._running: dict[str, Path] = {}
        self._asked: dict[Path, int] = {}
        """Processes that were asked to stop."""
        self._access = gather.Access(
            Remembered(records.of_folder, _stamp_of_run),
            Remembered(analyses.read_table, _stamp),
            self._film,
            self._stop,
        )
        self.state = State(0, "", {}, (), {}, {})
        self.refresh()

    def refresh(self) -> None:
        """Read what has changed and make the next version, if there is anything new."""
        self._films, self._running = {}, {}
        data = gather.gather(
            self._sources, self._say_once, title=self._title, at=self._at, access=self._access
        )
        self._publish(data)

    def lament(self, problem: str) -> None:
        """Show that what is new cannot be read, beside what was known before."""
        before = self.state
        alarms = [f"What is shown is not the newest, which cannot be read: {problem}."]
        if before.top.get("alarms") != alarms:
            top = {**before.top, "alarms": alarms}
            self.state = replace(before, version=before.version + 1, top=top)

    def news(self, known: str) -> str | None:
        """Return the newest version for a page that has this one; None if there is nothing new."""
        state = self.state
        process, _, number = known.partition("-")
        version = int(number) if process == self._id and number.isdecimal() else 0
        if version == state.version:
            return None
        return f'{{"version":"{self._id}-{state.version}","data":{state.text(version)}}}'

    def stop(self, name: str) -> str:
        """Ask the process that trains a run to stop, once, and return a sentence about it."""
        try:
            run = RunFolder(self.state.running[name])
        except KeyError as error:
            raise KstepError("this run is not being trained") from error
        process = on_demand.trainer(run)
        # A second Ctrl-C ends a run at once, at its last checkpoint. Whoever wants that has the
        # terminal; here it would be a double click, or a second page.
        if process is None or self._asked.get(run.folder) != process:
            process = self._asked[run.folder] = on_demand.interrupt(run)
        return f"Process {process} was asked to stop; it writes a checkpoint and ends."

    def _publish(self, data: PageData) -> None:
        before = {
            (section["name"], kind, part.item.name): part
            for section, parts in self.state.sections
            for kind, own in parts.items()
            for part in own
        }
        version = self.state.version + 1
        sections = []
        for section in data.sections:
            parts = {}
            for kind in KINDS:
                own = []
                for item in getattr(section, kind):
                    part = before.get((section.name, kind, item.name))
                    if part is None or part.item != item:
                        text = json.dumps(plain(item), separators=(",", ":"), allow_nan=False)
                        # What is not shown, such as a seventh digit, may differ.
                        if part is None or part.text != text:
                            part = Part(item, text, version)
                    own.append(part)
                parts[kind] = tuple(own)
            alone = replace(section, figures=(), tables=(), clouds=())
            sections.append((plain(alone), parts))
        top = {**plain(replace(data, sections=())), "served": True}
        found = State(version, data.summary, top, (*sections,), self._films, self._running)
        if found.text(version) != self.state.text(version) or any(
            part.since == version for _, parts in sections for own in parts.values() for part in own
        ):
            self.state = found
        else:  # addresses stay the same, the files behind them are looked up again
            self.state = replace(found, version=self.state.version)

    def _say_once(self, problem: str) -> None:
        if problem not in self._said:
            self._said.add(problem)
            self._say(problem)

    def _film(self, run: Record, path: Path) -> str:
        """Return a film's address, which is another one once the file was written again."""
        name = _name(path, _stamp(path)) + path.suffix
        self._films[name] = path
        return f"films/{name}"

    def _stop(self, run: Record) -> str:
        if run.folder is None or self._stopping(run.folder):
            return ""
        name = _name(run.folder)
        self._running[name] = run.folder
        return f"stop/{name}"

    def _stopping(self, folder: Path) -> bool:
        asked = self._asked.get(folder)
        return asked is not None and on_demand.trainer(RunFolder(folder)) == asked


def _name(*parts: object) -> str:
    """Return a word that stands for something in addresses, which so cannot lead elsewhere."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
