"""Plots as inline SVG, without a library: small, sharp on every screen, in the colours of the page around them.

A plot is 380 units wide, so that on a telephone its letters are as large as the text. Each has a title and a
description for who cannot see it; nothing is told by colour alone: lines carry their names, rows their verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from joformer.experiments.report.analysis import Comparison
from joformer.experiments.report.numbers import number
from joformer.experiments.report.words import Wording

WIDTH, ROW, LETTER = 380, 36, 6.7
COLOURS = 8
"""How many line colours the page has; after that the dashes change."""

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Series:
    """A line: its name, its place among all models (which gives its colour), its points and their bounds."""

    name: str
    index: int | None
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()


def differences(key: str, words: Wording, some: Sequence[Comparison], among: Sequence[Comparison]) -> str:
    """A dot and its interval for each comparison, over a line where there would be no difference.

    The axis is that of all comparisons in `among`, so that plots of several sizes can be compared. Filled dots are
    decided after correction; an arrow says that an interval goes on.
    """
    null, log = some[0].difference.null, words.ratio
    low, high = _domain(among, null, log)
    scale = _scale(low, high, 14, WIDTH - 14, log)
    floor = ROW * len(some) + 8
    parts = [
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{floor}"/>'
        f'<text class="tick" x="{x:.1f}" y="{floor + 15}" text-anchor="middle">{_signed(tick, null, log)}</text>'
        for tick in _ticks(low, high, 5, log)
        for x in [scale(tick)]
    ]
    middle = scale(null)
    parts.append(f'<line class="null" x1="{middle:.1f}" x2="{middle:.1f}" y1="4" y2="{floor}"/>')
    for index, one in enumerate(some):
        parts.append(_interval(one, words, scale, (low, high), ROW * index + 4))
    left, right = ("worse", "better") if words.table.higher else ("better", "worse")
    parts.append(
        f'<text class="side" x="8" y="{floor + 33}">← {left}</text>'
        f'<text class="side" x="{WIDTH - 8}" y="{floor + 33}" text-anchor="end">{right} →</text>'
    )
    told = "; ".join(f"{_name(one, words)}: {words.difference(one)}, {words.verdict(one)}" for one in some)
    what = "ratio" if log else "difference"
    return _svg(key, f"{words.table.title}: {what} on the same seeds", told, floor + 40, parts)


def lines(
    key: str,
    title: str,
    description: str,
    series: Sequence[Series],
    *,
    x_name: str,
    x_log: bool = False,
    y_log: bool = False,
    y_range: tuple[float, float] | None = None,
    points: bool = False,
) -> str:
    """Lines with their names at their ends; bounds as a band, or as whiskers where points are drawn."""
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in (*one.y, *(b for b in (*one.low, *one.high) if b is not None))]
    low, high = y_range or (min(ys), max(ys))
    low, high = _apart_enough(low, high, y_log)
    names = max(len(_short(one.name)) for one in series) * LETTER
    height = max(230, 14 * len(series) + 60)
    right, floor = WIDTH - names - 16, height - 40
    first, last = _apart_enough(min(xs), max(xs), x_log)
    across = _scale(first, last, 46, right, x_log)
    up = _scale(low, high, floor, 10, y_log)
    parts = [
        f'<line class="grid" x1="46" x2="{right:.1f}" y1="{up(tick):.1f}" y2="{up(tick):.1f}"/>'
        f'<text class="tick" x="40" y="{up(tick) + 4:.1f}" text-anchor="end">{_tick(tick)}</text>'
        for tick in _ticks(low, high, 5, y_log)
    ]
    marks = sorted(set(xs)) if x_log else _ticks(first, last, 4, False)
    parts += [
        f'<text class="tick" x="{across(tick):.1f}" y="{floor + 16}" text-anchor="middle">{_tick(tick)}</text>'
        for tick in marks
    ]
    parts.append(
        f'<text class="side" x="{(46 + right) / 2:.1f}" y="{floor + 33}" text-anchor="middle">{escape(x_name)}</text>'
    )
    clip = f"{key}-clip"
    parts.append(f'<clipPath id="{clip}"><rect x="36" y="6" width="{right - 26:.1f}" height="{floor - 2}"/></clipPath>')
    parts.append(f'<g clip-path="url(#{clip})">')
    # Beside each other, as bars on top of each other could not be told apart.
    aside = {id(one): (index - (len(series) - 1) / 2) * min(4.0, 24 / len(series)) for index, one in enumerate(series)}
    parts += [_bounds(one, across, up, aside[id(one)] if points else None) for one in series]
    for one in series:
        dodge = aside[id(one)] if points else 0.0
        path = " ".join(f"{across(x) + dodge:.1f},{up(y):.1f}" for x, y in zip(one.x, one.y, strict=True))
        parts.append(f'<polyline class="line {_class(one.index)}" points="{path}"/>')
        if points:
            parts += [
                f'<circle class="dot {_class(one.index)}" cx="{across(x) + dodge:.1f}" cy="{up(y):.1f}" r="2.6"/>'
                for x, y in zip(one.x, one.y, strict=True)
            ]
    parts.append("</g>")
    ends = [min(max(up(one.y[-1]), 10.0), float(floor)) for one in series]
    for one, end, place in zip(series, ends, _apart(ends, 13, 10, floor - 3), strict=True):
        tip = across(one.x[-1])
        parts.append(
            f'<path class="leader {_class(one.index)}" d="M{tip + 3:.1f} {end:.1f}L{right + 9:.1f} {place:.1f}"/>'
            f'<text class="name {_class(one.index)}" x="{right + 12:.1f}" y="{place + 4:.1f}">'
            f"{escape(_short(one.name))}</text>"
        )
    return _svg(key, title, description, height, parts)


def _interval(one: Comparison, words: Wording, scale: Scale, ends: tuple[float, float], top: int) -> str:
    d, y = one.difference, top + 25
    kind = "decided" if one.decided else "open"
    verdict = _brief(one, words)
    name = _short(_name(one, words), max(8, int((WIDTH - 24) / LETTER) - len(verdict)))
    parts = [
        f'<text class="row" x="8" y="{top + 12}">{escape(name)}</text>'
        f'<text class="verdict" x="{WIDTH - 8}" y="{top + 12}" text-anchor="end">{escape(verdict)}</text>'
    ]
    if d.low is not None and d.high is not None:
        left, right = scale(max(d.low, ends[0])), scale(min(d.high, ends[1]))
        parts.append(f'<line class="span {kind}" x1="{left:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}"/>')
        if d.low < ends[0]:
            parts.append(
                f'<path class="span {kind}" d="M{left + 6:.1f} {y - 4}L{left:.1f} {y}L{left + 6:.1f} {y + 4}"/>'
            )
        if d.high > ends[1]:
            parts.append(
                f'<path class="span {kind}" d="M{right - 6:.1f} {y - 4}L{right:.1f} {y}L{right - 6:.1f} {y + 4}"/>'
            )
    centre = scale(min(max(d.centre, ends[0]), ends[1]))
    parts.append(f'<circle class="mark {kind}" cx="{centre:.1f}" cy="{y}" r="4.2"/>')
    return "".join(parts)


def _name(one: Comparison, words: Wording) -> str:
    return one.model if one.other in (None, words.table.baseline) else f"{one.model} over {one.other}"


def _brief(one: Comparison, words: Wording) -> str:
    if one.difference.why:
        return "undecided: one seed" if one.difference.n == 1 else "undecided: no spread"
    return words.verdict(one)


def _domain(some: Sequence[Comparison], null: float, log: bool) -> tuple[float, float]:
    """All dots, and intervals as far as they do not dwarf the rest."""
    into = math.log if log else float
    out = math.exp if log else float
    zero = into(null)
    dots = [into(one.difference.centre) - zero for one in some]
    bounds = [
        into(bound) - zero for one in some for bound in (one.difference.low, one.difference.high) if bound is not None
    ]
    usual = sorted(map(abs, bounds))[int(0.8 * (len(bounds) - 1))] if bounds else 0.0
    most = max(*map(abs, dots), 2 * usual, 1e-9 * max(abs(zero), 1.0))
    low, high = (max(-most, min([0.0, *dots, *bounds])), min(most, max([0.0, *dots, *bounds])))
    margin = 0.06 * (high - low)
    return _apart_enough(out(zero + low - margin), out(zero + high + margin), log)


def _apart_enough(low: float, high: float, log: bool) -> tuple[float, float]:
    """Ends that differ, whatever the numbers: an axis of no length has no ticks."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    return (low / 2, high * 2) if log else (low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2)


def _bounds(one: Series, across: Scale, up: Scale, aside: float | None) -> str:
    there = [(x, a, b) for x, a, b in zip(one.x, one.low, one.high, strict=False) if a is not None and b is not None]
    if not there:
        return ""
    if aside is not None:
        return "".join(
            f'<path class="whisker {_class(one.index)}" d="M{across(x) + aside:.1f} {up(a):.1f}V{up(b):.1f}"/>'
            for x, a, b in there
        )
    path = [f"{across(x):.1f},{up(a):.1f}" for x, a, _ in there] + [
        f"{across(x):.1f},{up(b):.1f}" for x, _, b in there[::-1]
    ]
    return f'<polygon class="band {_class(one.index)}" points="{" ".join(path)}"/>'


def _class(index: int | None) -> str:
    return "base" if index is None else f"s{index % COLOURS} d{index // COLOURS % 3}"


def _short(name: str, most: int = 20) -> str:
    return name if len(name) <= most else "…" + name[1 - most :]


def _scale(low: float, high: float, start: int | float, end: int | float, log: bool) -> Scale:
    if log:
        low, high = math.log(low), math.log(high)
    span = (high - low) or 1.0
    if log:
        return lambda value: start + (math.log(value) - low) / span * (end - start)
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(low: float, high: float, count: int, log: bool) -> list[float]:
    """Round numbers between low and high, about so many; on a log axis 1, 2 and 5 of each power where they suffice."""
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
    """Places near those wanted, in their order, at least `gap` apart: pushed down, then back up from the floor."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = dict.fromkeys(order, 0.0)
    below = float(low - gap)
    for index in order:
        below = places[index] = max(wanted[index], below + gap)
    above = float(high + gap)
    for index in reversed(order):
        above = places[index] = min(places[index], above - gap)
    return [places[index] for index in range(len(wanted))]


def _svg(key: str, title: str, description: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{key}-t {key}-d">'
        f'<title id="{key}-t">{escape(title)}</title><desc id="{key}-d">{escape(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )
