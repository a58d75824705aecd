"""kstep selfcheck: its verdict on good and bad runs, and that the quick one learns."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from kstep.cli import main
from kstep.report import paper
from kstep.run import selfcheck
from kstep.run.folder import Evaluated


def test_the_band_tells_learning_from_none() -> None:
    check = selfcheck.swingup()
    assert [check.verdict(value) for value in (30.0, math.nan, 175.0, 900.0)] == [
        "below",
        "below",
        "inside",
        "above",
    ]
    # Where the band comes from: the paper's seeds at this mark, and before training.
    curve = paper.curves()["cartpole_swingup", "ksl"]
    mark, start = curve[check.experiment.env_steps], curve[0]
    assert f"{mark.mean:.0f}" in check.why
    assert f"{mark.sd:.0f}" in check.why
    assert start.mean + start.sd < check.low < mark.mean - mark.sd
    assert mark.mean + 2 * mark.sd < check.high
    # And our own, as published with every episode.
    file = Path(__file__).parents[2] / "docs" / "results" / "cartpole_swingup_cpu.csv"
    rows = [line.split(",") for line in file.read_text().splitlines()]
    head = rows.pop(0)
    column = {name: head.index(name) for name in ("method", "seed", "env_steps", "return")}
    ours = [
        float(row[column["return"]])
        for row in rows
        if row[column["method"]] == "ksl" and row[column["env_steps"]] == "20000"
    ]
    assert len(ours) == 10
    assert check.verdict(sum(ours) / 10) == "inside"


def test_a_run_that_learned_nothing_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def untrained(run: object, runtime: object, console: object) -> None:
        folder = tmp_path / "selfcheck" / "toy_reach" / "seed1"
        folder.mkdir(parents=True, exist_ok=True)
        rows = (Evaluated(m, m, m, m, 1, r, (5, 5)) for m, r in ((0, (-4.0, -2.0)), (1, returns)))
        text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        (folder / "evaluations.jsonl").write_text(text)

    monkeypatch.setattr(selfcheck, "train", untrained)
    command = ["selfcheck", "--quick", "--runs", str(tmp_path)]
    returns = (-3.0, -3.5)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 1
    assert "does not learn" in capsys.readouterr().out
    (tmp_path / "selfcheck" / "toy_reach" / "seed1" / "evaluations.jsonl").unlink()
    returns = (8.0, 9.0)
    main(command)
    assert "before -3.0, after 8.5; expected 0 to 10. As expected" in capsys.readouterr().out


def test_the_quick_check_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["selfcheck", "--quick", "--runs", str(tmp_path), "--threads", "1"])
    assert "this installation learns" in capsys.readouterr().out
