"""docs/reliability.md: what it counts is what the tests have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kstep import reading
from tests.faults import test_folder, test_malformed
from tests.faults.malformed import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()


def rows(section: str) -> dict[str, int]:
    """The last column of a section's table, by the first."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.*) \| \**([\d,]+)\** \|$", text, flags=re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in found}


def cases(name: str) -> int:
    """How many cases a test has."""
    count = 1
    for mark in getattr(getattr(test_folder, name), "pytestmark", []):
        assert mark.name == "parametrize"
        count *= len(mark.args[1])
    return count


@pytest.mark.parametrize(
    ("words", "tests"),
    [
        ("each of 22 names", ["test_nothing_is_written_out_of_the_folder"]),
        ("becomes a link", ["test_a_folder_that_becomes_a_link_in_mid_run_is_not_followed"]),
        ("lead elsewhere", ["test_names_in_a_checkpoint_lead_nowhere_else"]),
        (
            "between the checks and the lock",
            [n for n in dir(test_folder) if "before_the_lock_" in n],
        ),
        ("logs of a sweep", ["test_a_sweep_writes_no_log_through_a_link"]),
    ],
)
def test_cases_are_counted(words: str, tests: list[str]) -> None:
    (number,) = (number for name, number in rows("Hostile folders").items() if words in name)
    assert number == sum(map(cases, tests))


def test_the_names_that_a_run_writes_are_counted() -> None:
    assert f"each of {len(test_folder.WRITTEN)} names" in PAGE


def test_malformed_inputs_are_counted() -> None:
    kinds, many = len(KINDS), test_malformed.MANY
    assert f"examines {many} inputs of each of {kinds} kinds, {kinds * many:,}\nin all" in PAGE
    assert kinds * many >= 5_000
    assert test_malformed.FEW == 7
    assert "`make test` seven of each" in PAGE


def test_the_limits_of_the_reader_are_those_of_the_page() -> None:
    limits = [reading.LARGEST_TEXT, reading.LARGEST_LOG, reading.LARGEST_TENSORS]
    assert [limit // reading.MEGABYTE for limit in limits] == [64, 2 * 1024, 64 * 1024]
    assert (reading.DEEPEST, reading.LONGEST_NUMBER) == (32, 40)
    assert "at most 64 MB of text, 2 GB of\nlog and 64 GB of tensors" in PAGE
    assert "nested at most 32 deep, whole numbers of at most 40 digits" in PAGE
