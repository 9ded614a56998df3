"""A table about to be run: what is compared with what, the paper's figures, and the cells."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from joformer._io import make_folder, write_json
from joformer.experiments.cells import REMEDY, Cell
from joformer.experiments.results import TABLE, read
from joformer.experiments.sources import Scale, Source

METRICS = {
    # unit, whether more is better, whether seeds scatter so unevenly that a median says more than a mean
    "accuracy": ("%", True, False),
    "bits_per_byte": ("bits per byte", False, False),
    "perplexity": ("perplexity", False, True),
    "ratio": ("× the time", False, False),
}


@dataclass(frozen=True)
class Plan:
    """A table about to be run: what the report needs to know of it, and its cells.

    `baseline` is the model all others are paired with, `pairs` are further pairs (without value transport, with it),
    `reference` is what a ratio is compared with. `paper` are the printed figures: model → size → value.
    """

    name: str
    title: str
    scale: Scale
    source: Source
    metric: str
    models: tuple[str, ...]
    cells: tuple[Cell, ...]
    sizes: tuple[str, ...] = ("",)
    baseline: str | None = None
    reference: float | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    paper: dict[str, dict[str, float]] = field(default_factory=dict)
    paper_metric: str | None = None
    paper_setting: str = ""
    notes: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """The table as table.json says it."""
        unit, higher, skewed = METRICS[self.metric]
        data = Path(self.source.data).name
        said = {
            "name": self.name,
            "title": self.title if self.metric == "ratio" else f"{self.title}, on {data}",
            "scale": self.scale,
            "data": data,
            "metric": self.metric,
            "unit": unit,
            "higher": higher,
            "skewed": skewed,
            "baseline": self.baseline,
            "reference": self.reference,
            "models": self.models,
            "sizes": self.sizes,
            "pairs": self.pairs,
            "paper": self.paper,
            "paper_metric": self.paper_metric or self.metric,
            "paper_setting": self.paper_setting,
            "notes": self.notes,
            "settings": {f"{cell.model}, {cell.size}": _checksum(cell.describe()) for cell in self.cells},
            "cells": [cell.name for cell in self.cells],
        }
        return json.loads(json.dumps(said))

    def begin(self, out: Path) -> None:
        """Write table.json; refused where the folder holds another table of that name."""
        place = out / self.name / TABLE
        about = self.about()
        if place.is_file():
            before = read(place, REMEDY)
            for key in ("scale", "data", "metric"):
                if before.get(key, about[key]) != about[key]:
                    raise ValueError(
                        f"{place.parent} holds a table with {key} = {before.get(key)}, not {about[key]}: "
                        "choose another --out"
                    )
            cells = {f"{cell.model}, {cell.size}": cell for cell in self.cells}
            for which, digest in before.get("settings", {}).items():
                about["settings"].setdefault(which, digest)
                if which in cells and digest not in map(_checksum, cells[which].descriptions()):
                    raise ValueError(
                        f"{place.parent} holds {which.strip(', ')} with other settings or data: choose another --out"
                    )
            # More seeds, or other cells of it, are added to what is there.
            for key in ("cells", "models", "sizes"):
                about[key] = [*about[key], *(one for one in before.get(key, ()) if one not in about[key])]
        make_folder(place.parent)
        write_json(place, about)


def _checksum(described: dict[str, Any]) -> str:
    """A checksum of all that decides a cell's result but its seed."""
    told = json.dumps({**described, "seed": None}, sort_keys=True)
    return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def with_command(cells: list[Cell], words: str) -> tuple[Cell, ...]:
    """The cells, each with the command that runs it alone."""
    return tuple(replace(cell, command=f"joformer {words} --only {cell.name}") for cell in cells)
