"""What the pictures of these pages share: SVG by hand, readable on a phone, in light, dark and grey.

A picture is 480 wide with text of 13 to 17, so that a phone shows it at three quarters of its size. Colours are
classes, which follow the reader's scheme; what two colours tell apart, a dash, a fill or a label tells apart as well.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

WIDTH = 480
FIGURES = Path(__file__).resolve().parent / "figures"
Pictures = dict[str, Callable[[], str]]

LIGHT = {"ink": "#1f2328", "soft": "#59636e", "faint": "#d1d9e0", "one": "#0a5cc7", "two": "#b34700"}
DARK = {"ink": "#e6edf3", "soft": "#a3adb8", "faint": "#3d444d", "one": "#6cb0ff", "two": "#ffa057"}


def _rules(colours: dict[str, str]) -> str:
    return "".join(f".{name}{{color:{value}}}" for name, value in colours.items())


STYLE = (
    f"<style>:root{{color-scheme:light dark}}{_rules(LIGHT)}@media(prefers-color-scheme:dark){{{_rules(DARK)}}}"
    "text{fill:currentColor}line,path,circle,rect,polyline{stroke:currentColor;fill:none}"
    ".fill{fill:currentColor;stroke:none}.wash{fill:currentColor;fill-opacity:.16;stroke:none}"
    ".b{font-weight:600}</style>"
)
TIPS = "".join(
    f'<marker id="{name}" class="{name}" viewBox="0 0 10 10" refX="8.5" refY="5" markerWidth="10" markerHeight="10" '
    'markerUnits="userSpaceOnUse" orient="auto"><path class="fill" d="M0 0 10 5 0 10z"/></marker>'
    for name in ("ink", "soft", "one", "two")
)


def svg(height: float, title: str, description: str, body: Iterable[str], width: int = WIDTH) -> str:
    """A whole picture; title and description are what a screen reader says."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
            f'viewBox="0 0 {width} {height:g}" font-family="system-ui, sans-serif" font-size="14" role="img">',
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
            f"{STYLE}<defs>{TIPS}</defs>",
            *body,
            "</svg>",
            "",
        ]
    )


def text(
    x: float, y: float, words: str, colour: str = "ink", size: float = 14, at: str = "start", bold: bool = False
) -> str:
    """One line of text at its baseline; `at` is start, middle or end; `q_ij` has a subscript."""
    more = f' text-anchor="{at}"' if at != "start" else ""
    return (
        f'<text class="{colour}{" b" * bold}" x="{x:.1f}" y="{y:.1f}" font-size="{size:g}"{more}>'
        f"{_lowered(escape(words), size)}</text>"
    )


SUBSCRIPT = re.compile(r"(?<=\w)_([ij]+)")


def _lowered(words: str, size: float) -> str:
    """Subscripts as letters of their own size: few fonts have ⱼ, and where one has it, it is tiny on a phone."""
    down, small = f"{size * 0.22:.1f}", f"{size * 0.8:.1f}"
    return SUBSCRIPT.sub(f'<tspan dy="{down}" font-size="{small}">\\1</tspan><tspan dy="-{down}">\u200a</tspan>', words)


def line(x1: float, y1: float, x2: float, y2: float, colour: str = "soft", width: float = 1.5, **more: str) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line class="{colour}" {ends} stroke-width="{width:g}"{_attributes(more)}/>'


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str = "soft", width: float = 1.5, **more: str) -> str:
    return line(x1, y1, x2, y2, colour, width, marker_end=f"url(#{colour})", **more)


def circle(x: float, y: float, r: float, colour: str = "soft", width: float = 1.2, **more: str) -> str:
    return f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}" stroke-width="{width:g}"{_attributes(more)}/>'


def dot(x: float, y: float, r: float, colour: str) -> str:
    return f'<g class="{colour}"><circle class="fill" cx="{x:.1f}" cy="{y:.1f}" r="{r:g}"/></g>'


def box(x: float, y: float, w: float, h: float, colour: str = "soft", width: float = 1.5, fill: str = "") -> str:
    """A rounded box, its inside empty, washed ("wash") or full ("fill") with its colour."""
    inside = f'<rect class="{fill}" x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4"/>' if fill else ""
    edge = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="4" stroke-width="{width:g}"/>'
        if width
        else ""
    )
    return f'<g class="{colour}">{inside}{edge}</g>'


def curve(points: Sequence[tuple[float, float]], colour: str, width: float = 2, **more: str) -> str:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    more["stroke_linejoin"] = "round"
    return f'<polyline class="{colour}" points="{shown}" stroke-width="{width:g}"{_attributes(more)}/>'


def band(low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], colour: str) -> str:
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*low, *reversed(high)])
    return f'<g class="{colour}"><polygon class="wash" points="{shown}"/></g>'


def vector(x: float, y: float, length: float, degrees: float, colour: str, width: float = 2.5, **more: str) -> str:
    """An arrow from a point, its angle counter-clockwise from the right."""
    turn = math.radians(degrees)
    return arrow(x, y, x + length * math.cos(turn), y - length * math.sin(turn), colour, width, **more)


def _attributes(more: dict[str, str]) -> str:
    return "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())


def linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The scale of an axis: `low` … `high` to `start` … `end`."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def number(value: float, digits: int = 0, sign: bool = False) -> str:
    """As the pages write it."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


NUMBER = re.compile(r"-?\d+\.\d")


def differs(old: str, new: str, within: float) -> bool:
    """Whether two pictures are not the same but for numbers `within` of each other."""
    apart = [abs(float(a) - float(b)) for a, b in zip(NUMBER.findall(old), NUMBER.findall(new), strict=False)]
    return NUMBER.sub("#", old) != NUMBER.sub("#", new) or any(one > within + 1e-9 for one in apart)


def outdated(pictures: Pictures, within: float = 0.0) -> list[str]:
    """The names of those that are not as committed."""
    found = ((FIGURES / name, draw()) for name, draw in pictures.items())
    return [path.name for path, new in found if not path.is_file() or differs(path.read_text(), new, within)]


def main(pictures: Pictures, within: float = 0.0) -> None:
    """Writes the pictures; with --check exits with 1 and names those that are out of date."""
    if "--check" in sys.argv:
        if old := outdated(pictures, within):
            raise SystemExit(f"docs/figures: {', '.join(old)} out of date: python {sys.argv[0]}")
        return
    for name, draw in pictures.items():
        (FIGURES / name).write_text(draw())
        print(f"docs/figures/{name}, {(FIGURES / name).stat().st_size / 1000:.1f} kB")
