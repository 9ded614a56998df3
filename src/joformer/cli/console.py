"""What commands print: lines that may go unread, and text that was asked for.

Everything printed goes through `printable`: names come from files of others.
"""

from __future__ import annotations

import io
import sys

from joformer._log import printable


def say(text: str, lines: bool = False) -> None:
    """Print a line (or `lines`).

    Where nobody reads any more, as after `| head`, later ones are dropped: the exit code and files still count.
    """
    _print(printable(text, keep="\n" * lines) + "\n")


def write(text: str) -> None:
    """A piece of text that was asked for: as it is into a file or a pipe, on a terminal so that it cannot steer it."""
    _print(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        sys.stdout = io.StringIO()
