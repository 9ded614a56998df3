"""No control character of a name reaches the terminal, from whatever part of the library."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import joformer
from joformer._log import Progress, logger, printable, tell, to_console
from joformer.cli import main

EVIL = "a\x1b]0;owned\x07\x1b[2J\rb\x9bc\u202ed"  # sets the title, clears the screen, turns what follows round
OURS = re.compile(r"\x1b\[\??[0-9;]*[A-Za-z]|\r")  # by which a bar is drawn
STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text(st.characters(), max_size=30))
def test_what_is_shown_steers_nothing_and_loses_nothing(text):
    shown = printable(text)
    assert not STEERING.search(shown)
    assert "\n" not in shown
    assert printable(shown) == shown
    assert re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), shown) == text or "\\u" in text
    assert json.loads(printable(json.dumps({"a": text}, ensure_ascii=False, indent=1), keep="\n")) == {"a": text}


def test_ordinary_names_stay_as_they_are():
    for name in ("résumé.txt", "数据", "می‌خواهم", "👩‍👩‍👧", "a b'c\"d[red]"):
        assert printable(name) == name


def test_lines_of_the_library(capsys):
    tell(f"reading {EVIL}\nfake line")
    said = capsys.readouterr().err
    assert not STEERING.search(said)
    assert said.count("\n") == 1


def test_nothing_else_in_the_library_prints():
    """One place that escapes; whoever prints elsewhere must go through it."""
    root, allowed = Path(joformer.__file__).parent, {"_log.py", "cli/console.py"}
    wrong = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(r"(?<![\w.])print\(|console\.print\(|sys\.std(out|err)\.write\(", line) and not re.match(
                r"\s*(>>>|\.\.\.|#)", line
            ):
                wrong += [] if name in allowed else [f"{name}:{number}: {line.strip()}"]
    assert wrong == []


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command `joformer` as a function of its words: exit code, and all that it printed."""
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["joformer", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, "".join(capsys.readouterr())

    return command


@pytest.mark.parametrize("what", ["data", "class", "column", "run", "report"])
def test_commands_show_no_name_as_it_is(tmp_path, run, what):
    evil = tmp_path / EVIL
    evil.mkdir()
    words: tuple = ("train", "lm", "--data", evil, "--out", tmp_path / "out")
    if what == "data":
        (evil / f"{EVIL}.txt").write_bytes(b"\xff")
    elif what == "class":
        (evil / EVIL).mkdir()
        (evil / EVIL / f"{EVIL}.png").write_bytes(b"no picture")
        (evil / EVIL / "2.png").write_bytes(b"no picture")
        words = ("train", "vit", "--data", evil, "--out", tmp_path / "out")
    elif what == "column":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({EVIL: [1], "b": [1]}), evil / "train.parquet")
        words = ("train", "vit", "--data", evil, "--out", tmp_path / "out")
    elif what == "run":
        (evil / "config.json").write_text("{}")
        words = ("generate", evil)
    else:
        (evil / "t").mkdir()
        cell = {"cell": f"t/{EVIL}/seed-0", "model": EVIL, "seed": 0, "measured": {EVIL: {"loss": 1.0}}}
        about = {"name": "t", "title": EVIL, "metric": "loss", "unit": EVIL, "models": [EVIL], "sizes": [EVIL]}
        about |= {"cells": [cell["cell"]], "notes": [EVIL]}
        (evil / "report.json").write_text(json.dumps({"tables": [{"about": about, "cells": [cell]}]}))
        words = ("report", evil / "report.json", "--json", "--out", evil)
    code, said = run(*words)
    assert code == (0 if what == "report" else 2), said
    assert "\\u001b]0;owned" in said
    assert not STEERING.search(said.replace("\\u", ""))
    if what != "report":
        assert said.splitlines()[-1].startswith("joformer: ")


def test_generated_text_steers_no_terminal(monkeypatch):
    from joformer.cli.console import write

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, wanted in ((Terminal(), "to\n\tbe\\u001b[2J"), (io.StringIO(), "to\n\tbe\x1b[2J")):
        monkeypatch.setattr(sys, "stdout", stream)
        write("to\n\tbe\x1b[2J")
        assert stream.getvalue() == wanted


def test_lines_of_a_bar_are_no_markup(capsys, monkeypatch):
    """A console takes [red] in a name for a colour, and :cat: for a picture: neither above a bar nor beside it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with to_console(), Progress("cells", 2) as progress:
        assert progress.on_terminal
        logger.info(f"[bold]above[/bold] :cat: {EVIL}")
        progress.update(1, f"[bold]beside[/bold] :cat: {EVIL}")
    said = OURS.sub("", capsys.readouterr().err)
    for place in ("above", "beside"):
        assert f"[bold]{place}[/bold] :cat: a\\u001b]0;owned" in said.replace("\n", "")
    assert not STEERING.search(said)
