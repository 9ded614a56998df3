"""The report as plain text: tables for a terminal, sentences, Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from joformer.experiments.gathered import Gathered, as_table
from joformer.experiments.report import columns
from joformer.experiments.report.analysis import Analysis
from joformer.experiments.report.columns import LEFT, Columns
from joformer.experiments.report.words import Wording, wordings

WIDTH = 100
SHORTENED = frozenset({"model", "against", "verdict"})


def sentences(about: Mapping[str, Any], cells: Iterable[Mapping[str, Any]], *, pairs: bool = True) -> list[str]:
    """One sentence for each comparison of a table, given as the contents of table.json and its result.json files.

    Without `pairs` only those with the baseline; the correction counts all of them either way.

    >>> about = {"name": "t", "metric": "loss", "unit": "nats", "baseline": "none", "models": ["none", "both"]}
    >>> made = lambda model, seed, loss: {"cell": "", "model": model, "seed": seed, "measured": {"": {"loss": loss}}}
    >>> cells = [made("none", s, 2.0 + s) for s in range(3)] + [made("both", s, 1.9 + 1.01 * s) for s in range(3)]
    >>> sentences(about, cells)
    ['both: better than none by 0.090 nats [0.065, 0.115], p = 0.004, 3 seeds']
    """
    words = Wording(Analysis(as_table(about, cells)))
    base = words.table.baseline
    return [words.sentence(one) for one in words.about.comparisons if pairs or one.other == base]


def lines(gathered: Gathered) -> list[str]:
    """Plain tables for a terminal of 100 columns.

    >>> lines(Gathered((as_table({"name": "t", "metric": "loss", "models": ["a"]}, []),)))[0]
    'T'
    """
    told: list[str] = []
    for words in wordings(gathered):
        table = words.table
        told += [""] * bool(told) + [table.title.upper(), *_wrapped(", ".join(f"{k} {v}" for k, v in words.run)), ""]
        for above, shown in (
            (f"{words.measure}: {words.centre} [{words.interval}]", columns.results(words)),
            (words.judged, columns.differences(words)),
            (f"{words.cost}.", columns.costs(words)),
        ):
            if shown.groups:
                told += [*_wrapped(above), *_plain(shown), ""]
        told += _wrapped(words.summary())
        told += [line for note in (*words.about.remarks, *table.notes) for line in _wrapped(note, "- ")]
    return told


def markdown(gathered: Gathered) -> str:
    """The report as Markdown.

    >>> print(markdown(Gathered(())).splitlines()[0])
    # joformer: report
    """
    parts = ["# joformer: report\n"]
    parts += [f"- **{_md(w.table.title)}**: {_md(w.summary())}" for w in wordings(gathered)]
    for words in wordings(gathered):
        table = words.table
        parts.append(f"\n## {_md(table.title)}\n")
        parts.append(_md("; ".join(f"{name} {value}" for name, value in words.run)) + ".\n")
        parts.append(f"Ours: {_md(words.measure)}, {words.centre} [{words.interval}].\n")
        parts += _md_table(columns.results(words))
        if table.paper_setting:
            parts.append(f"\nThe paper: {_md(table.paper_setting)}.")
        if words.about.comparisons:
            parts.append(f"\n### {_md(words.judged)}\n\n{_md(words.method)}\n")
            parts += _md_table(columns.differences(words))
        if words.about.costs:
            parts.append(f"\n### Cost\n\n{_md(words.cost)}.\n")
            parts += _md_table(columns.costs(words))
        notes = [*words.about.remarks, *table.notes]
        if table.missing:
            more = f" and {len(table.missing) - 10} more" * (len(table.missing) > 10)
            notes.append(f"Missing: {', '.join(table.missing[:10])}{more}.")
        if notes:
            parts += ["\n### Notes\n", *(f"- {_md(note)}" for note in notes)]
        if commands := [cell.text("command") for cell in table.cells if cell.text("command")]:
            parts += [
                "\n### To run the cells again\n",
                "```",
                *(" ".join(c.replace("```", "").split()) for c in commands),
                "```",
            ]
    return "\n".join(parts).rstrip() + "\n"


def _wrapped(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=mark, subsequent_indent=" " * len(mark), break_on_hyphens=False)


def _plain(shown: Columns) -> list[str]:
    head, sized = shown.head, any(size for size, _ in shown.groups)
    widths = [max(map(len, column)) for column in zip(head, *shown.rows, strict=True)]
    while (over := sum(widths) + 2 * (len(widths) + sized - 1) - WIDTH) > 0:  # numbers stay whole, words give way
        widest = max((i for i, name in enumerate(head) if name in SHORTENED), key=lambda i: widths[i])
        if widths[widest] <= 8:
            break
        widths[widest] -= min(over, 4)

    def line(cells: list[str]) -> str:
        fit = [
            cell if len(cell) <= width else cell[: width - 1] + "…" for cell, width in zip(cells, widths, strict=True)
        ]
        return "  ".join(
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for cell, width, name in zip(fit, widths, head, strict=True)
        ).rstrip()

    indent = "  " * sized
    told = [indent + line(head), indent + "  ".join("─" * width for width in widths)]
    for size, rows in shown.groups:
        told += [size] * bool(size) + [indent + line(row) for row in rows]
    return told


def _md(text: str) -> str:
    """Text that Markdown takes as text."""
    return "".join(f"\\{c}" if c in "\\`*_|<>[]#" else c for c in " ".join(text.split()))


def _md_table(shown: Columns) -> list[str]:
    if not shown.groups:
        return ["Nothing measured yet."]
    sized = any(size for size, _ in shown.groups)
    head = ["size"] * sized + shown.head
    rule = "|".join("---" if name in LEFT or name == "size" else "--:" for name in head)
    rows = [[size] * sized + row for size, rows in shown.groups for row in rows]
    return [f"| {' | '.join(map(_md, head))} |", f"|{rule}|", *(f"| {' | '.join(map(_md, row))} |" for row in rows)]
