"""Number formatting, the same in every form of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def number(value: int | float | None, digits: int | None = None) -> str:
    """With this many decimals, or four significant digits; a true minus sign; thousands separators.

    >>> number(-0.0312, 3), number(1234567, 0), number(25.553), number(None), number(1e30)
    ('−0.031', '1,234,567', '25.55', '–', '1.00e30')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e9:
        mantissa, _, power = f"{value:.2e}".partition("e")
        text = f"{mantissa}e{int(power)}"
    elif digits is None:
        text = f"{value:,.{min(max(3 - _magnitude(value), 0), 6)}f}"
    else:
        text = f"{value:,.{digits}f}"
    if not text.strip("-0.,"):
        text = text.lstrip("-")  # no minus zero
    return text.replace("-", "−")


def exact(value: int | float | None) -> str:
    """All digits as given, which is how the paper prints it.

    >>> exact(168.67), exact(1.0), exact(None)
    ('168.67', '1', '–')
    """
    return "–" if value is None else f"{value:.10g}".replace("-", "−")


def probability(p: int | float | None) -> str:
    """A p-value as usually written.

    >>> probability(0.0041), probability(0.00001), probability(0.3), probability(None)
    ('0.004', '<0.001', '0.30', '–')
    """
    if p is None:
        return "–"
    return "<0.001" if p < 0.0005 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def duration(seconds: int | float) -> str:
    """A duration in readable units.

    >>> duration(42), duration(4000), duration(300000)
    ('42 s', '1 h 07 min', '83 h')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return (
        f"{minutes} min"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02} min"
        if minutes < 1440
        else f"{minutes // 60} h"
    )


def digits_for(bounds: Sequence[tuple[float | None, float | None]]) -> int | None:
    """Decimals that suit these intervals: about two significant digits of the median half-width.

    >>> digits_for([(1.0, 1.03)]), digits_for([(1.0, 1.1)]), digits_for([(None, None)])
    (3, 2, None)
    """
    halves = [abs(high - low) / 2 for low, high in bounds if low is not None and high is not None and high != low]
    # 0.0078 keeps one significant digit and 0.012 two: the step is at 0.0035.
    return min(max(-_magnitude(median(halves) / 3.5), 0), 6) if halves else None


def _magnitude(value: int | float) -> int:
    return math.floor(math.log10(abs(value))) if value else 0
