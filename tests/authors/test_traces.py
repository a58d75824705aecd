"""Nine methods compute what their authors' own code computed, number by number.

docs/authors.md says what that covers and what it leaves open; README.md here, what the files hold.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.authors import adapter, traces
from tests.authors.report import PROPERTY


@pytest.mark.parametrize("method", traces.METHODS)
def test_every_number_is_the_authors(
    method: str, record_property: Callable[[str, object], None]
) -> None:
    trace = traces.load(method)
    compared = traces.differences(adapter.run(trace), trace)
    count = sum(difference.numbers for difference in compared)
    line = f"{method:<19} {count:>5,} numbers, largest difference {compared[0]}"
    record_property(PROPERTY, line)
    wrong = traces.wrong(compared)
    assert not wrong, "\n".join([f"{len(wrong)} quantities differ:", *map(str, wrong[:20])])
