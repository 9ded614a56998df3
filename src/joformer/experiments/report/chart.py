"""Curves drawn with characters, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from joformer.experiments.report.curves import Curve
from joformer.experiments.report.numbers import number

MARKS, SEVERAL = "○●△▲□■", "◐"
EARLY = 0.2
"""Before this share of the steps a curve may lie outside the picture: a loss starts high."""


def chart(curves: Mapping[str, Curve], total: int | float, width: int = 64, height: int = 12) -> str:
    """The curves over steps 0 to `total`, one character per column; ◐ marks several.

    >>> lines = {"a": Curve([0, 30], [1.0, 4.0], [], [], 1), "b": Curve([0, 30], [4.0, 4.0], [], [], 1)}
    >>> print(chart(lines, 30, width=4, height=3))
    4.000 ┤●●●◐
          │  ○
    1.600 ┤ ○
          └────
           0 to 30 steps   ○ a   ● b   ◐ several
    """
    last = max((curve.steps[-1] for curve in curves.values()), default=0.0)
    late = [y for one in curves.values() for x, y in zip(one.steps, one.mean, strict=True) if x >= EARLY * last]
    late += [one.at(EARLY * last) for one in curves.values()]
    low, high = min(late, default=0.0), max(late, default=1.0)
    rows = [[" "] * width for _ in range(height)]
    for mark, curve in zip(MARKS, curves.values(), strict=False):
        for column in range(width):
            step = total * column / (width - 1)
            if curve.steps[0] <= step <= curve.steps[-1] and low <= (y := curve.at(step)) <= high:
                row = rows[round((high - y) / ((high - low) or 1.0) * (height - 1))]
                row[column] = mark if row[column] == " " else SEVERAL
    names = number(high), number(low)
    edge = max(map(len, names))
    sides = [f"{names[0]:>{edge}} ┤", *[f"{'':{edge}} │"] * (height - 2), f"{names[1]:>{edge}} ┤"]
    drawn = [f"{side}{''.join(row)}".rstrip() for side, row in zip(sides, rows, strict=True)]
    told = [f"{mark} {name}" for mark, name in zip(MARKS, curves, strict=False)]
    told += [f"{SEVERAL} several"] * any(SEVERAL in row for row in rows)
    return "\n".join(
        [*drawn, f"{'':{edge}} └{'─' * width}", f"{'':{edge}}  {'   '.join([f'0 to {total:g} steps', *told])}"]
    )
