"""The figures of inspect in SVG coordinates (figures.html draws them), in addition to those of the report.

panels    maps of numbers side by side: magnitude by opacity, sign by colour
dials     one clock per plane, its hand at the angle
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from joformer.experiments.report.numbers import number
from joformer.experiments.report.plots import WIDTH, Plot

Map = Sequence[Sequence[float | None]]
GAP, TITLE, LEFT = 10, 17, 54
DIALS = 16
"""Maximum number of planes shown; the fastest come first."""


def panels(
    key: str,
    title: str,
    told: str,
    maps: Sequence[tuple[str, Map]],
    *,
    most: float | None = None,
    across: int = 4,
    marks: Sequence[int] = (),
    look: str = "s0",
) -> Plot:
    """Maps of the same shape, `across` of them in a row, on one scale of colour; `marks` are cells with a ring."""
    rows, columns = len(maps[0][1]), max(len(row) for row in maps[0][1])
    across = min(across, len(maps), 2 if columns > 20 else across)
    width = (WIDTH - GAP * (across - 1)) / across
    side = min(width / columns, 24.0, 200 / rows)
    scale = most or _most(maps)
    drawn, names = [], []
    for index, (name, values) in enumerate(maps):
        left = index % across * (width + GAP)
        top = index // across * (rows * side + TITLE + GAP) + TITLE
        names.append({"x": left, "y": top - 5, "text": name})
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                drawn.append(
                    _cell(left + x * side, top + y * side, side, side, value, scale, look, y * columns + x in marks)
                )
    height = math.ceil(len(maps) / across) * (rows * side + TITLE + GAP)
    return {"key": key, "title": title, "told": told, "width": WIDTH, "height": round(height), "cells": drawn,
            "names": names, "labels": []}  # fmt: skip


def table(key: str, title: str, told: str, values: Map, *, rows: Sequence[str], columns: str, digits: int = 2) -> Plot:
    """A map whose cells hold their numbers: one row per name, columns numbered from 0."""
    count = max(len(row) for row in values)
    wide = (WIDTH - LEFT) / count
    written, tall, scale = wide >= 30, 26 if wide >= 30 else 16, _most([("", values)])
    drawn, labels = [], []
    for y, row in enumerate(values):
        labels.append({"x": 0, "y": TITLE + y * tall + tall / 2 + 4, "text": rows[y], "anchor": "start"})
        for x, value in enumerate(row):
            left, top = LEFT + x * wide, TITLE + y * tall
            drawn.append(_cell(left, top, wide, tall, value, scale))
            if written and value is not None:
                text = number(value, digits)
                labels.append({"x": left + wide / 2, "y": top + tall / 2 + 4, "text": text, "anchor": "middle"})
    every = 1 if wide >= 22 else math.ceil(22 / wide)
    names = [
        {
            "x": LEFT + (x + 0.5) * wide,
            "y": TITLE - 5,
            "text": f"{columns} {x}" if wide >= 44 else str(x),
            "middle": True,
        }
        for x in range(0, count, every)
    ]
    if wide < 44:
        names.append({"x": 0, "y": TITLE - 5, "text": columns})
    return {"key": key, "title": title, "told": told, "width": WIDTH, "height": TITLE + tall * len(values) + 4,
            "cells": drawn, "names": names, "labels": labels}  # fmt: skip


def dials(key: str, title: str, told: str, rows: Sequence[tuple[str, Sequence[float]]]) -> Plot:
    """A row of dials per name: the hand of plane p at its angle, anticlockwise from three o'clock."""
    count = min(DIALS, max(len(angles) for _, angles in rows))
    step = (WIDTH - LEFT) / count
    radius, drawn, labels = min(step / 2 - 1.5, 13.0), [], []
    for at, (name, angles) in enumerate(rows):
        y = TITLE + (at + 0.5) * (2 * radius + 6)
        labels.append({"x": 0, "y": y + 4, "text": name, "anchor": "start"})
        for plane, angle in enumerate(angles[:count]):
            x = LEFT + (plane + 0.5) * step
            hand = x + radius * math.cos(angle), y - radius * math.sin(angle)
            drawn.append({"x": x, "y": y, "r": radius, "hand": hand})
    names = [{"x": LEFT + 0.5 * step, "y": TITLE - 5, "text": "plane 0", "middle": True}]
    if count > 3:
        names.append({"x": LEFT + (count - 0.5) * step, "y": TITLE - 5, "text": str(count - 1), "middle": True})
    height = TITLE + len(rows) * (2 * radius + 6) + 4
    return {"key": key, "title": title, "told": told, "width": WIDTH, "height": round(height), "dials": drawn,
            "names": names, "labels": labels}  # fmt: skip


def _cell(
    x: int | float,
    y: int | float,
    width: int | float,
    height: int | float,
    value: int | float | None,
    scale: int | float,
    look: str = "s0",
    ring: bool = False,
) -> dict[str, Any]:
    share = 0.0 if value is None else min(1.0, abs(value) / scale)
    look = "s1" if value is not None and value < 0 else look
    return {"x": x, "y": y, "w": width, "h": height, "share": share, "look": look, "ring": ring, "none": value is None}


def _most(maps: Sequence[tuple[str, Map]]) -> float:
    return max((abs(v) for _, values in maps for row in values for v in row if v is not None), default=1.0) or 1.0
