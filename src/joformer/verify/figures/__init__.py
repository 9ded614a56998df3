"""The theory as pictures, each of numbers that the library computes; in Python or by `joformer verify --figures DIR`.

    path spread · holonomy · displacement kernel · angle fields · order-awareness

Every function gives a matplotlib figure with its caption in it; `draw` writes them all as SVG and PNG. They need
matplotlib, which comes with the extra: pip install 'joformer[train]'.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from joformer._io import make_folder
from joformer.verify.figures._fields import angle_fields_figure
from joformer.verify.figures._order import order_awareness_figure
from joformer.verify.figures._sheet import FORMATS, Figure, require_matplotlib, write
from joformer.verify.figures._spectra import displacement_kernel, displacement_kernel_figure
from joformer.verify.figures._transport import holonomy_figure, path_spread_figure

__all__ = [
    "angle_fields_figure",
    "displacement_kernel",
    "displacement_kernel_figure",
    "draw",
    "holonomy_figure",
    "order_awareness_figure",
    "path_spread_figure",
    "require_matplotlib",
]


def draw(directory: str | os.PathLike[str], *, seed: int = 0, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Writes every picture into a folder.

    The same seed gives the same bytes. A file appears whole or not at all, replacing an older one.

    Args:
        directory: The folder, created where it is missing.
        seed: The seed of what is random in the pictures.
        formats: "svg", "png" or both.

    Returns:
        The paths written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     [path.name for path in draw(folder, formats=["svg"])]
        ['path-spread.svg', 'holonomy.svg', 'displacement-kernel.svg', 'angle-fields.svg', 'order-awareness.svg']
    """
    unknown = [form for form in formats if form not in FORMATS]
    if unknown or not formats:
        raise ValueError(f"formats {list(formats)} cannot be drawn: choose from {', '.join(FORMATS)}")
    folder = Path(directory)
    make_folder(folder)
    pictures: dict[str, Callable[[], Figure]] = {
        "path-spread": partial(path_spread_figure, seed=seed),
        "holonomy": partial(holonomy_figure, seed=seed),
        "displacement-kernel": displacement_kernel_figure,
        "angle-fields": partial(angle_fields_figure, seed=seed),
        "order-awareness": partial(order_awareness_figure, seed=seed),
    }
    return [path for name, make in pictures.items() for path in write(make(), folder / name, tuple(formats))]
