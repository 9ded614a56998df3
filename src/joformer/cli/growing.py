"""The report's page while tables are still running: it grows table by table.

A table is shown only when all of its cells have ended, so that nobody can stop half-way where it looks best. Each look
is recorded in table.json.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from joformer._log import logger

if TYPE_CHECKING:
    from joformer.experiments import Cell, Table

REFRESH = 10
"""Seconds after which a browser reloads a page that is still growing."""


class GrowingPage:
    """Writes report.html in the folder `out` whenever a table ends and others are left.

    The final page is not written here: it is the one that `joformer report` writes, byte for byte.
    """

    def __init__(self, tables: Sequence[Table], out: Path, left: Iterable[Cell]) -> None:
        self.out, self.left = out, {table.name: set[str]() for table in tables}
        self.written = False
        for cell in left:
            self.left[cell.table].add(cell.name)
        if not all(self.left.values()):  # tables of an earlier run of the command
            self._write(REFRESH)

    def ended(self, cell: Cell) -> None:
        """Records that this cell has ended, with or without a result."""
        self.left[cell.table].discard(cell.name)
        if not self.left[cell.table]:
            self._write(REFRESH)

    def stopped(self) -> None:
        """Rewrites the page without automatic reload: nothing is running any more."""
        if self.written:
            self._write(0)

    def _write(self, refresh: int) -> None:
        from joformer._io import one_line, write_whole
        from joformer.experiments import report, results

        running = {name for name, cells in self.left.items() if cells}
        if not running:
            return
        try:
            tables = report.analysed(results.gather([self.out]))
            shown = [words for words in tables if words.table.name not in running]
            page = report.html(shown, [words for words in tables if words.table.name in running], refresh)
            write_whole(self.out / "report.html", page.encode())
            note_look(self.out, {words.table.name for words in shown})
        except (ValueError, OSError) as error:  # the runs do not depend on the page
            logger.warning(f"no page yet: {one_line(error)}")
            return
        if not self.written:
            logger.info(f"a first report is at {self.out / 'report.html'}; it grows as tables finish")
        self.written = True


def note_look(out: Path, names: Collection[str] | None = None, cells: Collection[str] | None = None) -> None:
    """Records in each table.json (of these names) how many (of these) cells existed when results were looked at."""
    from joformer._io import write_json
    from joformer.experiments.tables import RESULT, TABLE, read

    for place in out.glob(f"*/{TABLE}"):
        about = read(place)
        if names is not None and about.get("name") not in names:
            continue
        known = (name for name in about["cells"] if cells is None or name in cells)
        there = sum((out / name / RESULT).is_file() for name in known)
        before, about["looked"] = about.get("looked", []), sorted({*about.get("looked", []), there})
        if about["looked"] != before:
            write_json(place, about)
            if len(about["looked"]) > about.get("looks", 1):
                logger.warning(f"{place.parent.name}: its results had already been seen before these runs were added")
