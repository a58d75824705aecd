"""Import directions: the layers of docs/architecture.md, and what must not be imported early."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import kstep

SOURCE = Path(kstep.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def layers() -> dict[str, set[str]]:
    """The page's table, the only list of layers: name -> modules, the most basic first."""
    section = PAGE.read_text().partition("## Layers")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| (`.*) \|$", section, flags=re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)/?`", modules)) for name, modules in rows}


LAYERS = layers()
RANK = {name: rank for rank, layer in enumerate(LAYERS.values()) for name in layer}


def imports(node: ast.AST) -> Iterator[str]:
    """The parts of kstep that code imports when it runs, wherever in a file."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom) and node.module == "kstep":
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kstep."):
        yield str(node.module).split(".")[1]
    elif isinstance(node, ast.Import):
        yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("kstep."))
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


FILES = [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]
FOREIGN = {SOURCE / "interop" / f"{name}.py" for name in ("stable_baselines3", "torchrl")}
"""What is imported only beside the package of an extra, with whatever that imports."""
IMPORTS = {path: set(imports(ast.parse(path.read_text()))) for path in FILES}


def test_every_module_has_one_layer_and_every_layer_modules() -> None:
    assert all(LAYERS.values())
    assert sum(map(len, LAYERS.values())) == len(RANK)
    assert {part_of(path) for path in FILES} == set(RANK)


def test_nothing_imports_from_above() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path, others in IMPORTS.items()
        for other in others
        if RANK[other] > RANK[part_of(path)]
    ]
    assert not wrong


def test_imports_are_found_wherever_they_are() -> None:
    """So that the test above can fail."""
    assert {"data", "nets", "types"} <= IMPORTS[SOURCE / "agent.py"]
    assert "run" in IMPORTS[SOURCE / "cli" / "training.py"]  # inside a function
    assert "methods" not in IMPORTS[SOURCE / "nets" / "base.py"]  # for types only


def test_no_two_packages_import_each_other() -> None:
    """Not even within a layer, nor through others."""
    graph: dict[str, set[str]] = {name: set() for name in RANK}
    for path, others in IMPORTS.items():
        graph[part_of(path)] |= others - {part_of(path)}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_cores_and_auxiliary_tasks_do_not_know_each_other() -> None:
    for path, others in IMPORTS.items():
        if part_of(path) == "rl":
            assert "auxiliary" not in others
        if part_of(path) == "auxiliary":
            assert "rl" not in others


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (
            [
                ".".join(("kstep", *path.relative_to(SOURCE).with_suffix("").parts))
                for path in FILES
                if path.name not in ("__init__.py", "__main__.py") and path not in FOREIGN
            ],
            ["matplotlib"],
        ),
        (["kstep.run.train"], ["scipy", "polars", "kstep.analysis", "kstep.report", "kstep.sweep"]),
        (
            ["kstep.cli", "kstep.names", "kstep.sweep.experiments", "kstep.envs.tasks"],
            ["torch", "scipy", "polars", "mujoco"],
        ),
    ],
    ids=["all", "training", "the command line"],
)
def test_heavy_packages_are_imported_only_where_needed(
    modules: list[str], unwanted: list[str]
) -> None:
    code = "\n".join(f"import {name}" for name in ["sys", *modules])
    code += f"\nprint([name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
