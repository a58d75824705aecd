"""Packages that are imported only where they are asked for: the extras of `pyproject.toml`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

from kstep.errors import KstepError


def need(module: str, extra: str) -> None:
    """Raise if a module of an extra is not installed, with the command that installs it."""
    if find_spec(module) is None:
        raise KstepError(f"{module} is not installed: {command(extra)}")


def command(extra: str) -> str:
    """Return what installs an extra's packages, wherever `kstep` itself was installed from."""
    try:
        asked = [text.partition(";") for text in requires("kstep") or ()]
    except PackageNotFoundError:  # the source on a path, without having been installed
        asked = []
    # Quoted by either kind of marks, as whoever built the package likes.
    wanted = (f"extra == '{extra}'", f'extra == "{extra}"')
    packages = [name.strip() for name, _, marker in asked if any(text in marker for text in wanted)]
    return "pip install " + (" ".join(f"'{name}'" for name in packages) or f"'.[{extra}]'")
