"""A browser for tests: Debian's Chromium, headless, that may not leave the machine."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, sync_playwright

from kstep.types import KstepError

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
MINUTES = 10 * 60_000.0
"""Before a browser on a busy machine is taken to hang."""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def opened_page(**context: Any) -> Iterator[Page]:
    """Yield an empty page of a new browser, its window as asked for."""
    program = chromium()
    if program is None:
        raise KstepError("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile, executable_path=program, args=[*FLAGS], timeout=MINUTES, **context
        )
        try:
            browser.set_default_timeout(MINUTES)
            yield browser.pages[0] if browser.pages else browser.new_page()
        finally:
            browser.close()
