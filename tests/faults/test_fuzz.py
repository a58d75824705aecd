"""Thousands of wrong configurations and damaged run folders.

Whatever is asked for and whatever has happened to the files: a run is refused in words for its
user, or it is done and right. Never a traceback, never a wrong result.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kstep import cli
from kstep.config import resolve
from kstep.run.folder import Run
from kstep.types import KstepError
from kstep.values import encode, flat
from tests.runs import ALWAYS, experiment, go, weights

ENDLESS = ("evaluation.episodes", "method.auxiliary.pretraining", "method.learning.burst")
"""What may be asked for and would take years."""
METHODS = ["ksl", "sac_pixel", "sac_state", "proto_rl", "curl", "sac_ae", "pi_sac", "drq"]
SMALL = [-3, -1, 0, 1, 2, 3, 5, 0.0, 0.5, 1.0, 1.5, -0.5, 1e-9]
STRANGE: list[Any] = [
    "",
    "x",
    None,
    True,
    False,
    [],
    [1],
    [2, 1],
    [0, 0],
    [-1, 2],
    {},
    {"kind": "ksl"},
]
STRANGE += [float("nan"), float("inf"), "none", "ä", "[", 10**30]
HUGE = [10**9, 10**12]


KEYS = sorted({key for name in METHODS for key, _ in flat(encode(resolve(name, "toy_reach")))})


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, list[str]]:
    def override() -> str:
        key = draw(st.sampled_from(KEYS) | st.sampled_from(["method", "nothing", "a.b", ""]))
        if key in ENDLESS:
            value: Any = draw(st.sampled_from(SMALL))
        else:
            value = draw(st.sampled_from(SMALL) | st.sampled_from(STRANGE + HUGE))
        return f"{key}={value if isinstance(value, str) else json.dumps(value)}"

    return draw(st.sampled_from(METHODS)), [override() for _ in range(draw(st.integers(1, 3)))]


def ask(method: str, overrides: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root, contextlib.chdir(root):
        out, err = StringIO(), StringIO()
        arguments = ["train", method, "toy_reach", "--preset", "debug", "--env-steps", "44"]
        for text in overrides:
            arguments += ["--set", text]
        code: Any = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.main([*arguments, "--threads", "1", "--folder", "run"])
            except SystemExit as stopped:
                code = stopped.code
        if code == 0:
            folder = Path("run")
            assert Run.open(folder).evaluations()
            assert all(torch.isfinite(value).all() for value in weights(Run.open(folder)).values())
        else:
            assert code in (1, 2)
            assert len(err.getvalue()) > 10, err.getvalue()
            # Refused is refused before anything is written; only faults come later.
            assert code == 1 or not Path("run").exists(), err.getvalue()


def fuzz(cases: int) -> settings:
    return settings(
        max_examples=cases,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@fuzz(30)
@given(requests())
def test_any_request_is_carried_out_or_refused(asked: tuple[str, list[str]]) -> None:
    ask(*asked)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@fuzz(600)
@given(requests())
def test_any_of_many_requests_is_carried_out_or_refused(asked: tuple[str, list[str]]) -> None:
    ask(*asked)


REACHED, BUDGET = 50, 52


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A run that can be continued, with two checkpoints, and how it would end if it were."""
    root = tmp_path_factory.mktemp("fuzz")
    start = go(root / "start", experiment(env_steps=REACHED), checkpoint_minutes=ALWAYS)
    end = go(root / "end", experiment(env_steps=BUDGET))
    return start.folder, end


@st.composite
def damages(draw: st.DrawFn) -> list[tuple[float, str, float, int]]:
    """Which file (as a part of all), what happens to it, where in it, which bit."""
    part = st.floats(0, 1, exclude_max=True)
    kind = st.sampled_from(["flip", "flip", "flip", "truncate", "empty", "remove", "append"])
    one = st.tuples(part, kind, part, st.integers(0, 7))
    return draw(st.lists(one, min_size=1, max_size=3))


def damage(folder: Path, which: float, kind: str, where: float, bit: int) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return
    # Small files as often as large ones: that is where the meaning is.
    path = files[int(which * len(files))]
    data = bytearray(path.read_bytes())
    at = int(where * len(data))
    if kind == "remove":
        path.unlink()
        return
    if kind == "flip" and data:
        data[at] ^= 1 << bit
    elif kind == "truncate":
        del data[at:]
    elif kind == "empty":
        data.clear()
    elif kind == "append":
        data += b'{"x": 1}\n'
    path.write_bytes(data)


def go_on(runs: tuple[Path, Run], done: list[tuple[float, str, float, int]]) -> None:
    start, end = runs
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "run"
        shutil.copytree(start, folder)
        for one in done:
            damage(folder, *one)
        said, refusal = StringIO(), ""
        try:
            run = go(folder, experiment(env_steps=BUDGET), said)
        except KstepError as error:
            refusal = str(error)
        if refusal:
            assert str(folder) in refusal, refusal  # it says where to look
            return
        first, second = weights(end), weights(run)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)
        for mine, right in (
            (run.metrics_file, end.metrics_file),
            (run.evaluations_file, end.evaluations_file),
        ):
            lines, expected = mine.read_bytes().splitlines(), right.read_bytes().splitlines()
            if lines != expected:
                # Lines that are gone are said to be; none is ever a wrong one.
                assert f"bytes of {mine.name} are lost" in said.getvalue()
                assert set(lines) <= set(expected)


@fuzz(40)
@given(done=damages())
def test_any_damage_is_refused_or_mended(
    runs: tuple[Path, Run], done: list[tuple[float, str, float, int]]
) -> None:
    go_on(runs, done)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@fuzz(700)
@given(done=damages())
def test_any_of_many_damages_is_refused_or_mended(
    runs: tuple[Path, Run], done: list[tuple[float, str, float, int]]
) -> None:
    go_on(runs, done)
