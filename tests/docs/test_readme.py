"""All pages about use: commands are accepted as written, settings exist, links lead somewhere."""

from __future__ import annotations

import re
import shlex
import typing
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kstep import cli
from kstep.cli.training import Train
from kstep.config import resolve
from kstep.methods import METHODS
from tests.docs.blocks import ROOT, blocks, pages
from tests.docs.test_decisions import KEY, LINK, accepts, live

PAGES = {page: (ROOT / page).read_text() for page in pages() if page != "CHANGELOG.md"}
VERBS = typing.get_args(cli.Verb)


@dataclass(frozen=True)
class Command:
    page: str
    line: str


def commands() -> Iterator[Command]:
    """Every command that needs no shell to be understood, once."""
    seen = set()
    for page in PAGES:
        for block in blocks(page):
            for line in block.text.replace("\\\n", " ").splitlines():
                plain = line.startswith("kstep ") and "$" not in line
                if block.language == "sh" and plain and line not in seen:
                    seen.add(line)
                    yield Command(page, line)


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: command.line)
def test_commands_are_accepted(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[object] = []
    for verb in VERBS:
        monkeypatch.setattr(verb, "__call__", lambda self: called.append(self))
    monkeypatch.setattr(cli, "bring", lambda verb: None)
    cli.main(shlex.split(command.line, comments=True)[1:])
    (asked,) = called
    if isinstance(asked, Train):
        resolve(asked.method, asked.task, preset=asked.preset, overrides=asked.set)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(("README", "docs/"))])
def test_settings_exist_and_can_be_set(page: str) -> None:
    for key, value in dict.fromkeys(KEY.findall(PAGES[page])):
        owners = [method for method in METHODS if key in live(method)]
        assert owners, f"{page}: no key {key}"
        assert not value or any(accepts(owner, f"{key}={value}") for owner in owners), value


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target, _ in LINK.findall(PAGES[page]):
        if target and not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_all_methods_are_named() -> None:
    page = PAGES["docs/concepts.md"]
    (row,) = re.findall(r"^\| \*\*Methods\*\* \|.*$", page, flags=re.MULTILINE)
    named = set(re.findall(r"`(\w[\w-]*)`", row))
    assert {name for name, method in METHODS.items() if not method.variant} <= named
    assert named <= set(METHODS)
