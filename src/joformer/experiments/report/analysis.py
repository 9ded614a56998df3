"""From the cells of a table to what is said of it: estimates, judged comparisons, costs.

All comparisons of one table (variants against the baseline, further pairs, every size) are one family for Holm's
correction: who looks at twelve intervals must expect one of them to be wrong every second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from joformer.experiments.gathered import Cell, Table
from joformer.experiments.statistics import LEVEL, Difference, Estimate, Verdict, against, estimate, holm, paired


@dataclass(frozen=True)
class Row:
    """One model at one size: ours, the paper's figure, the parameters; None where there is none."""

    model: str
    size: str
    ours: Estimate | None
    paper: float | None
    parameters: float | None


@dataclass(frozen=True)
class Comparison:
    """One model against another (None: against the table's reference) at one size.

    `corrected` is Holm's p-value among the `family` comparisons of the table.
    """

    model: str
    other: str | None
    size: str
    difference: Difference
    corrected: float | None
    family: int

    @property
    def decided(self) -> bool:
        """Whether the verdict stands after the correction."""
        return (
            self.difference.verdict != "undecided"
            and self.corrected is not None
            and self.corrected <= 1 - LEVEL + 1e-12
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict of the report: that of the difference where it stands after the correction, else undecided."""
        return self.difference.verdict if self.decided else "undecided"


@dataclass(frozen=True)
class Cost:
    """What a model takes: parameters and, where it was measured beside the baseline, the time of a step.

    The steps of training runs are no such measurement: what else ran at the time is in them too.
    """

    model: str
    size: str
    parameters: float | None
    step_ms: float | None
    ratio: float | None
    more: float | None
    """Its parameters over the baseline's."""


@dataclass(frozen=True)
class Analysis:
    """Everything the report says of a table."""

    table: Table

    @cached_property
    def rows(self) -> list[Row]:
        """One row per model and size."""
        table, found = self.table, []
        for size in table.sizes:
            for model in self.models:
                values = list(table.values(model, size).values())
                paper = table.paper.get(model, {}).get(size)
                if values or paper is not None:
                    ours = estimate(values, skewed=table.skewed) if values else None
                    found.append(Row(model, size, ours, paper, self._parameters(model, size)))
        return found

    @cached_property
    def models(self) -> list[str]:
        """Those of the table in its order, then any other that was run."""
        return list(dict.fromkeys([*self.table.models, *(cell.model for cell in self.table.cells)]))

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every comparison of the table, corrected for their number."""
        table, found = self.table, list[tuple[str, str | None, str, Difference]]()
        for size in table.sizes:
            for model, other in self._pairs:
                ours = table.values(model, size)
                if other is None and ours:
                    assert table.reference is not None
                    one = against(list(ours.values()), table.reference, higher=table.higher, skewed=table.skewed)
                    found.append((model, other, size, one))
                elif other is not None and ours.keys() & (theirs := table.values(other, size)).keys():
                    found.append((model, other, size, paired(ours, theirs, higher=table.higher, skewed=table.skewed)))
        tested = [p for *_, one in found if (p := one.p) is not None]
        corrected = iter(holm(tested))
        return [
            Comparison(model, other, size, one, None if one.p is None else next(corrected), len(tested))
            for model, other, size, one in found
        ]

    @cached_property
    def costs(self) -> list[Cost]:
        """One for each size, or one for all sizes where the same runs measured them all."""
        table, found = self.table, []
        together = len(table.sizes) > 1 and all(len(cell.measured) > 1 for cell in table.cells)
        for size in table.sizes[:1] if together else table.sizes:
            for model in self.models:
                took = table.values(model, size, "ms")
                count = self._parameters(model, size)
                if not took and count is None:
                    continue
                base = None if table.baseline is None else self._parameters(table.baseline, size)
                if extra := table.values(model, size, "extra_parameters"):
                    base = None if count is None else count - next(iter(extra.values()))
                found.append(
                    Cost(
                        model,
                        "" if together else size,
                        count,
                        fmean(took.values()) if took else None,
                        self.time_ratio(model, size),
                        count / base if count is not None and base else None,
                    )
                )
        return found

    def time_ratio(self, model: str, size: str) -> float | None:
        """A step's time over the baseline's where both models took turns, undisturbed by what else ran."""
        side = self.table.values(model, size, "time_ratio")
        return fmean(side.values()) if side else None

    @cached_property
    def remarks(self) -> list[str]:
        """What the reader must know beside the table's own notes: seeds left out, numbers that are none."""
        told = []
        for one in self.comparisons:
            if one.difference.alone:
                told.append(
                    f"{label(one.model, one.size)} against {one.other}: {seeds(one.difference.alone)} "
                    "only in one of the two, left out of the difference."
                )
        for cell in self.table.cells:
            for size in self.table.sizes:
                if size in cell.measured and cell.seed not in self.table.values(cell.model, size):
                    told.append(
                        f"{cell.name} has no usable {self.table.metric}{' at ' + size if size else ''}, left out."
                    )
        return told

    @property
    def _pairs(self) -> list[tuple[str, str | None]]:
        table = self.table
        if table.baseline is not None:
            first: list[tuple[str, str | None]] = [(m, table.baseline) for m in self.models if m != table.baseline]
        else:
            first = [(model, None) for model in self.models] if table.reference is not None else []
        return list(dict.fromkeys([*first, *((having, without) for without, having in table.pairs)]))

    def _cells(self, model: str, size: str) -> list[Cell]:
        return [cell for cell in self.table.cells if cell.model == model and size in cell.measured]

    def _parameters(self, model: str, size: str) -> float | None:
        if measured := self.table.values(model, size, "parameters"):
            return next(iter(measured.values()))
        return next((n for c in self._cells(model, size) if (n := c.number("parameters")) is not None), None)


def label(model: str, size: str) -> str:
    """A model, and its size where there are several.

    >>> label("both, fixed", ""), label("rope", "512")
    ('both, fixed', 'rope (512)')
    """
    return f"{model} ({size})" if size else model


def seeds(which: Sequence[int]) -> str:
    """Seeds by name.

    >>> seeds([3]), seeds([3, 4])
    ('seed 3', 'seeds 3, 4')
    """
    return f"seed{'s' * (len(which) != 1)} {', '.join(map(str, which))}"
