"""Cost: ratios measured side by side in one run, relative to RoPE, no positions, and installed peers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from joformer._io import one_line
from joformer._log import logger
from joformer.bench._measure import Effort, Row, keep_freed_memory
from joformer.bench._place import CPU, Place, Shape, gpu
from joformer.bench._rows import ANYWHERE, FIGURES

__all__ = ["ANYWHERE", "CPU", "FIGURES", "Effort", "Place", "Row", "Shape", "chosen", "gpu", "run"]


def chosen(only: Sequence[str], among: Collection[str] = FIGURES) -> list[str]:
    """The figures named in `only`, in the order of `among`, or all; raises ValueError on an unknown name.

    >>> chosen(["window", "drift"])
    ['drift', 'window']
    """
    unknown = [name for name in only if name not in among]
    if unknown:
        raise ValueError(f"unknown figure {unknown[0]!r}: choose from {', '.join(among)}")
    return [name for name in among if not only or name in only]


def run(
    only: Sequence[str] = (),
    *,
    repeats: int = 30,
    seconds: int | float = 60.0,
    threads: int | None = None,
    place: Place = CPU,
) -> list[Row]:
    """Measures the figures named in `only`, each a set of ratios with intervals.

    Args:
        only: Names in `FIGURES`; none means all.
        repeats: Minimum rounds per comparison.
        seconds: Maximum time per comparison, once it has enough rounds for an interval; a round is never cut.
        threads: Number of torch threads; all by default.
        place: Where to measure the figures in `ANYWHERE`; others are always measured on the CPU.

    Returns:
        The rows of all figures. On a GPU a figure that fails is logged and left out.

    Example:
        >>> [row.ok for row in run(["drift"])][0]
        True
    """
    names = chosen(only)
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, got {repeats}")
    if not seconds >= 0:
        raise ValueError(f"seconds must be 0 or more, got {seconds}")
    effort = Effort(repeats, seconds, place.clock)
    rows: list[Row] = []
    keep_freed_memory()
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        for name in names:
            try:
                rows += FIGURES[name](effort, *[place] * (name in ANYWHERE))
            except Exception as error:
                if place.device.type == "cpu":
                    raise
                # Cards differ: one that has too little memory or lacks an operator still measures the rest.
                logger.warning(f"{name} is left out: {one_line(error, first=True)}")
    finally:
        torch.set_num_threads(before)
    return rows
