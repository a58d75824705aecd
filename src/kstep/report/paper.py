"""The KSL paper's own numbers, and ours beside them.

In: the tables and curves that ship (`published`). Out: cells as summaries, the paper's stars as
printed and as its printed means and deviations give them, and a word for where a result of ours
stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from kstep import published
from kstep.report.statistics import Summary, best_against_others, stars, welch
from kstep.types import KstepError

Place = Literal["inside", "above", "below"]

MARKS: Mapping[int, str] = MappingProxyType({100_000: "steps_100k", 500_000: "steps_500k"})
TABLES = ("main", "tangential")
NAMES: Mapping[str, str] = MappingProxyType({"prl": "proto_rl"})
"""Where the paper's name for a method is not ours."""
FROM_STATE = "sac_state"
"""Not from images, so the paper leaves it out when it looks for the best."""

PRINTED_STARS: Mapping[tuple[str, int], Mapping[str, str]] = MappingProxyType(
    {
        ("main", 100_000): {
            "finger_spin": "**",
            "cartpole_swingup": "**",
            "reacher_easy": "**",
            "cheetah_run": "**",
            "walker_walk": "**",
            "ball_in_cup_catch": "**",
        },
        ("main", 500_000): {
            "finger_spin": "",
            "cartpole_swingup": "*",
            "reacher_easy": "",
            "cheetah_run": "**",
            "walker_walk": "*",
            "ball_in_cup_catch": "*",
        },
        ("tangential", 100_000): {
            "finger_spin": "**",
            "cartpole_swingup": "**",
            "reacher_easy": "**",
            "cheetah_run": "**",
            "walker_walk": "**",
            "ball_in_cup_catch": "**",
        },
        ("tangential", 500_000): {
            "finger_spin": "",
            "cartpole_swingup": "**",
            "reacher_easy": "**",
            "cheetah_run": "**",
            "walker_walk": "*",
            "ball_in_cup_catch": "**",
        },
    }
)
"""Beside KSL's cell in the paper's two tables of returns."""


def cells(table: str, mark: int) -> dict[str, dict[str, Summary]]:
    """Return the paper's table as task -> method -> summary."""
    if table not in TABLES or mark not in MARKS:
        raise KstepError(
            f"the paper has no table '{table}' at {mark:,} env steps; it has "
            f"{', '.join(TABLES)} at {', '.join(f'{m:,}' for m in MARKS)}"
        )
    data = published.table(table)
    return {
        task: {
            NAMES.get(name, name): Summary(float(cell["mean"]), float(cell["std"]), data["seeds"])
            for name, cell in row.items()
        }
        for task, row in data[MARKS[mark]].items()
    }


@cache
def curves() -> dict[tuple[str, str], dict[int, Summary]]:
    """Return the paper's main curves as (task, method) -> env_steps -> summary."""
    seeds = published.seeds()
    return {
        key: {step: Summary(point.mean, point.std, seeds) for step, point in curve.items()}
        for key, curve in published.curves().items()
    }


@dataclass(frozen=True)
class Star:
    """One star of the paper, as printed and as its own numbers give it."""

    table: str
    mark: int
    task: str
    printed: str
    recomputed: str
    p: float
    """Against the closest rival."""
    rival: str
    corrected: str
    """With Holm's correction over the rivals of the cell, which the paper does not apply."""

    @property
    def agrees(self) -> bool:
        return self.printed == self.recomputed


def recompute_stars() -> list[Star]:
    """Recompute every star of the paper's tables of returns from its summary statistics."""
    found = []
    for (table, mark), printed in PRINTED_STARS.items():
        for task, row in cells(table, mark).items():
            seen = {name: cell for name, cell in row.items() if name != FROM_STATE}
            plain, holm = best_against_others(seen), best_against_others(seen, correct=True)
            rival = max(plain.p, key=lambda name: plain.p[name])
            found.append(
                Star(
                    table,
                    mark,
                    task,
                    printed[task],
                    stars(plain.largest),
                    plain.largest,
                    rival,
                    stars(holm.largest),
                )
            )
    return found


def place(ours: Summary, theirs: Summary, level: float = 0.05) -> Place:
    """Say whether our mean differs from the paper's (Welch): inside if it does not."""
    test = welch(ours, theirs)
    if test.p >= level:
        return "inside"
    return "above" if test.difference > 0 else "below"
