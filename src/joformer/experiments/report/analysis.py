"""From the cells of a table to its findings: estimates, judged comparisons, effects.

All comparisons of one table (variants against the baseline, further pairs, every size) form one family for Holm's
correction: of twelve uncorrected intervals, one would be wrong about every second time. Their tests of equivalence
form another family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from joformer.experiments.metrics import metric_of
from joformer.experiments.names import plain, value_effect
from joformer.experiments.statistics import (
    LEVEL,
    Difference,
    Estimate,
    Verdict,
    against,
    estimate,
    holm,
    interaction,
    multiplier,
    paired,
    pooled,
)
from joformer.experiments.tables import Table


@dataclass(frozen=True)
class Row:
    """One model at one size: our estimate, the paper's figure, parameters, time per step; None if missing."""

    model: str
    size: str
    ours: Estimate | None
    paper: float | None
    parameters: float | None
    step_ms: float | None


@dataclass(frozen=True)
class Comparison:
    """One model against another (None: against the table's reference) at one size.

    `corrected` is Holm's p-value among the `family` comparisons of the table, `same` that of the test of equivalence.
    """

    model: str
    other: str | None
    size: str
    difference: Difference
    corrected: float | None
    same: float | None
    family: int

    @property
    def verdict(self) -> Verdict:
        """The verdict after the correction: better, worse, equivalent or inconclusive."""
        return self.difference.judged(self.corrected, self.same)

    @property
    def decided(self) -> bool:
        """Whether the verdict is better or worse."""
        return self.verdict in ("better", "worse")


@dataclass(frozen=True)
class Analysis:
    """Everything the report states about a table."""

    table: Table

    @property
    def level(self) -> float:
        """The confidence level of verdicts: several planned looks share the 5 % between them."""
        return 1 - (1 - LEVEL) / self.table.looks

    @cached_property
    def models(self) -> list[str]:
        """The models of the table in its order, then any others that were run."""
        return list(dict.fromkeys([*self.table.models, *(cell.model for cell in self.table.cells)]))

    @cached_property
    def rows(self) -> list[Row]:
        """One row per model and size."""
        table, metric, found = self.table, self.table.metric, []
        for size in table.sizes:
            for model in self.models:
                values = list(table.values(model, size).values())
                paper = table.paper.get(model, {}).get(size) if table.comparable else None
                if not values and paper is None:
                    continue
                ours = None
                if values:
                    inside = metric.scale != "percent" or all(0 <= value <= 100 for value in values)
                    ours = estimate(values, scale=metric.scale if inside else "linear", median=metric.median)
                times = table.values(model, size, "ms")
                found.append(
                    Row(model, size, ours, paper, self.parameters(model, size), min(times.values(), default=None))
                )
        return found

    def also(self, name: str, model: str, size: str) -> Estimate | None:
        """A metric shown in addition to the one that is judged, estimated from the seeds."""
        metric = metric_of({"metric": name})
        values = [value for value in self.table.values(model, size, name).values() if not metric.log or value > 0]
        inside = metric.scale != "percent" or all(0 <= value <= 100 for value in values)
        return estimate(values, scale=metric.scale if inside else "linear", median=metric.median) if values else None

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every comparison of the table, corrected for their number."""
        table, metric, found = self.table, self.table.metric, list[tuple[str, str | None, str, Difference]]()
        for size in table.sizes:
            for model, other in self._pairs:
                ours = table.values(model, size)
                if other is None and ours:
                    assert table.reference is not None
                    one = against(
                        list(ours.values()), table.reference, higher=metric.higher, log=metric.log, delta=metric.delta
                    )
                    found.append((model, other, size, one))
                elif other is not None and ours.keys() & (theirs := table.values(other, size)).keys():
                    found.append((model, other, size, self._bounded(paired(ours, theirs, **self._judging))))
        tested = [p for *_, one in found if (p := one.p) is not None]
        same = [p for *_, one in found if (p := one.same) is not None]
        corrected, alike = iter(holm(tested)), iter(holm(same))
        return [
            Comparison(
                model, other, size, one, None if one.p is None else next(corrected),
                None if one.same is None else next(alike), len(tested),
            )
            for model, other, size, one in found
        ]  # fmt: skip

    @cached_property
    def ratios(self) -> dict[str, dict[str, Difference]]:
        """Each model at each size relative to itself at the first, paired by seed; only if sizes are comparable."""
        table, found = self.table, dict[str, dict[str, Difference]]()
        for model in self.models if table.protocol and table.metric.log else ():
            first = table.values(model, table.sizes[0])
            for size in table.sizes[1:]:
                if first.keys() & (there := table.values(model, size)).keys():
                    found.setdefault(model, {})[size] = paired(there, first, higher=table.metric.higher, log=True)
        return found

    @cached_property
    def effects(self) -> dict[str, list[tuple[str, Difference, Verdict]]]:
        """What value transport adds, by size: for each kind of angles, and (last) pooled over several.

        Each entry is what the values were added to, the difference and its verdict. The pooled ones answer a question
        that was planned in advance: they are a separate family.
        """
        table, found = self.table, dict[str, list[tuple[str, Difference, Verdict]]]()
        whole: dict[str, Difference] = {}
        for size in table.sizes:
            some = [
                (of, one)
                for one in self.comparisons
                if one.size == size and (of := value_effect(table.recipe, one.model, one.other))
            ]
            if some:
                found[size] = [(of, one.difference, one.verdict) for of, one in some]
            pairs = [(table.values(one.model, size), table.values(str(one.other), size)) for _, one in some]
            if len(some) > 1 and set.intersection(*(set(side) for pair in pairs for side in pair)):
                whole[size] = self._bounded(pooled(pairs, **self._judging))
        p, same = (
            dict(zip(tested, holm(list(tested.values())), strict=True))
            for tested in (
                {size: d.p for size, d in whole.items() if d.p is not None},
                {size: d.same for size, d in whole.items() if d.same is not None},
            )
        )
        for size, d in whole.items():
            found[size].append((f"{len(found[size])} kinds of angles", d, d.judged(p.get(size), same.get(size))))
        return found

    @cached_property
    def solved(self) -> frozenset[str]:
        """Sizes at which all models, with and without values, reach the best possible value on every seed."""
        table, best = self.table, self.table.metric.best
        found: dict[str, set[float]] = {}
        for one in self.comparisons:
            if value_effect(table.recipe, one.model, one.other):
                for model in (one.model, str(one.other)):
                    found.setdefault(one.size, set()).update(table.values(model, one.size).values())
        return frozenset(size for size, values in found.items() if values == {best})

    @cached_property
    def synergies(self) -> list[tuple[str, Difference]]:
        """By size: the interaction of learned angles and transported values, where all four models were run."""
        table, found = self.table, []
        by = {plain(table.recipe, model): model for model in self.models}
        four = [by.get(which) for which in ("RoPE", "learned RoPE", "RoPE + values", "learned RoPE + values")]
        for size in table.sizes if all(four) else ():
            cells = [table.values(str(model), size) for model in four]
            if set.intersection(*map(set, cells)):
                neither, learned, values, both = cells
                found.append((size, interaction(neither, learned, values, both, **self._judging)))
        return found

    def multipliers(self, model: str, size: str) -> list[tuple[int, Difference]]:
        """The compute multiplier: how many times the steps the baseline needs, along the runs; empty if undefined.

        A point of a curve is a finished run only if the learning rate is constant after the warm-up.
        """
        table, key = self.table, self.held_out
        curves = []
        for name in (model, table.baseline):
            cells = [cell for cell in table.cells if cell.model == name and size in cell.measured]
            if not cells or any(cell.facts("recipe").get("end") != 1.0 for cell in cells):
                return []
            lines = {cell.seed: [(int(l["step"]), l[key]) for l in cell.curve if key in l] for cell in cells}
            curves.append({seed: curve for seed, curve in lines.items() if len(curve) > 1})
        if table.metric.higher or not (curves[0].keys() & curves[1].keys()):
            return []
        return multiplier(curves[0], curves[1])

    @property
    def held_out(self) -> str:
        """The metric of the held-out curves."""
        name = self.table.metric.name
        return name if any(name in line for cell in self.table.cells for line in cell.curve) else "loss"

    @cached_property
    def remarks(self) -> list[str]:
        """Remarks in addition to the table's own notes: seeds left out, unusable numbers, looks."""
        table, found = self.table, []
        for one in self.comparisons:
            if one.difference.alone:
                found.append(
                    f"{label(one.model, one.size)} against {one.other}: {seeds(one.difference.alone)} "
                    "in only one of the two, left out of the difference."
                )
        for cell in table.cells:
            for size in table.sizes:
                if size in cell.measured and cell.seed not in table.values(cell.model, size):
                    found.append(
                        f"{cell.name} has no usable {table.metric.name}{' at ' + size if size else ''}, left out."
                    )
        if len(table.looked) > table.looks:
            before = ", ".join(map(str, table.looked[:-1]))
            found.append(
                f"Results had already been seen with {before} of these {table.looked[-1]} runs: if seeds or models are "
                "added after looking, verdicts are right less often than they say. `compare --looks` plans for this."
            )
        if table.looks > 1:
            found.append(
                f"Planned for {table.looks} looks: every interval of a difference and every verdict is at the "
                f"{100 * self.level:.3g} % level."
            )
        return found

    @property
    def _judging(self) -> dict[str, Any]:
        """Arguments for judging differences of this table's metric."""
        metric = self.table.metric
        return {"higher": metric.higher, "log": metric.log, "delta": metric.delta, "level": self.level}

    def _bounded(self, one: Difference) -> Difference:
        """Clips the interval of a difference between percentages to ±100 points."""
        if self.table.metric.scale != "percent" or one.low is None or one.high is None:
            return one
        return replace(one, low=max(one.low, -100.0), high=min(one.high, 100.0))

    @property
    def _pairs(self) -> list[tuple[str, str | None]]:
        table = self.table
        if table.baseline is not None:
            first: list[tuple[str, str | None]] = [(m, table.baseline) for m in self.models if m != table.baseline]
        else:
            first = [(model, None) for model in self.models] if table.reference is not None else []
        return list(dict.fromkeys([*first, *((having, without) for without, having in table.pairs)]))

    def parameters(self, model: str, size: str) -> float | None:
        """The number of parameters of the model at this size."""
        if measured := self.table.values(model, size, "parameters"):
            return next(iter(measured.values()))
        cells = (cell for cell in self.table.cells if cell.model == model and size in cell.measured)
        return next((count for cell in cells if (count := cell.number("parameters")) is not None), None)


def label(model: str, size: str) -> str:
    """A model, and its size if there are several.

    >>> label("RoPE + values", ""), label("RoPE", "512")
    ('RoPE + values', 'RoPE (512)')
    """
    return f"{model} ({size})" if size else model


def seeds(which: Sequence[int]) -> str:
    """Seeds as text.

    >>> seeds([3]), seeds([3, 4])
    ('seed 3', 'seeds 3, 4')
    """
    return f"seed{'s' * (len(which) != 1)} {', '.join(map(str, which))}"
