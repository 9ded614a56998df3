"""How the numbers and verdicts of a table are written, the same in every form of the report.

Numbers have as many digits as their interval deserves. A verdict is what stands after Holm's correction; "undecided" is
a result, and said as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from joformer.experiments.gathered import Gathered, Table
from joformer.experiments.report.analysis import Analysis, Comparison, label, seeds
from joformer.experiments.report.numbers import digits_for, duration, exact, number, probability
from joformer.experiments.statistics import LEVEL, Estimate


@dataclass(frozen=True)
class Wording:
    """How the numbers and verdicts of one table are written, the same way in every form of the report."""

    about: Analysis

    @property
    def table(self) -> Table:
        """The table that is described."""
        return self.about.table

    @property
    def digits(self) -> int | None:
        """After the point, for values: two significant ones of the usual interval's half; None where skewed."""
        if self.table.skewed:
            return None
        return digits_for([(o.low, o.high) for row in self.about.rows if (o := row.ours)])

    @property
    def difference_digits(self) -> int:
        """How many digits of a difference are shown."""
        bounds = [(c.difference.low, c.difference.high) for c in self.about.comparisons]
        found = digits_for(bounds)
        if found is None:  # one seed: a tenth of the differences themselves
            found = digits_for([(0.0, (c.difference.centre - c.difference.null) / 10) for c in self.about.comparisons])
        return 3 if found is None else max(found, 2 if self.ratio else 0)

    @property
    def ratio(self) -> bool:
        """Whether differences are ratios."""
        return self.table.skewed

    @property
    def measure(self) -> str:
        """What is measured, in which unit; the unit alone where it says both."""
        named = any(letter.isalpha() for letter in self.table.unit)
        return self.table.unit if named else f"{self.table.metric.replace('_', ' ')}, {self.table.unit}"

    @property
    def unit(self) -> str:
        """That of differences: between percentages they are points."""
        return "points" if self.table.unit.startswith("%") else self.table.unit

    @property
    def centre(self) -> str:
        """What stands for several seeds."""
        return "median" if self.table.skewed else "mean"

    @property
    def interval(self) -> str:
        """What stands in brackets."""
        if not self.table.skewed:
            return "95 % interval"
        most = max((row.ours.n for row in self.about.rows if row.ours), default=1)
        return f"least, most: holds the true median with {100 * (1 - 2.0 ** (1 - most)):.0f} % at {most} seeds"

    def value(self, found: Estimate | None) -> str:
        """An estimate with its interval."""
        if found is None:
            return "not yet" if self.table.missing else "not run"
        text = number(found.centre, self.digits)
        if found.low is None or found.high is None:
            return text if found.n == 1 else f"{text} (all {found.n} the same)"
        return f"{text} {self.bounds(found.low, found.high, self.digits)}"

    def bounds(self, low: float, high: float, digits: int | None) -> str:
        """An interval."""
        return f"[{number(low, digits)}, {number(high, digits)}]"

    def difference(self, one: Comparison) -> str:
        """Signed, as measured: ours minus (or over) the other's, with its interval."""
        d, digits = one.difference, self.difference_digits
        sign = "+" if not self.ratio and one.other is not None and d.centre > 0 else ""
        text = f"{sign}{number(d.centre, digits)}{' ×' if self.ratio else ''}"
        return text if d.low is None or d.high is None else f"{text} {self.bounds(d.low, d.high, digits)}"

    def verdict(self, one: Comparison) -> str:
        """A verdict, with the reason where there is one."""
        return f"{one.verdict}: {one.difference.why}" if one.difference.why else one.verdict

    def other(self, one: Comparison) -> str:
        """What a comparison is made with."""
        return one.other if one.other is not None else exact(self.table.reference)

    def sentence(self, one: Comparison) -> str:
        """The comparison in one sentence: verdict, size of the difference in its own direction, what it costs.

        The interval is in the direction of the word before it, so that "lower by 0.03 [0.01, 0.05]" reads as it is.
        """
        d, digits, unit, other = one.difference, self.difference_digits, self.unit, self.other(one)
        decided = one.decided
        word = "higher" if d.centre > d.null else "lower" if d.centre < d.null else "no different"
        if self.ratio or one.other is None:
            amount = f"{number(d.centre, digits)}{' ×' if self.ratio else ''}"
            bounds = "" if d.low is None or d.high is None else f" {self.bounds(d.low, d.high, digits)}"
            said = f"{self.table.metric.replace('_', ' ')} {amount}{bounds}"
            text = f"{d.verdict} than {other}: {said}" if decided else f"{said} against {other}"
        else:
            amount, (low, high) = number(abs(d.centre), digits), (d.low, d.high)
            if d.centre < 0 and low is not None and high is not None:
                low, high = -high, -low
            bounds = "" if low is None or high is None else f" {self.bounds(low, high, digits)}"
            text = (
                f"{d.verdict} than {other} by {amount} {unit}{bounds}"
                if decided
                else f"{amount} {unit} {word} than {other}{bounds}"
            )
        if not decided:
            text = f"undecided: {d.why}; {text}" if d.why else f"undecided: {text}"
        parts = [f"{label(one.model, one.size)}: {text}"]
        if d.p is not None:
            parts.append(f"p {'' if d.p < 0.0005 else '= '}{probability(d.p).replace('<', '< ')}")
        parts.append(f"{d.n} seed{'s' * (d.n != 1)}")
        told = ", ".join(parts)
        if d.verdict != "undecided" and one.family > 1:
            told += f"; after correction for {one.family} comparisons {'still' if one.decided else 'no longer'} decided"
        if d.alone:
            told += f"; {seeds(d.alone)} in only one of the two, left out"
        ratio = self.about.time_ratio(one.model, one.size)
        if ratio is not None and one.other == self.table.baseline:
            told += f"; a step takes {ratio:.2f} × the time"
        return told

    def summary(self) -> str:
        """The table in one sentence: who is better, worse, undecided."""
        table, found = self.table, self.about.comparisons
        done = f"{len(table.cells)} of {len(table.planned)} cells finished. " if table.missing else ""
        if not table.cells:
            return f"{done}Nothing to compare yet."
        if not found:
            measured = [row for row in self.about.rows if row.ours]
            best = (max if table.higher else min)(
                measured, key=lambda row: row.ours.centre if row.ours else 0.0, default=None
            )
            if best is None:
                return f"{done}Nothing usable was measured."
            said = f"{self.value(best.ours)} {table.unit}"
            named = (
                f"{label(best.model, best.size)}: {said}"
                if len(measured) == 1
                else f"{label(best.model, best.size)} comes first with {said}"
            )
            return f"{done}{named}; nothing to compare it with, so no verdict."
        told = []
        for kind in ("better", "worse", "undecided"):
            if some := [one for one in found if one.verdict == kind]:
                why = {one.difference.why for one in some}
                told.append(
                    f"{kind}: {self._listed(some)}" + (f" ({why.pop()})" if len(why) == 1 and why != {""} else "")
                )
        whom = table.baseline if table.baseline is not None else exact(table.reference)
        start = "In pairs" if whom == "–" else f"Against {whom}"
        return f"{done}{start}, {'; '.join(told)}."

    def _listed(self, some: Sequence[Comparison]) -> str:
        """Models, each with the sizes where it is so; where they are many, how many of all and the clearest."""
        table, found = self.table, self.about.comparisons
        where: dict[str, list[str]] = {}
        for one in some:
            pair = one.other is not None and one.other != table.baseline
            where.setdefault(f"{one.model} over {one.other}" if pair else one.model, []).append(one.size)
        names = [
            name if sizes == [""] or len(table.sizes) == 1 else f"{name} (at {_and(sizes, len(table.sizes))})"
            for name, sizes in where.items()
        ]
        if len(names) <= 6:
            return "; ".join(names) if any("," in name for name in names) else ", ".join(names)
        counted = f"{len(some)} of {len(found)}"
        if some[0].verdict == "undecided":
            return counted
        first = max(some, key=lambda one: abs(one.difference.centre - one.difference.null))
        return f"{counted}, most of all {label(first.model, first.size)}"

    @property
    def judged(self) -> str:
        """What the table of comparisons is called."""
        found, base = self.about.comparisons, self.table.baseline
        if found and all(one.other is None for one in found):
            return f"Against {exact(self.table.reference)}"
        return f"Differences from {base} on the same seeds" if base is not None else "Differences on the same seeds"

    @property
    def cost(self) -> str:
        """What the table of costs shows."""
        base = self.table.baseline
        return "What a model takes" if base is None else f"What a model takes, and how many times what {base} takes"

    @property
    def method(self) -> str:
        """How differences are taken and judged, for who reads their table."""
        family = max((one.family for one in self.about.comparisons), default=0)
        what = []
        if any(one.other is None for one in self.about.comparisons):
            kind = "Geometric mean" if self.ratio else "Mean"
            what.append(f"{kind} over seeds, judged against {exact(self.table.reference)}")
        if any(one.other is not None for one in self.about.comparisons):
            if self.ratio:
                what.append("The model's value over the other's on the same seeds, geometric mean")
            else:
                what.append(f"The model's value minus the other's on the same seeds, in {self.unit}, mean")
        if not family:
            return f"{'; or: '.join(what)}. There is no interval, so nothing is decided."
        nulls = sorted({one.difference.null for one in self.about.comparisons})
        test = "t on logarithms" if self.ratio else "t"
        return (
            f"{'; or: '.join(what)} [95 % interval] and two-sided p ({test}). A verdict other than undecided says that "
            f"the interval leaves out {' or '.join(map(exact, nulls))} and that p, corrected (Holm) for the {family} "
            f"comparison{'s' * (family != 1)} of this table, is at most {1 - LEVEL:.2g}."
        )

    @property
    def run(self) -> list[tuple[str, str]]:
        """What was run, as names and values."""
        table = self.table
        steps = sorted({int(n) for cell in table.cells if (n := cell.number("steps")) is not None})
        spent = [s for cell in table.cells if (s := cell.number("seconds")) is not None]
        cells = f"{len(table.cells)}" if not table.missing else f"{len(table.cells)} of {len(table.planned)}"
        some = {
            "scale": table.scale,
            "data": table.data,
            "metric": f"{self.measure}; {'higher' if table.higher else 'lower'} is better",
            "seeds": f"{len(table.seeds)} ({', '.join(map(str, table.seeds))})" if table.cells else "",
            "steps": f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}" if steps else "",
            "cells": cells,
            "time": f"{duration(sum(spent))} in all" if spent else "",
        }
        return [(name, value) for name, value in some.items() if value]


def wordings(gathered: Gathered) -> list[Wording]:
    """Each table with its analysis and its words."""
    return [Wording(Analysis(table)) for table in gathered.tables]


def _and(sizes: Sequence[str], all_of: int) -> str:
    if len(sizes) == all_of:
        return "every size"
    if len(sizes) > 3:
        return f"{len(sizes)} of {all_of} sizes"
    *first, last = sizes
    return f"{('; ' if any(',' in size for size in sizes) else ', ').join(first)} and {last}" if first else last
