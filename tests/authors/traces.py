"""What the authors' code computed, and how far other numbers are from it.

In: the JSON files in `traces/`. Out: every number in them under a key (update, quantity), update 0
being the state before the first one, and the differences of other numbers under the same keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.authors.inputs import Numbers, numbers

FOLDER = Path(__file__).with_name("traces")
METHODS = tuple(sorted(file.stem for file in FOLDER.glob("*.json")))

TOLERANCE = 1e-9
"""Of a number, as a part of itself plus a tenth, which is 1e-10 near 0; of a sum, as a part of the
sum of absolute values. Rounding stays a thousand times below, see README.md."""

OUTPUTS = ("policy_mean", "policy_std", "greedy_action", "q1", "q2")
PER_SAMPLE = ("target", "intrinsic_reward")
LOSSES = ("critic_loss", "actor_loss", "temperature_loss", "auxiliary_loss")
PROBABILITIES = "candidate_probabilities_of_prototype_7"
QUEUE_PLACES = (0, 1000, 66666, 131072, 200000)


class Key(NamedTuple):
    """Which number is meant: of which update, counted from 1, and what."""

    update: int
    quantity: str


Found = dict[Key, Numbers]


@dataclass(frozen=True)
class Weights:
    """Where one tensor starts and which of its entries are listed."""

    shape: tuple[int, ...]
    seed: int
    centre: float
    scale: float
    layout: str | None
    """How the authors order what kstep orders otherwise; None: both alike."""
    places: tuple[int, ...]
    """Flat indices in the authors' layout."""

    def first(self, shift: int = 0) -> Numbers:
        """The tensor before the first update; `shift` is added to its seed."""
        return numbers(self.seed + shift, self.shape, self.centre, self.scale)


@dataclass(frozen=True)
class Trace:
    """One JSON file."""

    data: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.data["method"])

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Sizes, and what is special about the beginning."""
        inputs: Mapping[str, Any] = self.data["inputs"]
        return inputs

    @property
    def updates(self) -> list[Mapping[str, Any]]:
        updates: list[Mapping[str, Any]] = self.data["updates"]
        return updates

    @cached_property
    def weights(self) -> dict[str, Weights]:
        return {
            name: Weights(tuple(shape), seed, centre, scale, layout, tuple(places))
            for name, (_, shape, seed, centre, scale, layout, places) in self.data[
                "tensors"
            ].items()
        }

    def followed(self, update: int) -> list[str]:
        """The tensors that are listed after this update."""
        return [name for name, rows in self.data["after"].items() if len(rows) >= update]

    def expected(self, updates: int | None = None) -> Iterator[tuple[Key, Numbers, Numbers]]:
        """Yield every listed number of the first `updates` updates, and what it is measured by."""
        for name in OUTPUTS:
            yield Key(0, name), *_plain(self.data["forward"][name])
        for update, row in enumerate(self.updates[:updates], start=1):
            for name in (*PER_SAMPLE, *LOSSES, PROBABILITIES):
                if name in row:
                    yield Key(update, name), *_plain(row[name])
            for name in PER_SAMPLE:
                if name in row:
                    yield Key(update, f"mean {name}"), *_plain(np.mean(row[name]))
            if "queue" in row:
                yield Key(update, "queue"), *_summary(row["queue"])
            for name in self.followed(update):
                yield Key(update, name), *_summary(self.data["after"][name][update - 1])


@cache
def load(method: str) -> Trace:
    return Trace(json.loads((FOLDER / f"{method}.json").read_text()))


def summary(tensor: Numbers, places: tuple[int, ...]) -> Numbers:
    """A tensor in a few numbers: sum, sum of absolute values, the entries at `places`."""
    return np.array([tensor.sum(), np.abs(tensor).sum(), *tensor.reshape(-1)[list(places)]])


def _plain(values: Any) -> tuple[Numbers, Numbers]:
    value = np.asarray(values, np.float64)
    return value, np.abs(value) + 0.1


def _summary(values: list[float]) -> tuple[Numbers, Numbers]:
    value, measure = _plain(values)
    measure[:2] = value[1]
    return value, measure


@dataclass(frozen=True, order=True)
class Difference:
    """How far one quantity is from the authors'."""

    size: float
    """The largest over its numbers, each divided by what it is measured by; infinite where one side
    has no such number or it is not finite."""
    key: Key
    numbers: int

    def __str__(self) -> str:
        when = f"update {self.key.update}" if self.key.update else "before the first update"
        return f"{self.size:.1e} in {self.key.quantity}, {when}"


def differences(found: Found, trace: Trace, updates: int | None = None) -> list[Difference]:
    """Compare all that the trace lists, the largest difference first."""
    rest = dict(found)
    compared = []
    for key, expected, measure in trace.expected(updates):
        ours = rest.pop(key, None)
        size = math.inf
        if ours is not None and ours.shape == expected.shape and np.isfinite(ours).all():
            size = float((np.abs(ours - expected) / measure).max())
        compared.append(Difference(size, key, expected.size))
    # What the authors' code did not compute: a part of an update in which it took none.
    compared += [Difference(math.inf, key, value.size) for key, value in rest.items()]
    return sorted(compared, reverse=True)


def wrong(compared: list[Difference]) -> list[Difference]:
    """Those beyond the tolerance."""
    return [difference for difference in compared if not difference.size <= TOLERANCE]
