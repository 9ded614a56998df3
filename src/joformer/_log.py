"""What is shown on a terminal: names come from files and folders of others, and must not steer it."""

from __future__ import annotations

import re
import sys

# Control characters (among them those that begin an escape sequence, and line ends), what reverses or hides the order
# of letters, lone halves of characters that names of files can hold.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: object, keep: str = "") -> str:
    r"""The text with every character that could steer a terminal written as an escape; those in `keep` stay.

    The escapes are JSON's, so that JSON stays JSON.

    >>> print(printable("\x1b[31mred\nline"))
    \u001b[31mred\u000aline
    """
    return _STEERING.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", str(text))


def tell(line: object) -> None:
    """One line on the error stream, its names made harmless."""
    print(printable(line), file=sys.stderr, flush=True)
