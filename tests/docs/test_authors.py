"""docs/authors.md: whose code was compared, and how many numbers, as the traces have it."""

from __future__ import annotations

import re
from pathlib import Path

from kstep.methods import METHODS
from tests.authors import traces
from tests.docs.test_decisions import tables

PAGE = Path(__file__).parents[2] / "docs" / "authors.md"


def test_the_table_names_the_code_that_was_run() -> None:
    (table,) = tables(PAGE.read_text())
    rows = {row[0]: row[1:] for row in table.rows}
    assert set(rows) == set(traces.METHODS) <= set(METHODS)
    for method, (repository, commit, files, task, batch, updates, count, _) in rows.items():
        trace = traces.load(method)
        data = trace.data
        assert [repository, commit, task] == [data["repository"], data["commit"], data["task"]]
        assert re.findall(r"[\w/]+\.py", files) == data["files"]
        assert [int(batch), int(updates)] == [trace.inputs["batch_size"], len(trace.updates)]
        assert int(count.replace(",", "")) == sum(value.size for _, value, _ in trace.expected())


def test_stated_differences_are_within_what_the_page_and_the_tests_allow() -> None:
    text = PAGE.read_text()
    (table,) = tables(text)
    largest = max(float(row[-1]) for row in table.rows)
    (stated,) = re.findall(r"The largest difference is below\n?\s*(\S+),", text)
    assert largest < float(stated) < traces.TOLERANCE
    assert f"{traces.TOLERANCE:.0e}".replace("e-09", "e-9") + " is tolerated" in text


def test_every_original_is_compared_or_named_as_an_exception() -> None:
    originals = {name for name in METHODS if name.endswith("-original")}
    assert originals - set(traces.METHODS) == {"pi_sac-original"}
    assert "PI-SAC is not among them" in PAGE.read_text()
