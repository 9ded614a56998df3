"""`joformer bench`: what it costs here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joformer.cli.showing import progress_bar

if TYPE_CHECKING:
    from joformer.bench import Row


@dataclass(frozen=True)
class Bench:
    """What value transport costs here: ratios measured side by side, beside no positions, RoPE and installed peers.

    Takes about twelve minutes; close calls are decided by the machine's noise. Example:
    joformer bench --only eager decoding --json
    """

    only: tuple[str, ...] = ()
    """Measure these alone: drift, memory, eager, compiled, rotation, window, decoding, scan, spectral,
    monoidal, recurrence, llama, generate, transport, loop, augmentation, import, start."""
    repeats: int = 30
    """Runs of each variant; the best counts."""
    threads: int | None = None
    """Threads torch may use; all by default."""
    json: bool = False
    """Print a list of {name, value, bar, ok} instead of a table."""

    def run(self) -> int:
        from joformer import bench

        if self.json:
            rows = bench.run(self.only, repeats=self.repeats, threads=self.threads)
            print(json.dumps([row.as_json() for row in rows], indent=2))
        else:
            self._withprogress_bar()
        return 0

    def _withprogress_bar(self) -> None:
        from rich.console import Console
        from rich.table import Table

        from joformer import bench

        names = [name for name in bench.FIGURES if not self.only or name in self.only]
        rows: list[Row] = []
        with progress_bar() as progress:
            task = progress.add_task("measuring", total=len(names))
            for name in names or self.only:
                say = lambda what: progress.update(task, description=what)  # noqa: E731
                rows += bench.run([name], repeats=self.repeats, threads=self.threads, say=say)
                progress.advance(task)
        table = Table("figure", "value", "bar", "ok")
        for row in rows:
            bar = "" if row.bar is None else f"{'≥' if row.higher else '≤'} {row.bar:g}"
            table.add_row(row.name, f"{row.value:.4g}", bar, {True: "yes", False: "NO", None: ""}[row.ok])
        Console().print(table)
