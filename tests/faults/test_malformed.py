"""Malformed files of every kind, through every verb that reads them; see malformed.py."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.faults.malformed import KINDS, Kind, Specimen, examine

FEW, MANY = 7, 313
"""Inputs per kind: in every run of the tests, and in the long ones (5,008 in all)."""


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Specimen:
    return Specimen(tmp_path_factory.mktemp("malformed") / "specimen")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_some_malformed_files_end_in_a_sentence(kind: Kind, specimen: Specimen) -> None:
    for seed in range(-FEW, 0):  # others than those of the long test
        examine(specimen, kind, seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_thousands_of_malformed_files_end_in_a_sentence(kind: Kind, specimen: Specimen) -> None:
    results = Counter(examine(specimen, kind, seed).result for seed in range(MANY))
    print(f"{kind.name}: {results}")
    assert results["refused"] + results["left out"] > 0


def test_what_is_intact_is_accepted(specimen: Specimen, tmp_path: Path) -> None:
    """So that the tests above could fail: every verb works on the specimen itself."""
    for verb in specimen.verbs():
        intact = Kind(verb, "mine.toml", (lambda path, rng: None,), (verb,))
        assert examine(specimen, intact, 0).result == "accepted", verb
