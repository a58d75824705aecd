"""The page in a real browser: what a reader clicks, and that nothing leaves the machine."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from playwright.sync_api import ConsoleMessage, Download, Page

from kstep.report.page import gather, html
from kstep.report.page.data import PageData
from tests.page.browser import chromium, opened_page, until
from tests.page.test_gather import section
from tests.page.test_html import HOSTILE, hostile_page

DATA = Path(__file__).parents[1] / "data" / "page"

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium: make browser")


@dataclass
class Opened:
    """A report in a browser, and what the browser complained about or asked for."""

    page: Page
    data: PageData
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def figure(self, name: str) -> Any:
        """Return what Plotly has drawn of a figure, once it is drawn."""
        self.page.locator(f'figure[data-name="{name}"] .canvas').scroll_into_view_if_needed()
        canvas = f"document.querySelector('figure[data-name=\"{name}\"] .canvas')"
        until(self.page, f"Boolean({canvas} && {canvas}.dataset.drawn)")
        return json.loads(
            self.page.evaluate(
                f"JSON.stringify([{canvas}.data, {canvas}.layout.xaxis.title.text, "
                f"{canvas}.layout.scene ? {canvas}._fullLayout.scene.camera : null])"
            )
        )

    def names(self, name: str) -> set[str]:
        return {trace["name"] for trace in self.figure(name)[0] if "name" in trace}

    def saved(self, button: Any) -> bytes:
        with self.page.expect_download() as download:
            button.click()
        found: Download = download.value
        return Path(found.path()).read_bytes()


def note(message: ConsoleMessage, complaints: list[str]) -> None:
    if message.type == "error":  # the library's advice to itself is of another type
        complaints.append(message.text)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    data = gather.gather([DATA])
    path = html.write(data, tmp_path_factory.mktemp("report"))
    with opened_page(viewport={"width": 1200, "height": 900}, color_scheme="light") as page:
        found = Opened(page, data)
        page.on("console", lambda message: note(message, found.complaints))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.context.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("main section")
        yield found
        assert not found.complaints
        assert {re.split(":", address)[0] for address in found.requests} <= {"file", "data", "blob"}
        assert [a for a in found.requests if a.startswith("file")] == [path.as_uri()]


def label(opened: Opened, method: str) -> str:
    (found,) = (name for name in opened.data.styles if name.startswith(method))
    return found


def test_a_method_is_switched_off_by_a_click(opened: Opened) -> None:
    ksl, drq = label(opened, "ksl"), label(opened, "drq")
    chip = opened.page.locator(".chip", has_text=ksl)
    assert opened.names("curve-toy_reach") == {ksl, drq}
    chip.click()
    assert opened.names("curve-toy_reach") == {drq}
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    assert opened.names("curve-toy_reach") == {ksl, drq}


def test_the_axis_is_chosen(opened: Opened) -> None:
    (figure,) = section(opened.data, "curves").figures
    first = figure.lines[0]
    for axis, title in figure.axes.items():
        opened.page.select_option("#axis", axis)
        traces, shown, _ = opened.figure("curve-toy_reach")
        assert shown == title
        own = next(trace for trace in traces if trace.get("name") == first.label)
        assert own["x"] == pytest.approx([float(at or 0) for at in first.x[axis]], rel=1e-5)
    assert list(figure.axes) == ["env_steps", "decisions", "updates", "hours"]
    opened.page.select_option("#axis", "env_steps")


def test_bands_and_seeds_are_chosen(opened: Opened) -> None:
    counts = {}
    for band in ("sd", "interval", "runs", "none"):
        opened.page.select_option("#band", band)
        traces, *_ = opened.figure("curve-toy_reach")
        filled = [trace for trace in traces if trace.get("fill") == "toself"]
        counts[band] = (len(filled), len(traces) - len(filled))
    # Two stretches of ksl, of three seeds and of two, and one of drq with two.
    assert counts == {"sd": (3, 3), "interval": (1, 3), "runs": (0, 8), "none": (0, 3)}
    opened.page.select_option("#band", "sd")
    texts = [
        text for trace in opened.figure("curve-toy_reach")[0] for text in trace.get("text", [])
    ]
    assert sorted(filter(None, texts)) == ["n = 3"]  # the others have the usual n


def test_a_line_of_many_points_has_its_n_as_well(opened: Opened) -> None:
    traces, *_ = opened.figure("profile-150")
    shown = {
        trace["name"]: trace["text"][-1] for trace in traces if "text" in trace.get("mode", "")
    }
    assert shown == {label(opened, "drq"): "n = 2"}  # of ksl there are three seeds, as usual


def test_a_film_plays(opened: Opened) -> None:
    video = opened.page.locator("video").first
    video.scroll_into_view_if_needed()
    assert opened.page.locator("video").count() == 4
    opened.page.get_by_role("button", name="Play or pause all together").click()
    until(opened.page, "document.querySelector('video').currentTime > 0")
    assert video.evaluate("video => video.videoWidth") == 96
    opened.page.get_by_role("button", name="Play or pause all together").click()
    assert video.evaluate("video => video.paused")


def test_a_table_is_sorted_and_shows_the_numbers(opened: Opened) -> None:
    (grid,) = section(opened.data, "every-run").tables
    table = opened.page.locator('.table[data-name="runs"]')
    column = grid.head.index("return")

    def shown() -> list[list[str]]:
        return [
            [str(text) for text in row.locator("td").all_inner_texts()]
            for row in table.locator("tbody tr").all()
        ]

    assert shown() == [[cell.text for cell in row] for row in grid.rows]
    head = table.get_by_role("button", name="return", exact=True)
    head.click()
    values = [float(row[column]) for row in shown()]
    assert values == sorted(values, reverse=True)
    assert table.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    head.click()
    assert [float(row[column]) for row in shown()] == sorted(values)


def test_every_table_of_the_page_shows_the_texts_of_its_data(opened: Opened) -> None:
    for part in opened.data.sections:
        for grid in part.tables:
            if grid.name != "runs":
                body = opened.page.locator(f'.table[data-name="{grid.name}"] tbody')
                wanted = [cell.text for row in grid.rows for cell in row]
                assert [
                    text.partition("\n")[0] for text in body.locator("td").all_inner_texts()
                ] == wanted


def test_the_projection_turns(opened: Opened) -> None:
    before = opened.figure("pca")[2]
    assert before is not None
    canvas = opened.page.locator('figure[data-name="pca"] .canvas')
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    opened.page.mouse.move(x, y)
    opened.page.mouse.down()
    opened.page.mouse.move(x + 120, y + 40, steps=6)
    opened.page.mouse.up()
    opened.page.wait_for_timeout(200)
    assert opened.figure("pca")[2]["eye"] != before["eye"]
    opened.page.get_by_role("button", name="2-D / 3-D").click()
    traces, *_ = opened.figure("pca")
    assert traces[0]["type"] == "scatter"
    opened.page.get_by_role("button", name="2-D / 3-D").click()
    assert opened.figure("pca")[0][0]["type"] == "scatter3d"


def test_figures_and_tables_are_downloaded(opened: Opened) -> None:
    tools = opened.page.locator('figure[data-name="curve-toy_reach"] .tools')
    opened.figure("curve-toy_reach")
    picture = opened.saved(tools.get_by_role("button", name="PNG"))
    assert picture.startswith(b"\x89PNG")
    drawing = ElementTree.fromstring(opened.saved(tools.get_by_role("button", name="SVG")))
    assert drawing.tag.endswith("svg")
    assert label(opened, "ksl") in "".join(drawing.itertext())
    text = opened.saved(tools.get_by_role("button", name="CSV")).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    (figure,) = section(opened.data, "curves").figures
    assert len(rows) == sum(len(line.y) for line in figure.lines)
    first = figure.lines[0]
    own = [row for row in rows if row["line"] == first.name]
    assert [float(row["value"]) for row in own] == pytest.approx(first.y, rel=1e-5)
    assert [int(row["n"]) for row in own] == list(first.n)
    opened.figure("pca")
    tools = opened.page.locator('figure[data-name="pca"] .tools').last
    assert opened.saved(tools.get_by_role("button", name="PNG")).startswith(b"\x89PNG")
    assert b"<image" in opened.saved(tools.get_by_role("button", name="SVG"))
    grid = section(opened.data, "returns").tables[0]
    tools = opened.page.locator(f'.table[data-name="{grid.name}"] .tools')
    assert opened.saved(tools.get_by_role("button", name="LaTeX")).decode() == grid.latex()


def test_it_is_dark_where_the_system_is_and_fits_a_phone(opened: Opened) -> None:
    opened.page.emulate_media(color_scheme="dark")
    opened.page.set_viewport_size({"width": 390, "height": 800})
    back = "getComputedStyle(document.documentElement).backgroundColor"
    until(opened.page, f"{back} === 'rgb(21, 24, 29)'")
    trace = next(t for t in opened.figure("curve-toy_reach")[0] if t.get("name"))
    assert trace["line"]["color"] == opened.data.styles[trace["name"]].dark
    # The figures already drawn take the new width one after another.
    until(opened.page, "document.documentElement.scrollWidth <= innerWidth")
    opened.page.emulate_media(color_scheme="light")
    opened.page.set_viewport_size({"width": 1200, "height": 900})


def test_texts_stay_texts_in_the_browser(opened: Opened, tmp_path: Path) -> None:
    file = tmp_path / "index.html"
    file.write_text(hostile_page())
    said: list[str] = []
    page = opened.page.context.new_page()
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("console", lambda message: note(message, said))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(file.as_uri())
    until(page, "Boolean(document.querySelector('.canvas')?.dataset.drawn)")
    assert page.locator("h1").inner_text().split() == HOSTILE.split()
    assert page.locator("main img, main a").count() == 0
    assert not said
    page.close()
    opened.requests.remove(file.as_uri())
