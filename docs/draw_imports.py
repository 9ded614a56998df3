"""Draws which room of the house imports which, from the source itself: docs/imports.svg.

    python docs/draw_imports.py            writes the picture
    python docs/draw_imports.py --check    exits with 1 if an import goes upward, or the picture is out of date

The order of the rooms is `tests/test_house.py`'s; a room imports only from those above it.
"""

from __future__ import annotations

import ast
import sys
from html import escape
from pathlib import Path

from drawing import dot, line, svg, text

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "joformer"
PICTURE = HERE / "imports.svg"
LEFT, TOP, CELL = 116, 84, 13.6


def order() -> list[str]:
    """The rooms from the top of the house to the bottom."""
    tree = ast.parse((HERE.parent / "tests" / "test_house.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ORDER"]
    return [room for room in ast.literal_eval(found[0].value) if not room.startswith("__")]


def imports() -> set[tuple[str, str]]:
    """(importing room, imported room) for every pair that occurs, imports inside functions included."""
    pairs = set()
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                deep = node.module.split(".")[1:]
                names = [node.module] if deep else [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            for name in names:
                parts = name.split(".")
                if parts[0] == "joformer" and len(parts) > 1 and parts[1] != here:
                    pairs.add((here, parts[1]))
    return pairs


def draw(rooms: list[str], pairs: set[tuple[str, str]]) -> str:
    """A row and a column for each room: a dot where the row imports the column, all of them left of the diagonal."""
    at = {room: place for place, room in enumerate(rooms)}
    bottom = TOP + CELL * len(rooms)
    shapes = [text(12, 24, "Which package imports which", bold=True, size=16)]
    for room, place in at.items():
        x, y = LEFT + CELL * (place + 0.5), TOP + CELL * (place + 0.5)
        shapes += [
            line(12, y + CELL / 2, x + CELL / 2, y + CELL / 2, "faint", 1),
            line(x + CELL / 2, y - CELL / 2, x + CELL / 2, bottom, "faint", 1),
            text(LEFT - 6, y + 4.5, room, size=13, at="end"),
            f'<g transform="translate({x + 4.5:.1f} {y - 8:.1f}) rotate(-90)">{text(0, 0, room, "soft", 13)}</g>',
        ]
    for here, there in sorted(pairs):
        if here in at and there in at:
            x, y = LEFT + CELL * (at[there] + 0.5), TOP + CELL * (at[here] + 0.5)
            shapes.append(f"<g><title>{escape(here)} imports {escape(there)}</title>{dot(x, y, 4.5, 'one')}</g>")
    words = "a dot: the row imports the column; none may be above the diagonal"
    shapes.append(text(12, bottom + 28, words, "soft", 13))
    found = f"{len(rooms)} packages: each imports only from those above it."
    return svg(bottom + 42, "Which package imports which", found, shapes)


def main() -> None:
    rooms, pairs = order(), imports()
    place = {room: row for row, room in enumerate(rooms)}
    upward = sorted(f"{a} → {b}" for a, b in pairs if a in place and b in place and place[b] > place[a])
    picture = draw(rooms, pairs)
    if "--check" in sys.argv:
        if upward:
            raise SystemExit(f"imports that go upward: {', '.join(upward)}")
        if not PICTURE.is_file() or PICTURE.read_text() != picture:
            raise SystemExit("docs/imports.svg is out of date: python docs/draw_imports.py")
        return
    PICTURE.write_text(picture)
    print(f"{len(rooms)} rooms, {len(pairs)} imports, {len(upward)} upward")


if __name__ == "__main__":
    main()
