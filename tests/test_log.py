"""One logger, silent below WARNING unless configured; one progress display, a bar or lines."""

import logging
import re
import subprocess
import sys

import pytest

from joformer import _log
from joformer._log import Progress, logger, to_console

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is set."""
    now = [0.0]
    monkeypatch.setattr(_log.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(_log, "LOGGED", 5.0)
    return now


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")


# -- the logger --------------------------------------------------------------------------------------------------------


def test_from_python_only_warnings_are_shown_and_steer_nothing():
    code = (
        "from joformer._log import Progress, logger\n"
        "logger.info('reading'); logger.warning('skipped \\x1b[2J')\n"
        "with Progress('training', 2) as progress: progress.update(2)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "skipped \\u001b[2J\n")


def test_a_user_who_configures_logging_gets_every_line(caplog):
    with caplog.at_level(logging.INFO, "joformer"):
        logger.info("100 % of a\nb")
    assert caplog.messages == ["100 % of a\\u000ab"]


def test_the_console_shows_lines_once_and_leaves_no_trace(capsys, monkeypatch):
    root = logging.StreamHandler(sys.stderr)  # as where another library has configured the root logger
    monkeypatch.setattr(logging.getLogger(), "handlers", [root])
    before = logger.level, logger.propagate, list(logger.handlers)
    with to_console():
        logger.info("reading")
        logger.warning("skipped")
        logger.debug("detail")
    assert capsys.readouterr() == ("", "reading\nskipped\n")
    assert (logger.level, logger.propagate, logger.handlers) == before


def test_the_console_writes_to_the_stream_there_is(capsys):
    with to_console(logging.WARNING):
        capsys.readouterr()
        logger.info("reading")
        logger.warning("skipped")
    assert capsys.readouterr().err == "skipped\n"


# -- progress ----------------------------------------------------------------------------------------------------------


def test_a_terminal_shows_count_rate_and_time_left(terminal, clock, capsys):
    with Progress("training", 4, done=2) as progress:
        clock[0] = 2.0
        progress.update(3, loss=0.5)
        clock[0] = 2.1
        progress.update(3, loss=0.125)  # too soon to be drawn
        clock[0] = 4.0
        progress.update(4, loss=0.25)
    out, err = capsys.readouterr()
    shown = ESCAPES.sub("", err)
    assert not out
    assert "training 3 of 4 steps, loss 0.5, 0.5 steps/s, 2 s left" in shown
    assert "training 4 of 4 steps, loss 0.25, 0.5 steps/s, 0 s left" in shown
    assert "0.125" not in shown


def test_without_a_terminal_there_is_a_line_every_five_seconds(clock, caplog, capsys):
    with caplog.at_level(logging.INFO, "joformer"), Progress("encoding", 10_000, unit="bytes") as progress:
        for second in range(100):
            clock[0] = float(second)
            progress.advance(10)
        assert len(caplog.messages) == 19
        for second in range(100, 10_000):
            clock[0] = float(second)
            progress.advance(0)
    assert capsys.readouterr() == ("", "")
    assert caplog.messages[0] == "encoding 60 of 10,000 bytes, 12 bytes/s, 14 min left"
    assert 200 < len(caplog.messages) < 240  # rarer after a while, down to one per minute


def test_a_line_that_says_nothing_new_is_left_out(clock, caplog):
    with caplog.at_level(logging.INFO, "joformer"), Progress("3 runs", 3) as progress:
        for second, text in ((5, "0 of 3 runs"), (10, "0 of 3 runs"), (15, "1 of 3 runs"), (20, "0 of 3 runs")):
            clock[0] = second
            progress.update(second / 10, text)
    assert caplog.messages == ["0 of 3 runs", "1 of 3 runs", "0 of 3 runs"]


def test_the_time_left_counts_from_where_it_resumed(clock, caplog):
    with caplog.at_level(logging.INFO, "joformer"), Progress("training", 1000, done=900) as progress:
        clock[0] = 5.0
        progress.update(910)
    assert caplog.messages == ["training 910 of 1,000 steps, 2 steps/s, 45 s left"]


def test_short_work_says_nothing(clock, caplog):
    with caplog.at_level(logging.INFO, "joformer"), Progress("checking", 2, unit="claims") as progress:
        clock[0] = 4.0
        progress.advance()
        progress.advance()
    assert caplog.messages == []


def test_other_processes_and_inner_work_show_nothing(terminal, clock, capsys, caplog):
    with caplog.at_level(logging.INFO, "joformer"):
        with Progress("training", 2, shown=False) as progress:
            clock[0] = 20.0
            progress.update(2)
        assert capsys.readouterr() == ("", "")
        with Progress("measuring", 2), Progress("training", 2) as inner:
            assert not inner.on_terminal
            clock[0] = 40.0
            inner.update(1)
        assert "training" not in capsys.readouterr().err
        with Progress("measuring", 2) as later:
            assert later.on_terminal
    assert caplog.messages == []


def test_who_wants_no_warnings_gets_no_bar(terminal, capsys):
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with Progress("training", 2) as progress:
            progress.update(2)
    finally:
        logger.setLevel(before)
    assert capsys.readouterr() == ("", "")


def test_without_rich_there_are_lines(terminal, clock, caplog, monkeypatch):
    for name in ("rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level(logging.INFO, "joformer"), Progress("training", 8000) as progress:
        clock[0] = 10.0
        progress.update(1)
    assert caplog.messages == ["training 1 of 8,000 steps, 0.1 steps/s, 22.2 h left"]
