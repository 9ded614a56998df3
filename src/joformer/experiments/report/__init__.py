"""A report on runs: a self-contained page, Markdown, JSON, and lines for a terminal.

report = analysed(results.gather(["out"]))
html(report), markdown(report), as_json(report), lines(report)
"""

from __future__ import annotations

from collections.abc import Iterable

from joformer.experiments.report.analysis import Analysis
from joformer.experiments.report.page import html
from joformer.experiments.report.text import as_json, lines, markdown
from joformer.experiments.report.words import Wording
from joformer.experiments.tables import Table

__all__ = ["analysed", "as_json", "html", "lines", "markdown"]


def analysed(tables: Iterable[Table]) -> list[Wording]:
    """Each table with its analysis, shared by all forms of the report."""
    return [Wording(Analysis(table)) for table in tables]
