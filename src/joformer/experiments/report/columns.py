"""The tables of the report as text: a head and rows, the same for page, Markdown and terminal."""

from __future__ import annotations

from dataclasses import dataclass

from joformer.experiments.report.numbers import exact, number, probability
from joformer.experiments.report.words import Wording

LEFT = frozenset({"model", "ours", "against", "difference", "ratio", "mean", "verdict"})
"""Columns set to the left; the others are numbers."""


@dataclass(frozen=True)
class Columns:
    """A head, and rows in groups: by size, or one group without a name."""

    head: list[str]
    groups: list[tuple[str, list[list[str]]]]

    @property
    def rows(self) -> list[list[str]]:
        """All rows, group by group."""
        return [row for _, rows in self.groups for row in rows]


def results(words: Wording) -> Columns:
    """Ours beside the paper's figures; columns that would be empty are left out."""
    found, table = words.about.rows, words.table
    paper, counted = any(row.paper is not None for row in found), any(row.parameters is not None for row in found)
    other = table.paper_metric.replace("_", " ")
    # As many digits as the paper prints, which a number does not remember: 90.1 beside 168.67 was 90.10.
    digits = max((len(exact(row.paper).partition(".")[2]) for row in found), default=0)
    printed = f"paper, {other}" if other and table.paper_metric != table.metric else "paper"
    return _grouped(
        ["model", "ours", "n"] + [printed] * paper + ["parameters"] * counted,
        [
            (
                row.size,
                [row.model, words.value(row.ours), str(row.ours.n) if row.ours else "0"]
                + [number(row.paper, digits)] * paper
                + [number(row.parameters, 0)] * counted,
            )
            for row in found
        ],
    )


def differences(words: Wording) -> Columns:
    """Every comparison with its interval, p-values and verdict; who it is against only where that varies."""
    found = words.about.comparisons
    several = len({one.other for one in found}) > 1
    what = "mean" if all(one.other is None for one in found) else "ratio" if words.ratio else "difference"
    return _grouped(
        ["model"] + ["against"] * several + [what, "n", "p", "p, Holm", "verdict"],
        [
            (
                one.size,
                [one.model]
                + [words.other(one)] * several
                + [words.difference(one), str(one.difference.n)]
                + [probability(one.difference.p), probability(one.corrected), words.verdict(one)],
            )
            for one in found
        ],
    )


def costs(words: Wording) -> Columns:
    """Parameters and, where measured beside the baseline, the time of a step, and how many times the baseline's."""
    found = words.about.costs
    timed, ratios = any(cost.step_ms is not None for cost in found), any(cost.ratio is not None for cost in found)
    more = any(cost.more is not None for cost in found)
    return _grouped(
        ["model", "parameters"] + ["parameters, ×"] * more + ["ms a step"] * timed + ["time, ×"] * ratios,
        [
            (
                cost.size,
                [cost.model, number(cost.parameters, 0)]
                + [number(cost.more, 3)] * more
                + [number(cost.step_ms)] * timed
                + [number(cost.ratio, 2)] * ratios,
            )
            for cost in found
        ],
    )


def _grouped(head: list[str], rows: list[tuple[str, list[str]]]) -> Columns:
    groups: dict[str, list[list[str]]] = {}
    for size, row in rows:
        groups.setdefault(size, []).append(row)
    return Columns(head, list(groups.items()))
