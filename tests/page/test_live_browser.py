"""`kstep watch` in a real browser, beside a run that is really being trained."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page

from kstep.run import checkpoint
from kstep.run.folder import Run
from tests.make import HANGING
from tests.page.browser import chromium, opened_page, until
from tests.page.test_browser import note
from tests.page.test_gather import made
from tests.page.test_live import ADDRESS, watching

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium: make browser")

CANVAS = "document.querySelector('figure[data-name=\"curve-toy_reach\"] .canvas')"
POINTS = f"(({CANVAS} || {{}}).data || []).reduce((most, line) => Math.max(most, line.x.length), 0)"


def noting(page: Page) -> tuple[list[str], list[str]]:
    """Note what a page complains about, and what it asks for."""
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: note(message, complaints))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.context.on("request", lambda request: requests.append(request.url))
    return complaints, requests


def test_a_curve_grows_and_the_run_is_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "seed1"
    words = ["train", "ksl", "toy_reach", "--preset", "debug", "--env-steps", "1e6"]
    words += ["--evaluate-every", "20", "--threads", "1", "--folder", str(folder)]
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-m", "kstep", *words]
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as trained,
        watching(str(tmp_path / "runs")) as watched,
        opened_page(viewport={"width": 1200, "height": 900}) as page,
    ):
        try:
            complaints, requests = noting(page)
            page.goto(f"{ADDRESS}{watched.port}/{watched.token}/")
            # It may begin after the page was opened.
            page.locator(".live progress").wait_for()
            page.locator('figure[data-name="curve-toy_reach"] .canvas').scroll_into_view_if_needed()
            until(page, f"{POINTS} >= 1")
            shown, done = page.evaluate(POINTS), page.evaluate(DONE)
            until(page, f"{POINTS} > {shown} && {DONE} > {done}")
            stop = page.locator(".stop")
            stop.click()
            assert stop.inner_text() == "Really stop?"
            assert trained.poll() is None
            stop.click()
            assert trained.wait(HANGING) == 130
            page.locator(".live progress").wait_for(state="detached")
            until(page, "document.querySelector('.lead').textContent.endsWith('1 stopped early.')")
            # What the page shows in the end is what the folder holds.
            run = Run.open(folder)
            until(page, f"{POINTS} === {len(run.evaluations())}")
        finally:
            trained.kill()
    assert not complaints
    assert {re.split("[?#]", address)[0] for address in requests} <= {
        f"{ADDRESS}{watched.port}/{watched.token}/{path}"
        for path in ("", "data.json", *(r.split("/", 4)[4] for r in requests if "/stop/" in r))
    }
    newest, state = checkpoint.newest(run)
    assert newest.is_dir()
    assert state.counts.env_steps >= run.evaluations()[-1].env_steps


DONE = "document.querySelector('.live progress').value"


def test_what_a_reader_has_chosen_stays_when_news_come(tmp_path: Path) -> None:
    run = made(tmp_path, "ksl", "toy_reach", 1, [1.0, 2.0], preset="debug")
    made(tmp_path, "drq", "toy_reach", 1, [3.0, 4.0, 5.0], preset="debug")
    with watching(str(tmp_path)) as watched, opened_page() as page:
        complaints, _ = noting(page)
        page.goto(f"{ADDRESS}{watched.port}/{watched.token}/")
        chip = page.locator(".chip", has_text="drq")
        chip.click()
        page.locator('figure[data-name="curve-toy_reach"] .canvas').scroll_into_view_if_needed()
        until(page, f"{POINTS} >= 1")  # figures are drawn when they are seen
        page.select_option("#axis", "decisions")
        table = page.locator('.table[data-name="runs"]')
        column = table.get_by_role("button", name="return", exact=True)
        column.click()
        column.click()
        before = run.evaluations_file.read_text()
        row = {**json.loads(before.splitlines()[-1]), "mark": 100_000, "env_steps": 100_000}
        run.evaluations_file.write_text(
            before + json.dumps({**row, "returns": [40.0, 42.0]}) + "\n"
        )
        until(page, "document.body.innerText.includes('41.0')")
        until(page, f"{POINTS} === 3")
        assert chip.get_attribute("aria-pressed") == "false"
        traces = page.evaluate(f"{CANVAS}.data.map(line => line.name)")
        assert [name for name in traces if name] == ["ksl-debug"]
        assert page.evaluate(f"{CANVAS}.layout.xaxis.title.text") == "decisions"
        assert page.locator("#axis").input_value() == "decisions"
        assert table.locator("th[aria-sort]").inner_text().startswith("return")
        scores = [float(t) for t in table.locator("tbody tr td:nth-child(6)").all_inner_texts()]
        assert scores == [5.0, 41.0]
        # It says so when nobody answers any more, and keeps what it has.
        watched.process.kill()
        until(page, "document.getElementById('connection').textContent.includes('is lost')")
        assert page.locator('.table[data-name="runs"] tbody tr').count() == 2
    assert all("ERR_CONNECTION_REFUSED" in text for text in complaints)
