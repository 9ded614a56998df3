"""What commands have in common: lines that may go unread, and a bar with the time left."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def tell(line: str) -> None:
    """What is being done, on the error stream."""
    print(line, file=sys.stderr, flush=True)


def say(text: str, end: str = "\n") -> None:
    """Print; where nobody reads any more, as after `| head`, go on in silence: the exit code and files still count."""
    try:
        print(text, end=end, flush=True)
    except BrokenPipeError:
        sys.stdout = io.StringIO()


def progress_bar(shown: bool = True, left: bool = True) -> Progress:
    """A bar with the time left (unless its description says that), on the error stream and only if a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), *[TimeRemainingColumn()] * left)
    error = Console(stderr=True)
    return Progress(*columns, console=error, transient=True, disable=not (shown and error.is_terminal))
