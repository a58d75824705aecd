"""The comparison can fail: small changes of a method or its inputs are noticed, and where.

Each case changes one thing, takes the first updates and names families of quantities that must then
differ from the authors' and others that the change cannot have reached yet.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.authors import adapter, traces
from tests.authors.seams import Script
from tests.authors.traces import TOLERANCE, Key, Trace

Data = dict[str, Any]


def one_pixel(data: Data) -> None:
    """The first sample's view is cut one column further to the right."""
    data["updates"][0]["offsets"]["observation"][0][1] += 1


def one_pixel_of_a_target(data: Data) -> None:
    """Likewise the last observation of the first sequence."""
    data["updates"][0]["sequence_offsets"][0][3][1] += 1


def one_decision_later(data: Data) -> None:
    data["updates"][0]["sequences"][0][1] += 1


def exchanged(data: Data) -> None:
    """Slow copies start as the online networks and the other way round."""
    tensors = data["tensors"]
    for name, entry in tensors.items():
        slow = name.replace("encoder/", "slow_encoder/").replace("core/", "core/slow_")
        if not name.startswith("slow_") and slow in tensors:
            other = tensors[slow]
            entry[2:5], other[2:5] = other[2:5], entry[2:5]


def never_terminal(data: Data) -> None:
    data["inputs"]["terminal_episode"] = None


def other_noise(data: Data) -> None:
    """The actor's action is another one."""
    data["updates"][0]["actor_noise"] += 1


@dataclass(frozen=True)
class Case:
    """One change, what it must alter within so many updates, and what it must not."""

    method: str
    differ: tuple[str, ...]
    same: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[Data], None] | None = None
    updates: int = 1


CASES = {
    "learning rate + 0.1 %": Case(
        "sac_state-original",
        settings={"learning rate": 1.001e-4},
        differ=("core/actor", "core/critic", "core/log_temperature", "core/slow_critic"),
        same=("before", "target", "critic_loss"),
    ),
    "learning rate + 0.1 %, KSL": Case(
        "ksl-released",
        settings={"learning rate": 1.001e-3},
        differ=("encoder/convolutions", "encoder/head", "task/transition", "core/actor", "target"),
        same=("before", "auxiliary_loss"),
    ),
    "encoder's rate in CURL's step + 0.1 %": Case(
        "curl-original",
        settings={"encoder's auxiliary learning rate": 2.002e-3},
        differ=("encoder/convolutions", "encoder/head"),
        same=("before", "auxiliary_loss", "task/bilinear", "core/critic", "core/actor"),
    ),
    "critic's averaging + 1 %": Case(
        "sac_state-original",
        settings={"critic ema rate": 0.00505},
        differ=("core/slow_critic",),
        same=("before", "target", "actor_loss", "core/critic", "core/actor"),
    ),
    "encoder's averaging + 1 %": Case(
        "ksl-results",
        settings={"encoder ema rate": 0.0505},
        differ=("slow_encoder/convolutions", "slow_encoder/head", "task/slow_projector"),
        same=("before", "encoder/head", "core/slow_critic", "task/projector"),
    ),
    "discount 0.99001": Case(
        "drq-original",
        settings={"discount": 0.99001},
        differ=("target", "mean target", "critic_loss"),
        same=("before",),
    ),
    "KSL's step after the critic's": Case(
        "ksl-released",
        settings={"auxiliary turn": "after critic"},
        differ=("target", "critic_loss", "auxiliary_loss", "actor_loss"),
        same=("before",),
    ),
    "CURL's step before the actor's": Case(
        "curl-original",
        settings={"auxiliary turn": "after critic"},
        differ=("auxiliary_loss", "actor_loss", "slow_encoder/head"),
        same=("before", "target", "critic_loss", "core/critic"),
    ),
    "the auxiliary gradient once": Case(
        "ksl-results",
        settings={"encoder stepped twice": False},
        differ=("encoder/convolutions", "encoder/head"),
        same=("before", "auxiliary_loss", "task/transition", "core/critic"),
    ),
    "a replicated border instead of a black one": Case(
        "ksl-results",
        settings={"sequence padding": "replicate"},
        differ=("auxiliary_loss",),
        same=("before", "target", "critic_loss", "core/critic"),
    ),
    "the temperature's first beta": Case(
        "rad-original",
        settings={"temperature betas": [0.9, 0.999]},
        updates=3,  # the first step of Adam does not depend on it
        differ=("core/log_temperature",),
        same=("before", "target", "actor_loss", "temperature_loss", "core/actor"),
    ),
    "the other formula of the log-probability": Case(
        "curl-original",
        settings={"log prob": "exact"},
        differ=("target", "critic_loss", "actor_loss", "temperature_loss"),
        same=("before",),
    ),
    "latent penalty + 0.1 %": Case(
        "sac_ae-original",
        settings={"latent penalty": 1.001e-6},
        differ=("auxiliary_loss", "encoder/convolutions"),
        same=("before", "target", "actor_loss", "task/decoder"),
    ),
    "no weight decay of the decoder": Case(
        "sac_ae-original",
        settings={"decoder weight decay": 0.0},
        differ=("task/decoder",),
        same=("before", "auxiliary_loss", "encoder/head", "encoder/convolutions"),
    ),
    "the second nearest place": Case(
        "proto_rl-original",
        settings={"neighbour": 2},
        differ=("intrinsic_reward", "target"),
        same=("before", "auxiliary_loss", "queue", traces.PROBABILITIES, "task/prototypes"),
    ),
    "bonus + 0.1 %": Case(
        "proto_rl-original",
        settings={"bonus": 0.2002},
        updates=4,  # the first in which it counts
        differ=("target", "critic_loss"),
        same=("before", "intrinsic_reward", "queue"),
    ),
    "one pixel": Case(
        "drq-original",
        inputs=one_pixel,
        differ=("critic_loss", "actor_loss", "encoder/convolutions"),
        same=("before", "target"),
    ),
    "one pixel of one observation that KSL predicts": Case(
        "ksl-results",
        inputs=one_pixel_of_a_target,
        differ=("auxiliary_loss",),
        same=("before", "target", "critic_loss", "core/critic"),
    ),
    "a sequence one decision later": Case(
        "ksl-results",
        inputs=one_decision_later,
        differ=("auxiliary_loss",),
        same=("before", "target", "critic_loss", "core/critic"),
    ),
    "slow copies and online networks exchanged": Case(
        "sac_pixel-original",
        inputs=exchanged,
        differ=("before", "target", "critic_loss", "actor_loss"),
    ),
    "no terminal state": Case(
        "rad-original",
        inputs=never_terminal,
        differ=("target", "critic_loss"),
        same=("before",),
    ),
    "other noise": Case(
        "sac_state-original",
        inputs=other_noise,
        differ=("actor_loss", "temperature_loss", "core/actor"),
        same=("before", "target", "critic_loss", "core/critic"),
    ),
}


def family(key: Key) -> str:
    """`encoder/head` for all tensors of the head; `before` for all outputs before any update."""
    return key.quantity.split(".")[0] if key.update else "before"


@pytest.mark.parametrize("name", CASES)
def test_a_small_change_is_noticed(name: str) -> None:
    case = CASES[name]
    original = traces.load(case.method)
    changed = copy.deepcopy(dict(original.data))
    if case.inputs is not None:
        case.inputs(changed)
    found = adapter.run(Trace(changed), case.settings, case.updates)
    compared = traces.differences(found, original, case.updates)
    families = {family(difference.key) for difference in compared}
    differing = {family(difference.key) for difference in traces.wrong(compared)}
    assert {*case.differ, *case.same} <= families, "no such quantity"
    assert set(case.differ) <= differing
    assert not differing & set(case.same)
    assert math.isfinite(compared[0].size), compared[0]


def test_a_part_that_takes_its_turn_too_often_is_noticed() -> None:
    with pytest.raises(AssertionError, match="nothing is prescribed"):
        adapter.run(traces.load("sac_pixel-original"), {"actor every": 1}, updates=2)


def test_what_only_one_side_has_counts_as_infinitely_different() -> None:
    trace = traces.load("sac_state-original")
    same = {key: value for key, value, _ in trace.expected(updates=1)}
    assert not traces.wrong(traces.differences(same, trace, updates=1))
    loss, other = Key(1, "critic_loss"), Key(1, "auxiliary_loss")
    missing = {key: value for key, value in same.items() if key != loss}
    not_finite = same | {loss: np.array(math.nan)}
    surplus = same | {other: np.array(0.0)}
    for found, key in ((missing, loss), (not_finite, loss), (surplus, other)):
        (wrong,) = traces.wrong(traces.differences(found, trace, updates=1))
        assert (wrong.size, wrong.key) == (math.inf, key)


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_the_tolerance_is_where_it_is_said_to_be(factor: float) -> None:
    """1e-9 of a number and 1e-10 near 0; of a sum, 1e-9 of the sum of absolute values."""
    trace = traces.load("sac_state-original")
    same = {key: value.copy() for key, value, _ in trace.expected(updates=1)}
    loss, weights = Key(1, "critic_loss"), Key(1, "core/actor.body.0.weight")
    total, absolute, entry = same[weights][:3]
    for key, place, allowed in (
        (loss, (), 1e-9 * float(same[loss]) + 1e-10),
        (weights, 0, 1e-9 * absolute),
        (weights, 2, 1e-9 * abs(entry) + 1e-10),
    ):
        shifted = same[key].copy()
        shifted[place] += factor * allowed
        wrong = traces.wrong(traces.differences(same | {key: shifted}, trace, updates=1))
        assert bool(wrong) == (factor > 1), (key, place)
    assert abs(total) < absolute
    assert TOLERANCE == 1e-9


def test_scripted_integers_must_fit_the_question() -> None:
    script = Script()
    script.prescribe([3, 0], [8, 0], [9, 0])
    assert script.integers(4, size=2).tolist() == [3, 0]
    assert script.integers(0, 8, size=(2,), endpoint=True).tolist() == [8, 0]
    with pytest.raises(AssertionError, match="above 8"):
        script.integers(0, 8, size=2, endpoint=True)
    script.prescribe([1], [1])
    with pytest.raises(AssertionError, match="is asked for"):
        script.integers(4, size=2)
    with pytest.raises(AssertionError, match="nobody asked"):
        script.finish()
