"""What a few seeds say: intervals, differences on the same seeds, and a correction for having looked often.

    mean over n seeds           x̄ ± t₀.₉₇₅(n−1) · s/√n
    … in per cent               σ(logit x̄ ± t · s/√n / (x̄(1 − x̄))), x̄ as a share: inside 0 … 100 whatever the seeds
    … on the log scale          exp of the interval of log x_i; as a median the least and the most of n, which hold the
                                true one with probability 1 − 2^(1−n)
    difference on the same n    d_i = x_i − y_i (log x_i − log y_i), the mean's formula; p = P(|t| ≥ |d̄|√n/s)
    Holm over m p-values        p̃_(i) = max_{j≤i} min(1, (m−j+1)·p_(j)), p_(1) ≤ p_(2) ≤ …
    equivalence within δ        two one-sided tests: p = max(P(t ≥ (d̄+δ)√n/s), P(t ≤ (d̄−δ)√n/s))
    pooled                      d_i = the mean over pairs (x, y) of x_i − y_i, then as a difference
    interaction (2 × 2)         d_i = (both_i − first_i) − (second_i − neither_i), then as a difference
    compute multiplier          m(s) = T_baseline(ℓ) / T_ours(ℓ), ℓ = max(L_ours(s), L_baseline(s)), T = steps to ℓ
    k looks                     every look has the level 1 − 0.05/k (Bonferroni), whatever was seen before

There are four verdicts: "better" or "worse" where p is at most 1 − level; else "equivalent" where the two one-sided
tests are; else "inconclusive". One seed has no interval; nor have seeds that all gave the same number, as their spread
is unknown rather than nothing.

Paper: its tables are of one seed; this is what they lack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, stdev
from statistics import median as middle
from typing import Any, Literal

from joformer.experiments.metrics import Scale

LEVEL = 0.95
ROUNDING = 1e-12
"""A spread below this part of the numbers is that of their last bits."""

Verdict = Literal["better", "worse", "equivalent", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = ("better", "worse", "equivalent", "inconclusive")
Results = Mapping[int, float]
"""The result of each seed."""


@dataclass(frozen=True)
class Estimate:
    """The centre (mean or median) of n seeds, and where the truth lies with probability `coverage`.

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

    `p` is that of "there is none", `same` that of "it is `delta` or more"; None where the seeds cannot say.

    >>> Difference(0.1, None, None, None, 1, 0.0, True, why="one seed has no interval").verdict
    'inconclusive'
    """

    centre: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    null: float
    higher: bool
    same: float | None = None
    level: float = LEVEL
    why: str = ""
    alone: tuple[int, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict of this comparison alone."""
        return self.judged(self.p, self.same)

    def judged(self, p: float | None, same: float | None) -> Verdict:
        """The verdict that these p-values give, corrected for other comparisons or not."""
        alpha = 1 - self.level + 1e-12
        if p is not None and p <= alpha and self.low is not None:
            return "better" if (self.centre > self.null) == self.higher else "worse"
        return "equivalent" if same is not None and same <= alpha else "inconclusive"


def estimate(values: Sequence[float], *, scale: Scale = "linear", median: bool = False) -> Estimate:
    """The centre of the seeds and its 95 % interval, by the formulas of the module's head.

    Args:
        values: The result of each seed.
        scale: "linear", "percent" (0 … 100) or "log".
        median: The median with the least and the most instead of a mean.

    Returns:
        The estimate; without bounds where there is one seed, or all are the same.

    Raises:
        ValueError: If a value is not finite, or outside of its scale.

    Example:
        >>> found = estimate([1.0, 2.0, 3.0])
        >>> [round(x, 3) for x in (found.centre, found.low, found.high)]
        [2.0, -0.484, 4.484]
        >>> found = estimate([99.0, 99.5, 100.0], scale="percent")
        >>> round(found.centre, 1), found.high < 100
        (99.5, True)
        >>> estimate([3.0, 4.0, 50.0], median=True)
        Estimate(centre=4.0, low=3.0, high=50.0, n=3, coverage=0.75)
    """
    numbers = _checked(values, positive=scale == "log")
    n = len(numbers)
    if median:
        some = n > 1 and min(numbers) < max(numbers)
        low, high = (min(numbers), max(numbers)) if some else (None, None)
        return Estimate(middle(numbers), low, high, n, 1 - 2.0 ** (1 - n))
    if scale == "log":
        centre, half = _interval([math.log(x) for x in numbers], 1.0)
        if half is None:
            return Estimate(math.exp(centre), None, None, n, LEVEL)
        return Estimate(math.exp(centre), math.exp(centre - half), math.exp(centre + half), n, LEVEL)
    centre, half = _interval(numbers, max(map(abs, numbers)))
    if half is None:
        return Estimate(centre, None, None, n, LEVEL)
    share = centre / 100
    if scale == "percent" and 0 < share < 1:
        logit, reach = math.log(share / (1 - share)), half / 100 / (share * (1 - share))
        below, above = (50 * (1 + math.tanh((logit + side) / 2)) for side in (-reach, reach))
        return Estimate(centre, below, above, n, LEVEL)
    return Estimate(centre, centre - half, centre + half, n, LEVEL)


def paired(ours: Results, baseline: Results, **options: Any) -> Difference:
    """Ours minus (with `log`: over) the baseline, seed by seed.

    Args:
        ours: The result of each seed.
        baseline: The result of each seed of what it is compared with.
        options: As for `contrast`.

    Returns:
        The difference over the seeds that both have.

    Raises:
        ValueError: If there is no seed in common, or `delta` allows no difference.

    Example:
        >>> found = paired({0: 1.2, 1: 1.3, 2: 1.25, 7: 9.0}, {0: 1.0, 1: 1.1, 2: 1.06}, higher=False)
        >>> round(found.centre, 3), found.verdict, found.n, found.alone
        (0.197, 'worse', 3, (7,))
        >>> paired({0: 1.00, 1: 1.01, 2: 0.99}, {0: 1.01, 1: 1.00, 2: 0.99}, higher=True, delta=0.1).verdict
        'equivalent'
    """
    return contrast([(ours, 1.0), (baseline, -1.0)], **options)


def pooled(pairs: Sequence[tuple[Results, Results]], **options: Any) -> Difference:
    """The mean over several pairs of ours minus the baseline, within each seed, then judged over seeds.

    Args:
        pairs: (ours, baseline) of each pair.
        options: As for `contrast`.

    Returns:
        The difference over the seeds that all have.

    Example:
        >>> one, other = ({0: 1.0, 1: 1.1}, {0: 1.2, 1: 1.3}), ({0: 2.0, 1: 2.2}, {0: 2.4, 1: 2.5})
        >>> round(pooled([one, other], higher=False).centre, 3)
        -0.275
    """
    share = 1 / len(pairs)
    return contrast([part for ours, theirs in pairs for part in ((ours, share), (theirs, -share))], **options)


def interaction(neither: Results, first: Results, second: Results, both: Results, **options: Any) -> Difference:
    """Whether two changes together give more than the sum of each: (both − first) − (second − neither), by seed.

    "better" says that they help each other (a synergy), "worse" that they get into each other's way.

    Args:
        neither: Result of each seed without either change.
        first: With the first change alone.
        second: With the second change alone.
        both: With both.
        options: As for `contrast`; with `log` the result is a ratio of ratios.

    Returns:
        The difference of differences over the seeds that all four have.

    Example:
        >>> additive = interaction({0: 1, 1: 2}, {0: 2, 1: 3}, {0: 3, 1: 5}, {0: 4.1, 1: 6}, higher=True)
        >>> round(additive.centre, 3), additive.verdict
        (0.05, 'inconclusive')
    """
    return contrast([(both, 1.0), (first, -1.0), (second, -1.0), (neither, 1.0)], **options)


def contrast(
    parts: Sequence[tuple[Results, float]],
    *,
    higher: bool,
    log: bool = False,
    delta: float | None = None,
    level: float = LEVEL,
) -> Difference:
    """The weighted sum of results within each seed, judged over seeds against 0 (with `log` against a factor of 1).

    Args:
        parts: The results of a model by seed, and their weight; weights add up to 0.
        higher: Whether more is better.
        log: Add logarithms; the result is a ratio.
        delta: The largest difference (or factor, above 1) that counts as none: gives `same`.
        level: The level of the interval and of the verdict.

    Returns:
        The difference over the seeds that all parts have.

    Raises:
        ValueError: If there is no seed in common, or `delta` allows no difference.

    Example:
        >>> contrast([({0: 3.0, 1: 3.1}, 1.0), ({0: 1.0, 1: 1.2}, -1.0)], higher=True).n
        2
    """
    if delta is not None and not delta > (1 if log else 0):
        raise ValueError(f"delta must be above {1 if log else 0} to allow a difference, got {delta}")
    seeds, alone = _common([results for results, _ in parts])
    into = math.log if log else float
    cells = [[into(x) for x in _checked([results[seed] for seed in seeds], log)] for results, _ in parts]
    sums = [math.fsum(weight * x for (_, weight), x in zip(parts, of, strict=True)) for of in zip(*cells, strict=True)]
    # A logarithm is rounded like the number 1, not like itself.
    scale = max(abs(x) for cell in [*cells, [float(log)]] for x in cell)
    return _judged(sums, scale, 0.0, higher, log, alone, delta, level)


def against(
    values: Sequence[float], reference: int | float, *, higher: bool, log: bool = False, delta: float | None = None
) -> Difference:
    """The mean (with `log` the geometric one) of values, judged against a fixed reference instead of a baseline.

    >>> found = against([1.04, 1.05, 1.03], 1.0, higher=False)
    >>> round(found.centre, 3), found.null, found.verdict
    (1.04, 1.0, 'worse')
    """
    into = math.log if log else float
    numbers, null = [into(x) for x in _checked(values, log)], into(reference)
    return _judged(numbers, max(map(abs, [*numbers, null, float(log)])), null, higher, log, (), delta)


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
    seeds, alone = _common((ours, baseline))
    shared = set.intersection(*(set(dict(curves[seed])) for seed in seeds for curves in (ours, baseline)))
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


def _common(cells: Sequence[Mapping[int, Any]]) -> tuple[list[int], tuple[int, ...]]:
    """The seeds that all cells have, and those that only some have."""
    seeds = set.intersection(*(set(cell) for cell in cells))
    if not seeds:
        raise ValueError(
            f"{' and '.join(f'seeds {sorted(cell)}' for cell in cells)} have none in common: run the same ones"
        )
    return sorted(seeds), tuple(sorted(set().union(*cells) - seeds))


def _interval(numbers: list[float], scale: float, level: float = LEVEL) -> tuple[float, float | None]:
    """The mean and half its interval's width, None where one or equal numbers give none; scale is that of rounding."""
    centre, n = fmean(numbers), len(numbers)
    if n == 1 or (spread := stdev(numbers)) <= ROUNDING * scale:
        return centre, None
    return centre, _quantile(n - 1, level) * spread / math.sqrt(n)


def _judged(
    numbers: list[float],
    scale: float,
    null: float,
    higher: bool,
    log: bool,
    alone: tuple[int, ...],
    delta: float | None = None,
    level: float = LEVEL,
) -> Difference:
    n, (centre, half) = len(numbers), _interval(numbers, scale, level)
    out = math.exp if log else float
    if half is None:
        none = abs(centre - null) <= ROUNDING * scale
        why = "one seed has no interval" if n == 1 else f"{'no' if none else 'the same'} difference on all {n} seeds"
        # Where there is nothing to see, nothing was found: that is a comparison made, and it counts for Holm.
        p = 1.0 if none and n > 1 else None
        return Difference(out(centre), None, None, p, n, out(null), higher, None, level, why, alone)
    error, same = half / _quantile(n - 1, level), None
    if delta is not None:
        margin, away = math.log(delta) if log else delta, centre - null
        same = max(_tail((margin + away) / error, n - 1), _tail((margin - away) / error, n - 1))
    p = 2 * _tail(abs(centre - null) / error, n - 1)
    return Difference(
        out(centre), out(centre - half), out(centre + half), p, n, out(null), higher, same, level, "", alone
    )


@lru_cache
def _quantile(freedom: int, level: float) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, freedom))


def _tail(statistic: float, freedom: int) -> float:
    from scipy.stats import t

    return float(t.sf(statistic, freedom))
