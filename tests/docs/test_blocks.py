"""Every command and every block of code on every page is run, in order, page by page.

What a block says is run at debug scale: toy tasks, 60 env steps (`blocks.DEBUG`, `blocks.smaller`).
Each page has a folder of its own that starts with a copy of `home`. What takes long even so
(`LONG`, `LONG_PAGES`) is run by the slow tests, and here only read by the command line. `make`,
`pip` and `python -m tests...` are not run: their targets, extras and modules must exist, and
`make train` is the command in the Makefile.
"""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import shutil
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from kstep import cli
from kstep.auxiliary.base import AuxiliaryConfig
from kstep.envs import own, tasks
from kstep.methods import METHODS
from kstep.nets.base import EncoderConfig
from tests.docs.blocks import (
    NOT_RUN,
    ROOT,
    RUN,
    Block,
    at_debug_scale,
    blocks,
    pages,
    shell,
    smaller,
)

ELSEWHERE = {
    "docs/api.md": "tests/docs/test_api.py",
    "docs/ksl_anywhere.md": "tests/docs/test_ksl_anywhere.py",
    "CONTRIBUTING.md": "tests/docs/test_contributing.py",
}
"""Pages whose Python is run, and looked at more closely, by a test of their own."""
LONG = ("bench", "doctor", "selfcheck", "sweep")
"""Verbs that take long, or start processes: read here, run by the slow test."""
ENDLESS = ("watch",)
"""Verbs that end when they are interrupted: only read here; they have tests of their own."""
LONG_PAGES = ("docs/results/representations/README.md",)
"""Only the slow tests run these: all nine questions, of three methods."""
MAKEFILE = (ROOT / "Makefile").read_text()
WITH_CODE = [page for page in pages() if any(block.language in RUN for block in blocks(page))]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that of somebody who has trained `ksl` and asked a question of its encoder."""
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        cli.main(smaller(["train", "ksl", "toy_reach", "--save-encoders-every", "20"]))
        more = ["--preset", "debug", "--threads", "1", "--env-steps", "200"]
        cli.main(
            ["train", "ksl", "toy_reach", *more]
        )  # to the budget of experiments at debug scale
        cli.main(["collect", "runs"])
        run = "runs/toy_reach/ksl-debug/seed1"
        cli.main(["evaluation-set", run, "--output", "sets/first", "--episodes", "3"])
        cli.main(["analyze", "temporal", run, "--on", "sets/first", "--output", "analysis"])
    (root / "docs" / "results").mkdir(parents=True)
    return root


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of `home` to be in; what a page registers is gone afterwards."""
    folder = tmp_path / "here"
    shutil.copytree(home, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setattr(own, "imported", [])
    monkeypatch.setattr(tasks, "OWN", set())
    registries: list[dict[typing.Any, typing.Any]] = [
        METHODS,
        AuxiliaryConfig.kinds,
        EncoderConfig.kinds,
        gymnasium.registry,
        sys.modules,
    ]
    before = [set(registry) for registry in registries]
    yield folder
    for registry, known in zip(registries, before, strict=True):
        for name in set(registry) - known:
            if registry is not sys.modules or (folder / f"{name}.py").exists():
                del registry[name]


def test_every_block_says_what_it_is() -> None:
    for page in pages():
        text = (ROOT / page).read_text()
        found = [*blocks(page)]
        assert 2 * len(found) == len(re.findall(r"^```", text, flags=re.MULTILINE)), page
        for block in found:
            assert block.language in (*RUN, *NOT_RUN), f"{page}, block {block.number}"


@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in LONG_PAGES])
def test_the_blocks_of_the_page_run(page: str, here: Path) -> None:
    run_page(page, here, long=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_blocks_of_the_page_run_with_what_takes_long(page: str, here: Path) -> None:
    if page == "docs/paper.md":
        shutil.rmtree(here / "runs")  # its sweeps train everything, with encoders of their own
    run_page(page, here, long=True)


def run_page(page: str, folder: Path, *, long: bool) -> None:
    ran: list[list[str]] = []

    def run(words: list[str]) -> int:
        ran.append(words)
        return command(words, long=long)

    names: dict[str, typing.Any] = {}
    for block in blocks(page):
        if block.file is not None:
            (folder / block.file).write_text(block.text)
        elif block.language == "sh":
            assert shell(at_debug_scale(block.text), folder, run) == 0, f"{block.text}\n{ran[-1:]}"
        elif block.language == "python" and page not in ELSEWHERE:
            exec(compile(at_debug_scale(block.text), f"{page}, {block.number}", "exec"), names)
    assert ran or names or page in ELSEWHERE


def command(words: list[str], *, long: bool) -> int:
    """Run a command and return its exit code, or check that it could be run."""
    program, *rest = words
    if program == "kstep":
        if rest[0] in ENDLESS or (rest[0] in LONG and not long and "--plan" not in rest):
            cli.parsed(smaller(rest))
            return 0
        return kstep(smaller(rest))
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE)
        variables = [word for word in rest if "=" in word]
        for word in variables:
            name, _, value = word.partition("=")
            assert name == "ARGS", word
            paths = [path for path in shlex.split(value) if path.startswith("tests/")]
            assert all((ROOT / path).exists() for path in paths), word
        assert set(rest) - set(variables) <= set(targets), words
        if rest == ["train"]:
            (recipe,) = re.findall(r"^\t\$\(BIN\)/kstep (train .*) \$\(ARGS\)$", MAKEFILE, re.M)
            return kstep(smaller(shlex.split(at_debug_scale(recipe))))
        return 0
    if program == "pip":
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        (extras,) = re.findall(r"^\.\[([\w,]+)\]$", rest[-1])
        assert rest[0] == "install"
        assert set(extras.split(",")) <= set(known["optional-dependencies"])
        return 0
    assert program == "python"
    if rest[0] == "-m":
        assert importlib.util.find_spec(rest[1]) is not None, words
        return 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", rest)
        runpy.run_path(str(ROOT / rest[0]), run_name="__main__")
    return 0


def kstep(words: list[str]) -> int:
    try:
        cli.main(words)
    except SystemExit as stopped:
        return int(stopped.code or 0)
    return 0


def test_a_block_can_fail(here: Path) -> None:
    """What the shell runs is run: its code, its variables and the errors of its commands count."""
    ran: list[list[str]] = []

    def run(words: list[str]) -> int:
        ran.append(words)
        return command(words, long=False)

    assert shell("for name in a 'b c'; do kstep list $name presets; done", here, run) != 0
    assert ran == [["kstep", "list", "a", "presets"]]
    assert shell("kstep eval runs/nothing", here, run) == 2
    assert shell("no_such_command", here, run) == 127
    assert shell("kstep eval runs/*/*/seed1", here, run) == 0
    assert ran[-1] == ["kstep", "eval", "runs/toy_reach/ksl-debug/seed1"]


def test_files_of_pages_are_known_by_their_first_line() -> None:
    assert Block("", 0, "toml", "# mine.toml\nx = 1\n").file == "mine.toml"
    assert Block("", 0, "python", "import kstep\n").file is None
