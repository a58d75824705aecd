"""The documentation site: built strictly, with every page, and every link leads somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from scripts import docs

import kstep
from tests.docs.blocks import pages


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("built") / "site"
    assert docs.build(output, tmp_path_factory.mktemp("work")) == []
    return output


def test_every_page_is_in_the_navigation() -> None:
    settings = tomllib.loads((docs.ROOT / "zensical.toml").read_text())["project"]
    listed = set(re.findall(r"[\w/]+\.md", str(settings["nav"])))
    assembly = docs.Assembly(Path())
    ours = {assembly.place(docs.ROOT / page).as_posix() for page in pages()} | {"reference.md"}
    assert ours - listed == {page for page in ours if re.match(r"decisions/D\d\d\.md", page)}
    assert listed <= ours


def test_the_site_has_every_page(site: Path) -> None:
    assembly = docs.Assembly(Path())
    for page in pages():
        place = assembly.place(docs.ROOT / page).with_suffix(".html")
        built = place.with_name("index.html") if place.stem == "README" else place
        assert (site / built).is_file(), page


def test_formulas_are_mathml(site: Path) -> None:
    page = (site / "methods" / "ksl.html").read_text()
    assert page.count("<math") > 20
    assert "$" not in re.sub(r"<(script|pre|code).*?</\1>", "", page, flags=re.DOTALL)


def test_the_reference_has_docstrings_of_all_that_is_public(site: Path) -> None:
    page = docs.Links((site / "reference.html").read_text())
    names = [name for name in kstep.__all__ if not name.startswith("_")]
    assert {f"kstep.{name}" for name in names} <= page.anchors
    assert "kstep.Policy.act" in page.anchors


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<a href="b.html">', "a.html links to b.html"),
        ('<a href="#there">', "a.html links to #there: no such heading"),
        ('<img src="https://example.org/x.png">', "a.html loads https://example.org/x.png"),
        ('<a href="https://example.org"><p id="x"><a href="#x"><a href="a.html#x">', None),
    ],
)
def test_broken_links_are_found(text: str, complaint: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(text)
    assert [*docs.broken(tmp_path)] == ([complaint] if complaint else [])


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    page = docs.ROOT / "README.md"
    assembly = docs.Assembly(tmp_path)
    assert assembly.text(page).count("](quick_start.md)") == 2
    with pytest.raises(SystemExit, match=r"links to \.\./nothing"):
        assembly.rewritten("[x](../nothing)", page)
