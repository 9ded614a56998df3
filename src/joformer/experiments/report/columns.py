"""The tables of the report as text: header and rows, the same for page, Markdown and terminal; and the CSV."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass

from joformer.experiments.metrics import metric_of
from joformer.experiments.report.numbers import exact, number, probability
from joformer.experiments.report.words import Wording

LEFT = frozenset({"model", "verdict", "against", "difference", "value"})
"""Left-aligned columns; the others are numbers."""


@dataclass(frozen=True)
class Columns:
    """A header, and rows in groups: by size, or one unnamed group."""

    head: list[str]
    groups: list[tuple[str, list[list[str]]]]

    @property
    def rows(self) -> list[list[str]]:
        """All rows, group by group."""
        return [row for _, rows in self.groups for row in rows]

    def without(self, name: str) -> Columns:
        """The same table without one column."""
        at = self.head.index(name)
        groups = [(size, [row[:at] + row[at + 1 :] for row in rows]) for size, rows in self.groups]
        return Columns(self.head[:at] + self.head[at + 1 :], groups)


def results(words: Wording) -> Columns:
    """One row per model: its verdict against the baseline, its value, the difference, its cost.

    Empty columns are left out; the paper's figures appear only if the setting is the paper's.
    """
    found, table = words.about.rows, words.table
    judged = {(one.model, one.size): one for one in words.about.comparisons if not words.is_pair(one)}
    base = {row.size: row.parameters for row in found if row.model == table.baseline}
    digits = max((len(exact(row.paper).partition(".")[2]) for row in found), default=0)
    printed = "paper" if table.paper_metric in ("", table.metric.name) else f"paper, {table.paper_metric}"
    rows = []
    for row in found:
        one, count = judged.get((row.model, row.size)), base.get(row.size)
        none = "baseline" if row.model == table.baseline else "–"
        rows.append(
            {
                "model": words.name(row.model),
                "verdict": words.verdict(one.verdict, one.difference) if one else none,
                "value": words.value(row.ours),
                "difference": words.difference(one.difference) if one and one.other is not None else "",
                "p, Holm": probability(one.corrected) if one else "",
                "n": str(row.ours.n) if row.ours else "0",
                printed.replace("_", " "): number(row.paper, digits),
                **_also(words, row.model, row.size),
                "ms per step": number(row.step_ms),
                "parameters": number(row.parameters, 0),
                "parameters, ×": number(row.parameters / count, 3) if row.parameters is not None and count else "–",
            }
        )
    empty = {"", "–", "baseline", "1.000"}
    head = [name for name in rows[0] if not all(row[name] in empty for row in rows)] if rows else []
    return _grouped(
        head, [(row.size, [cells[name] for name in head]) for row, cells in zip(found, rows, strict=True)], words
    )


def _also(words: Wording, model: str, size: str) -> dict[str, str]:
    """The metrics shown in addition to the judged one, with the paper's figures if the setting is the paper's."""
    told, table = dict[str, str](), words.table
    for name in table.also:
        found, label = words.about.also(name, model, size), metric_of({"metric": name}).label
        told[label] = "–" if found is None else number(found.centre)
        if found is not None and found.low is not None:
            told[label] += f" [{number(found.low)}, {number(found.high)}]"
        if name in table.also_paper and table.comparable:
            told[f"paper, {label}"] = exact(table.also_paper[name].get(model, {}).get(size))
    return told


def pairs(words: Wording) -> Columns:
    """Comparisons with a model other than the baseline."""
    found = [one for one in words.about.comparisons if words.is_pair(one)]
    rows = [
        (
            one.size,
            [words.name(one.model), words.name(one.other), words.verdict(one.verdict, one.difference),
             words.difference(one.difference), probability(one.corrected), str(one.difference.n)],
        )
        for one in found
    ]  # fmt: skip
    return _grouped(["model", "against", "verdict", "difference", "p, Holm", "n"], rows, words)


def ratios(words: Wording) -> Columns:
    """Each model relative to itself at the first size, one row per model; empty if sizes are not comparable."""
    sizes, found = words.table.sizes[1:], words.about.ratios
    rows = [
        [words.name(model), *(words.ratio(row[size]) if size in row else "–" for size in sizes)]
        for model, row in found.items()
    ]
    return Columns(["model", *sizes], [("", rows)] if rows else [])


def as_csv(words: Wording) -> str:
    """Every measured number, one per line: table, data, model, name, size, seed, metric, value."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["table", "data", "model", "name", "size", "seed", "metric", "value"])
    table = words.table
    for cell in table.cells:
        for size, metrics in cell.measured.items():
            for metric, value in metrics.items():
                lines.writerow(
                    [table.name, table.data, cell.model, words.name(cell.model), size, cell.seed, metric, value]
                )
    return text.getvalue()


def _grouped(head: list[str], rows: list[tuple[str, list[str]]], words: Wording) -> Columns:
    groups: dict[str, list[list[str]]] = {}
    for size, row in rows:
        groups.setdefault(size or ("" if len(words.table.sizes) == 1 else words.after("").strip()), []).append(row)
    return Columns(head, list(groups.items()))
