"""Import directions: what may know of what. The layers of docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kstep

SOURCE = Path(kstep.__file__).parent

LAYERS = [
    {"errors", "faults", "types", "rng", "files"},
    {"nets", "native", "optimizers", "augment", "replay", "envs"},
    {"rl", "auxiliary"},
    {"methods", "batches", "agent", "config"},
    {"episode", "evaluate", "run", "checkpoint", "log", "system", "film", "play", "show"}
    | {"encoders", "analysis", "health", "origin"},
    {"train", "doctor", "bench", "selfcheck"},
    {"sweep"},
    {"report"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imports(path: Path) -> set[str]:
    """The parts of kstep that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "kstep":
                found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            elif node.module.startswith("kstep."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("kstep.")}
    return found


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0].removesuffix(".py")


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


def test_every_module_has_a_layer() -> None:
    assert {part_of(path) for path in FILES} == set(RANK)


def test_nothing_imports_from_above() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in FILES
        for other in imports(path)
        if RANK[other] > RANK[part_of(path)]
    ]
    assert not wrong


def test_cores_and_auxiliary_tasks_do_not_know_each_other() -> None:
    for path in FILES:
        if part_of(path) == "rl":
            assert "auxiliary" not in imports(path)
        if part_of(path) == "auxiliary":
            assert "rl" not in imports(path)


def test_the_plotting_library_is_imported_only_to_draw() -> None:
    """Every module but the one that draws bench's picture, which is imported for that alone."""
    names = [
        ".".join(("kstep", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in FILES
        if path.name not in ("__init__.py", "__main__.py", "figure.py")
    ]
    lines = [f"import {name}" for name in names]
    check = "import sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", "\n".join([*lines, check])], check=True, timeout=300)
