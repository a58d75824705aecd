"""Statistics of returns: tests, aggregates and intervals. Pure functions of arrays.

Scores have the shape (runs, tasks), one number per seed and task, already averaged over evaluation
episodes: seeds are the unit, never episodes. The paper's own statistics are the mean and standard
deviation over seeds and Welch's test of the best method against the others. The field's standard
since (Agarwal et al. 2021, arXiv:2108.13264) are interquartile means and optimality gaps with
stratified bootstrap intervals, performance profiles, probabilities of improvement and aggregates
along the curve. Nothing uses a global generator: every random function takes a seed. So a bootstrap
of the same numbers is always the same, and is remembered: a page that is computed again and again
while runs grow draws only for what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import stats

Array: TypeAlias = npt.NDArray[np.float64]
Aggregate: TypeAlias = Callable[[Array], Array]
"""From (..., runs, tasks) to (...)."""
_Key: TypeAlias = tuple[bytes, tuple[int, ...]]
"""An array as something to remember by: its numbers and its shape."""

CONFIDENCE = 0.95
FEWEST_SEEDS = 3
"""With fewer there is no interval: it would reflect luck more than the method."""
REMEMBERED = 20_000
"""Bootstraps; a page of 540 runs has a few thousand."""


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and number of seeds: what papers print in a cell."""

    mean: float
    sd: float
    """Over seeds, with n - 1."""
    n: int


def summarize(scores: npt.ArrayLike) -> Summary:
    """Return mean, standard deviation and number of seeds. The deviation of one seed is nan."""
    values = _finite(scores, 1)
    sd = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return Summary(float(values.mean()), sd, len(values))


def welch(first: Summary, second: Summary) -> float:
    """Return the two-sided p of Welch's test that two means differ; variances may differ.

    nan where it is undefined: a side with one seed, or two equal constants.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        found = stats.ttest_ind_from_stats(
            *(first.mean, first.sd, first.n, second.mean, second.sd, second.n), equal_var=False
        )
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values corrected for their number (Holm 1979), in the order given."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.size and not (np.all(p >= 0) and np.all(p <= 1)):
        raise ValueError("p-values lie between 0 and 1")
    order = np.argsort(p, kind="stable")
    scaled = p[order] * np.arange(len(p), 0, -1)
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return tuple(float(value) for value in corrected)


def stars(p: float) -> str:
    """Return the paper's stars: * below 0.05, ** below 0.01."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""


@dataclass(frozen=True)
class Best:
    """The best of several, tested against its rivals."""

    name: str
    p: Mapping[str, float]
    """Per rival; nan where the test is undefined."""
    corrected: Mapping[str, float]
    """With Holm's correction for the number of rivals, which the paper does not apply."""

    @property
    def closest(self) -> str:
        """The rival that the best one's stars depend on; empty without any."""
        return max(self.p, key=lambda rival: (np.isnan(self.p[rival]), self.p[rival]), default="")

    @property
    def stars(self) -> str:
        return stars(self.p.get(self.closest, float("nan")))


def best_against(name: str, cells: Mapping[str, Summary], rivals: Sequence[str]) -> Best:
    """Test one cell against every rival's, as the paper does, and with Holm's correction."""
    p = {rival: welch(cells[name], cells[rival]) for rival in rivals}
    known = [rival for rival in rivals if not np.isnan(p[rival])]
    corrected = dict(zip(known, holm([p[rival] for rival in known]), strict=True))
    return Best(name, p, {rival: corrected.get(rival, float("nan")) for rival in rivals})


def fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p of Fisher's exact test of two counts (so many, of so many)."""
    table = [[count, total - count] for count, total in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


def iqm(scores: npt.ArrayLike) -> Array:
    """Return the mean of the middle half of all runs of all tasks, over the last two axes.

    As in the reference implementation, a quarter of the values, rounded down, is cut at each end.
    """
    values = _finite(scores)
    flat = np.sort(values.reshape(*values.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    return np.asarray(flat[..., cut : flat.shape[-1] - cut].mean(axis=-1))


def optimality_gap(scores: npt.ArrayLike, target: float = 1.0) -> Array:
    """Return the mean shortfall from the target; scores above it count as the target."""
    return np.asarray(target - np.minimum(_finite(scores), target).mean(axis=(-2, -1)))


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; nan where there were too few seeds."""

    value: float
    low: float
    high: float
    n: int
    """Seeds per task."""

    @property
    def note(self) -> str:
        few = self.n < FEWEST_SEEDS
        return f"n = {self.n}: too few seeds for an interval" if few else f"n = {self.n}"


@cache
def share_above(threshold: float) -> Aggregate:
    """Return the aggregate of a performance profile at one threshold: the share of all runs with a
    score above it."""
    return lambda scores: np.asarray((_finite(scores) > threshold).mean(axis=(-2, -1)))


def bootstrap(
    scores: npt.ArrayLike, aggregate: Aggregate, *, seed: int, repetitions: int = 2_000
) -> Interval:
    """Return an aggregate with a stratified percentile bootstrap: resamples runs in each task.

    The same seed chooses the same runs. So intervals along a curve or a profile are pointwise, but
    the curve is resampled as a whole.
    """
    values = _finite(scores, 2)
    return _bootstrap(_key(values), aggregate, seed, repetitions)


@lru_cache(REMEMBERED)
def _bootstrap(key: _Key, aggregate: Aggregate, seed: int, repetitions: int) -> Interval:
    values = _of(key)
    draws = (aggregate(block) for block in _resamples(values, seed, repetitions))
    return _interval(aggregate(values), len(values), draws)


def probability_of_improvement(first: npt.ArrayLike, second: npt.ArrayLike) -> Array:
    """Return how likely a run of the first beats one of the second on a random task.

    The mean over tasks of the Mann-Whitney statistic; a tie counts as half. Shapes (..., runs,
    tasks); the numbers of runs may differ, the tasks may not.
    """
    one, other = _finite(first), _finite(second)
    if one.shape[-1] != other.shape[-1]:
        raise ValueError(f"{one.shape[-1]} tasks against {other.shape[-1]}: they must be the same")
    pairs = one[..., :, None, :] - other[..., None, :, :]
    wins = (pairs > 0).mean(axis=(-3, -2)) + 0.5 * (pairs == 0).mean(axis=(-3, -2))
    return np.asarray(wins.mean(axis=-1))


def improvement_interval(
    first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int, repetitions: int = 2_000
) -> Interval:
    """Return the probability of improvement with its bootstrap interval."""
    pair = _key(_finite(first, 2)), _key(_finite(second, 2))
    return _improvement_interval(*pair, seed, repetitions)


@lru_cache(REMEMBERED)
def _improvement_interval(first: _Key, second: _Key, seed: int, repetitions: int) -> Interval:
    one, other = _of(first), _of(second)
    left, right = np.random.SeedSequence(seed).spawn(2)
    blocks = zip(
        _resamples(one, left, repetitions), _resamples(other, right, repetitions), strict=True
    )
    draws = (probability_of_improvement(a, b) for a, b in blocks)
    return _interval(probability_of_improvement(one, other), min(len(one), len(other)), draws)


def _key(values: Array) -> _Key:
    return values.tobytes(), values.shape


def _of(key: _Key) -> Array:
    return np.frombuffer(key[0]).reshape(key[1])


def _interval(estimate: Array, n: int, draws: Iterator[Array]) -> Interval:
    """Return an estimate with the interval that holds `CONFIDENCE` of the draws."""
    if n < FEWEST_SEEDS:
        return Interval(float(estimate), float("nan"), float("nan"), n)
    ends = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    low, high = np.quantile(np.concatenate([*draws]), ends)
    return Interval(float(estimate), float(low), float(high), n)


def _resamples(
    values: Array, seed: int | np.random.SeedSequence, repetitions: int, block: int = 500
) -> Iterator[Array]:
    """Yield resampled copies of (runs, tasks) in blocks of (<= block, runs, tasks)."""
    rng = np.random.default_rng(seed)
    for start in range(0, repetitions, block):
        number = min(block, repetitions - start)
        chosen = rng.integers(0, len(values), (number, *values.shape))
        yield np.take_along_axis(values[None], chosen, axis=1)


def _finite(scores: npt.ArrayLike, dimensions: int | None = None) -> Array:
    """Return the scores as floats, raising if there are none or some are not finite."""
    values = np.asarray(scores, dtype=np.float64)
    if dimensions is not None and values.ndim != dimensions:
        shape = {1: "(runs,)", 2: "(runs, tasks)"}[dimensions]
        raise ValueError(f"scores must have the shape {shape}, not {values.shape}")
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError("scores must be finite and there must be some")
    return values
