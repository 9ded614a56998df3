"""One logger and one progress display; nothing of what is shown can steer a terminal.

    logging.getLogger("joformer")    INFO: what is being done; WARNING: what a user should notice
    Progress                         a bar with the time left on a terminal, elsewhere a line (INFO) every five seconds

From Python only warnings are shown unless logging is configured; the command shows both (`to_console`). Names come from
files and folders of others: what is logged has passed `printable` before any handler sees it.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Control characters (among them those that begin an escape sequence, and line ends), what reverses or hides the order
# of letters, lone halves of characters that names of files can hold.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
DRAWN, LOGGED, RAREST = 0.25, 5.0, 60.0
"""Seconds between two pictures of a bar, and between two lines of progress at least and at most."""


def printable(text: object, keep: str = "") -> str:
    r"""The text with every character that could steer a terminal written as an escape; those in `keep` stay.

    The escapes are JSON's, so that JSON stays JSON.

    >>> print(printable("\x1b[31mred\nline"))
    \u001b[31mred\u000aline
    """
    return _STEERING.sub(lambda found: found[0] if found[0] in keep else f"\\u{ord(found[0]):04x}", str(text))


def counted(count: int, what: str) -> str:
    """So many of what is called so.

    >>> counted(1, "seed"), counted(2_000, "seed")
    ('1 seed', '2,000 seeds')
    """
    return f"{count:,} {what}{'s' * (count != 1)}"


def tell(line: object) -> None:
    """One line on the error stream, its names made harmless."""
    print(printable(line), file=sys.stderr, flush=True)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), None
    return True


logger = logging.getLogger("joformer")
logger.addFilter(_escape)


class _Console(logging.Handler):
    """Writes to the error stream as it is at that moment: a bar replaces it to keep lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(record.getMessage())


@contextmanager
def to_console(level: int = logging.INFO) -> Iterator[None]:
    """Within it, what is logged from `level` on is shown on the error stream, one line each.

    >>> with to_console():
    ...     logger.info("reading notes.txt")
    """
    handler, before = _Console(), (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False  # a library that configures the root logger would show every line twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


class Progress:
    """How far some work is: a bar with the time left on a terminal, elsewhere a line every five seconds at most.

    It costs nothing to update at every step: the bar is drawn four times a second at most. Lines (INFO) become rarer
    after two minutes, down to one per minute; one that says what the last one said is left out. The time left is that
    of what this process does: what was done before does not count. Inside another one, or where the logger leaves out
    warnings, nothing is shown.

    Args:
        what: What is done, such as "training".
        total: How many there are to do.
        done: How many were done before.
        unit: What is counted.
        shown: Whether to show anything: of several processes, one does.
        picture: Makes lines that are drawn above the bar, anew each time; there are none without a terminal.

    Example:
        >>> with Progress("training", 100) as progress:
        ...     progress.update(1, loss=2.5)
    """

    _outermost: Progress | None = None

    def __init__(
        self,
        what: str,
        total: int | float,
        *,
        done: int | float = 0,
        unit: str = "steps",
        shown: bool = True,
        picture: Callable[[], str] | None = None,
    ) -> None:
        self.what, self.total, self.done, self.unit, self.picture = what, total, done, unit, picture
        self._shown, self._start = shown, done
        self._bar: Any = None
        self._logged = ""

    def __enter__(self) -> Progress:
        self._began = time.monotonic()
        self._due = math.inf
        if self._shown and Progress._outermost is None and logger.isEnabledFor(logging.WARNING):
            Progress._outermost = self
            self._bar = self._make_bar()
            if self.on_terminal:
                self._due = self._began
            elif logger.isEnabledFor(logging.INFO):
                self._due = self._began + LOGGED
        return self

    def __exit__(self, *_: object) -> None:
        if Progress._outermost is self:
            Progress._outermost = None
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def on_terminal(self) -> bool:
        """Whether there is a bar."""
        return self._bar is not None

    def advance(self, more: int | float = 1) -> None:
        """So many more are done."""
        self.update(self.done + more)

    def update(self, done: int | float, text: str | None = None, **fields: int | float) -> None:
        """So many of all are done; `fields` are shown beside, `text` instead of count, rate and time left."""
        self.done = done
        now = time.monotonic()
        if now < self._due and not (self.on_terminal and done >= self.total):
            return
        shown = self._text(now - self._began, fields) if text is None else text
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, description=printable(shown), refresh=True)
            self._due = now + DRAWN
        else:
            if shown != self._logged:
                logger.info(shown)
            self._logged = shown
            self._due = now + max(LOGGED, min(RAREST, (now - self._began) / 20))

    def _text(self, seconds: int | float, fields: dict[str, int | float]) -> str:
        parts = [f"{self.what} {self.done:,} of {self.total:,} {self.unit}"]
        parts += [f"{name} {value:.4g}" for name, value in fields.items()]
        if self.done > self._start and seconds > 0:
            rate = (self.done - self._start) / seconds
            parts += [f"{rate:{'.3g' if rate < 100 else ',.0f'}} {self.unit}/s", _left((self.total - self.done) / rate)]
        return ", ".join(parts)

    def _make_bar(self) -> Any:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar
            from rich.text import Text
        except ImportError:
            return None
        console = Console(stderr=True)
        if not console.is_terminal:
            return None
        # Drawn by `update`, not by a thread: processes that load data are forked beside it.
        columns = BarColumn(), TextColumn("{task.description}", markup=False)
        picture = self.picture

        class Drawn(Bar):
            def get_renderables(self) -> Iterator[Any]:
                if picture is not None:
                    yield Text(printable(picture(), keep="\n"), no_wrap=True, overflow="crop")
                yield from super().get_renderables()

        bar = Drawn(*columns, console=console, transient=True, auto_refresh=False)
        bar.update(bar.add_task(self.what, total=self.total), completed=self.done)
        bar.start()
        return bar


def _left(seconds: int | float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s left"
    return f"{seconds / 60:.0f} min left" if seconds < 5400 else f"{seconds / 3600:.1f} h left"
