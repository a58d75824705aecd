"""docs/api.md: describes exactly what is public, and all its examples are run."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstep

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
TEXT = PAGE.read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_the_page_has_exactly_what_is_public() -> None:
    headings = re.findall(r"^### (.*)$", TEXT, flags=re.MULTILINE)
    assert sorted(headings) == sorted(f"`kstep.{name}`" for name in kstep.__all__)


def signatures() -> Iterator[tuple[str, str]]:
    for name, written in re.findall(
        r"^### `kstep\.(\w+)`\n\n`(\w+\([^`]*)`", TEXT, flags=re.MULTILINE
    ):
        yield name, " ".join(written.split())


@pytest.mark.parametrize(("name", "written"), [*signatures()])
def test_signatures_are_as_written(name: str, written: str) -> None:
    found = inspect.signature(getattr(kstep, name))
    bare = [value.replace(annotation=value.empty) for value in found.parameters.values()]
    called = str(found.replace(parameters=bare, return_annotation=found.empty)).replace("'", '"')
    assert written == f"{name}{called} -> {found.return_annotation}"


def test_every_function_has_its_signature() -> None:
    functions = {name for name in kstep.__all__ if inspect.isfunction(getattr(kstep, name))}
    assert functions == {name for name, _ in signatures()}


@pytest.mark.parametrize("name", ["Callback", "Policy"])
def test_methods_of_classes_are_those_that_there_are(name: str) -> None:
    section = TEXT.partition(f"### `kstep.{name}`")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)\((.*?)\)` \| .* \|$", section, flags=re.MULTILINE)
    declared = {
        method: ", ".join([*inspect.signature(function).parameters][1:])
        for method, function in vars(getattr(kstep, name)).items()
        if inspect.isfunction(function) and not method.startswith("_")
    }
    assert dict(rows) == declared


def test_examples_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in one module, as in a notebook."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("api_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert len(EXAMPLES) > 5
    for example in EXAMPLES:
        line = TEXT[: TEXT.index(example)].count("\n")
        exec(compile("\n" * line + example, str(PAGE), "exec"), module.__dict__)
