"""Tables and pages made of texts that somebody else chose: cells stay cells, texts stay texts."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kstep.analysis import curves
from kstep.analysis.tables import Row, markdown, write_both, write_table

FORMULAS = ["=1+1", "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =cmd|' /C calc'!A0"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_begins_like_a_formula(text: str, tmp_path: Path) -> None:
    rows: list[Row] = [{"label": text, "task": "walker_walk", "score": -1.5, "n": -2}]
    with write_table(tmp_path / "a.csv", rows).open(newline="") as file:
        (row,) = csv.DictReader(file)
    shown = text.replace("\r", "\\r")
    assert row == {"label": f"'{shown}", "task": "walker_walk", "score": "-1.5", "n": "-2"}


def test_other_cells_stay_as_they_are(tmp_path: Path) -> None:
    labels = ["ksl", "proto_rl 50k/50k", "a=b", 'quote " and, comma', "", "ä - b"]
    rows: list[Row] = [{"label": label, "nan": float("nan")} for label in labels]
    with write_table(tmp_path / "a.csv", rows).open(newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == labels


def test_markdown_has_no_other_cells_and_no_tags(tmp_path: Path) -> None:
    hostile = "a | b\n<script>alert(1)</script>"
    text = markdown(["label", "score"], [[hostile, 1.5]])
    assert text.splitlines()[2] == r"| a \| b &lt;script>alert(1)&lt;/script> | 1.5 |"
    (_, path) = write_both(tmp_path / "table", [{"label": hostile}])
    assert "<script" not in path.read_text()


def test_a_label_with_dollars_is_drawn_as_it_is(tmp_path: Path) -> None:
    """It would be taken for mathematics, and be invalid as that."""
    rows: list[Row] = [
        {"label": r"$\frac{", "task": "t", "seed": 1, "env_steps": step, "score": 1.0}
        for step in (0, 10)
    ]
    path = curves.save(curves.panels(rows, {"score": "$score$"}), tmp_path / "a.png")
    assert path.stat().st_size > 5_000
