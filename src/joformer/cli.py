"""The command `joformer`: one small dataclass a subcommand, whose docstring and defaults are its help."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    import tyro
except ImportError:  # the core does without the command line's dependencies
    sys.exit("joformer: the command needs tyro and rich: pip install 'joformer[train]'")

if TYPE_CHECKING:
    from rich.progress import Progress

    from joformer.bench import Row
    from joformer.verify import Result


@dataclass(frozen=True)
class Verify:
    """Every claim of the paper, its verdict, and the residual measured here, now, with the library's own functions.

    Exit code 1 if a claim disagrees with its verdict. Takes some seconds. Example:
    joformer verify --only order 48 --seed 7
    """

    only: tuple[str, ...] = ()
    """Check these alone: sections (algebra, attention, order, transforms, tables) or numbers of rows."""
    seed: int = 0
    """Where the random instances start."""
    trials: int = 3
    """Random instances of each claim; the worst counts."""
    json: bool = False
    """Print a list of {id, section, label, verdict, residual, tolerance, ok, …} instead of text."""
    markdown: bool = False
    """Also write the page docs/claims.md below the current folder."""
    figures: Path | None = None
    """Also draw the pictures, SVG and PNG, into this folder."""

    def run(self) -> int:
        from joformer import verify
        from joformer.files import make_folder, write_whole
        from joformer.verify import figures, page

        if self.markdown and self.only:
            raise ValueError("--markdown writes the page of all claims: leave out --only")
        # What cannot be written is better known before than after.
        if self.markdown:
            make_folder(Path("docs"))
        if self.figures is not None:
            figures.require_matplotlib()
            make_folder(self.figures)
        section, width = "", max(shutil.get_terminal_size((120, 24)).columns, 60)

        def show(result: Result) -> None:
            nonlocal section
            if not self.json:
                if result.claim.section != section:
                    section = result.claim.section
                    _say(f"\n{page.TITLES[section].upper()}")
                _say("\n".join(page.lines(result, width)))
            progress.advance(task)

        with _progress(shown=self.json) as progress:  # text comes claim by claim and needs no bar
            task = progress.add_task("checking", total=len(verify.choose(self.only)))
            results = verify.run(self.only, seed=self.seed, trials=self.trials, say=show)
        if self.json:
            _say(json.dumps([result.as_json() for result in results], indent=2))
        else:
            _say(f"\n{page.summary(results)}")
        if self.markdown:
            command = f"joformer verify --markdown --seed {self.seed} --trials {self.trials}"
            write_whole(Path("docs/claims.md"), page.markdown(results, command).encode())
            print("wrote docs/claims.md", file=sys.stderr)
        if self.figures is not None:
            for path in figures.draw(self.figures, seed=self.seed):
                print(f"wrote {path}", file=sys.stderr)
        return 0 if all(result.ok for result in results) else 1


@dataclass(frozen=True)
class Bench:
    """What value transport costs here: ratios measured side by side, beside no positions, RoPE and installed peers.

    Takes about six minutes; close calls are decided by the machine's noise. Example:
    joformer bench --only eager decoding --json
    """

    only: tuple[str, ...] = ()
    """Measure these alone: drift, memory, eager, compiled, rotation, window, decoding, scan, spectral,
    monoidal, recurrence, import."""
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
        from rich.table import Table

        from joformer import bench

        names = [name for name in bench.FIGURES if not self.only or name in self.only]
        rows: list[Row] = []
        with _progress() as progress:
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


def _say(text: str) -> None:
    """Print; where nobody reads any more, as after `| head`, go on in silence: the exit code and files still count."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = io.StringIO()


def _progress(shown: bool = True) -> Progress:
    """A bar with the time left, on the error stream and only where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    error = Console(stderr=True)
    return Progress(*columns, console=error, transient=True, disable=not (shown and error.is_terminal))


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2, Ctrl-C exit code 130."""
    commands: dict[str, Callable[..., Any]] = {"verify": Verify, "bench": Bench}
    about = "Journey operators: what is true of them (verify) and what they cost (bench)."
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode gets question marks rather than an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    command = tyro.extras.subcommand_cli_from_dict(commands, prog="joformer", description=about)
    try:
        sys.exit(command.run())
    except ValueError as mistake:
        print(f"joformer: {mistake}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"joformer: cannot write {error.filename or 'the output'}: {error.strerror or error}", file=sys.stderr)
        sys.stdout = None  # what is left in its buffer would fail again at exit
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
