"""`joformer bench`: what value transport costs on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joformer._log import Progress
from joformer.cli.console import say

if TYPE_CHECKING:
    from joformer.bench import Row


@dataclass(frozen=True)
class Bench:
    """Measure what value transport costs on this machine, relative to no positions, RoPE and installed peers.

    Every ratio has a 95 % interval over rounds in which all variants take turns; if it covers 1, the difference is
    within noise. Takes about twenty minutes on an otherwise idle machine. Example:
    joformer bench --only eager decoding --json

    Attributes:
        only: Measure only these: drift, memory, eager, compiled, rotation, window, decoding, scan, spectral,
            monoidal, recurrence, llama, generate, transport, loop, augmentation, import, start, traffic.
        repeats: Minimum number of rounds per comparison; more follow until its interval is narrower than its
            distance from the bar.
        seconds: Maximum seconds per comparison, once it has the 8 rounds that an interval needs.
        threads: Number of torch threads; all by default.
        gpu: Measure on the GPU, in bfloat16 and on larger shapes: memory, eager, compiled, rotation, window,
            decoding, llama, generate and transport, alongside Liger and flash-attention if they are installed.
            Prints the card, the versions and a Markdown table.
        json: Print a list of {name, value, low, high, rounds, verdict, bar, ok} instead of a table; with --gpu,
            the list is "rows" in an object with the card and versions.
    """

    only: tuple[str, ...] = ()
    repeats: int = 30
    seconds: float = 60.0
    threads: int | None = None
    gpu: bool = False
    json: bool = False

    def run(self) -> int:
        """Runs the command and returns its exit code."""
        from joformer import bench

        place = bench.gpu() if self.gpu else bench.CPU
        names = bench.chosen(self.only, bench.ANYWHERE if self.gpu else bench.FIGURES)
        rows: list[Row] = []
        with Progress("measuring", len(names), unit="figures") as progress:
            for name in names:
                rows += bench.run([name], repeats=self.repeats, seconds=self.seconds, threads=self.threads, place=place)
                progress.advance()
        found = [row.as_json() for row in rows]
        if self.json:
            whole = {**place.described(), "rows": found} if self.gpu else found
            say(json.dumps(whole, indent=2, ensure_ascii=False), lines=True)
        elif self.gpu:
            say(_markdown(place.described(), rows), lines=True)
        else:
            _show(rows)
        return 0


def _measured(row: Row) -> str:
    interval = "" if row.low is None or row.high is None else f" [{row.low:.4g}, {row.high:.4g}]"
    return f"{row.value:.4g}{interval}"


def _markdown(described: dict[str, str], rows: Sequence[Row]) -> str:
    """Card and versions on one line, then a table, ready to paste into an issue."""
    head = ", ".join(f"{name} {value}" for name, value in described.items())
    lines = [f"| {row.name} | {_measured(row)} | {row.verdict or ''} |" for row in rows]
    return "\n".join([head, "", "| figure | value [95 %] | verdict |", "|---|---|---|", *lines])


def _show(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("figure", "value [95 %]", "verdict", "bar")
    for row in rows:
        met = {True: "yes", False: "NO", None: "within noise"}[row.ok]
        bar = "" if row.bar is None else f"{'≥' if row.higher else '≤'} {row.bar:g}: {met}"
        table.add_row(row.name, escape(_measured(row)), row.verdict or "", bar)
    Console().print(table)
