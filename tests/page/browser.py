"""A browser for tests: the system's Chromium, headless, that may not leave the machine."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, sync_playwright

from kstep.types import KstepError
from tests.make import HANGING

FLAGS = (
    "--no-sandbox",  # tests run as root in containers
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",  # 3-D without a graphics card
)


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


def until(page: Page, expression: str) -> None:
    """Wait for something to become true. Playwright's own way is eval, which a page may forbid."""
    ends = time.monotonic() + HANGING
    while not page.evaluate(expression):
        if time.monotonic() > ends:
            raise AssertionError(f"never true: {expression}")
        page.wait_for_timeout(50)


@contextmanager
def opened_page(**context: Any) -> Iterator[Page]:
    """Yield an empty page of a new browser, its window as asked for."""
    program = chromium()
    if program is None:
        raise KstepError("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=program, args=[*FLAGS], timeout=1000 * HANGING, **context
        )
        try:
            browser.set_default_timeout(1000 * HANGING)
            yield browser.pages[0] if browser.pages else browser.new_page()
        finally:
            browser.close()
