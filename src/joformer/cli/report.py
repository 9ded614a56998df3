"""`joformer report`: one page on what was run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from joformer._log import tell
from joformer._remote import Store, is_address, local
from joformer.cli.console import say
from joformer.cli.options import Place


@dataclass(frozen=True)
class Report:
    """Write one self-contained page on runs: the answer first, then tables with intervals, verdicts and curves.

    Prints one sentence per table and writes report.html, report.md and report.json.
    Example: joformer report runs/reproduce --out results

    Attributes:
        runs: Output folders or addresses of reproduce, compare or train, the folder of one table, or an existing
            report.json.
        out: Where to write, a folder or an address; by default the first of the runs if it is a folder, otherwise the
            current folder.
        text: Also print the tables.
        json: Print the report as {joformer, tables: [{about, said, cells}]} instead of sentences.
    """

    runs: Annotated[tuple[Place, ...], tyro.conf.Positional]
    out: Place | None = None
    text: bool = False
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer._io import make_folder, write_whole
        from joformer.experiments import report, results
        from joformer.training.mirror import push

        analysed = report.analysed(results.gather(self.runs))
        first = self.runs[0]
        place = self.out or (first if not is_address(first) and Path(first).is_dir() else Path())
        out = local(place)
        make_folder(out)
        record = report.as_json(analysed)
        written = {
            "report.html": report.html(analysed),
            "report.md": report.markdown(analysed),
            results.REPORT: json.dumps(record, ensure_ascii=False) + "\n",
        }
        for name in written:
            _require_ours(out / name)
        for name, text in written.items():
            write_whole(out / name, text.encode())
        if is_address(place):
            push(Store(str(place)), out, written)
        if self.json:
            say(json.dumps(record, indent=2, ensure_ascii=False), lines=True)
        elif self.text:
            say("\n".join(report.lines(analysed)), lines=True)
        else:
            for words in analysed:
                answer = words.sentences if len(analysed) <= 3 else words.sentences[:1]
                say(f"{words.heading}. {' '.join(answer)}")
        (tell if self.json else say)(f"{place}/report.html" if is_address(place) else str(out / "report.html"))
        return 0


def _require_ours(place: Path) -> None:
    """Raises ValueError if there is a file that is no report: pages name the library early, the JSON its tables."""
    if place.is_file():
        with place.open("rb") as file:
            start = file.read(1 << 16)
            if b"joformer" not in start and b'"tables"' not in start:
                raise ValueError(f"{place} is not a report of joformer: choose another --out")
