"""Intervals and verdicts against scipy, against numbers worked out by hand, and against chance itself."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from joformer.experiments.statistics import against, estimate, holm, interaction, multiplier, paired, pooled

value = st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: round(x, 6))
samples = st.lists(value, min_size=2, max_size=9)
positive = st.floats(0.01, 1e4)


def spread(values):
    return np.std(values, ddof=1) > 1e-6 * max(1.0, np.abs(values).max())


@settings(max_examples=40)
@given(samples)
def test_the_mean_has_student_s_interval(values):
    found = estimate(values)
    assert found.centre == pytest.approx(np.mean(values), abs=1e-9)
    if spread(values):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)
        assert (found.n, found.coverage) == (len(values), 0.95)


@settings(max_examples=40)
@given(st.lists(st.tuples(value, value), min_size=2, max_size=9), st.booleans())
def test_differences_are_the_paired_t_test(pairs, higher):
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs))
    differences = [x - y for x, y in pairs]
    found = paired(ours, theirs, higher=higher)
    assert found.centre == pytest.approx(np.mean(differences), abs=1e-9)
    if not spread(differences):
        return
    test = stats.ttest_rel([x for x, _ in pairs], [y for _, y in pairs])
    interval = test.confidence_interval(0.95)
    assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-9)
    # The verdict follows from scipy's own test and the sign, by another way than the code's.
    expected = "inconclusive" if test.pvalue >= 0.05 else "better" if (test.statistic > 0) == higher else "worse"
    if abs(test.pvalue - 0.05) > 1e-6:
        assert found.verdict == expected


@settings(max_examples=40)
@given(st.lists(st.tuples(positive, positive), min_size=2, max_size=9), st.booleans())
def test_skewed_differences_are_ratios(pairs, higher):
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs))
    logs = np.log([x for x, _ in pairs]) - np.log([y for _, y in pairs])
    found = paired(ours, theirs, higher=higher, log=True)
    assert found.centre == pytest.approx(stats.gmean([x / y for x, y in pairs]), rel=1e-9)
    assert found.null == 1
    if np.std(logs, ddof=1) > 1e-6:
        test = stats.ttest_1samp(logs, 0)
        assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
        assert (found.low, found.high) == pytest.approx(np.exp(test.confidence_interval(0.95)), rel=1e-6)


@settings(max_examples=40)
@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=9), st.booleans())
def test_against_a_reference_is_the_one_sample_test(values, log):
    found = against(values, 1.0, higher=False, log=log)
    moved = np.log(values) if log else np.array(values)
    if np.std(moved, ddof=1) > 1e-6:
        test = stats.ttest_1samp(moved, 0.0 if log else 1.0)
        low, high = test.confidence_interval(0.95)
        assert found.p == pytest.approx(test.pvalue, rel=1e-6, abs=1e-12)
        assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)) if log else (low, high), rel=1e-6)


@settings(max_examples=40)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_against_its_definition(ps):
    """Step down: the smallest at α/m, the next at α/(m−1), until one fails; everything after fails too."""
    alpha, going, kept = 0.05, True, set()
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        going = going and ps[index] <= alpha / (len(ps) - rank)
        if going:
            kept.add(index)
    corrected = holm(ps)
    assert {i for i, p in enumerate(corrected) if p <= alpha + 1e-15} == kept
    assert all(p <= c <= 1 for p, c in zip(ps, corrected))


def test_by_hand():
    # d = 1, 2, 3: mean 2, s = 1, 2 ± 4.302653 / √3; t = 2√3 = 3.4641, p of two degrees of freedom = 0.074180
    found = paired({0: 2.0, 1: 4.0, 2: 6.0}, {0: 1.0, 1: 2.0, 2: 3.0}, higher=True)
    assert (found.centre, found.low, found.high) == pytest.approx((2, -0.484138, 4.484138), abs=1e-6)
    assert found.p == pytest.approx(0.0741799, abs=1e-6)
    assert found.verdict == "inconclusive"


@pytest.mark.parametrize(("higher", "verdict"), [(True, "better"), (False, "worse")])
def test_the_direction(higher, verdict):
    """Ours above the baseline by 0.9 to 1.1: a flipped sign or a swapped side would be seen here."""
    ours, theirs = {s: 10.0 + s + 1 + 0.1 * (-1) ** s for s in range(4)}, {s: 10.0 + s for s in range(4)}
    found = paired(ours, theirs, higher=higher)
    assert found.centre == pytest.approx(1)
    assert found.low > 0
    assert found.verdict == verdict
    back = paired(theirs, ours, higher=higher)
    assert (back.centre, back.low, back.high) == pytest.approx((-found.centre, -found.high, -found.low))
    assert {found.verdict, back.verdict} == {"better", "worse"}
    ratio = paired(ours, theirs, higher=higher, log=True)
    assert ratio.low > 1
    assert ratio.verdict == verdict
    assert against([1.1, 1.11, 1.12], 1.0, higher=higher).verdict == verdict


def test_seeds_are_matched_by_number_not_by_place():
    ours, theirs = {3: 13.0, 1: 11.1, 2: 12.0, 9: 0.0}, {1: 10.0, 2: 11.0, 3: 12.1, 4: 0.0}
    found = paired(ours, theirs, higher=True)
    assert found.centre == pytest.approx(1.0)
    assert (found.n, found.alone) == (3, (4, 9))


def test_pairing_sees_what_seeds_have_in_common():
    luck = np.random.default_rng(0).normal(0, 5, 6)
    ours = {s: float(x) - 0.1 + 0.01 * s for s, x in enumerate(luck)}
    theirs = {s: float(x) for s, x in enumerate(luck)}
    assert stats.ttest_ind(list(ours.values()), list(theirs.values())).pvalue > 0.5
    assert paired(ours, theirs, higher=False).verdict == "better"


def test_one_seed_has_no_interval():
    found = paired({0: 1.0}, {0: 2.0}, higher=False)
    assert (found.low, found.high, found.p, found.verdict) == (None, None, None, "inconclusive")
    assert found.why == "one seed has no interval"
    assert (estimate([1.0]).low, estimate([1.0], median=True).high) == (None, None)


@pytest.mark.parametrize("log", [False, True])
def test_no_spread_is_no_knowledge(log):
    """Seeds that agree to the bit, or to its rounding, decide nothing: two would otherwise have p = 0."""
    same = paired(dict.fromkeys(range(5), 0.3), dict.fromkeys(range(5), 0.3), higher=True, log=log)
    assert (same.verdict, same.p, same.low) == ("inconclusive", 1.0, None)
    assert same.why == "no difference on all 5 seeds"
    moved = paired({0: 0.1 + 0.2, 1: 0.3}, {0: 0.15, 1: 0.15}, higher=True, log=log)
    assert 0.1 + 0.2 != 0.3
    assert (moved.verdict, moved.p, moved.low) == ("inconclusive", None, None)
    assert moved.why == "the same difference on all 2 seeds"
    assert estimate([100.0, 100.0, 100.0], scale="log" if log else "percent").low is None


@pytest.mark.parametrize("n", [2, 3, 5])
def test_intervals_cover_as_often_as_they_say(n):
    draw = np.random.default_rng(n)
    times, centre = 2000, 1.7
    hits = medians = differences = 0
    for row in draw.normal(size=(times, 3, n)):
        mean = estimate([float(x) for x in centre + row[0]])
        hits += mean.low <= centre <= mean.high
        skewed = estimate([math.exp(x) for x in centre + row[0]], median=True)
        medians += skewed.low <= math.exp(centre) <= skewed.high
        ours = {s: float(row[2][s] + row[1][s] + 0.4) for s in range(n)}
        found = paired(ours, {s: float(row[2][s]) for s in range(n)}, higher=True)
        differences += found.low <= 0.4 <= found.high
    slack = 4 * math.sqrt(0.25 / times)
    assert hits / times == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / times))
    assert differences / times == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / times))
    assert medians / times == pytest.approx(1 - 2 ** (1 - n), abs=slack)
    assert skewed.coverage == 1 - 2 ** (1 - n)


def test_holm_keeps_false_alarms_rare():
    """Ten variants that all are the baseline: without correction a third of the tables would find something."""
    draw, times, alone, corrected = np.random.default_rng(1), 300, 0, 0
    for _ in range(times):
        base = draw.normal(size=5)
        found = [
            paired(
                dict(enumerate(map(float, base + draw.normal(size=5)))), dict(enumerate(map(float, base))), higher=True
            )
            for _ in range(10)
        ]
        alone += any(one.verdict != "inconclusive" for one in found)
        corrected += any(p <= 0.05 for p in holm([one.p for one in found]))
    assert alone / times > 0.3
    assert corrected / times < 0.09


@pytest.mark.refused
@pytest.mark.parametrize(
    "wrong",
    [
        lambda: estimate([]),
        lambda: estimate([1.0, math.nan]),
        lambda: paired({0: 1.0}, {1: 1.0}, higher=True),
        lambda: paired({0: 0.0}, {0: 1.0}, higher=True, log=True),
        lambda: against([-1.0], 1.0, higher=True, log=True),
        lambda: holm([0.5, 1.5]),
    ],
)
def test_refused_in_one_line(wrong):
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        wrong()


@settings(max_examples=40)
@given(st.lists(st.tuples(value, value), min_size=2, max_size=9), st.floats(0.01, 100.0))
def test_equivalence_is_two_one_sided_paired_tests(pairs, delta):
    ours, theirs = (dict(enumerate(side)) for side in zip(*pairs))
    differences = np.array([x - y for x, y in pairs])
    found = paired(ours, theirs, higher=True, delta=delta)
    if not spread(differences):
        return
    above = stats.ttest_1samp(differences, -delta, alternative="greater").pvalue
    below = stats.ttest_1samp(differences, delta, alternative="less").pvalue
    assert found.same == pytest.approx(max(above, below), rel=1e-6, abs=1e-12)
    if found.p > 0.05 and abs(found.same - 0.05) > 1e-6:
        assert found.verdict == ("equivalent" if max(above, below) < 0.05 else "inconclusive")


def test_equivalence_of_ratios_works_on_logarithms():
    ours, theirs = {0: 10.0, 1: 20.0, 2: 31.0}, {0: 10.5, 1: 20.2, 2: 30.0}
    logs = [{seed: math.log(x) for seed, x in side.items()} for side in (ours, theirs)]
    ratio = paired(ours, theirs, higher=True, log=True, delta=1.2)
    assert ratio.same == pytest.approx(paired(*logs, higher=True, delta=math.log(1.2)).same)


def test_equivalence_needs_spread_and_a_margin():
    assert paired({0: 1.0}, {0: 1.0}, higher=True, delta=0.1).same is None
    assert paired({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, higher=True, delta=0.1).same is None
    with pytest.raises(ValueError, match="delta must be above 0"):
        paired({0: 1.0}, {0: 1.0}, higher=True, delta=0.0)
    with pytest.raises(ValueError, match="delta must be above 1"):
        paired({0: 1.0}, {0: 1.0}, higher=True, delta=0.9, log=True)


@settings(max_examples=40)
@given(st.lists(st.tuples(value, value, value, value), min_size=2, max_size=9), st.booleans())
def test_interaction_is_the_paired_test_of_the_difference_of_differences(cells, higher):
    neither, first, second, both = (dict(enumerate(side)) for side in zip(*cells))
    found = interaction(neither, first, second, both, higher=higher)
    expected = [d - b - c + a for a, b, c, d in cells]
    assert found.centre == pytest.approx(np.mean(expected), abs=1e-9)
    if spread(expected):
        assert found.p == pytest.approx(stats.ttest_1samp(expected, 0.0).pvalue, rel=1e-5, abs=1e-12)
        swapped = interaction(neither, second, first, both, higher=higher)
        assert swapped.centre == pytest.approx(found.centre, abs=1e-9)  # neither change comes first


def test_interaction_needs_a_seed_that_all_four_have():
    with pytest.raises(ValueError, match="none in common"):
        interaction({0: 1.0}, {0: 1.0}, {1: 1.0}, {0: 1.0}, higher=True)
    cells = ({0: 1.0, 1: 1.0}, {0: 2.0, 1: 2.0}, {0: 3.0, 1: 3.0}, {0: 5.0, 1: 5.0, 2: 9.0})
    assert interaction(*cells, higher=True).alone == (2,)


@settings(max_examples=40)
@given(st.floats(0.3, 3.0), st.floats(0.2, 1.5), st.integers(2, 5))
def test_the_multiplier_of_a_power_law_is_the_same_all_along(factor, power, seeds):
    """L(s) = a s^-p against L(s) = a (s / f)^-p: the second needs f times the steps at every loss."""
    steps = range(100, 2001, 20)
    ours = {seed: [(s, (2 + seed) * s**-power) for s in steps] for seed in range(seeds)}
    theirs = {seed: [(s, (2 + seed) * (s / factor) ** -power) for s in steps] for seed in range(seeds)}
    found = multiplier(ours, theirs)
    assert found[-1][0] == 2000
    assert [m.centre for _, m in found] == pytest.approx([factor] * len(found), rel=0.01)
    back = multiplier(theirs, ours)
    assert [m.centre for _, m in back] == pytest.approx([1 / m.centre for _, m in found])


def test_a_head_start_falls_to_one_and_a_worse_run_below():
    steps = range(10, 1001, 10)
    theirs = {seed: [(s, 1 + 10 / s + seed) for s in steps] for seed in range(3)}
    ahead = {seed: [(s, 1 + 10 / (s + 50) + seed) for s in steps] for seed in range(3)}  # fifty steps ahead, always
    found = dict(multiplier(ahead, theirs))
    assert found[1000].centre == pytest.approx(1000 / 950, rel=1e-3)
    assert found[100].centre == pytest.approx(2.0, rel=0.02)
    assert dict(multiplier(theirs, ahead))[1000].centre == pytest.approx(0.95, rel=1e-3)


def test_the_multiplier_has_an_interval_over_seeds_and_is_decided_by_it():
    steps = range(10, 101, 10)
    theirs = {seed: [(s, 10 / s) for s in steps] for seed in range(3)}
    ours = {seed: [(s, 10 / s / factor) for s in steps] for seed, factor in enumerate((1.4, 1.5, 1.6))}
    last = multiplier(ours, theirs)[-1][1]
    logs = np.log([1.4, 1.5, 1.6])
    low, high = np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
    assert (last.low, last.high) == pytest.approx((low, high), rel=0.02)  # linear between evaluations
    assert (last.verdict, last.null) == ("better", 1.0)


def test_an_evaluation_worse_than_one_before_does_not_undo_it():
    ours = {0: [(10, 5.0), (20, 3.0), (30, 4.0), (40, 2.0)]}
    theirs = {0: [(10, 6.0), (20, 5.0), (30, 4.0), (40, 3.0)]}
    found = dict(multiplier(ours, theirs))
    assert found[40].centre == pytest.approx(40 / 20)
    assert found[30].centre == pytest.approx(30 / 15)  # 4.0 lies half-way between step 10 and 20


def test_the_multiplier_says_nothing_of_what_was_before_the_first_evaluation():
    ours, theirs = {0: [(10, 1.0), (20, 0.5)]}, {0: [(10, 3.0), (20, 2.0)]}
    assert multiplier(ours, theirs) == []
    with pytest.raises(ValueError, match="none in common"):
        multiplier(ours, {1: [(10, 1.0)]})


@settings(max_examples=60)
@given(st.lists(st.floats(0, 100).map(lambda x: round(x, 2)), min_size=2, max_size=6))
def test_the_interval_of_a_percentage_stays_inside(values):
    found = estimate(values, scale="percent")
    assert found.centre == pytest.approx(np.mean(values))
    if found.low is not None:
        assert 0 <= found.low <= found.centre <= found.high <= 100
        middling = 20 < np.mean(values) < 80 and stats.sem(values) < 0.3
        if middling:  # far from the ends the two scales agree
            low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
            assert (found.low, found.high) == pytest.approx((low, high), abs=0.2)


def test_the_interval_of_a_percentage_by_hand():
    # mean 0.98, s = 0.01: logit = 3.8918, reach = 4.302653 · 0.01/√3 / (0.98 · 0.02) = 1.26741
    found = estimate([97.0, 98.0, 99.0], scale="percent")
    assert (found.low, found.high) == pytest.approx((93.2414, 99.4286), abs=1e-3)


def test_ratios_are_averaged_as_logarithms():
    found = estimate([0.5, 2.0, 1.0], scale="log")
    logs = np.log([0.5, 2.0, 1.0])
    low, high = np.exp(stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs)))
    assert (found.centre, found.low, found.high) == pytest.approx((1.0, low, high))
    assert found.low > 0


def test_pooling_averages_within_a_seed_first():
    """Two pairs whose luck is opposite: seed by seed their mean is steady, though neither is."""
    one = ({0: 5.0, 1: 1.0, 2: 3.1}, {0: 4.0, 1: 2.0, 2: 3.0})
    other = ({0: 1.0, 1: 4.0, 2: 2.1, 9: 0.0}, {0: 1.6, 1: 2.7, 2: 2.0})
    found = pooled([one, other], higher=True)
    means = [(1.0 - 0.6) / 2, (-1.0 + 1.3) / 2, (0.1 + 0.1) / 2]
    assert found.p == pytest.approx(stats.ttest_1samp(means, 0).pvalue)
    assert found.centre == pytest.approx(np.mean(means))
    assert found.alone == (9,)


def test_a_level_for_several_looks():
    ours, theirs = {0: 1.00, 1: 1.02, 2: 1.01}, {0: 1.10, 1: 1.10, 2: 1.12}
    once, often = (paired(ours, theirs, higher=False, level=1 - 0.05 / looks) for looks in (1, 20))
    assert once.verdict == "better"
    assert often.verdict == "inconclusive"
    assert often.low < once.low < once.high < often.high
    assert often.p == pytest.approx(once.p)
