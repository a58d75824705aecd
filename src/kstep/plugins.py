"""Other people's packages: what they add to `kstep`, by Python's entry points.

A package that is installed beside this one names what it has in its `pyproject.toml`:

    [project.entry-points."kstep.plugins"]
    inverse = "kstep_inverse:INVERSE"       # a method: its name, and where its value is
    kstep_inverse_more = "kstep_inverse.more"   # a module that registers more when it is imported

Names of methods are known without importing anything. The rest is imported when a name or a kind is
asked for that `kstep` itself does not have, so a run folder decides nothing about what is imported:
whoever installs a package does.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

GROUP = "kstep.plugins"


@functools.cache
def installed() -> tuple[EntryPoint, ...]:
    """Return every entry point, in the order of their names."""
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def package_of(point: EntryPoint) -> str:
    """Return the package that an entry point is from, with its version."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def methods() -> dict[str, str]:
    """Return the names of methods with their packages, by what is written alone."""
    return {point.name: package_of(point) for point in installed() if point.attr}


@functools.cache
def load() -> dict[str, Any]:
    """Import every plug-in, once; return what those with an attribute have there, by name."""
    found = {}
    for point in installed():
        loaded = _loaded(point)
        if point.attr and loaded is not None:
            found[point.name] = loaded
    return found


def load_modules() -> None:
    """Import the plug-ins whose names say nothing about what they register."""
    for point in installed():
        if not point.attr:
            _loaded(point)


problems: dict[str, str] = {}
"""What went wrong with a plug-in, by its name: others must not suffer from it."""


@functools.cache
def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        problems[point.name] = (
            f"the plug-in {point.name} = {point.value} of {package_of(point)} cannot be imported: "
            f"{type(error).__name__} at {at.filename}:{at.lineno}: {' '.join(str(error).split())}"
        )
        return None


def complaints() -> str:
    """Return what went wrong with plug-ins so far, to follow a sentence about what is missing."""
    return "".join(f"\n{problem}" for problem in problems.values())


def versions(value: Any) -> dict[str, str]:
    """Return the packages, with versions, whose classes a value of settings is made of."""
    used = {type(part).__module__.partition(".")[0] for part in _parts(value)}
    return {
        point.dist.name: point.dist.version
        for point in installed()
        if point.dist and point.module.partition(".")[0] in used
    }


def _parts(value: Any) -> Iterable[Any]:
    if is_dataclass(value):
        yield value
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
