"""The report as JSON: what was gathered, so that it can be rendered again, and what was made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import joformer
from joformer.experiments.gathered import Cell, Gathered, describe, finite
from joformer.experiments.report.curves import thin
from joformer.experiments.report.words import wordings


def as_json(gathered: Gathered) -> dict[str, Any]:
    """Tables with their cells (curves thinned) and, under "said", estimates, comparisons, costs and the summary.

    >>> as_json(Gathered(()))["tables"]
    []
    """
    tables = [
        {
            "about": describe(words.table),
            "said": {
                "summary": words.summary(),
                "rows": [asdict(row) for row in words.about.rows],
                "comparisons": [
                    {**asdict(one), "decided": one.decided, "verdict": one.verdict, "sentence": words.sentence(one)}
                    for one in words.about.comparisons
                ],
                "costs": [asdict(cost) for cost in words.about.costs],
                "remarks": words.about.remarks,
                "missing": words.table.missing,
            },
            "cells": [_cell(cell) for cell in words.table.cells],
        }
        for words in wordings(gathered)
    ]
    return {"joformer": joformer.__version__, "tables": [_plain(table) for table in tables]}


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "model": cell.model,
        "seed": cell.seed,
        "measured": cell.measured,
        **cell.about,
        "curve": thin(cell.curve),
    }


def _plain(value: Any) -> Any:
    """As JSON has it: without NaN, which it does not know."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return finite(value) if isinstance(value, float) else value
