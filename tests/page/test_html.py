"""The page as a file: what is in it, and that nobody's text becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kstep.cli import main
from kstep.report.page import html
from kstep.report.page.data import Figure, Line, PageData, Section
from tests.page.test_gather import made

HOSTILE = "<!--<script>alert(1)</script>--> {{script}} & <img src=x onerror=alert(2)> \u2028 ' \""


class Parsed(HTMLParser):
    """Every tag with its attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def hostile_page() -> str:
    line = Line(HOSTILE, HOSTILE, {HOSTILE: (1.0,)}, (1.0,), (1,))
    figure = Figure(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE, (line,))
    part = Section("curves", HOSTILE, HOSTILE, (figure,), remarks=(HOSTILE,))
    return html.page(PageData(HOSTILE, HOSTILE, ((HOSTILE, HOSTILE),), (part,), {}))


def test_texts_of_run_folders_are_never_markup() -> None:
    plain = Parsed(html.page(PageData("a", "b", (), (), {})))
    page = Parsed(hostile_page())
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.scripts[1:] == plain.scripts[1:]
    data = json.loads(page.scripts[0])
    assert data["sections"][0]["figures"][0]["lines"][0]["name"] == HOSTILE
    assert not re.search("[<>&\u2028]", page.scripts[0])


def test_the_policy_allows_the_pages_own_scripts_and_no_request() -> None:
    page = Parsed(hostile_page())
    (policy,) = (
        str(attributes["content"])
        for tag, attributes in page.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    parts = dict(part.split(" ", 1) for part in policy.split("; "))
    sums = [hashlib.sha256(script.encode()).digest() for script in page.scripts[1:]]
    assert parts["script-src"].split() == [
        f"'sha256-{base64.b64encode(found).decode()}'" for found in sums
    ]
    assert parts["default-src"] == parts["connect-src"] == "'none'"
    assert "http" not in policy
    assert not any({"src", "action"} & attributes.keys() for _, attributes in page.tags)
    assert [a["href"] for _, a in page.tags if "href" in a] == ["data:,"]


def test_the_library_is_the_one_that_was_published() -> None:
    """The file and its licence are copies; scripts/plotly.sh replaces both and this sum."""
    folder = Path(html.__file__).parent / "plotly"
    found = hashlib.sha256((folder / "plotly-gl3d.min.js").read_bytes()).hexdigest()
    assert found == "aab04dcd9c103a92b18723f8c837712fe820f325d0bcd2421e415e8124a75b9f"
    assert "MIT License" in (folder / "LICENSE").read_text()


def test_report_writes_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "runs", "ksl", "walker_walk", 1, [1.0, 2.0, 3.0])
    main(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "a" / "b"), "--title", "Ours"])
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["index.html"]
    assert "1 run of 1 method on 1 task" in capsys.readouterr().out
    page = Parsed((tmp_path / "a" / "b" / "index.html").read_text())
    assert json.loads(page.scripts[0])["title"] == "Ours"
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "nowhere"), "-o", str(tmp_path / "c")])
    assert ended.value.code == 2
    assert not (tmp_path / "c").exists()
