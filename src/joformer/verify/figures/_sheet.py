"""The sheet every picture is drawn on: a title that says the finding, panels, a caption under them; and saving it.

Colours differ in luminance and lines in style, so that a grey print says the same. A sheet is narrow and tall, so that
a phone shows its text at three quarters of its size. No pyplot: no window, no global figure. matplotlib is an extra and
is imported only here and only when a picture is drawn.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joformer._io import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:  # the shape checks of the tests resolve annotations, and must not need matplotlib
    Axes = Figure = Any

__all__ = ["DARK", "FORMATS", "LIGHT", "MIDDLE", "ROUNDING", "Axes", "Figure", "require_matplotlib", "sheet", "write"]

WIDTH = 5.0  # inches, 480 pixels of a page
DPI = 150
FORMATS = ("svg", "png")
DARK, MIDDLE, LIGHT = "#000000", "#2f6fb0", "#e39a2d"
ROUNDING = 1e-12  # what fp64 leaves of a zero after some tens of operations is far below
STYLE = {
    "font.family": "DejaVu Sans",  # the one matplotlib brings along
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "image.interpolation": "nearest",
    "svg.fonttype": "path",  # a reader's fonts may lack θ, ‖ or ⁻¹
    "svg.hashsalt": "joformer",  # the same picture is the same file
}


def require_matplotlib() -> None:
    """Raises ValueError, naming the extra to install, where there is no matplotlib.

    >>> require_matplotlib()
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ValueError("figures need matplotlib: pip install 'joformer[train]'") from None


@contextmanager
def sheet(title: str, caption: str, *, height: float = 6.5) -> Iterator[Figure]:
    """An empty figure, `height` inches tall, with its title above and its caption below; draw inside the `with`."""
    require_matplotlib()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):
        heading = textwrap.wrap(title, 50)
        lines = textwrap.wrap(caption, 66, break_on_hyphens=False)
        above, below = (0.15 + 0.19 * len(heading)) / height, (0.12 + 0.185 * len(lines)) / height
        middle = ConstrainedLayoutEngine(rect=(0.005, below, 0.99, 1 - above - below), w_pad=0.06, h_pad=0.07)
        figure = NewFigure(figsize=(WIDTH, height), dpi=DPI, layout=middle)
        FigureCanvasAgg(figure)
        figure.text(0.012, 1 - 0.08 / height, "\n".join(heading), va="top", fontsize=11, fontweight="bold", gid="title")
        words = figure.text(0.012, 0.07 / height, "\n".join(lines), va="bottom", linespacing=1.35, gid="caption")
        words.set_fontsize(9.5)
        yield figure


def write(figure: Figure, stem: Path, formats: tuple[str, ...]) -> list[Path]:
    """The figure as stem.svg and stem.png, each whole or not at all; the same figure gives the same bytes."""
    import matplotlib

    title, caption = (next(t.get_text() for t in figure.texts if t.get_gid() == part) for part in ("title", "caption"))
    described = {"Title": title.replace("\n", " "), "Description": caption.replace("\n", " ")}
    paths = []
    for form in formats:
        # A date, or the version of matplotlib, would make two equal pictures differ.
        metadata = {**described, **({"Date": None, "Creator": "joformer"} if form == "svg" else {"Software": None})}
        buffer = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata)
        figure.set_layout_engine("none")  # laid out once is enough: half of the time of a second format
        path = stem.with_suffix(f".{form}")
        write_whole(path, _renumbered(buffer.getvalue()) if form == "svg" else buffer.getvalue())
        paths.append(path)
    return paths


def _renumbered(svg: bytes) -> bytes:
    """The same picture with its clip paths numbered: matplotlib names some by where they happen to lie in memory."""
    number: dict[bytes, bytes] = {}
    name = re.compile(rb'(?<=[#"])p[0-9a-f]{10}(?=[)"])')
    return name.sub(lambda found: number.setdefault(found[0], b"clip%d" % len(number)), svg)
