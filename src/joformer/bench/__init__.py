"""What it costs: ratios measured side by side in one run, beside RoPE, no positions, and the peers installed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from joformer.bench._measure import Effort, Row, keep_freed_memory
from joformer.bench._rows import FIGURES

__all__ = ["FIGURES", "Effort", "Row", "chosen", "run"]


def chosen(only: Sequence[str]) -> list[str]:
    """The figures named in `only`, in the order of `FIGURES`, or all; raises ValueError on an unknown name.

    >>> chosen(["window", "drift"])
    ['drift', 'window']
    """
    unknown = [name for name in only if name not in FIGURES]
    if unknown:
        raise ValueError(f"unknown figure {unknown[0]!r}: choose from {', '.join(FIGURES)}")
    return [name for name in FIGURES if not only or name in only]


def run(
    only: Sequence[str] = (),
    *,
    repeats: int = 30,
    seconds: int | float = 60.0,
    threads: int | None = None,
) -> list[Row]:
    """Measures the figures named in `only`, each a set of ratios with intervals.

    Args:
        only: Names in `FIGURES`; none means all.
        repeats: Rounds of each comparison, at least.
        seconds: Of each comparison, at most, once it has rounds enough for an interval; a round is never cut.
        threads: Threads torch may use; all by default.

    Returns:
        The rows of all figures.

    Example:
        >>> [row.ok for row in run(["drift"])][0]
        True
    """
    names = chosen(only)
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, got {repeats}")
    if not seconds >= 0:
        raise ValueError(f"seconds must be 0 or more, got {seconds}")
    keep_freed_memory()
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return [row for name in names for row in FIGURES[name](Effort(repeats, seconds))]
    finally:
        torch.set_num_threads(before)
