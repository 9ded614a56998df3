"""The page as it grows, and the demo: what is shown while cells run, and that the end is the report's own."""

import json
import re
import signal

import pytest

from joformer import _log
from joformer.cli.demo import CAVEAT, picture, under_way
from joformer.cli.grid import _Clock
from joformer.experiments import Cell, report, results, run
from joformer.experiments.engine import Done
from joformer.experiments.report.chart import MARKS, SEVERAL, chart
from joformer.experiments.report.curves import Curve
from joformer.experiments.tables import TABLE

SMALL = ["--longer", 1, "--steps", 1, "--dim", 16, "--layers", 1, "--heads", 2, "--batch", 4, "--context", 16]


@pytest.fixture
def between(monkeypatch, tmp_path):
    """Cells in this process; before each the function that is appended is called with it."""
    calls = []

    def one_by_one(cells, out, *, jobs, execution):
        for cell in sorted(cells, key=lambda cell: cell.alone):  # as the engine has it
            for call in calls:
                call(cell)
            yield Done(cell, run(cell, out))

    monkeypatch.setattr("joformer.experiments.engine.run_local", one_by_one)
    monkeypatch.setattr("joformer.experiments.compare.ROUNDS", 2)
    monkeypatch.setattr("joformer.experiments.cost.TURNS", 1)
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))
    return calls


@pytest.fixture
def words(tmp_path):
    (tmp_path / "mine").write_text(" ".join(f"{n} squared is {n * n};" for n in range(2000)))
    return ["compare", "--data", tmp_path / "mine", "--seeds", 2, *SMALL, "--out", tmp_path / "out"]


def whole(out):
    return report.html(report.analysed(results.gather([out]))).encode()


def test_the_page_grows_by_whole_tables_and_ends_as_the_report(joformer, between, words, tmp_path):
    out, seen = tmp_path / "out", []

    def look(cell):
        page = out / "report.html"
        looked = {place.parent.name: json.loads(place.read_text())["looked"] for place in out.glob(f"*/{TABLE}")}
        seen.append((cell.table, page.read_text() if page.is_file() else None, looked))

    between.append(look)
    code, said, told = joformer(*words)
    assert code == 0, told
    assert [(table, page is None) for table, page, _ in seen] == [("compare", True)] * 4 + [("cost", False)] * 2
    _, page, looked = seen[-1]
    assert page.count('<meta http-equiv="refresh" content="10">') == 1
    assert "Still running, and shown here once finished" in page
    assert "What a step costs compared with RoPE (0 of 2 runs)" in page
    assert re.findall('<section id="([^"]*)"', page) == ["compare"]
    assert looked == {"compare": [4], "cost": []}  # who has seen a page has looked at what it shows
    assert told.count(f"a first report is at {out / 'report.html'}; it grows as tables finish") == 1
    # The end is the page of `report`, and the looks are those of one command.
    assert (out / "report.html").read_bytes() == whole(out)
    assert "refresh" not in (out / "report.html").read_text()
    assert said.splitlines()[-1] == str(out / "report.html")
    assert "been seen" not in told + (out / "report.md").read_text()


def test_the_time_left_is_coarser_the_more_it_is(monkeypatch, tmp_path):
    now = [0.0]
    monkeypatch.setattr("joformer.cli.grid.time.monotonic", lambda: now[0])

    def left(seconds):
        now[0] = 0.0
        clock = _Clock([], tmp_path)
        clock.total = 10.0 + seconds
        monkeypatch.setattr(clock, "done", lambda: now[0])  # as much in every second
        now[0] = 10.0
        return clock.left()

    assert [left(60 * minutes) for minutes in (0.9, 1, 7.4, 13, 51, 125)] == [
        "less than a minute left",
        *(f"about {minutes} min left" for minutes in (1, 7, 15, 50, 120)),
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_page_waits_for_nothing_once_it_is_stopped(joformer, between, words, tmp_path, number):
    out = tmp_path / "out"

    def stop(cell):
        if cell.name == "cost/round/seed-1":
            signal.raise_signal(number)

    between.append(stop)
    code, _, told = joformer(*words)
    assert code == 128 + number
    assert f"stopped with 5 of 6 runs finished in {out}; the same command resumes" in told
    page = (out / "report.html").read_text()
    assert "refresh" not in page
    assert "Not finished, so not shown; the same command resumes" in page
    assert "What a step costs compared with RoPE (1 of 2 runs)" in page
    # It resumes, at first with what was there.
    between.clear()
    between.append(lambda cell: pages.append((out / "report.html").read_text()))
    pages = []
    code, _, told = joformer(*words)
    assert (code, len(pages)) == (0, 1)
    assert "refresh" in pages[0]
    assert (out / "report.html").read_bytes() == whole(out)


def test_a_page_that_cannot_be_made_stops_no_run(joformer, between, words, tmp_path):
    out = tmp_path / "out"
    (out / "other").mkdir(parents=True)
    between.append(lambda cell: (out / "other" / TABLE).write_text("{" if cell.name == "cost/round/seed-0" else "x"))
    code, _, told = joformer(*words)
    assert code == 2  # at the end, as before: a report without that table would look complete
    assert f"no page yet: {out / 'other' / TABLE} is damaged" in told
    assert (out / "cost" / "round" / "seed-1" / "result.json").is_file()


def test_one_table_after_the_other_that_with_least_to_do_first(joformer, between, tmp_path, monkeypatch):
    order = []

    def instead(cells, out, *, jobs, execution):
        order.extend(cell.name for cell in cells)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("joformer.experiments.engine.run_local", instead)
    only = ["--only", "mnist/learned/d-2/*", "mnist/diagonal/d-2/*", "relations/*"]
    code, _, told = joformer("reproduce", "relations", "mnist", "--seeds", 2, *only, "--out", tmp_path / "out")
    assert code == 130, told
    assert [name.partition("/")[0] for name in order] == ["digits-mnist"] * 4 + ["family-relations"] * 4
    assert [name[-1] for name in order] == ["0", "0", "1", "1"] * 2  # and in each, pairs first


def test_the_demo_says_what_the_report_says(joformer, between, words, tmp_path, monkeypatch):
    monkeypatch.setattr("joformer.cli.demo.TEXT", str(tmp_path / "mine"))
    words = ["demo", "--seeds", 1, "--steps", 20, "--out", tmp_path / "out"]
    drawn = []
    between.append(lambda cell: drawn.append(picture(under_way([cell], tmp_path / "out"), 20)))
    code, said, told = joformer(*words)
    assert code == 0, told
    assert len(drawn) == 2
    *plot, verdict, page, caveat = said.splitlines()
    assert plot[0] == "training loss in nats per byte, mean of 1 seed"
    assert plot[-1].split("   ")[-4:-1] == [" 0 to 20 steps", f"{MARKS[0]} RoPE", f"{MARKS[1]} RoPE + values"]
    (one,) = report.analysed(results.gather([tmp_path / "out"]))
    assert verdict == f"{one.heading}. {' '.join(one.sentences)}"
    assert page == str(tmp_path / "out" / "report.html")
    assert (tmp_path / "out" / "report.html").read_bytes() == whole(tmp_path / "out")
    assert caveat == CAVEAT
    # The same command has nothing left to do; as JSON it is the report's.
    code, again, told = joformer(*words, "--json")
    assert (code, len(drawn)) == (0, 2)
    assert json.loads(again) == json.loads((tmp_path / "out" / "report.json").read_text())
    # A cell's own command is one of `compare`, and has nothing left to do either.
    command = json.loads(again)["tables"][0]["cells"][0]["command"].split()
    assert command[1] == "compare"
    given = {"mine": tmp_path / "mine", "out": tmp_path / "out"}  # no whole path is published
    code, _, told = joformer(*(given.get(word, word) for word in command[1:]))
    assert "1 of 1 runs" in told, told
    assert len(drawn) == 2


@pytest.mark.refused
@pytest.mark.parametrize("option", ["--seeds", "--steps", "--jobs"])
def test_a_demo_of_nothing_is_one_line(joformer, option, tmp_path):
    code, out, told = joformer("demo", option, 0, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert told.splitlines()[-1] == f"joformer: {option} must be 1 or more, got 0"


def told_of(model, seed, *steps):
    return Cell(model, "", seed, result={"curve": [{"step": s, "train_loss": 9 - s + seed} for s in steps]})


def test_a_picture_is_of_seeds_that_both_have():
    both = ("scores, fixed", "both, fixed")
    begun = [told_of(model, 0, 1, 2) for model in both]
    assert picture(begun, 4).startswith("training loss in nats per byte, mean of 1 seed\n")
    # One of the second seed has ended, the other is on its way: neither counts.
    cells = [told_of(model, 0, 1, 2, 4) for model in both] + [told_of(both[0], 1, 1, 4), told_of(both[1], 1, 1, 2)]
    assert "mean of 1 seed\n" in picture(cells, 4)
    assert "mean of 2 seeds\n" in picture([*cells[:3], told_of(both[1], 1, 1, 4)], 4)
    assert picture([], 4).count("\n") == 14  # an empty frame, before anything is logged


def test_a_chart_shows_each_curve_where_it_is():
    flat, falling = (Curve([0.0, 10.0], [a, b], [], [], 1) for a, b in ((2.0, 2.0), (3.0, 1.0)))
    rows = chart({"flat": flat, "falling": falling}, 10, width=11, height=9).splitlines()
    found = [(c, x, y) for y, row in enumerate(rows[:9]) for x, c in enumerate(row[7:])]
    at = {mark: [(x, y) for c, x, y in found if c == mark] for mark in (*MARKS[:2], SEVERAL)}
    assert at[SEVERAL] == [(5, 3)]  # they meet in the middle
    assert at[MARKS[0]] == [(x, 3) for x in (0, 1, 2, 3, 4, 6, 7, 8, 9, 10)]
    assert at[MARKS[1]] == [(2, 0), (3, 1), (4, 2), (6, 4), (7, 5), (8, 6), (9, 7), (10, 8)]  # from 2.6 down to 1
    assert (rows[0][:5], rows[8][:5]) == ("2.600", "1.000")


def test_a_picture_is_drawn_above_the_bar(monkeypatch):
    import io

    from rich.console import Console

    screen = io.StringIO()
    monkeypatch.setattr(
        "rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=60, height=20)
    )
    with _log.Progress("cells", 2, picture=lambda: "a picture\nof \x1b[2J lines") as progress:
        progress.update(1)
    assert "a picture" in screen.getvalue()
    assert "of \\u001b[2J lines" in screen.getvalue()
