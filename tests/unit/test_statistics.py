"""Statistics against numbers computed by hand, published ones, and scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kstep.report import paper
from kstep.report import statistics as s
from kstep.report.statistics import Summary

RNG = np.random.default_rng(0)
SCORES = RNG.uniform(0, 1, (10, 6))


def test_summary_by_hand() -> None:
    assert s.summarize([1.0, 2.0, 6.0]) == Summary(3.0, math.sqrt(7.0), 3)
    assert math.isnan(s.summarize([4.0]).sd)


def test_welch_is_scipys() -> None:
    one, other = RNG.normal(1, 1, 8), RNG.normal(0, 3, 11)
    ours = s.welch(s.summarize(one), s.summarize(other))
    assert ours == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue)


def test_welch_by_hand() -> None:
    # Standard errors squared 1 and 1: t = 2 / sqrt(2); 4 / (1/3 + 1/3) = 6 degrees of freedom.
    found = s.welch(Summary(2.0, 2.0, 4), Summary(0.0, 2.0, 4))
    assert found == pytest.approx(2 * stats.t.sf(math.sqrt(2), 6.0))


@pytest.mark.filterwarnings("error")
def test_welch_of_constants_and_of_single_seeds() -> None:
    assert s.welch(Summary(2.0, 0.0, 3), Summary(1.0, 0.0, 3)) == 0.0
    assert math.isnan(s.welch(Summary(1.0, 0.0, 3), Summary(1.0, 0.0, 3)))
    assert math.isnan(s.welch(Summary(1.0, math.nan, 1), Summary(1.0, 1.0, 3)))


def test_a_star_needs_every_rival_to_be_tested() -> None:
    cells = {"a": Summary(9.0, 1.0, 5), "b": Summary(1.0, 1.0, 5), "c": Summary(5.0, math.nan, 1)}
    assert s.best_against("a", cells, ["b"]).stars == "**"
    both = s.best_against("a", cells, ["b", "c"])
    assert (both.closest, both.stars) == ("c", "")
    assert s.best_against("a", cells, []).stars == ""


def test_fisher_by_hand() -> None:
    # Of 8 runs 4 collapsed, all on one side: 2 tables of C(8, 4) are as extreme.
    assert s.fisher((4, 4), (0, 4)) == pytest.approx(2 / 70)
    assert s.fisher((1, 5), (1, 5)) == 1.0


def test_holm_by_hand() -> None:
    assert s.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert s.holm([0.5, 0.9]) == (1.0, 1.0)
    assert s.holm([]) == ()
    with pytest.raises(ValueError, match="between 0 and 1"):
        s.holm([1.5])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_holm_keeps_the_order_and_never_helps(p: list[float]) -> None:
    corrected = s.holm(p)
    assert all(after >= before for before, after in zip(p, corrected, strict=True))
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(np.asarray(corrected)[order]) >= 0)


def test_iqm_by_hand_and_scipy() -> None:
    # 8 values: two cut at each end, the mean of 3, 4, 5, 6.
    assert s.iqm(np.array([[1, 2, 3, 4], [5, 6, 7, 100]])) == pytest.approx(4.5)
    assert s.iqm(SCORES) == pytest.approx(stats.trim_mean(SCORES, 0.25, axis=None))


def test_optimality_gap_by_hand() -> None:
    scores = np.array([[0.0, 0.5, 2.0], [1.0, 0.5, 1.0]])
    assert s.optimality_gap(scores) == pytest.approx((1 + 0.5 + 0 + 0 + 0.5 + 0) / 6)


def test_aggregates_of_the_reference_implementations_own_tests() -> None:
    # x and y and what they give: rliable's tests/rliable/metrics_test.py (Apache-2.0).
    x, y = np.array([[1, 2], [2, 2], [1, 1], [2, 1]]), np.array([[1, 1], [2, 2], [3, 3]])
    for scores, expected in ((x, 1.5), (y, 2.0)):
        assert s.iqm(scores) == expected
    assert s.probability_of_improvement(x, y) == pytest.approx(1 / 3)


def test_published_aggregates_of_these_tasks() -> None:
    """The paper's Table 1 as six tasks with one 'run' each: what its means aggregate to."""
    for mark, printed in ((100_000, 788.7), (500_000, 923.0)):
        means = [row["ksl"].mean for row in paper.cells("main", mark).values()]
        scores = np.array([means]) / 1000
        assert scores.mean() == pytest.approx(printed / 1000, abs=1e-4)
        assert s.optimality_gap(scores) == pytest.approx(1 - printed / 1000, abs=1e-4)
        # One of six is cut at each end.
        assert s.iqm(scores) == pytest.approx(np.mean(sorted(means)[1:-1]) / 1000)


def test_curves_are_redrawn_as_a_whole() -> None:
    """The same seed draws the same runs, so what a map of the scores does, it does to the ends."""
    draws = {"seed": 5, "repetitions": 300}
    alone = s.bootstrap(SCORES, s.iqm, **draws)
    early, late = (s.bootstrap(scores, s.iqm, **draws) for scores in (0.1 * SCORES, SCORES + 1.0))
    for value in ("value", "low", "high"):
        assert getattr(early, value) == pytest.approx(0.1 * getattr(alone, value))
        assert getattr(late, value) == pytest.approx(1.0 + getattr(alone, value))


def test_profile_by_hand() -> None:
    scores = np.array([[0.2, 0.4], [0.6, 0.8]])
    profile = [float(s.share_above(threshold)(scores)) for threshold in (0.0, 0.4, 0.9)]
    assert profile == pytest.approx([1.0, 0.5, 0.0])
    found = s.bootstrap(SCORES, s.share_above(0.5), seed=0, repetitions=200)
    assert found.low < found.value == np.mean(SCORES > 0.5) < found.high


def test_probability_of_improvement_by_hand_and_scipy() -> None:
    # Of four pairs: two wins, one tie, one loss.
    first, second = np.array([[1.0], [3.0]]), np.array([[1.0], [2.0]])
    assert s.probability_of_improvement(first, second) == pytest.approx(0.625)
    other = RNG.uniform(0.1, 1.1, (7, 6))
    expected = np.mean(
        [
            stats.mannwhitneyu(SCORES[:, task], other[:, task]).statistic / (10 * 7)
            for task in range(6)
        ]
    )
    assert s.probability_of_improvement(SCORES, other) == pytest.approx(expected)
    both = s.probability_of_improvement(SCORES, other) + s.probability_of_improvement(other, SCORES)
    assert both == pytest.approx(1.0)
    with pytest.raises(ValueError, match="must be the same"):
        s.probability_of_improvement(SCORES, SCORES[:, :2])


def mean(scores: s.Array) -> s.Array:
    return np.asarray(scores.mean(axis=(-2, -1)))


def test_bootstrap_is_stratified_seeded_and_covers() -> None:
    # Runs that do not differ leave nothing to draw, however much the tasks do.
    same = np.tile([0.1, 0.9], (5, 1))
    assert s.bootstrap(same, mean, seed=1) == s.Interval(0.5, 0.5, 0.5, 5)
    once = s.bootstrap(SCORES, s.iqm, seed=3)
    assert once == s.bootstrap(SCORES, s.iqm, seed=3)
    assert once != s.bootstrap(SCORES, s.iqm, seed=4)
    assert once.low < once.value < once.high
    # The interval of one task's mean is about that of the normal approximation.
    column = SCORES[:, :1]
    found = s.bootstrap(column, mean, seed=0, repetitions=4_000)
    error = column.std() / math.sqrt(10)
    assert found.high - found.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    reference = stats.bootstrap(
        (column[:, 0],), np.mean, method="percentile", n_resamples=4_000, rng=1
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((reference.low, reference.high), abs=0.02)


def test_too_few_seeds_have_no_interval_and_say_so() -> None:
    few = s.bootstrap(SCORES[:2], s.iqm, seed=0)
    assert math.isnan(few.low)
    assert "too few seeds" in few.note
    assert math.isnan(s.improvement_interval(SCORES[:2], SCORES, seed=0).high)
    interval = s.improvement_interval(SCORES, SCORES + 0.2, seed=0, repetitions=300)
    assert interval.low < interval.value < interval.high < 0.6
    assert interval.note == "n = 10"


def test_shapes_and_nan_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(runs, tasks\)"):
        s.bootstrap(SCORES[0], s.iqm, seed=0)
    with pytest.raises(ValueError, match="finite"):
        s.iqm(np.full((3, 2), np.nan))
