"""What a few seeds say: intervals, differences on the same seeds, and a correction for having looked often.

    mean over n seeds           x̄ ± t₀.₉₇₅(n−1) · s/√n
    difference on the same n    d_i = x_i − y_i, the same formula; p = P(|t| ≥ |d̄|√n/s)
    skewed (perplexity)         the median lies between the least and the most of n with probability 1 − 2^(1−n);
                                differences are ratios, exp of the interval of log x_i − log y_i
    Holm over m p-values        p̃_(i) = max_{j≤i} min(1, (m−j+1)·p_(j)), p_(1) ≤ p_(2) ≤ …
    equivalence within δ        two one-sided tests: p = max(P(t ≥ (d̄+δ)√n/s), P(t ≤ (d̄−δ)√n/s))
    interaction (2 × 2)         d_i = (both_i − first_i) − (second_i − neither_i), then as a difference
    compute multiplier          m(s) = T_baseline(ℓ) / T_ours(ℓ), ℓ = max(L_ours(s), L_baseline(s)), T = steps to ℓ

A verdict is "better" or "worse" where the interval leaves out what no difference would be, and "undecided" otherwise.
One seed has no interval; nor have seeds that all gave the same number, as their spread is unknown rather than nothing.

Paper: its tables are of one seed; this is what they lack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median, stdev
from typing import Literal

LEVEL = 0.95
ROUNDING = 1e-12
"""A spread below this part of the numbers is that of their last bits."""

Verdict = Literal["better", "worse", "undecided"]


@dataclass(frozen=True)
class Estimate:
    """The centre (mean, or median if skewed) of n seeds, and where the truth lies with probability `coverage`.

    >>> Estimate(2.0, 1.0, 3.0, 5, 0.95).n
    5
    """

    centre: float
    low: float | None
    high: float | None
    n: int
    coverage: float


@dataclass(frozen=True)
class Difference:
    """A difference (or ratio) over n seeds; without any it would be `null`. `alone` are seeds only one side has.

    >>> Difference(0.1, None, None, None, 1, 0.0, "undecided", "one seed has no interval").verdict
    'undecided'
    """

    centre: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    null: float
    verdict: Verdict
    why: str = ""
    alone: tuple[int, ...] = ()


def estimate(values: Sequence[float], *, skewed: bool = False) -> Estimate:
    """Mean and its 95 % Student-t interval; if skewed the median, with the least and the most.

    >>> found = estimate([1.0, 2.0, 3.0])
    >>> [round(x, 3) for x in (found.centre, found.low, found.high)]
    [2.0, -0.484, 4.484]
    >>> estimate([3.0, 4.0, 50.0], skewed=True)
    Estimate(centre=4.0, low=3.0, high=50.0, n=3, coverage=0.75)
    """
    numbers = _checked(values)
    n = len(numbers)
    if skewed:
        some = n > 1 and min(numbers) < max(numbers)
        low, high = (min(numbers), max(numbers)) if some else (None, None)
        return Estimate(median(numbers), low, high, n, 1 - 2.0 ** (1 - n))
    centre, half = _interval(numbers, max(map(abs, numbers)))
    low, high = (None, None) if half is None else (centre - half, centre + half)
    return Estimate(centre, low, high, n, LEVEL)


def paired(
    ours: Mapping[int, float], baseline: Mapping[int, float], *, higher: bool, skewed: bool = False
) -> Difference:
    """Ours minus (if skewed: over) the baseline, seed by seed; `higher` says whether more is better.

    >>> found = paired({0: 1.2, 1: 1.3, 2: 1.25, 7: 9.0}, {0: 1.0, 1: 1.1, 2: 1.06}, higher=False)
    >>> round(found.centre, 3), found.verdict, found.n, found.alone
    (0.197, 'worse', 3, (7,))
    """
    seeds = sorted(ours.keys() & baseline.keys())
    if not seeds:
        raise ValueError(f"seeds {sorted(ours)} and {sorted(baseline)} have none in common: run the same for both")
    left, right = _checked([ours[s] for s in seeds], skewed), _checked([baseline[s] for s in seeds], skewed)
    if skewed:
        left, right = [math.log(x) for x in left], [math.log(y) for y in right]
    scale = max(map(abs, [*left, *right, float(skewed)]))  # a logarithm is rounded like the number 1, not like itself
    alone = tuple(sorted(ours.keys() ^ baseline.keys()))
    return _judged([x - y for x, y in zip(left, right, strict=True)], scale, 0.0, higher, skewed, alone)


def against(values: Sequence[float], reference: int | float, *, higher: bool, skewed: bool = False) -> Difference:
    """The mean (if skewed the geometric one) of values, judged against a fixed reference instead of a baseline.

    >>> found = against([1.04, 1.05, 1.03], 1.0, higher=False)
    >>> round(found.centre, 3), found.null, found.verdict
    (1.04, 1.0, 'worse')
    """
    numbers = _checked(values, skewed)
    if skewed:
        numbers, reference = [math.log(x) for x in numbers], math.log(reference)
    return _judged(numbers, max(map(abs, [*numbers, reference, float(skewed)])), float(reference), higher, skewed, ())


def equivalence(
    ours: Mapping[int, float], baseline: Mapping[int, float], delta: float, *, skewed: bool = False
) -> float | None:
    """The p-value of "they differ by `delta` or more": at most 0.05 says they are the same within it.

    Two one-sided tests (TOST) on the seeds both have.

    Args:
        ours: Result of each seed.
        baseline: Result of each seed of what it is compared with.
        delta: The largest difference that counts as none; where skewed the largest factor, above 1.
        skewed: Compare logarithms.

    Returns:
        The larger p-value of the two tests, None where the seeds have no spread or there are fewer than two.

    Raises:
        ValueError: If `delta` allows no difference at all, or there is no seed in common.

    Example:
        >>> same = equivalence({0: 1.00, 1: 1.01, 2: 0.99}, {0: 1.01, 1: 1.00, 2: 0.99}, delta=0.1)
        >>> far = equivalence({0: 1.00, 1: 1.01, 2: 0.99}, {0: 1.11, 1: 1.10, 2: 1.09}, delta=0.1)
        >>> same < 0.05 < far
        True
    """
    if not delta > (1 if skewed else 0):
        raise ValueError(f"delta must be above {1 if skewed else 0} to allow a difference, got {delta}")
    found = paired(ours, baseline, higher=True, skewed=skewed)
    if found.low is None or found.high is None:
        return None
    into = math.log if skewed else float
    centre, half, margin = into(found.centre), (into(found.high) - into(found.low)) / 2, into(delta)
    error = half / _quantile(found.n - 1)
    return max(_tail((margin + centre) / error, found.n - 1), _tail((margin - centre) / error, found.n - 1))


def interaction(
    neither: Mapping[int, float],
    first: Mapping[int, float],
    second: Mapping[int, float],
    both: Mapping[int, float],
    *,
    higher: bool,
    skewed: bool = False,
) -> Difference:
    """Whether two changes together give more than the sum of each: (both − first) − (second − neither), by seed.

    "better" says that they help each other (a synergy), "worse" that they get into each other's way.

    Args:
        neither: Result of each seed without either change.
        first: With the first change alone.
        second: With the second change alone.
        both: With both.
        higher: Whether more is better.
        skewed: Compare logarithms; the result is then a ratio of ratios.

    Returns:
        The difference of differences over the seeds that all four have.

    Example:
        >>> additive = interaction({0: 1, 1: 2}, {0: 2, 1: 3}, {0: 3, 1: 5}, {0: 4.1, 1: 6}, higher=True)
        >>> round(additive.centre, 3), additive.verdict
        (0.05, 'undecided')
    """
    cells = (neither, first, second, both)
    seeds = sorted(set.intersection(*(set(cell) for cell in cells)))
    if not seeds:
        raise ValueError("the four cells have no seed in common: run the same seeds for all")
    a, b, c, d = (_checked([cell[seed] for seed in seeds], skewed) for cell in cells)
    if skewed:
        a, b, c, d = ([math.log(x) for x in cell] for cell in (a, b, c, d))
    differences = [(w - x) - (y - z) for w, x, y, z in zip(d, b, c, a, strict=True)]
    alone = tuple(sorted(set().union(*cells) - set(seeds)))
    scale = max(map(abs, [*a, *b, *c, *d, float(skewed)]))
    return _judged(differences, scale, 0.0, higher, skewed, alone)


Curve = Sequence[tuple[int, float]]
"""Held-out loss along a run: (step, loss), steps rising."""


def multiplier(ours: Mapping[int, Curve], baseline: Mapping[int, Curve]) -> list[tuple[int, Difference]]:
    """How many times the steps the baseline needs, along the run: m(s) = T_baseline(ℓ) / T_ours(ℓ).

    ℓ is the loss that the slower of the two has at step s, and T the first step at which a run reached it (linear
    between evaluations). So 1.3 says that the baseline needs 1.3 × the steps. It is defined at every s after the first
    evaluations, whichever is ahead. A curve that falls to 1 is a head start, one that stays is a saving.

    Args:
        ours: The curve of each seed.
        baseline: The curves of the baseline, paired by seed.

    Returns:
        (s, m(s) with its interval on the log scale) for every step at which all seeds were evaluated on both sides and
        reached ℓ after their first evaluation.

    Example:
        >>> slow = {seed: [(s, 10 / s) for s in range(10, 101, 10)] for seed in (0, 1)}
        >>> fast = {seed: [(s, 5 / s) for s in range(10, 101, 10)] for seed in (0, 1)}
        >>> step, found = multiplier(fast, slow)[-1]
        >>> step, round(found.centre, 2)
        (100, 2.0)
    """
    seeds = sorted(ours.keys() & baseline.keys())
    if not seeds:
        raise ValueError(f"seeds {sorted(ours)} and {sorted(baseline)} have none in common: run the same for both")
    shared = set.intersection(*(set(dict(curves[seed])) for seed in seeds for curves in (ours, baseline)))
    alone = tuple(sorted(ours.keys() ^ baseline.keys()))
    found = []
    for step in sorted(shared):
        logs = []
        for seed in seeds:
            level = max(_best(ours[seed], step), _best(baseline[seed], step))
            mine, theirs = _reached(ours[seed], level), _reached(baseline[seed], level)
            if mine is None or theirs is None:
                break
            logs.append(math.log(theirs) - math.log(mine))
        else:
            found.append((step, _judged(logs, 1.0, 0.0, True, True, alone)))
    return found


def _best(curve: Curve, step: int) -> float:
    """The lowest loss up to this step: an evaluation that is worse than one before it does not undo that one."""
    return min(loss for at, loss in curve if at <= step)


def _reached(curve: Curve, level: float) -> float | None:
    """The first step at which the loss was at most `level`; None if that was before the first evaluation."""
    before: tuple[int, float] | None = None
    for step, loss in curve:
        if loss <= level:
            if before is None:
                return float(step) if loss == level else None
            return before[0] + (step - before[0]) * (before[1] - level) / (before[1] - loss)
        before = (step, loss)
    return None


def holm(p: Sequence[float]) -> list[float]:
    """Each p-value as it counts among all of them, in the given order; at most 0.05 is still decided.

    >>> [round(x, 9) for x in holm([0.04, 0.01, 0.03])]
    [0.06, 0.03, 0.06]
    """
    if any(not 0 <= x <= 1 for x in p):
        raise ValueError(f"p-values lie between 0 and 1, got {list(p)}: give those of the comparisons")
    corrected, worst = [0.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        worst = max(worst, min(1.0, (len(p) - rank) * p[index]))
        corrected[index] = worst
    return corrected


def _checked(values: Sequence[float], positive: bool = False) -> list[float]:
    numbers = [float(value) for value in values]
    if not numbers or any(not math.isfinite(x) or (positive and x <= 0) for x in numbers):
        kind = "positive numbers" if positive else "finite numbers"
        raise ValueError(f"cannot average {numbers}: give one or more {kind}")
    return numbers


def _interval(numbers: list[float], scale: float) -> tuple[float, float | None]:
    """The mean and half its interval's width, None where one or equal numbers give none; scale is that of rounding."""
    centre, n = fmean(numbers), len(numbers)
    if n == 1 or (spread := stdev(numbers)) <= ROUNDING * scale:
        return centre, None
    return centre, _quantile(n - 1) * spread / math.sqrt(n)


def _judged(
    numbers: list[float], scale: float, null: float, higher: bool, skewed: bool, alone: tuple[int, ...]
) -> Difference:
    n, (centre, half) = len(numbers), _interval(numbers, scale)
    out = math.exp if skewed else float
    if half is None:
        same = abs(centre - null) <= ROUNDING * scale
        why = "one seed has no interval" if n == 1 else f"{'no' if same else 'the same'} difference on all {n} seeds"
        # Where there is nothing to see, nothing was found: that is a comparison made, and it counts for Holm.
        return Difference(
            out(centre), None, None, 1.0 if same and n > 1 else None, n, out(null), "undecided", why, alone
        )
    verdict: Verdict = "undecided"
    if abs(centre - null) > half:
        verdict = "better" if (centre > null) == higher else "worse"
    t = (centre - null) / (half / _quantile(n - 1))
    return Difference(
        out(centre), out(centre - half), out(centre + half), _tails(t, n - 1), n, out(null), verdict, "", alone
    )


@lru_cache
def _quantile(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def _tail(statistic: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.sf(statistic, freedom))


def _tails(statistic: float, freedom: int) -> float:
    return 2 * _tail(abs(statistic), freedom)
