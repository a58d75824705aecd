"""The records in docs/decisions: complete, linked, and their tables equal to the live values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kstep.config import resolve
from kstep.methods import METHODS
from kstep.types import KstepError
from kstep.values import encode, override

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = (
    *sorted(DECISIONS.glob("*.md")),
    *sorted((ROOT / "docs" / "methods").glob("*.md")),
    ROOT / "docs" / "authors.md",
    ROOT / "tests" / "authors" / "README.md",
    ROOT / "CONTRIBUTING.md",
)
RECORDS = tuple(sorted(DECISIONS.glob("D*.md")))
REGISTER = tuple(f"D{number:02d}" for number in range(1, 37))
"""Where paper and code differ; our own decisions are numbered from D40."""
READINGS = ("ksl", "ksl-results", "ksl-released")
NAMES = ("method.base", "method.variant")
TASK, GYM_TASK = "cartpole_swingup", "gym:Pusher-v5"
"""Some settings are for Gymnasium's environments alone."""

KEY = re.compile(
    r"`(?:--set )?((?:method|env|evaluation|learning|core|sac|encoder|auxiliary|augment|replay)"
    r"(?:\.\w+)+)(?:=([^`]*))?`"
)
LINK = re.compile(r"\]\(([^)#]*)(?:#([\w-]+))?\)")


@dataclass(frozen=True)
class Table:
    """A Markdown table: its head and its rows, cells without the backticks around them."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(text: str) -> Iterator[Table]:
    """Yield every table of a page."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
        head, rule, *rows = (
            tuple(cell.strip().strip("`") for cell in line[1:-1].split("|"))
            for line in block.splitlines()
        )
        assert set("".join(rule)) == {"-"}, f"no rule under {head}"
        for row in rows:
            assert len(row) == len(head), f"{row} does not fit under {head}"
        yield Table(head, tuple(rows))


@cache
def live(method: str, task: str = TASK) -> dict[str, Any]:
    """Every setting of a method by its full key, groups included."""
    values: dict[str, Any] = {}

    def walk(node: Any, path: str) -> None:
        values[path] = node
        if isinstance(node, dict):
            for name, inner in node.items():
                walk(inner, f"{path}.{name}" if path else name)

    walk(encode(resolve(method, task), complete=True), "")
    return values


def assert_live(method: str, key: str, text: str, task: str = TASK) -> None:
    """Fail unless `text`, read as on the command line, is the method's value of `key`."""
    assert key in live(method, task), f"no such key: {key}"
    experiment, value = resolve(method, task), live(method, task)[key]
    # A kind that is set brings its own defaults along, so the other values would change.
    same = (
        value == text
        if key.endswith(".kind")
        else override(experiment, [f"{key}={text}"]) == experiment
    )
    assert same, f"{key} of {method} on {task} is {value}, not {text}"


def title(record: Path) -> str:
    return record.read_text().splitlines()[0].removeprefix(f"# {record.stem} ")


def test_every_row_of_the_register_has_a_record() -> None:
    assert set(REGISTER) <= {record.stem for record in RECORDS}


def test_every_record_that_is_mentioned_exists() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    known = {record.stem for record in RECORDS}
    for source in sources:
        mentioned = set(re.findall(r"\bD\d\d\b", source.read_text()))
        assert mentioned <= known, f"{source} mentions {mentioned - known}"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_record_is_short_and_in_form(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {record.stem} ")
    assert 8 <= len(text.splitlines()) <= 25
    labels = re.findall(r"^\*\*([A-Z][a-z ]+)\.\*\*", text, flags=re.MULTILINE)
    if record.stem in REGISTER:
        assert labels[:3] == ["The paper says", "The code does", "Here"]
        assert labels[3:] in ([], ["Consequence"])
    else:
        assert labels == ["Question", "Here", "Consequence"]


def rows_of_values() -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Yield (record, task, key, values per reading) of every table that names the readings."""
    for record in RECORDS:
        for table in tables(record.read_text()):
            if table.head[1:] == READINGS:
                task = table.head[0].removeprefix("key").removeprefix(" on ") or TASK
                for key, *values in table.rows:
                    yield record.stem, task, key, tuple(values)


@pytest.mark.parametrize(("record", "task", "key", "values"), [*rows_of_values()])
def test_tabulated_values_are_the_live_ones(
    record: str, task: str, key: str, values: tuple[str, ...]
) -> None:
    for reading, value in zip(READINGS, values, strict=True):
        assert_live(reading, key, value, task)


def test_whatever_differs_between_readings_is_recorded() -> None:
    recorded = {key for _, _, key, _ in rows_of_values()}
    left, *others = (live(reading) for reading in READINGS)
    for other in others:
        for key, value in left.items():
            if isinstance(value, dict) or key in NAMES:
                continue
            assert value == other[key] or key in recorded, f"{key} differs but has no record"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_keys_in_the_text_exist_and_can_be_set(page: Path) -> None:
    for key, value in dict.fromkeys(KEY.findall(page.read_text())):
        # A key of one auxiliary task is not one of another's.
        owners = [method for method in METHODS if key in live(method)]
        assert owners, f"{page.name}: no key {key}"
        if value:
            assert any(accepts(owner, f"{key}={value}") for owner in owners), f"{key}={value}"


def accepts(method: str, text: str) -> bool:
    return any(_resolves(method, task, text) for task in (TASK, GYM_TASK))


def _resolves(method: str, task: str, text: str) -> bool:
    try:
        resolve(method, task, overrides=[text])
    except KstepError:
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        there = (page.parent / target).resolve() if target else page
        assert there.is_file(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", there.read_text(), flags=re.MULTILINE)
            plain = (re.sub(r"[^\w -]", "", heading.lower()) for heading in headings)
            assert anchor in {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}-{page.stem}")
def test_time_is_counted_in_named_units(page: Path) -> None:
    assert not re.search(r"\d+k? (?:environment |agent )?steps", page.read_text())


def test_index_lists_every_record_by_its_title() -> None:
    listed = {
        row[0]: row[1]
        for table in tables((DECISIONS / "README.md").read_text())
        if table.head[0] == "id"
        for row in table.rows
    }
    assert listed == {f"[{r.stem}]({r.name})": title(r) for r in RECORDS}


def commands(page: str) -> list[list[str]]:
    text = (ROOT / "docs" / "methods" / f"{page}.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [shlex.split(line) for b in blocks for line in b.replace("\\\n", " ").splitlines()]


def test_the_agents_of_ksls_repository_are_what_d23_says() -> None:
    """Its RAD is its DrQ with one view; both as the record describes that code."""
    asked = {}
    for page in ("drq", "rad"):
        (words,) = (w for w in commands(page) if "method.core.init=default" in w)
        asked[page] = (words[2], [words[i + 1] for i, word in enumerate(words) if word == "--set"])
    (method, drq), (same, rad) = asked["drq"], asked["rad"]
    assert method == same
    assert rad == [*drq, "method.core.critic_views=1"]
    named = {f"{key}={value}" for key, value in KEY.findall((DECISIONS / "D23.md").read_text())}
    assert {*rad, "method.learning.learning_rate=0.0002"} == named
    experiment = resolve(method, "cheetah_run", overrides=rad)
    values = encode(experiment)["method"]
    assert values["augment"]["kind"] == "shift"
    assert (values["augment"]["pad"], experiment.env.size) == (4, 84)
    assert not values["encoder"]["tanh"]
    core, learning = values["core"], values["learning"]
    assert values["encoder"]["init"] == core["init"] == "default"
    assert (core["critic_views"], core["log_prob"]) == (1, "exact")
    assert core["actor_encoder"] == "share_convolutions"
    assert values["encoder"]["ema_rate"] == core["ema_rate"] == 0.01
    assert (learning["batch_size"], core["temperature_learning_rate"]) == (128, None)
    assert core["temperature_betas"] == [0.9, 0.999]
    assert learning["learning_rate"] == 0.001  # where that code has 2e-4, hence the last key
