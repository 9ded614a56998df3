"""The command `joformer`: one small dataclass a subcommand, whose docstring and defaults are its help."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

try:
    import tyro
except ImportError:  # the core does without the command line's dependencies
    sys.exit("joformer: the command needs tyro and rich: pip install 'joformer[train]'")

if TYPE_CHECKING:
    from joformer.bench import Row


@dataclass(frozen=True)
class Bench:
    """What value transport costs here: ratios measured side by side, beside no positions, RoPE and installed peers.

    Takes about six minutes; close calls are decided by the machine's noise. Example:
    joformer bench --only eager decoding --json
    """

    only: tuple[str, ...] = ()
    """Measure these alone: drift, memory, eager, compiled, rotation, window, decoding, scan, import."""
    repeats: int = 30
    """Runs of each variant; the best counts."""
    threads: int | None = None
    """Threads torch may use; all by default."""
    json: bool = field(default=False)
    """Print a list of {name, value, bar, ok} instead of a table."""

    def run(self) -> int:
        from joformer import bench

        if self.json:
            rows = bench.run(self.only, repeats=self.repeats, threads=self.threads)
            print(json.dumps([row.as_json() for row in rows], indent=2))
        else:
            self._with_progress()
        return 0

    def _with_progress(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.table import Table

        from joformer import bench

        names = [name for name in bench.FIGURES if not self.only or name in self.only]
        rows: list[Row] = []
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        error = Console(stderr=True)
        with Progress(*columns, console=error, transient=True, disable=not error.is_terminal) as progress:
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


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, Ctrl-C exit code 130."""
    command = tyro.extras.subcommand_cli_from_dict({"bench": Bench}, prog="joformer", description=__doc__)
    try:
        sys.exit(command.run())
    except ValueError as mistake:
        print(f"joformer: {mistake}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
