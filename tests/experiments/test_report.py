"""The report from files to page: what it says is what the files hold, whole, escaped, and one line where it cannot."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from joformer.cli.report import Report
from joformer.experiments import report, results
from joformer.experiments.gathered import Cell, Gathered, as_table
from joformer.experiments.report.analysis import Analysis
from joformer.experiments.report.curves import over_seeds, thin
from joformer.experiments.report.words import Wording


def gathered(*tables):
    return Gathered(tuple(as_table(head, cells) for head, cells in tables))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("out"), synthetic.everything())


@pytest.fixture(scope="module")
def page(folder):
    return report.html(results.gather([folder]))


# -- what is gathered --------------------------------------------------------------------------------------------------


def test_a_folder_holds_its_tables_in_the_order_of_the_paper(folder):
    found = results.gather([folder])
    assert [t.name for t in found.tables] == ["mnist", "cifar100", "wikipedia", "length", "overhead", "compare"]
    assert len(found.tables[1].cells) == 36
    assert results.gather([folder / "length"]).tables == found.tables[3:4]
    assert len(results.gather([folder, folder / "."]).tables) == 6


def test_a_renamed_table_is_still_read(tmp_path):
    synthetic.write(tmp_path / "a", [synthetic.length()])
    (tmp_path / "a" / "length").rename(tmp_path / "elsewhere")
    assert len(results.gather([tmp_path / "elsewhere"]).tables[0].cells) == 15


def test_missing_cells_are_counted_not_fatal(tmp_path):
    head, cells = synthetic.wikipedia()
    gone = {cells[0]["cell"], cells[7]["cell"]}
    synthetic.write(tmp_path, [(head, cells)], missing=gone)
    found = results.gather([tmp_path])
    assert set(found.tables[0].missing) == gone
    for text in (report.html(found), report.markdown(found), "\n".join(report.lines(found))):
        assert "38 of 40" in text
    assert all(name in report.html(found) for name in gone)


def test_old_files_with_the_least_they_may_have():
    head = {"name": "t", "metric": "loss", "models": ["a", "b"], "baseline": "a"}
    cells = [
        {"cell": f"t/{m}/{s}", "table": "t", "model": m, "seed": s, "measured": {"": {"loss": 1.0 + s}}}
        for m in "ab"
        for s in (0, 1)
    ]
    odd = {"curve": None, "machine": None, "versions": "?", "config": None, "steps": "many", "step_ms": float("nan")}
    for more in ({}, odd):
        found = gathered((head, [{**cell, **more} for cell in cells]))
        assert "undecided" in report.html(found)
        assert report.markdown(found)
        assert json.loads(json.dumps(report.as_json(found), allow_nan=False))


def test_a_run_of_train_is_a_row(tmp_path):
    synthetic.train_run(tmp_path / "one")
    synthetic.train_run(tmp_path / "two", finished=False)
    with open(tmp_path / "two" / "metrics.jsonl", "a") as log:
        log.write('{"step": 41, "los')  # it is running
    table = results.gather([tmp_path / "one", tmp_path / "two"]).tables[0]
    assert (table.name, table.metric, len(table.cells)) == ("runs", "bits_per_byte", 2)
    assert table.cells[0].measured[""]["bits_per_byte"] == 1.0
    assert table.cells[0].number("step_ms") == pytest.approx(20)
    assert any("not finished: measured after 40 of 40" in note for note in table.notes)
    assert "held-out bits per byte" in report.html(Gathered((table,)))


def test_a_report_is_rendered_again_from_its_json(folder, tmp_path):
    first = results.gather([folder])
    (tmp_path / "report.json").write_text(json.dumps(report.as_json(first)))
    again = results.gather([tmp_path / "report.json"])
    assert report.html(again) == report.html(first)
    assert report.markdown(again) == report.markdown(first)
    assert report.as_json(again) == report.as_json(first)


# -- what is said ------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_scipy(folder):
    table = next(t for t in results.gather([folder]).tables if t.name == "wikipedia")
    row = next(r for r in Analysis(table).rows if (r.model, r.size) == ("projected", "n200, L2"))
    values = [
        c.measured["n200, L2"]["bits_per_byte"]
        for c in table.cells
        if c.model == "projected" and "n200, L2" in c.measured
    ]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (row.ours.centre, row.ours.low, row.ours.high) == pytest.approx((np.mean(values), low, high))
    assert f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]" in "\n".join(report.lines(Gathered((table,))))


def exact_table(ours, theirs, **about):
    head = {"name": "t", "metric": "m", "unit": "units", "baseline": "none", "models": ["none", "both"], **about}
    cells = [
        {"cell": f"{model}-{seed}", "model": model, "seed": seed, "measured": {"": {"m": value}}, "step_ms": ms}
        for model, values, ms in (("none", theirs, 100.0), ("both", ours, 103.0))
        for seed, value in enumerate(values)
    ]
    return head, cells


def test_sentences():
    head, cells = exact_table([0.90, 1.92, 2.91], [1.0, 2.0, 3.0])
    assert report.sentences(head, cells) == [
        "both: better than none by 0.090 units [0.065, 0.115], p = 0.004, 3 seeds"  # the runs' times are no costs
    ]
    assert report.sentences({**head, "higher": True}, cells)[0].startswith(
        "both: worse than none by 0.090 units [0.065"
    )
    head, cells = exact_table([0.9, 2.1, 2.9], [1.0, 2.0, 3.0])
    assert report.sentences(head, cells)[0].startswith(
        "both: undecided: 0.03 units lower than none [−0.25, 0.32], p = 0.67"
    )
    head, cells = exact_table([0.9], [1.0])
    assert report.sentences(head, cells)[0].startswith("both: undecided: one seed has no interval; 0.1")
    for cell in cells:
        cell["measured"][""]["time_ratio"] = 1.5  # measured side by side
    assert report.sentences(head, cells)[0].endswith("1 seed; a step takes 1.50 × the time")
    for cell in cells:
        cell["step_ms"] = None
        del cell["measured"][""]["time_ratio"]
    assert "takes" not in report.sentences(head, cells)[0]


def test_sentences_of_ratios_percentages_and_references():
    head, cells = exact_table([50.0, 40.0, 62.0], [100.0, 80.0, 120.0], skewed=True, metric="m")
    assert "better than none: m 0.505 × [0.482, 0.530]" in report.sentences(head, cells)[0]
    head, cells = exact_table([51.0, 52.1, 53.0], [50.0, 51.0, 52.0], higher=True, unit="% accuracy")
    assert "better than none by 1.03 points [0.89, 1.18]" in report.sentences(head, cells)[0]
    head, cells = exact_table([1.05, 1.04, 1.06], [0.99, 1.0, 1.02], baseline=None, reference=1.0)
    told = report.sentences(head, cells)
    assert told[0].startswith("none: undecided: m 1.003")
    assert told[1].startswith("both: worse than 1: m 1.050 [1.025, 1.075], p = 0.013, 3 seeds; after correction for 2")


def test_holm_is_said():
    words = Wording(Analysis(as_table(*synthetic.cifar())))
    before = [one for one in words.about.comparisons if one.difference.verdict == "better" and not one.decided]
    assert before
    assert (words.verdict(before[0]), before[0].verdict) == ("undecided", "undecided")
    assert f"{before[0].model} (32): undecided: " in words.sentence(before[0])
    assert "after correction for 12 comparisons no longer decided" in words.sentence(before[0])
    assert "better" not in words.summary()
    told = report.html(gathered(synthetic.cifar())) + report.markdown(gathered(synthetic.cifar()))
    assert not re.search("(better|worse)(, but not after| before) correction", told)
    said = report.as_json(gathered(synthetic.cifar()))["tables"][0]["said"]["comparisons"]
    assert {(one["verdict"], one["decided"]) for one in said} == {("undecided", False)}
    assert "<strong>" not in report.html(gathered(synthetic.cifar())).split("<main>")[1]
    still = Wording(Analysis(as_table(*synthetic.compare())))
    assert any("for 12 comparisons still decided" in still.sentence(one) for one in still.about.comparisons)


def test_times_of_training_runs_are_no_costs(folder):
    """Only what took turns with the baseline is a cost; the cells keep what they measured."""
    found = results.gather([folder])
    wikipedia = next(t for t in found.tables if t.name == "wikipedia")
    assert all(cell.number("step_ms") for cell in wikipedia.cells)
    for table in found.tables:
        costs = Analysis(table).costs
        assert all((cost.step_ms is None) == (table.name != "overhead") for cost in costs)
        assert all((cost.ratio is None) == (table.name != "compare") for cost in costs)
    for text in (report.html(Gathered((wikipedia,))), report.markdown(Gathered((wikipedia,)))):
        assert not re.search("ms a step|time, ×|× the time", text)
    again = report.as_json(found)["tables"]
    assert all(cell["step_ms"] for table in again if table["about"]["name"] == "wikipedia" for cell in table["cells"])


def test_pairs_are_with_minus_without():
    head, cells = exact_table([2.0, 2.1, 2.2], [1.0, 1.0, 1.0], baseline=None, pairs=[["none", "both"]], higher=True)
    (one,) = Analysis(as_table(head, cells)).comparisons
    assert (one.model, one.other, one.difference.verdict) == ("both", "none", "better")
    assert one.difference.centre == pytest.approx(1.1)
    head["baseline"] = "none"  # the same pair twice is one comparison
    assert len(Analysis(as_table(head, cells)).comparisons) == 1


def test_seeds_left_out_are_named():
    head, cells = synthetic.wikipedia()
    cells = [cell for cell in cells if (cell["model"], cell["seed"]) != ("fixed", 3)]
    found = gathered((head, cells))
    assert "seed 3 only in one of the two, left out" in report.html(found)
    cells[0]["measured"]["n100, L2"]["bits_per_byte"] = float("inf")
    assert "has no usable bits_per_byte at n100, L2" in report.markdown(gathered((head, cells))).replace("\\", "")


def test_never_bold_without_an_interval(page):
    for strong in re.findall(r"<strong>.*?</strong>(.{10})", page):
        assert strong.startswith(" <small>[")
    assert "<strong>" in page
    assert "<strong>" not in report.html(gathered(synthetic.one_seed()))
    head, cells = exact_table([0.90, 1.92, 2.91], [1.0, 2.0, 3.0])
    assert "<strong>" in report.html(gathered((head, cells)))
    assert "<strong>" not in report.html(gathered(({**head, "higher": True}, cells)))  # decided, and worse


def test_the_paper_s_metric_is_named_where_it_is_another(page):
    assert "paper, perplexity" in page
    assert "full Wikipedia, BPE of 8,000" in page
    assert "paper, accuracy" not in page


def test_lines_fit_the_terminal(folder):
    told = report.lines(results.gather([folder]))
    assert max(map(len, told)) <= 100
    assert not any("…" in line for line in told)
    head, cells = synthetic.cifar()
    long = {
        name: f"{name} with a name that nobody would want to read in a table, ever, on any day"
        for name in head["models"]
    }
    head |= {"models": list(long.values()), "baseline": long["rope2d"], "pairs": []}
    cells = [{**cell, "model": long[cell["model"]]} for cell in cells]
    told = report.lines(gathered((head, cells)))
    assert max(map(len, told)) <= 100
    assert any("+1.8 [0.7, 2.8]" in line for line in told)  # numbers stay whole


# -- the page ----------------------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Tags must close in order; collects ids, links and what a page may not have."""

    VOID = frozenset({"meta", "link", "br", "img"})

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_alone(page):
    read = Reader(page)
    assert len(read.ids) == len(set(read.ids))
    assert all(link.startswith("#") and link[1:] in read.ids for link in read.links)
    assert not {"script", "iframe", "object", "embed", "form", "img"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in ("src", "srcset", "style")]
    assert not re.findall(r"https?://|@import|url\((?!#)", page)
    assert len(page) < 500_000
    named = {value for name, values in read.attributes if name == "aria-labelledby" for value in values.split()}
    assert named <= set(read.ids)


def test_every_plot_and_table_can_be_read_without_seeing(page):
    drawn = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(drawn) > 15
    for svg in drawn:
        tree = ElementTree.fromstring(svg)
        assert tree.get("role") == "img"
        assert len(tree.find("title").text) > 5
        assert len(tree.find("desc").text) > 10
        assert "nan" not in svg.split("</desc>")[1]
        xs = [float(x) for x in re.findall(r'(?:x|cx|x1|x2)="([-\d.]+)"', svg)]
        assert min(xs) >= 0
        assert max(xs) <= 381
    for table in re.findall(r"<table>.*?</table>", page, re.S):
        assert re.match(r"<table><caption><span>[^<]+</span></caption><thead><tr><th scope=\"col\"", table)
        assert all('scope="' in head for head in re.findall(r"<th[ >][^>]*", table))


def test_the_plot_points_the_right_way():
    """The dot of a model below the baseline is left of zero, and left is where lower is better."""
    svg = re.search(
        r'<svg[^>]*aria-labelledby="table-1-d0.*?</svg>', report.html(gathered(synthetic.wikipedia())), re.S
    )[0]
    zero = float(re.search(r'class="null" x1="([\d.]+)"', svg)[1])
    dots = [float(x) for x in re.findall(r'class="mark[^>]* cx="([\d.]+)"', svg)]
    assert len(dots) == 3
    assert all(dot < zero for dot in dots)
    assert dots[2] < dots[1] < dots[0]
    assert "← better" in svg
    assert "worse →" in svg
    higher = report.html(gathered(synthetic.cifar()))
    assert "← worse" in higher
    assert "← better" not in higher


@settings(max_examples=30)
@given(st.text(max_size=20), st.text(max_size=20), st.lists(st.floats(), min_size=2, max_size=4), st.booleans())
def test_whatever_the_words_and_numbers(name, size, values, skewed):
    evil = name + '<script>alert(1)</script>"onload="x'
    head = {
        "name": name,
        "title": evil,
        "metric": "m",
        "models": ["a", evil],
        "baseline": "a",
        "sizes": [size],
        "skewed": skewed,
    }
    head |= {"notes": [evil], "paper": {"a": {size: 1.5}}, "data": evil, "unit": evil, "cells": [evil]}
    cells = [
        {
            "cell": evil,
            "model": model,
            "seed": seed,
            "measured": {size: {"m": value}},
            "command": evil,
            "machine": {evil: evil},
        }
        for model in ("a", evil)
        for seed, value in enumerate(values)
    ]
    found = gathered((head, cells))
    text = report.html(found)
    assert "<script" not in text
    Reader(text)
    assert "<script" not in report.markdown(found).replace("\\<", "").split("```")[0]
    assert json.loads(json.dumps(report.as_json(found), allow_nan=False))
    report.lines(found)
    report.sentences(head, cells)


def test_curves_are_thinned_and_averaged():
    lines = [{"step": float(s), "train_loss": 1.0 + s} for s in range(1000)] + [{"step": 999.0, "loss": 2.0}]
    kept = thin(lines)
    assert len(kept) == 41
    assert thin(kept) == kept
    cells = [
        Cell("", "a", s, {}, {"curve": [{"step": 10 * i, "loss": 5.0 - i + s} for i in range(4 - s)]}) for s in (0, 1)
    ]
    curve = over_seeds(cells, "loss")
    assert (curve.steps, curve.mean, curve.n) == ([0, 10, 20], [5.5, 4.5, 3.5], 2)
    assert (curve.least, curve.most) == ([5, 4, 3], [6, 5, 4])


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_three_files_and_says_where(folder, tmp_path, capsys):
    assert Report((folder,), out=tmp_path / "new").run() == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [str(tmp_path / "new" / name) for name in ("report.html", "report.md", "report.json")]
    assert all((tmp_path / "new" / name).is_file() for name in ("report.html", "report.md", "report.json"))
    assert Report((tmp_path / "new" / "report.json",), out=tmp_path, json=True).run() == 0
    told = capsys.readouterr()
    assert {t["about"]["name"] for t in json.loads(told.out)["tables"]} >= {"wikipedia", "length"}
    assert "report.html" in told.err
    assert (tmp_path / "report.html").read_text() == (tmp_path / "new" / "report.html").read_text()


def test_by_default_it_writes_into_the_run(tmp_path, monkeypatch, capsys):
    synthetic.write(tmp_path / "out", [synthetic.one_seed()])
    monkeypatch.chdir(tmp_path)
    Report((tmp_path / "out",)).run()
    assert (tmp_path / "out" / "report.html").is_file()
    Report((tmp_path / "out" / "report.json",)).run()
    assert (tmp_path / "report.html").is_file()
    capsys.readouterr()


def damaged(place, text):
    def make(folder):
        synthetic.write(folder, [synthetic.one_seed()])
        (folder / place).write_text(text)
        return folder, place.split("/")[-1]

    return make


def unfinished(folder):
    synthetic.write(folder, [(head := synthetic.one_seed())], missing=[c["cell"] for c in head[1]])
    return folder, "0 of 3 cells"


def empty(folder):
    folder.mkdir()
    return folder, "no results"


def half_trained(folder):
    synthetic.train_run(folder)
    (folder / "metrics.jsonl").write_text('{"step": 5, "train_loss": 1.0}\n')
    return folder, "nothing is finished"


def torn_log(folder):
    synthetic.train_run(folder)
    (folder / "metrics.jsonl").write_text('{"step": 5\n{"step": 6, "loss": 1.0}\n')
    return folder, "metrics.jsonl is damaged in line 1"


def no_report(folder):
    folder.mkdir()
    (folder / "a.json").write_text('{"tables": 3}')
    return folder / "a.json", "no report.json"


RESULT = "mnist/mlp/seed-0/result.json"


@pytest.mark.refused
@pytest.mark.parametrize(
    "make",
    [
        damaged("mnist/table.json", "{"),
        damaged("mnist/table.json", "[1]"),
        damaged("mnist/table.json", '{"name": "mnist"}'),
        damaged("mnist/table.json", '{"name": "mnist", "metric": "m", "models": 3}'),
        damaged("mnist/table.json", '{"name": "mnist", "metric": "m", "models": [], "cells": ["mnist/../../../etc"]}'),
        damaged(RESULT, '{"cell": "mnist/mlp/seed-0"'),
        damaged(RESULT, '{"cell": "mnist/mlp/seed-0", "model": "mlp", "seed": 0, "measured": 7}'),
        damaged(RESULT, '{"cell": "mnist/mlp/seed-0", "model": "mlp", "seed": "x", "measured": {}}'),
        damaged(RESULT, '{"cell": "mnist/mlp/seed-0", "model": "mlp", "seed": 1e999, "measured": {}}'),
        damaged(RESULT, "\udcff".encode("utf-8", "surrogatepass").decode("latin-1")),
        damaged(RESULT, "[" * 100_000),
        unfinished,
        empty,
        half_trained,
        torn_log,
        no_report,
        lambda folder: (folder, "not there"),
    ],
)
def test_mistakes_are_one_line_that_names_the_file(make, tmp_path):
    path, named = make(tmp_path / "out")
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        results.gather([path])
    assert named in str(caught.value)
    with pytest.raises(ValueError, match="nothing to report"):
        results.gather([])


@pytest.mark.refused
def test_nothing_is_written_where_something_is_wrong(tmp_path):
    path, _ = damaged(RESULT, "{")(tmp_path / "out")
    with pytest.raises(ValueError, match="damaged"):
        Report((path,)).run()
    assert not list(path.glob("report.*"))


def test_a_folder_with_a_report_is_gathered_as_the_report():
    folder = Path(__file__).parents[2] / "results" / "evidence"
    assert results.gather([folder]) == results.gather([folder / "report.json"])
