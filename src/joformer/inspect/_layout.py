"""Sections of the page and their contents: figures with captions, tokens shaded in a text or on a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from joformer.experiments.report.numbers import number
from joformer.inspect import _figures as figures
from joformer.inspect._findings import Findings

FEW = 4
"""Number of figures per section that are not folded."""
HEADS = 8
"""Maximum number of heads drawn as lines; more are drawn as a map."""


def section(key: str, title: str, sentences: list[str], drawn: list[dict[str, Any]], reading: str, **more: Any) -> Any:
    rest = {"more": drawn[FEW:], "more_title": f"{len(drawn) - FEW} more", "tables": [], **more}
    return {
        "key": key, "title": title, "sentences": sentences, "figures": drawn[:FEW], "reading": reading, **rest
    }  # fmt: skip


def figure(kind: str, caption: str, plot: Any, wide: bool = False) -> dict[str, Any]:
    return {"kind": kind, "caption": caption, "plot": plot, "wide": wide}


def tokens(
    found: Findings, values: Tensor, told: str, most: float, marks: Sequence[int] = (), unit: str = ""
) -> dict[str, Any]:
    """The text with each token shaded."""
    shown = []
    for at, (label, value) in enumerate(zip(found.subject.labels, values.tolist(), strict=True)):
        text = label + "\n" if label.endswith("⏎") else label
        look = "s1 mark" if at in marks else "s1"
        title = f"token {at}: {number(value, 3)}{unit}"
        shown.append({"text": text, "share": min(1.0, value / (most or 1.0)), "look": look, "title": title})
    return {"told": told, "tokens": shown}


def grid_of(found: Findings, values: Tensor) -> list[list[float | None]]:
    """Token values as rows of the grid, without tokens that have no position; further axes are stacked."""
    grid = found.subject.grid or (1, len(values))
    cells = values[len(values) - torch.Size(grid).numel() :]
    return lists(cells.reshape(-1, grid[-1]))


def image(key: str, title: str, found: Findings, values: Sequence[float], most: float = 1.0, look: str = "s0") -> Any:
    """One map of the grid with the tokens of the journey marked."""
    grid = found.subject.grid or (1, len(values))
    prefix = len(found.subject.labels) - torch.Size(grid).numel()
    maps = [("", grid_of(found, torch.tensor(values)))]
    marks = [token - prefix for token in (found.source, found.target) if token >= prefix]
    return figures.panels(key, title, title, maps, most=most, across=1, marks=marks, look=look)


def lists(values: Tensor) -> list[list[float | None]]:
    return [[None if math.isnan(v) else v for v in row] for row in values.tolist()]
