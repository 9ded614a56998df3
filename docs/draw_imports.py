"""Draws which room of the house imports which, from the source itself: docs/imports.svg.

    python docs/draw_imports.py            writes the picture
    python docs/draw_imports.py --check    exits with 1 if an arrow goes upward, or the picture is out of date

The order of the rooms is `tests/test_house.py`'s; a room imports only from those above it.
"""

from __future__ import annotations

import ast
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "joformer"
PICTURE = HERE / "imports.svg"
ROW, LEFT, WIDTH = 34, 24, 150


def order() -> list[str]:
    """The rooms from the top of the house to the bottom."""
    tree = ast.parse((HERE.parent / "tests" / "test_house.py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ORDER"]
    return [room for room in ast.literal_eval(found[0].value) if not room.startswith("__")]


def arrows() -> set[tuple[str, str]]:
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
    """Rooms as a column, every import as an arc from the importing room up to the imported one."""
    height = ROW * len(rooms) + 2 * LEFT
    at = {room: LEFT + ROW * row + ROW / 2 for row, room in enumerate(rooms)}
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 {height}" font-family="sans-serif" font-size="13">',
        "<style>text{fill:#24292f}rect{fill:#eef3fb;stroke:#5b7db1}path{fill:none;stroke:#5b7db1;opacity:.55}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}rect{fill:#1c2b41;stroke:#7fa3da}path{stroke:#7fa3da}}"
        "</style>",
        '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M0 0L6 3L0 6z" style="fill:#5b7db1;stroke:none;opacity:1"/></marker></defs>',
    ]
    for here, there in sorted(pairs):
        if here in at and there in at:
            start, end = at[here], at[there]
            bend = LEFT + WIDTH + 20 + 12 * abs(start - end) / ROW
            lines.append(
                f'<path d="M{LEFT + WIDTH} {start:g}C{bend:g} {start:g} {bend:g} {end:g} {LEFT + WIDTH} {end:g}" '
                f'marker-end="url(#tip)"><title>{escape(here)} imports {escape(there)}</title></path>'
            )
    for room, y in at.items():
        lines.append(f'<rect x="{LEFT}" y="{y - 12:g}" width="{WIDTH}" height="24" rx="5"/>')
        lines.append(f'<text x="{LEFT + 10}" y="{y + 4.5:g}">{escape(room)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    rooms, pairs = order(), arrows()
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
    print(f"{len(rooms)} rooms, {len(pairs)} arrows, {len(upward)} upward")


if __name__ == "__main__":
    main()
