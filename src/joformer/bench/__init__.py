"""What it costs: ratios measured side by side in one run, beside RoPE, no positions, and the peers installed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from joformer.bench.measure import Row, keep_freed_memory
from joformer.bench.rows import FIGURES, Report

__all__ = ["FIGURES", "Row", "run"]


def run(
    only: Sequence[str] = (), *, repeats: int = 30, threads: int | None = None, say: Report = lambda _: None
) -> list[Row]:
    """Measure the figures named in `only` (all by default); `say` hears what is being measured.

    >>> [row.ok for row in run(["drift"])][0]
    True
    """  # fmt: skip
    unknown = [name for name in only if name not in FIGURES]
    if unknown:
        raise ValueError(f"unknown figure {unknown[0]!r}: choose from {', '.join(FIGURES)}")
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, got {repeats}")
    keep_freed_memory()
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        return [row for name in FIGURES if not only or name in only for row in FIGURES[name](repeats, say)]
    finally:
        torch.set_num_threads(before)
