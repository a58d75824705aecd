"""Import directions: what may know of what. The layers of docs/architecture.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kstep

SOURCE = Path(kstep.__file__).parent

LAYERS = [
    {"errors", "types", "rng", "files", "values"},
    {"nets", "native", "optimizers", "data", "envs"},
    {"rl", "auxiliary"},
    {"methods", "data.batches", "ownership", "agent", "config"},
    {"run", "analysis"},
    {"bench"},
    {"sweep"},
    {"report"},
    {"cli", "__main__"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def imported(node: ast.AST) -> Iterator[str]:
    """The modules of kstep that a piece of code imports, but for those it only names in types."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kstep":
        module = (node.module or "").removeprefix("kstep").removeprefix(".")
        for alias in node.names:
            yield ".".join(filter(None, (module, alias.name)))
    elif isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.startswith("kstep."):
                yield alias.name.removeprefix("kstep.")
    for child in ast.iter_child_nodes(node):
        yield from imported(child)


def part_of(module: str) -> str:
    """`data.batches` for itself and what is in it, `data` for the rest of that package."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in RANK else parts[0]


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
IMPORTS = {
    name_of(path): {
        part_of(name) for name in imported(ast.parse(path.read_text())) if not name.startswith("__")
    }
    for path in FILES
}


def test_every_module_has_a_layer() -> None:
    assert {part_of(name) for name in IMPORTS} == set(RANK)


def test_nothing_imports_from_above() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in IMPORTS.items()
        for other in others
        if RANK[other] > RANK[part_of(name)]
    ]
    assert not wrong


def test_imports_are_found() -> None:
    """Wherever they stand in a file; so that the test above can fail."""
    assert {"data.batches", "data", "nets", "types"} <= IMPORTS["agent"]
    verbs = [others for name, others in IMPORTS.items() if part_of(name) == "cli"]
    assert any("run" in others for others in verbs)  # inside functions
    assert "methods" not in IMPORTS["auxiliary.base"]  # for types only


def test_cores_and_auxiliary_tasks_do_not_know_each_other() -> None:
    for name, others in IMPORTS.items():
        if part_of(name) == "rl":
            assert "auxiliary" not in others
        if part_of(name) == "auxiliary":
            assert "rl" not in others


def test_the_plotting_library_is_imported_only_to_draw() -> None:
    """Every module but the one that draws bench's picture, which is imported for that alone."""
    names = [
        f"kstep.{name_of(path)}"
        for path in FILES
        if path.name not in ("__init__.py", "__main__.py", "figure.py")
    ]
    lines = [f"import {name}" for name in names]
    check = "import sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", "\n".join([*lines, check])], check=True, timeout=300)
