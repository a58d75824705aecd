"""Human-normalized scores of Atari games: 0 is what random actions score, 1 a human tester.

Both numbers of each of 57 games are those of Wang et al. 2016 (arXiv:1511.06581), which most papers
since have taken, for episodes that begin with up to 30 frames without an action; read in the table
of DQN Zoo (github.com/google-deepmind/dqn_zoo at 359945d).
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping, Sequence
from importlib.resources import files

import numpy as np

from kstep.analysis.tables import Row, grouped
from kstep.report.grid import Cell, Grid
from kstep.types import KstepError


@functools.cache
def scores() -> Mapping[str, tuple[float, float]]:
    """Return the scores of random actions and of a human by task, such as `atari:Pong`."""
    text = files("kstep").joinpath("paper_data", "atari_scores.csv").read_text()
    return {
        f"atari:{row['game']}": (float(row["random"]), float(row["human"]))
        for row in csv.DictReader(text.splitlines())
    }


def normalized(task: str, score: float) -> float:
    """Return the human-normalized score of a game."""
    if task not in scores():
        raise KstepError(f"no human score is known of {task!r}: it is not one of Atari's 57 games")
    random, human = scores()[task]
    return (score - random) / (human - random)


def table(cells: Sequence[Row]) -> Grid:
    """Return the human-normalized mean of every game and label and, over several games, mean and
    median; without rows where no task is such a game."""
    games = [row for row in cells if row["task"] in scores()]
    labels = list(dict.fromkeys(str(row["label"]) for row in games))
    found = {
        str(task): {str(row["label"]): normalized(str(task), float(row["mean"])) for row in own}
        for (task,), own in grouped(games, "task").items()
    }
    rows: list[list[Cell | str]] = [
        [task, *(_cell(own.get(label)) for label in labels)] for task, own in found.items()
    ]
    if len(found) > 1:
        whole = {
            label: [own[label] for own in found.values()]
            for label in labels
            if all(label in own for own in found.values())
        }
        for name, over in (("mean", np.mean), ("median", np.median)):
            row = (_cell(float(over(whole[label])) if label in whole else None) for label in labels)
            rows.append([f"{name} of {len(found)} games", *row])
    return Grid.of(("human-normalized", *labels), rows)


def _cell(value: float | None) -> Cell | str:
    return "-" if value is None else Cell(f"{value:.3f}", value=value)
