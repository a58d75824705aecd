"""Which modules a run folder may have imported.

A run remembers the modules that register its environment. A folder from somebody else could name
any module, and importing one executes it. So nothing is imported because a folder says so, until
its owner has allowed it once: by training with `--import`, or with `kstep trust FOLDER`. That is
remembered outside of the folder, in the user's own settings.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kstep import reading
from kstep.envs import own
from kstep.errors import KstepError
from kstep.files import Tree
from kstep.run.folder import Run
from kstep.values import encode


@dataclass(frozen=True)
class Allowed:
    """What was allowed for one folder."""

    folder: str
    modules: tuple[str, ...]


def needed(run: Run) -> tuple[str, ...]:
    """Return the modules that making the run's environment would import."""
    named = own.module_of(run.experiment.env.task)
    return tuple(dict.fromkeys([*run.imports, *([named] if named else [])]))


def require(run: Run) -> None:
    """Import what the run needs, refusing what nobody has allowed; nothing is asked for twice."""
    missing = [module for module in needed(run) if module not in own.imported]
    refused = [module for module in missing if module not in _allowed(run.folder)]
    if refused:
        raise KstepError(
            f"{run.folder} needs {', '.join(map(repr, refused))} imported, which can execute "
            f"anything. If you know it, allow it once: kstep trust {run.folder}"
        )
    own.bring(missing)


def allow(run: Run) -> tuple[str, ...]:
    """Remember that the run's modules may be imported, and return them."""
    modules = needed(run)
    if modules:
        path, folder = _file(run.folder), str(run.folder.resolve())
        tree = Tree(path.parent)
        tree.make(path.parent)
        tree.write_json(path, encode(Allowed(folder, modules)))
    return modules


def remember(run: Run) -> None:
    """Allow what the user has just named on the command line, where that can be written down."""
    if not set(needed(run)) <= set(_allowed(run.folder)):
        with suppress(OSError):
            allow(run)


def _allowed(folder: Path) -> tuple[str, ...]:
    try:
        found: Allowed = reading.json_file(_file(folder), Allowed)
    except KstepError:
        return ()
    return found.modules if found.folder == str(folder.resolve()) else ()


def _file(folder: Path) -> Path:
    settings = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:32]
    return Path(settings) / "kstep" / "trusted" / f"{name}.json"
