"""The largest difference per method, at the end of a test run.

A test leaves a line among its properties. Where several processes run the tests, properties reach
the one that prints; of all `conftest.py` that one reads only the topmost, which imports the hook.
"""

from __future__ import annotations

import pytest

from tests.authors.traces import TOLERANCE

PROPERTY = "equal to the authors' code"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    }
    if lines:
        terminalreporter.section(f"{PROPERTY} (up to {TOLERANCE:.0e})")
        for line in sorted(lines):
            terminalreporter.line(line)
