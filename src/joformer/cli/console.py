"""What commands print: status lines, and requested text.

Everything printed goes through `printable`, because names come from untrusted files.
"""

from __future__ import annotations

import io
import sys

from joformer._log import printable


def say(text: str, lines: bool = False) -> None:
    """Prints a line (or several, with `lines`).

    If the pipe is closed, as after `| head`, further output is dropped: the exit code and the files still count.
    """
    _print(printable(text, keep="\n" * lines) + "\n")


def write(text: str) -> None:
    """Writes requested text: unchanged to a file or a pipe, with control characters escaped on a terminal."""
    _print(printable(text, keep="\n\t") if sys.stdout.isatty() else text)


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        sys.stdout = io.StringIO()
