"""`joformer report`: one page of what was run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from joformer._log import tell
from joformer.cli.console import say


@dataclass(frozen=True)
class Report:
    """One self-contained page of runs: the answer first, then tables with intervals, verdicts and curves.

    Prints one sentence per table and writes report.html, report.md and report.json.
    Example: joformer report runs/reproduce --out results

    Attributes:
        runs: Folders of reproduce, compare or train, of one table, or a report.json written before.
        out: Where to write; by default the first of the runs if it is a folder, else the current folder.
        text: Print the tables too.
        json: Print the report as {joformer, tables: [{about, said, cells}]} instead of sentences.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    out: Path | None = None
    text: bool = False
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer._io import make_folder, write_whole
        from joformer.experiments import report, results

        analysed = report.analysed(results.gather(self.runs))
        out = self.out or (self.runs[0] if self.runs[0].is_dir() else Path())
        make_folder(out)
        record = report.as_json(analysed)
        written = {
            "report.html": report.html(analysed),
            "report.md": report.markdown(analysed),
            results.REPORT: json.dumps(record, ensure_ascii=False) + "\n",
        }
        for name, text in written.items():
            write_whole(out / name, text.encode())
        if self.json:
            say(json.dumps(record, indent=2, ensure_ascii=False), lines=True)
        elif self.text:
            say("\n".join(report.lines(analysed)), lines=True)
        else:
            for words in analysed:
                answer = words.sentences if len(analysed) <= 3 else words.sentences[:1]
                say(f"{words.heading}. {' '.join(answer)}")
        (tell if self.json else say)(str(out / "report.html"))
        return 0
