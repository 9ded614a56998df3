"""The page's plots in SVG coordinates (plots.html draws them), without a plotting library.

A plot is 380 units wide, so that on a phone its letters are as large as the text. Each has a title and a description
for screen readers, and nothing is conveyed by colour alone: lines carry their names, rows their verdict.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from joformer.experiments.report.analysis import Comparison
from joformer.experiments.report.numbers import number
from joformer.experiments.report.words import Wording

WIDTH, ROW, LETTER, NAMES = 380, 36, 6.4, 146
COLOURS = 12
"""The number of line colours; after that the dashes change."""

Plot = dict[str, Any]
Scale = Callable[[float], float]


@dataclass(frozen=True)
class Series:
    """A line: its name, its index among all models (which gives the colour), its points and their bounds."""

    name: str
    index: int | None
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def forest(key: str, words: Wording, some: Sequence[Comparison], among: Sequence[Comparison]) -> Plot:
    """One row per comparison: its name, a dot and its interval, over a line at zero difference.

    The axis covers all comparisons in `among`, so that plots of several sizes can be compared. Filled dots are decided
    after correction.
    """
    null, log = some[0].difference.null, words.table.metric.log
    bounds = [x for one in among for d in [one.difference] for x in (d.centre, d.low, d.high) if x is not None]
    rows = []
    for one in some:
        d = one.difference
        name = f"{words.name(one.model)} over {words.name(one.other)}" if words.is_pair(one) else words.name(one.model)
        rows.append(Row(name, one.verdict, one.decided, d.centre, d.low, d.high))
    told = "; ".join(words.sentence(one) for one in some)
    sides = ("worse", "better") if words.table.metric.higher else ("better", "worse")
    title = f"{words.heading}: {'ratios' if log else 'differences'}{' at ' + some[0].size if some[0].size else ''}"
    return intervals(key, title, told, rows, null=null, among=bounds, sides=sides, log=log)


@dataclass(frozen=True)
class Row:
    """A row of `intervals`: its name, a word next to it, whether its dot is filled, and its position."""

    name: str
    word: str
    filled: bool
    centre: float
    low: float | None
    high: float | None


def intervals(
    key: str,
    title: str,
    told: str,
    rows: Sequence[Row],
    *,
    null: float,
    among: Sequence[float],
    sides: tuple[str, str],
    log: bool = False,
) -> Plot:
    """Rows with a dot and an interval each, over a line at `null`; the axis covers all of `among`."""
    low, high = _apart_enough(min([null, *among]), max([null, *among]), log)
    scale = _scale(low, high, NAMES + 12, WIDTH - 12, log)
    floor = ROW * len(rows) + 8
    drawn = [
        {
            "name": textwrap.wrap(row.name, int(NAMES / LETTER), max_lines=2, placeholder=" …"),
            "verdict": row.word,
            "kind": "decided" if row.filled else "open",
            "y": ROW * index + 26,
            "centre": scale(row.centre),
            "span": None if row.low is None or row.high is None else (scale(row.low), scale(row.high)),
        }
        for index, row in enumerate(rows)
    ]
    ticks = [{"x": scale(tick), "text": _signed(tick, null, log)} for tick in _ticks(low, high, 3, log)]
    return {
        "key": key, "title": title, "told": told, "height": floor + 40, "floor": floor, "null": scale(null),
        "rows": drawn, "ticks": ticks, "sides": sides, "left": NAMES, "width": WIDTH,
    }  # fmt: skip


def lines(
    key: str,
    title: str,
    told: str,
    series: Sequence[Series],
    *,
    x_name: str,
    x_log: bool = False,
    y_log: bool = False,
    y_range: tuple[float, float] | None = None,
    points: bool = False,
    x_whole: bool = False,
) -> Plot:
    """Lines labelled at their ends; bounds as a band, or as whiskers if points are drawn.

    With `x_whole` the ticks of the x axis are whole numbers.
    """
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in (*one.y, *(b for b in (*one.low, *one.high) if b is not None))]
    low, high = _apart_enough(*(y_range or (min(ys), max(ys))), y_log)
    names = max(len(_short(one.name)) for one in series) * LETTER
    height = max(230, 14 * len(series) + 60)
    right, floor = WIDTH - names - 16, height - 40
    first, last = _apart_enough(min(xs), max(xs), x_log)
    across, up = _scale(first, last, 46, right, x_log), _scale(low, high, floor, 10, y_log)
    marks = sorted(set(xs)) if x_log else _ticks(first, last, 4, False)
    marks = [x for x in marks if not x_whole or x == int(x)]
    ends = [min(max(up(one.y[-1]), 10.0), float(floor)) for one in series]
    drawn = []
    for index, (one, end, place) in enumerate(zip(series, ends, _apart(ends, 13, 10, floor - 3), strict=True)):
        # Side by side: bars on top of each other would be indistinguishable.
        aside = (index - (len(series) - 1) / 2) * min(4.0, 24 / len(series)) if points else 0.0
        bounded = [
            (x, a, b) for x, a, b in zip(one.x, one.low, one.high, strict=False) if a is not None and b is not None
        ]
        bounds = [(across(x) + aside, up(a), up(b)) for x, a, b in bounded]
        drawn.append(
            {
                "look": "base" if one.index is None else f"s{one.index % COLOURS} d{one.index // COLOURS % 3}",
                "name": _short(one.name),
                "points": [(across(x) + aside, up(y)) for x, y in zip(one.x, one.y, strict=True)],
                "whiskers": bounds if points else [],
                "band": [] if points else [(x, a) for x, a, _ in bounds] + [(x, b) for x, _, b in bounds[::-1]],
                "leader": (across(one.x[-1]) + 3, end, right + 9, place),
            }
        )
    return {
        "key": key, "title": title, "told": told, "height": height, "floor": floor, "right": right, "width": WIDTH,
        "across": [{"x": across(x), "text": _tick(x)} for x in marks], "x_name": x_name, "dots": points,
        "up": [{"y": up(y), "text": _tick(y)} for y in _ticks(low, high, 5, y_log)], "series": drawn,
    }  # fmt: skip


def _apart_enough(low: float, high: float, log: bool) -> tuple[float, float]:
    """Distinct ends for any input: an axis of zero length has no ticks."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return (low / 2, high * 2) if log else (low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _scale(low: float, high: float, start: int | float, end: int | float, log: bool) -> Scale:
    into: Scale = math.log if log else float
    first, span = into(low), (into(high) - into(low)) or 1.0
    return lambda value: start + (into(value) - first) / span * (end - start)


def _ticks(low: float, high: float, count: int, log: bool) -> list[float]:
    """About `count` round numbers between low and high; on a log axis 1, 2 and 5 of each power if they suffice."""
    if log and high / low > 3:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1,), (1, 3), (1, 2, 5)):
            found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
            if len(found) > 2:
                return found[:: max(1, round(len(found) / count))]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * factor for factor in (1, 2, 2.5, 5, 10)), key=lambda step: abs(step - rough))
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.4g}k".replace("-", "−") if abs(value) < 1e7 else number(value)
    return f"{value:.4g}".replace("-", "−")


def _signed(value: float, null: float, log: bool) -> str:
    return ("+" if not log and null == 0 and value > 0 else "") + _tick(value) + ("×" if log else "")


def _apart(wanted: list[float], gap: int, low: int, high: int) -> list[float]:
    """Positions near those wanted, in order, at least `gap` apart: pushed down, then back up from the floor."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = dict.fromkeys(order, 0.0)
    below = float(low - gap)
    for index in order:
        below = places[index] = max(wanted[index], below + gap)
    above = float(high + gap)
    for index in reversed(order):
        above = places[index] = min(places[index], above - gap)
    return [places[index] for index in range(len(wanted))]
