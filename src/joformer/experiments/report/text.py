"""The report as text (sentences, tables for a terminal, Markdown) and as JSON that can be rendered again."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import joformer
from joformer.experiments.report import columns
from joformer.experiments.report.columns import LEFT, Columns
from joformer.experiments.report.curves import thin
from joformer.experiments.report.words import Wording
from joformer.experiments.tables import finite

WIDTH = 100
WRAPPED = frozenset({"model", "against", "verdict"})
DROPPED = ("parameters, ×", "parameters", "p, Holm")
"""Columns dropped on a narrow terminal; the page has them."""


def lines(report: Sequence[Wording]) -> list[str]:
    """Plain tables for a terminal of 100 columns."""
    told: list[str] = []
    for words in report:
        run = ", ".join(f"{name} {value}" for name, value in words.run)
        told += [""] * bool(told) + [words.heading.upper(), *_wrapped(run)]
        told += [line for sentence in words.sentences for line in _wrapped(sentence)]
        for above, shown in (
            (f"{words.table.metric.label}: {words.centre} [{words.interval}]", columns.results(words)),
            ("Other pairs", columns.pairs(words)),
            (words.growth, columns.ratios(words)),
        ):
            if shown.groups:
                told += ["", *_wrapped(above), *_plain(shown)]
        told += [""] * bool(words.notes) + [line for note in words.notes for line in _wrapped(note, "- ")]
    return told


def markdown(report: Sequence[Wording]) -> str:
    """The report as Markdown.

    >>> print(markdown([]).splitlines()[0])
    # joformer: report
    """
    parts = ["# joformer: report\n"]
    parts += [f"- **{_md(words.heading)}**: {_md(' '.join(words.sentences))}" for words in report]
    for words in report:
        table = words.table
        parts.append(f"\n## {_md(words.heading)}\n")
        parts.append(_md(" ".join(words.sentences)) + "\n")
        parts.append(_md("; ".join(f"{name} {value}" for name, value in words.run)) + ".\n")
        parts.append(f"Values: {_md(table.metric.label)}, {words.centre} [{words.interval}]. {_md(words.method)}\n")
        parts += _md_table(columns.results(words))
        if columns.pairs(words).groups:
            parts += ["\n### Other pairs\n", *_md_table(columns.pairs(words))]
        if columns.ratios(words).groups:
            parts += [f"\n### {_md(words.growth)}\n", *_md_table(columns.ratios(words))]
        notes = [*words.notes]
        if table.missing:
            more = f" and {len(table.missing) - 10} more" * (len(table.missing) > 10)
            notes.append(f"Missing: {', '.join(table.missing[:10])}{more}.")
        if notes:
            parts += ["\n### Notes\n", *(f"- {_md(note)}" for note in notes)]
        if words.commands:
            again = (" ".join(command.replace("```", "").split()) for command in words.commands)
            parts += ["\n### To run the models again\n", "```", *again, "```"]
    return "\n".join(parts).rstrip() + "\n"


def as_json(report: Sequence[Wording]) -> dict[str, Any]:
    """Tables with their cells (curves thinned) and, under "said", estimates, comparisons and sentences.

    >>> as_json([])["tables"]
    []
    """
    tables = [
        {
            "about": words.table.about(),
            "said": {
                "sentences": words.sentences,
                "rows": [asdict(row) for row in words.about.rows],
                "comparisons": [
                    {**asdict(one), "verdict": one.verdict, "sentence": words.sentence(one)}
                    for one in words.about.comparisons
                ],
                "remarks": words.about.remarks,
                "missing": words.table.missing,
            },
            "cells": [{**cell.result, "seed": cell.seed, "curve": thin(cell.curve)} for cell in words.table.cells],
        }
        for words in report
    ]
    return {"joformer": joformer.__version__, "tables": [_jsonable(table) for table in tables]}


def _jsonable(value: Any) -> Any:
    """As plain JSON: with null in place of NaN."""
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return finite(value) if isinstance(value, float) else value


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False)


def _plain(shown: Columns) -> list[str]:
    sized = any(size for size, _ in shown.groups)
    for name in (*DROPPED, ""):
        head = shown.head
        widths = [max(map(len, column)) for column in zip(head, *shown.rows, strict=True)]
        if sum(widths) + 2 * (len(widths) + sized - 1) > WIDTH and name in head:
            shown = shown.without(name)
    # Numbers stay whole and names are wrapped, at spaces: a shortened name could be another model's.
    least = [
        max(len(word) for cell in column for word in cell.split() or [""])
        for column in zip(head, *shown.rows, strict=True)
    ]
    while (over := sum(widths) + 2 * (len(widths) + sized - 1) - WIDTH) > 0:
        widest = max((i for i, name in enumerate(head) if name in WRAPPED), key=lambda i: widths[i] - least[i])
        if widths[widest] <= least[widest]:
            break
        widths[widest] -= min(over, 4, widths[widest] - least[widest])

    def line(cells: list[str]) -> list[str]:
        parts = (
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) if len(cell) > width else [cell]
            for cell, width in zip(cells, widths, strict=True)
        )
        return [
            "  ".join(
                cell.ljust(width) if name in LEFT else cell.rjust(width)
                for cell, width, name in zip(row, widths, head, strict=True)
            ).rstrip()
            for row in zip_longest(*parts, fillvalue="")
        ]

    indent = "  " * sized
    told = [*(indent + part for part in line(head)), indent + "  ".join("─" * width for width in widths)]
    for size, rows in shown.groups:
        told += [size] * bool(size) + [indent + part for row in rows for part in line(row)]
    return told


def _md(text: str) -> str:
    """Text escaped for Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_|<>[]#" else c for c in " ".join(text.split()))


def _md_table(shown: Columns) -> list[str]:
    if not shown.groups:
        return ["Nothing measured yet."]
    sized = any(size for size, _ in shown.groups)
    head = ["size"] * sized + shown.head
    rule = "|".join("---" if name in LEFT or name == "size" else "--:" for name in head)
    rows = [[size] * sized + row for size, rows in shown.groups for row in rows]
    return [f"| {' | '.join(map(_md, head))} |", f"|{rule}|", *(f"| {' | '.join(map(_md, row))} |" for row in rows)]
