"""How the numbers and verdicts of a table are written, the same in every form of the report.

Numbers have as many digits as their interval deserves. "Undecided" is a result, and said as such.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from joformer.experiments.report.analysis import Analysis, Comparison, label, seeds
from joformer.experiments.results import Gathered, Table
from joformer.experiments.statistics import Estimate

WORDS = frozenset({"size", "model", "ours", "against", "difference", "ratio", "verdict"})
"""Columns of text, set to the left; the others are numbers."""


def number(value: float | None, digits: int | None = None) -> str:
    """With so many digits after the point, or four significant ones; a true minus; thousands apart.

    >>> number(-0.0312, 3), number(1234567), number(25.553), number(None), number(1e30)
    ('−0.031', '1,234,567', '25.55', '–', '1.00e30')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e9:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(power)}"
    elif digits is None:
        text = f"{value:,.{0 if value == int(value) else min(max(3 - _magnitude(value), 0), 6)}f}"
    else:
        text = f"{value:,.{digits}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")  # no minus zero
    return text.replace("-", "−")


def probability(p: float | None) -> str:
    """A p-value as one writes it.

    >>> probability(0.0041), probability(0.00001), probability(0.3), probability(None)
    ('0.004', '<0.001', '0.30', '–')
    """
    if p is None:
        return "–"
    return "<0.001" if p < 0.0005 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def duration(seconds: float) -> str:
    """As one would say it.

    >>> duration(42), duration(4000), duration(300000)
    ('42 s', '1 h 07 min', '83 h')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return (
        f"{minutes} min"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02} min"
        if minutes < 1440
        else f"{minutes // 60} h"
    )


@dataclass(frozen=True)
class Wording:
    """How the numbers and verdicts of one table are written, the same way in every form of the report."""

    about: Analysis

    @property
    def table(self) -> Table:
        return self.about.table

    @property
    def digits(self) -> int | None:
        """After the point, for values: two significant ones of the usual interval's half; None where skewed."""
        if self.table.skewed:
            return None
        return _digits([(o.low, o.high) for row in self.about.rows if (o := row.ours)])

    @property
    def difference_digits(self) -> int:
        bounds = [(c.difference.low, c.difference.high) for c in self.about.comparisons]
        found = _digits(bounds)
        if found is None:
            found = _digits([(0.0, c.difference.centre - c.difference.null) for c in self.about.comparisons])
        return 3 if found is None else max(found, 2 if self.ratio else 0)

    @property
    def ratio(self) -> bool:
        """Whether differences are ratios."""
        return self.table.skewed

    @property
    def centre(self) -> str:
        return "median" if self.table.skewed else "mean"

    @property
    def interval(self) -> str:
        """What stands in brackets."""
        if not self.table.skewed:
            return "95 % interval"
        most = max((row.ours.n for row in self.about.rows if row.ours), default=1)
        return f"least, most: holds the true median with {100 * (1 - 2.0 ** (1 - most)):.0f} % at {most} seeds"

    def value(self, found: Estimate | None) -> str:
        if found is None:
            return "not run"
        text = number(found.centre, self.digits)
        if found.low is None:
            return text if found.n == 1 else f"{text} (all {found.n} the same)"
        return f"{text} {self.bounds(found.low, found.high, self.digits)}"

    def bounds(self, low: float, high: float, digits: int | None) -> str:
        return f"[{number(low, digits)}, {number(high, digits)}]"

    def difference(self, one: Comparison) -> str:
        """Signed, as measured: ours minus (or over) the other's, with its interval."""
        d, digits = one.difference, self.difference_digits
        sign = "+" if not self.ratio and one.other is not None and d.centre > 0 else ""
        text = f"{sign}{number(d.centre, digits)}{' ×' if self.ratio else ''}"
        return text if d.low is None or d.high is None else f"{text} {self.bounds(d.low, d.high, digits)}"

    def verdict(self, one: Comparison) -> str:
        d = one.difference
        if d.verdict == "undecided":
            return f"undecided: {d.why}" if d.why else "undecided"
        return d.verdict if one.decided else f"{d.verdict}, but not after correction"

    def other(self, one: Comparison) -> str:
        return one.other if one.other is not None else number(self.table.reference)

    def sentence(self, one: Comparison) -> str:
        """The comparison in one sentence: verdict, size of the difference in its own direction, what it costs.

        The interval is in the direction of the word before it, so that "lower by 0.03 [0.01, 0.05]" reads as it is.
        """
        d, digits, unit, other = one.difference, self.difference_digits, self.table.unit, self.other(one)
        decided = d.verdict != "undecided"
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
        if decided and one.family > 1:
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
        groups: dict[str, list[str]] = {"better": [], "worse": [], "not": [], "undecided": []}
        for one in found:
            kind = one.difference.verdict if one.decided or one.difference.verdict == "undecided" else "not"
            same = one.other == table.baseline
            groups[kind].append(
                label(one.model, one.size) + ("" if same or one.other is None else f" over {one.other}")
            )
        words = {
            "better": "better",
            "worse": "worse",
            "not": "decided alone but not after correction",
            "undecided": "undecided",
        }
        told = [f"{words[kind]}: {_few(names)}" for kind, names in groups.items() if names]
        whom = (
            f"Against {table.baseline or number(table.reference)}"
            if table.baseline or table.reference is not None
            else "In pairs"
        )
        return f"{done}{whom}, {'; '.join(told)}."

    @property
    def method(self) -> str:
        """How differences are taken and judged, for who reads their table."""
        family = max((one.family for one in self.about.comparisons), default=0)
        if any(one.other is None for one in self.about.comparisons):
            what = f"{'Geometric mean' if self.ratio else 'Mean'} over seeds, judged against {number(self.table.reference)}"
        elif self.ratio:
            what = "The model's value over the other's on the same seeds, geometric mean"
        else:
            what = f"The model's value minus the other's on the same seeds, in {self.table.unit}, mean"
        test = "t on logarithms" if self.ratio else "t"
        return (
            f"{what} [95 % interval] and two-sided p ({test}). A verdict other than undecided says that the interval "
            f"leaves out {number(1.0 if self.ratio and self.table.reference is None else self.table.reference or 0.0)}; "
            f"the corrected p (Holm) counts that this table makes {family} comparison{'s' * (family != 1)}."
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
            "metric": f"{table.unit}, {'higher' if table.higher else 'lower'} is better",
            "seeds": f"{len(table.seeds)} ({', '.join(map(str, table.seeds))})" if table.cells else "",
            "steps": f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}" if steps else "",
            "cells": cells,
            "time": f"{duration(sum(spent))} in all" if spent else "",
        }
        return [(name, value) for name, value in some.items() if value]

    @property
    def paper_head(self) -> str:
        """The column of the paper's figures, with its metric where that is another."""
        other = self.table.paper_metric.replace("_", " ")
        return f"paper, {other}" if other and self.table.paper_metric != self.table.metric else "paper"

    def results(self) -> tuple[list[str], list[list[str]]]:
        """The table of values: its head and its rows; columns that would be empty are left out."""
        sized, paper = (
            len(self.table.sizes) > 1 or self.table.sizes[0] != "",
            any(r.paper is not None for r in self.about.rows),
        )
        counted = any(row.parameters is not None for row in self.about.rows)
        head = ["size"] * sized + ["model", "ours", "n"] + [self.paper_head] * paper + ["parameters"] * counted
        rows = [
            [row.size] * sized
            + [row.model, self.value(row.ours), str(row.ours.n) if row.ours else "0"]
            + [number(row.paper)] * paper
            + [number(row.parameters)] * counted
            for row in self.about.rows
        ]
        return head, rows

    def differences(self) -> tuple[list[str], list[list[str]]]:
        """The table of comparisons: its head and its rows."""
        sized = len(self.table.sizes) > 1
        head = ["size"] * sized + [
            "model",
            "against",
            "ratio" if self.ratio else "difference",
            "n",
            "p",
            "p, Holm",
            "verdict",
        ]
        rows = [
            [one.size] * sized
            + [one.model, self.other(one), self.difference(one), str(one.difference.n)]
            + [probability(one.difference.p), probability(one.corrected), self.verdict(one)]
            for one in self.about.comparisons
        ]
        return head, rows

    def costs(self) -> tuple[list[str], list[list[str]]]:
        """The table of what models take."""
        found, base = self.about.costs, self.table.baseline
        sized, timed = any(cost.size for cost in found), any(cost.step_ms is not None for cost in found)
        ratios, more = any(cost.ratio is not None for cost in found), any(cost.more is not None for cost in found)
        head = (
            ["size"] * sized
            + ["model", "parameters"]
            + [f"× {base}"] * more
            + ["ms a step"] * timed
            + ["time ×"] * ratios
        )
        rows = [
            [cost.size] * sized
            + [cost.model, number(cost.parameters)]
            + [number(cost.more, 3)] * more
            + [number(cost.step_ms)] * timed
            + [number(cost.ratio, 2)] * ratios
            for cost in found
        ]
        return head, rows


def wordings(gathered: Gathered) -> list[Wording]:
    """Each table with its analysis and its words."""
    return [Wording(Analysis(table)) for table in gathered.tables]


def _magnitude(value: float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0


def _digits(bounds: Sequence[tuple[float | None, float | None]]) -> int | None:
    halves = [(high - low) / 2 for low, high in bounds if low is not None and high is not None and high != low]
    return min(max(1 - _magnitude(median(map(abs, halves))), 0), 6) if halves else None


def _few(names: list[str], most: int = 6) -> str:
    if len(names) <= most:
        return "; ".join(names) if any("," in name for name in names) else ", ".join(names)
    return f"{len(names)} of them"
