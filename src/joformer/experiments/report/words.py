"""How the numbers and verdicts of a table are written, the same in every form of the report.

Numbers have as many digits as their interval supports, and enough that no rounded bound contradicts its verdict.
Differences are always signed: ours minus (or over) the other's. A verdict is the one after Holm's
correction: better, worse, equivalent within the metric's δ, inconclusive.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from joformer._log import counted
from joformer.experiments.names import plain
from joformer.experiments.report.analysis import Analysis, Comparison, label, seeds
from joformer.experiments.report.numbers import digits_for, duration, exact, number, probability
from joformer.experiments.statistics import VERDICTS, Difference, Estimate, Verdict
from joformer.experiments.tables import Table

DATA = frozenset({"mnist", "cifar100", "imagenet", "wikipedia"})
"""Recipes named after a data set."""


@dataclass(frozen=True)
class Wording:
    """How the numbers and verdicts of one table are written, the same way in every form of the report."""

    about: Analysis

    @property
    def table(self) -> Table:
        """The table that is described."""
        return self.about.table

    def name(self, model: str | None) -> str:
        """The readable name of the model; a reference is a number."""
        return exact(self.table.reference) if model is None else plain(self.table.recipe, model)

    @cached_property
    def heading(self) -> str:
        """The title with the data and the steps."""
        table, steps = self.table, self.table.steps
        title = table.title.removesuffix(f", on {table.data}")  # as version 0.1 wrote it
        if table.reference is not None:
            return title
        data = self.data
        after = f", {steps[0]:,} steps" if len(steps) == 1 else ""
        return f"{title}: {data}{after}" if data else title + after

    @cached_property
    def data(self) -> str:
        """The training data, and the recipe if it was made for other data."""
        table = self.table
        lent = table.recipe in DATA and table.data != table.recipe
        return f"{table.data} · {table.recipe} recipe" if lent else table.data

    @cached_property
    def digits(self) -> int | None:
        """Decimals of values: two significant digits of the typical half-width; None for medians."""
        if self.table.metric.median:
            return None
        return digits_for([(o.low, o.high) for row in self.about.rows if (o := row.ours)])

    @cached_property
    def difference_digits(self) -> int:
        """Decimals of differences."""
        all_of = [one.difference for one in self.about.comparisons]
        found = digits_for([(d.low, d.high) for d in all_of])
        if found is None:  # one seed: a tenth of the differences themselves
            found = digits_for([(0.0, (d.centre - d.null) / 10) for d in all_of])
        digits = 3 if found is None else max(found, 2 if self.table.metric.log else 0)
        decided = [one.difference for one in self.about.comparisons if one.decided]
        decided += [
            d for some in self.about.effects.values() for _, d, verdict in some if verdict in ("better", "worse")
        ]
        while digits < 6 and any(number(x, digits) == number(d.null, digits) for d in decided for x in (d.low, d.high)):
            digits += 1
        return digits

    @property
    def centre(self) -> str:
        """The statistic over several seeds."""
        metric = self.table.metric
        return "median" if metric.median else "geometric mean" if metric.log else "mean"

    @property
    def interval(self) -> str:
        """What the brackets hold."""
        if not self.table.metric.median:
            return "95 % interval"
        most = max((row.ours.n for row in self.about.rows if row.ours), default=1)
        level = f"{100 * (1 - 2.0 ** (1 - most)):.0f} %"
        return f"min, max: contains the true median with {level} confidence at {most} seeds"

    def value(self, found: Estimate | None) -> str:
        """An estimate with its interval."""
        if found is None:
            return "not yet" if self.table.missing else "not run"
        text = number(found.centre, self.digits)
        if found.low is None or found.high is None:
            return text if found.n == 1 else f"{text} (all {found.n} the same)"
        digits, percent = self.digits, self.table.metric.scale == "percent"
        while percent and digits is not None and digits < 4 and number(found.high, digits) == number(100, digits):
            digits += 1  # values below 100 are not rounded to 100
        return f"{text} [{number(found.low, self.digits)}, {number(found.high, digits)}]"

    def difference(self, d: Difference) -> str:
        """Signed: ours minus (or over) the other's, with its interval."""
        digits, log = self.difference_digits, self.table.metric.log
        text = (
            f"{'+' if not log and d.null == 0 and d.centre > 0 else ''}{number(d.centre, digits)}{' ×' if log else ''}"
        )
        return (
            text if d.low is None or d.high is None else f"{text} [{number(d.low, digits)}, {number(d.high, digits)}]"
        )

    def ratio(self, d: Difference) -> str:
        """A ratio with its interval, to a thousandth."""
        text = f"{number(d.centre, 3)} ×"
        return text if d.low is None or d.high is None else f"{text} [{number(d.low, 3)}, {number(d.high, 3)}]"

    @property
    def growth(self) -> str:
        """The caption of the table of ratios."""
        table = self.table
        name = table.metric.name.capitalize()
        return f"{name} relative to that at {table.sizes[0]}, {table.protocol}, paired by seed"

    @property
    def unit(self) -> str:
        """The unit of differences; ratios have none."""
        return "" if self.table.metric.log else f" {self.table.metric.difference_unit}"

    def verdict(self, verdict: Verdict, d: Difference) -> str:
        """A verdict, with its margin, or with the reason if nothing could be decided."""
        if d.why:
            return f"{verdict}: {'one seed' if d.n == 1 else 'no spread'}"
        return f"equivalent within {self.table.metric.margin}" if verdict == "equivalent" else verdict

    def sentence(self, one: Comparison) -> str:
        """The comparison in one sentence."""
        d, what = one.difference, self.verdict(one.verdict, one.difference)
        than = f"{what} than" if one.decided else f"{what}, against"
        p = "" if d.p is None else f", p {'' if d.p < 0.0005 else '= '}{probability(d.p).replace('<', '< ')}"
        some = f"; {seeds(d.alone)} in only one of the two, left out" if d.alone else ""
        count = counted(d.n, "seed")
        return (
            f"{label(self.name(one.model), one.size)}: {than} {self.name(one.other)}: "
            f"{self.difference(d)}{self.unit}{p}, {count}{some}"
        )

    # -- the answer first --------------------------------------------------------------------------------------------

    @cached_property
    def sentences(self) -> list[str]:
        """The table in a few sentences, the answer first."""
        table, found = self.table, []
        done = (
            f"{len({cell.name for cell in table.cells})} of {len(table.planned)} runs finished. "
            if table.missing
            else ""
        )
        if not table.cells:
            return [f"{done}Nothing to compare yet."]
        if not self.about.comparisons:
            return [done + self._best()]
        if table.reference is not None:
            found += self._costs()
        else:
            sizes = list(self.about.effects)
            shown = list(dict.fromkeys([*sizes[:1], *sizes[-1:]]))
            if table.recipe == "compare":  # another --longer may have been added since
                sizes.sort(key=self._budget)
                shown = sizes[:1]
            found += [self._effect(size) for size in shown]
            if table.recipe == "compare":
                found.append(self._lasting(sizes))
        if not found or len(self.about.comparisons) > max(1, len(self.about.effects)):
            found.append(self._counted())
        for size, d in self.about.synergies:
            word = {"better": "more than", "worse": "less than", "equivalent": "as much as"}.get(d.verdict, "")
            at = f" at {size}" if size and len(table.sizes) > 1 else ""
            found.append(
                f"Learned angles and values together{at}: {word + ' the sum of the two' if word else 'inconclusive'}, "
                f"interaction {self.difference(d)}{self.unit}."
            )
        last = table.sizes[-1]
        told = [
            f"{self.name(model)} {self.ratio(row[last])}" for model, row in self.about.ratios.items() if last in row
        ]
        if told:
            found.append(f"{self.growth}, at {last}: {'; '.join(told)}.")
        return [done + found[0], *found[1:]]

    def after(self, size: str) -> str:
        """The training steps of models of this size, and the size if there are several: " after 600 steps"."""
        steps = {n for cell in self.table.cells if size in cell.measured and (n := cell.number("steps")) is not None}
        at = f" at {size}" if size and not size.endswith("steps") and len(self.table.sizes) > 1 else ""
        return at + (f" after {int(steps.pop()):,} steps" if len(steps) == 1 else "")

    def _budget(self, size: str) -> float:
        """The training steps of models of this size."""
        return max((cell.number("steps") or 0 for cell in self.table.cells if size in cell.measured), default=0)

    def _effect(self, size: str) -> str:
        of, d, verdict = self.about.effects[size][-1]
        pooled = len(self.about.effects[size]) > 1
        if size in self.about.solved:
            remedy = " Use harder or more data, or fewer --steps." if self.table.recipe == "compare" else ""
            return f"This data cannot tell them apart: {self._solved(size)}.{remedy}"
        word = {
            "better": "Value transport helps",
            "worse": "Value transport hurts",
            "equivalent": "Value transport makes no difference",
            "inconclusive": "The effect of value transport is inconclusive",
        }[verdict]
        what = f"pooled over {of}" if pooled else f"{of} + values against {of}"
        margin = f", equivalent within {self.table.metric.margin}" if verdict == "equivalent" else ""
        count = counted(d.n, "seed") + (f", {d.why}" if d.why else "")
        return f"{word}{self.after(size)}: {self.difference(d)}{self.unit}{margin}, {what} ({count})."

    def _solved(self, size: str) -> str:
        metric, some = self.table.metric, self.about.effects[size]
        who = "both models" if len(some) == 1 else "all models, with and without values,"
        right = metric.name == "accuracy"
        what = "get every held-out example right" if right else f"reach {metric.best:g} {metric.unit}"
        n = some[-1][1].n
        return f"{who} {what}{self.after(size)}, on {f'all {n} seeds' if n > 1 else 'one seed'}"

    def _lasting(self, sizes: Sequence[str]) -> str:
        """Whether a difference at the first budget lasts at the longest one; else the latter's own verdict."""
        if len(sizes) < 2:
            return "Whether this lasts was not tested (--longer 4 does)."
        after = self.after(sizes[-1]).strip() or "longer"
        if self.about.solved >= {sizes[0], sizes[-1]}:
            return f"Nor can it {after}."
        if sizes[-1] in self.about.solved:
            return f"With more steps, this data cannot tell them apart: {self._solved(sizes[-1])}."
        first, (_, d, then) = self.about.effects[sizes[0]][-1][2], self.about.effects[sizes[-1]][-1]
        figure = f"{self.difference(d)}{self.unit}"
        if first in ("better", "worse"):
            word = "It lasts" if then == first else "It does not last"
            word = "It is inconclusive whether it lasts" if then == "inconclusive" else word
            return f"{word}: {after} {figure}."
        word = {"better": "helps", "worse": "hurts", "equivalent": "makes no difference"}.get(then, "is inconclusive")
        too = " too" if first == then == "inconclusive" else " either" if first == then else ""
        return f"{after[0].upper()}{after[1:]} it {word}{too}: {figure}."

    def _costs(self) -> list[str]:
        for one in self.about.comparisons:
            if self.name(one.model) == "RoPE + values":
                d = one.difference
                if d.low is None or d.high is None or d.low <= d.null <= d.high:
                    if d.low is None:
                        return [f"A step with values takes {self.difference(d)} the time of RoPE's, measured once."]
                    return [f"A step with values takes {self.difference(d)} the time, within noise of RoPE's."]
                return [f"A step with values takes {self.difference(d)} the time of RoPE's."]
        return []

    def _best(self) -> str:
        measured = [(row, row.ours) for row in self.about.rows if row.ours]
        if not measured:
            return "Nothing usable was measured."
        higher = self.table.metric.higher
        best, ours = (max if higher else min)(measured, key=lambda pair: pair[1].centre)
        named, said = label(self.name(best.model), best.size), f"{self.value(ours)} {self.table.metric.unit}"
        first = f"{named}: {said}" if len(measured) == 1 else f"{named} comes first with {said}"
        return f"{first}; nothing to compare it with, so no verdict."

    def _counted(self) -> str:
        """The number of comparisons with each verdict, with their names if there are few."""
        if len(self.table.seeds) == 1:
            if self.table.reference is not None:
                return "One round: nothing can be decided."
            if self.table.missing:
                return "One seed so far: nothing can be decided."
            return "One seed: nothing can be decided; --seeds 3 gives intervals."
        told = []
        for kind in VERDICTS:
            if some := [one for one in self.about.comparisons if one.verdict == kind]:
                names = list(dict.fromkeys(self._named(one) for one in some))
                listed = f" ({'; '.join(names)})" if len(names) <= 3 else ""
                told.append(f"{len(some)} {kind}{listed}")
        return f"{self._compared}: {', '.join(told)}."

    @property
    def _compared(self) -> str:
        """What the counted comparisons are made against; those of further pairs are stated separately."""
        table, every = self.table, self.about.comparisons
        if table.baseline is None and table.reference is None:
            return "In pairs"
        whom, pairs = f"against {self.name(table.baseline)}", sum(map(self.is_pair, every))
        return f"Of {len(every)} comparisons, {len(every) - pairs} of them {whom}" if pairs else f"A{whom[1:]}"

    def is_pair(self, one: Comparison) -> bool:
        """Whether this is one of the further pairs, against a model other than the baseline."""
        return one.other not in (None, self.table.baseline)

    def _named(self, one: Comparison) -> str:
        pair = self.is_pair(one)
        size = one.size if len(self.table.sizes) > 1 else ""
        return label(f"{self.name(one.model)} over {self.name(one.other)}" if pair else self.name(one.model), size)

    # -- around the tables -------------------------------------------------------------------------------------------

    @property
    def method(self) -> str:
        """How differences are computed and judged, as text for the reader."""
        metric, family = self.table.metric, max((one.family for one in self.about.comparisons), default=0)
        if self.table.reference is not None:
            what = f"{self.centre.capitalize()} over rounds, judged against {exact(self.table.reference)}"
        elif metric.log:
            what = "The model's value over the other's on the same seeds, geometric mean"
        else:
            what = f"The model's value minus the other's on the same seeds, in {metric.difference_unit}, mean"
        if not family:
            return f"{what}. There is no interval, so nothing is decided."
        alpha = f"{1 - self.about.level:.2g}"
        same = f"; equivalent means that it is below {metric.margin}, by two one-sided tests" if metric.delta else ""
        return (
            f"{what} [{100 * self.about.level:.3g} % interval]. Better or worse means that p, two-sided and "
            f"Holm-corrected for the {counted(family, 'comparison')} of this table, is at most {alpha}"
            f"{same}. Anything else is inconclusive."
        )

    @property
    def paper(self) -> str:
        """The paper's figures if they belong to another setting, and how it differs; otherwise empty."""
        table = self.table
        if table.comparable or not table.paper:
            return ""
        figures = [
            f"{label(self.name(model), size)} {exact(value)}"
            for model, row in table.paper.items()
            for size, value in row.items()
        ]
        unit = (table.paper_metric or table.metric.name).replace("_", " ")
        shown = f"{', '.join(figures[:6])}{f' and {len(figures) - 6} more' * (len(figures) > 6)}"
        where = f" ({table.paper_setting})" if table.paper_setting else ""
        return f"In another setting{where}, the paper has {unit}: {shown}. These cannot be compared with ours."

    @property
    def run(self) -> list[tuple[str, str]]:
        """What was run, as names and values."""
        table, steps = self.table, self.table.steps
        spent = [s for cell in table.cells if (s := cell.number("seconds")) is not None]
        there = len({cell.name for cell in table.cells})
        some = {
            "scale": table.scale,
            "data": table.data,
            "metric": f"{table.metric.label}; {'higher' if table.metric.higher else 'lower'} is better",
            "seeds": f"{len(table.seeds)} ({', '.join(map(str, table.seeds))})" if table.cells else "",
            "steps": f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}" if steps else "",
            "runs": f"{there} of {len(table.planned)}" if table.missing else f"{there}",
            "training": f"{duration(sum(spent))} in total" if spent else "",
        }
        return [(name, value) for name, value in some.items() if value]

    @property
    def commands(self) -> list[str]:
        """The commands that run the cells again: one per model if all of its cells share it, otherwise one per cell."""
        typed = {cell.name: text for cell in self.table.cells if (text := cell.text("command"))}
        models = dict[str, list[str]]()  # each with all of its cells
        for name in dict.fromkeys([*typed, *self.table.planned]):
            models.setdefault("/".join(name.split("/")[:2]), []).append(name)
        found = list[str]()
        for model, names in models.items():
            same = typed.get(names[0], "").removesuffix(f" --only {names[0]}")
            if len(names) > 1 and all(typed.get(name) == f"{same} --only {name}" for name in names):
                found.append(f"{same} --only {shlex.quote(f'{model}/*')}")
            else:
                found += [typed[name] for name in names if name in typed]
        return list(dict.fromkeys(found))

    @property
    def notes(self) -> list[str]:
        """Notes for the reader: gaps in the numbers, the paper's figures, the table's own notes."""
        return [*self.about.remarks, *([self.paper] if self.paper else []), *self.table.notes]
