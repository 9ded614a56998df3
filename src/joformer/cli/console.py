"""What commands have in common: lines that may go unread, and a bar with the time left.

Everything printed goes through `printable` here: names come from files of others.
"""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from joformer._log import printable, tell

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["beside", "progress_bar", "say", "tell", "write"]


def say(text: str, lines: bool = False) -> None:
    """Print a line (or `lines`).

    Where nobody reads any more, as after `| head`, go on in silence: the exit code and files still count.
    """
    _print(printable(text, keep="\n" * lines) + "\n")


def write(text: str) -> None:
    """A piece of text that was asked for: as it is into a file or a pipe, on a terminal so that it cannot steer it."""
    _print(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def beside(bar: Progress, line: str) -> None:
    """A line above the bar; [red] or :cat: in a name is no markup."""
    bar.console.print(printable(line), markup=False, emoji=False, highlight=False, soft_wrap=True)


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        sys.stdout = io.StringIO()


def progress_bar(shown: bool = True, left: bool = True) -> Progress:
    """A bar with the time left (unless its description says that), on the error stream and only if a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), *[TimeRemainingColumn()] * left)
    error = Console(stderr=True)
    return Progress(*columns, console=error, transient=True, disable=not (shown and error.is_terminal))
