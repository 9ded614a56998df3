"""A table and its cells as the report knows them, from the contents of table.json and result.json and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from joformer._io import one_line

LARGEST = 1e100
"""What is measured beyond this is a run that broke, and its square would be no number."""


class Damaged(ValueError):
    """A file that makes no sense, in one line that names it.

    >>> issubclass(Damaged, ValueError)
    True
    """


@dataclass(frozen=True)
class Cell:
    """One run with one seed. `measured` has the metrics of each size; `about` the rest of the file, all optional.

    >>> Cell("t/a/seed-0", "a", 0, {"": {"loss": 1.0}}).number("step_ms") is None
    True
    """

    name: str
    model: str
    seed: int
    measured: Mapping[str, Mapping[str, Any]]
    about: Mapping[str, Any] = field(default_factory=dict)

    def number(self, key: str) -> float | None:
        """The finite number under this key, None where there is none."""
        return finite(self.about.get(key))

    def text(self, key: str) -> str:
        """The text under this key, empty where there is none."""
        value = self.about.get(key)
        return value if isinstance(value, str) else ""

    def facts(self, key: str) -> dict[str, Any]:
        """The mapping under this key, empty where there is none."""
        value = self.about.get(key)
        return dict(value) if isinstance(value, Mapping) else {}

    @property
    def curve(self) -> list[dict[str, float]]:
        """The finite numbers measured on the way, each line with its step."""
        lines = self.about.get("curve")
        kept = [
            {
                str(key): number
                for key, value in line.items()
                if (number := finite(value)) is not None and abs(number) <= LARGEST
            }
            for line in (lines if isinstance(lines, list) else [])
            if isinstance(line, Mapping)
        ]
        return [line for line in kept if line.get("step", -1.0) >= 0]


@dataclass(frozen=True)
class Table:
    """A table: what it compares (the fields of table.json), what of it is finished, what is missing.

    >>> one = Cell("t/a/seed-0", "a", 0, {"": {"loss": 1.0}})
    >>> Table("t", "T", "loss", "nats", models=("a",), cells=(one,), planned=("t/a/seed-0", "t/a/seed-1")).missing
    ['t/a/seed-1']
    """

    name: str
    title: str
    metric: str
    unit: str
    higher: bool = False
    skewed: bool = False
    scale: str = ""
    data: str = ""
    baseline: str | None = None
    reference: float | None = None
    models: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ("",)
    pairs: tuple[tuple[str, str], ...] = ()
    paper: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    paper_metric: str = ""
    paper_setting: str = ""
    notes: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()

    @property
    def missing(self) -> list[str]:
        """Planned cells without a result."""
        there = {cell.name for cell in self.cells}
        return [name for name in self.planned if name not in there]

    def values(self, model: str, size: str, metric: str | None = None) -> dict[int, float]:
        """The metric of each seed that has it: finite, and positive where the table says it is skewed."""
        found = {}
        for cell in self.cells:
            if cell.model == model and size in cell.measured:
                value = finite(cell.measured[size].get(metric or self.metric))
                least = 1 / LARGEST if metric is None and self.skewed else -LARGEST
                if value is not None and least <= value <= LARGEST:
                    found[cell.seed] = value
        return found

    @property
    def seeds(self) -> list[int]:
        """All seeds of finished cells."""
        return sorted({cell.seed for cell in self.cells})


@dataclass(frozen=True)
class Gathered:
    """All tables of a report, in order.

    >>> Gathered(()).tables
    ()
    """

    tables: tuple[Table, ...]


def as_table(about: Mapping[str, Any], results: Iterable[Mapping[str, Any]], place: str | Path = "table.json") -> Table:
    """A table from the content of its table.json and of the result.json of its cells; `place` is named in errors.

    >>> as_table({"name": "t", "metric": "loss", "models": ["a"], "cells": []}, []).unit
    'loss'
    """
    try:
        name, metric, models = about["name"], about["metric"], [str(model) for model in about["models"]]
        paper = {
            str(m): {str(s): float(v) for s, v in of.items() if v is not None}
            for m, of in (about.get("paper") or {}).items()
        }
        reference, baseline = about.get("reference"), about.get("baseline")
        cells = tuple(as_cell(result, place) for result in results)
        return Table(
            str(name),
            str(about.get("title") or name),
            str(metric),
            str(about.get("unit") or metric),
            higher=bool(about.get("higher")),
            skewed=bool(about.get("skewed")),
            scale=str(about.get("scale") or ""),
            data=str(about.get("data") or ""),
            baseline=None if baseline is None else str(baseline),
            reference=None if reference is None else float(reference),
            models=tuple(models),
            sizes=tuple(str(size) for size in about.get("sizes") or [""]),
            pairs=tuple((str(without), str(having)) for without, having in about.get("pairs") or []),
            paper=paper,
            paper_metric=str(about.get("paper_metric") or ""),
            paper_setting=str(about.get("paper_setting") or ""),
            notes=tuple(str(note) for note in about.get("notes") or []),
            planned=tuple(str(cell) for cell in about.get("cells") or []),
            cells=cells,
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(f"{place} is damaged ({one_line(error, plain=())}): write it again") from None


def describe(table: Table) -> dict[str, Any]:
    """The content of table.json again, as `as_table` reads it.

    >>> describe(as_table({"name": "t", "metric": "loss", "models": ["a"]}, []))["models"]
    ['a']
    """
    fields = ("name", "title", "scale", "data", "metric", "unit", "higher", "skewed", "baseline", "reference")
    return {
        **{name: getattr(table, name) for name in fields},
        "models": list(table.models),
        "sizes": list(table.sizes),
        "pairs": [list(pair) for pair in table.pairs],
        "paper": {model: dict(of) for model, of in table.paper.items()},
        "paper_metric": table.paper_metric,
        "paper_setting": table.paper_setting,
        "notes": list(table.notes),
        "cells": list(table.planned),
    }


def finite(value: object) -> float | None:
    """A number as float, anything else (and what is not finite) as None.

    >>> finite(1), finite("1"), finite(math.nan)
    (1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def as_cell(result: Mapping[str, Any], place: str | Path = "result.json") -> Cell:
    """A cell from the content of its result.json; `place` is named in errors.

    >>> as_cell({"cell": "t/a/seed-0", "model": "a", "seed": 0, "measured": {}}).model
    'a'
    """
    try:
        measured = {str(size): dict(of) for size, of in result["measured"].items()}
        rest = {key: value for key, value in result.items() if key not in ("cell", "model", "seed", "measured")}
        return Cell(str(result["cell"]), str(result["model"]), int(result["seed"]), measured, rest)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise Damaged(f"{place} is damaged ({one_line(error, plain=())}): write it again") from None
