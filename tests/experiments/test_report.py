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
from joformer.experiments.report.analysis import Analysis
from joformer.experiments.report.curves import over_seeds, thin
from joformer.experiments.tables import Cell, read_table


def analysed(*tables):
    return report.analysed(read_table(head, cells) for head, cells in tables)


def gathered(*paths):
    return report.analysed(results.gather(paths))


def sentences(head, cells):
    (words,) = analysed((head, cells))
    return [words.sentence(one) for one in words.about.comparisons]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic.write(tmp_path_factory.mktemp("out"), synthetic.everything())


@pytest.fixture(scope="module")
def page(folder):
    return report.html(gathered(folder))


# -- what is gathered --------------------------------------------------------------------------------------------------


def test_a_folder_holds_its_tables_in_the_order_of_the_paper(folder):
    found = results.gather([folder])
    assert [t.name for t in found] == ["mnist", "cifar100", "wikipedia", "length", "overhead", "compare"]
    assert len(found[1].cells) == 36
    assert results.gather([folder / "length"]) == found[3:4]
    assert len(results.gather([folder, folder / "."])) == 6


def test_a_renamed_table_is_still_read(tmp_path):
    synthetic.write(tmp_path / "a", [synthetic.length()])
    (tmp_path / "a" / "length").rename(tmp_path / "elsewhere")
    assert len(results.gather([tmp_path / "elsewhere"])[0].cells) == 15


def test_missing_cells_are_counted_not_fatal(tmp_path):
    head, cells = synthetic.wikipedia()
    gone = {cells[0]["cell"], cells[7]["cell"]}
    synthetic.write(tmp_path, [(head, cells)], missing=gone)
    found = gathered(tmp_path)
    assert set(found[0].table.missing) == gone
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
        found = analysed((head, [{**cell, **more} for cell in cells]))
        assert "inconclusive" in report.html(found)
        assert report.markdown(found)
        assert json.loads(json.dumps(report.as_json(found), allow_nan=False))


def test_a_run_of_train_is_a_row(tmp_path):
    synthetic.train_run(tmp_path / "one")
    synthetic.train_run(tmp_path / "two", finished=False)
    with open(tmp_path / "two" / "metrics.jsonl", "a") as log:
        log.write('{"step": 41, "los')  # it is running
    table = results.gather([tmp_path / "one", tmp_path / "two"])[0]
    assert (table.name, table.metric.name, len(table.cells)) == ("runs", "bits_per_byte", 2)
    assert table.cells[0].measured[""]["bits_per_byte"] == 1.0
    assert any("not finished: measured after 40 of 40" in note for note in table.notes)
    assert "held-out bits per byte" in report.html(report.analysed([table]))


def test_a_report_is_rendered_again_from_its_json(folder, tmp_path):
    first = gathered(folder)
    (tmp_path / "report.json").write_text(json.dumps(report.as_json(first)))
    again = gathered(tmp_path / "report.json")
    assert report.html(again) == report.html(first)
    assert report.markdown(again) == report.markdown(first)
    assert report.as_json(again) == report.as_json(first)


# -- what is said ------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_scipy(folder):
    table = next(t for t in results.gather([folder]) if t.name == "wikipedia")
    row = next(r for r in Analysis(table).rows if (r.model, r.size) == ("projected", "n200, L2"))
    values = [
        c.measured["n200, L2"]["bits_per_byte"]
        for c in table.cells
        if c.model == "projected" and "n200, L2" in c.measured
    ]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert (row.ours.centre, row.ours.low, row.ours.high) == pytest.approx((np.mean(values), low, high))
    assert f"{np.mean(values):.3f} [{low:.3f}, {high:.3f}]" in "\n".join(report.lines(report.analysed([table])))


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
    assert sentences(head, cells) == ["both: better than none: −0.090 [−0.115, −0.065] units, p = 0.004, 3 seeds"]
    assert sentences({**head, "higher": True}, cells)[0].startswith("both: worse than none: −0.090 [−0.115")
    head, cells = exact_table([0.9, 2.1, 2.9], [1.0, 2.0, 3.0])
    assert sentences(head, cells)[0].startswith("both: inconclusive, against none: −0.03 [−0.32, 0.25] units, p = 0.67")
    head, cells = exact_table([0.9], [1.0])
    assert sentences(head, cells) == ["both: inconclusive: one seed, against none: −0.100 units, 1 seed"]


def test_sentences_of_ratios_percentages_and_references():
    head, cells = exact_table([50.0, 40.0, 62.0], [100.0, 80.0, 120.0], skewed=True, metric="m")
    assert "better than none: 0.505 × [0.482, 0.530], p" in sentences(head, cells)[0]
    head, cells = exact_table([51.0, 52.1, 53.0], [50.0, 51.0, 52.0], higher=True, unit="% accuracy")
    assert "better than none: +1.03 [0.89, 1.18] points" in sentences(head, cells)[0]
    head, cells = exact_table([1.05, 1.04, 1.06], [0.99, 1.0, 1.02], baseline=None, reference=1.0)
    told = sentences(head, cells)
    assert told[0].startswith("none: inconclusive, against 1: 1.003")
    assert told[1].startswith("both: worse than 1: 1.050 [1.025, 1.075] units, p = 0.013, 3 seeds")


def test_verdicts_are_those_after_correction():
    words = analysed(synthetic.cifar())[0]
    before = [one for one in words.about.comparisons if one.difference.verdict == "better" and not one.decided]
    assert before
    assert before[0].verdict == "inconclusive"
    assert f"{words.name(before[0].model)} (32): inconclusive, against RoPE: " in words.sentence(before[0])
    told = report.html([words]) + report.markdown([words])
    assert "12 comparisons of this table" in told
    assert not re.search("undecided|before correction", told)
    said = report.as_json([words])["tables"][0]["said"]["comparisons"]
    assert {one["verdict"] for one in said} <= {"inconclusive", "equivalent"}
    assert "<strong>" not in report.html([words]).split("<main>")[1]


def test_a_small_difference_is_equivalent_within_its_margin():
    """One verdict more: the seeds say that what there is lies below δ; without enough of them they do not."""
    theirs = [2.0, 2.1, 2.2, 2.3, 2.4]
    for spread, verdict in ((1, "equivalent within 0.01 bits per byte"), (10, "inconclusive")):
        ours = [x + spread * d for x, d in zip(theirs, (0.001, -0.002, 0.002, 0.0, -0.001))]
        head, cells = exact_table(ours, theirs, metric="bits_per_byte")
        cells = [{**cell, "measured": {"": {"bits_per_byte": cell["measured"][""]["m"]}}} for cell in cells]
        (words,) = analysed((head, cells))
        (one,) = words.about.comparisons
        assert words.verdict(one.verdict, one.difference) == verdict
        assert verdict in report.html([words])


def test_rounding_never_contradicts_a_verdict():
    """Decided with a bound of 0.3 points beside intervals of ten: it is not written as 0."""
    theirs = {seed: 50.0 + seed for seed in range(4)}
    small = {seed: theirs[seed] + 1.0 + 0.2 * (-1) ** seed for seed in theirs}
    wild = {seed: theirs[seed] + 30.0 * (-1) ** seed for seed in theirs}
    cells = [
        {"cell": f"{model}-{seed}", "model": model, "seed": seed, "measured": {"": {"accuracy": value}}}
        for model, values in (("base", theirs), ("small", small), ("wild", wild))
        for seed, value in values.items()
    ]
    head = {"name": "t", "metric": "accuracy", "models": ["base", "small", "wild"], "baseline": "base"}
    (words,) = analysed((head, cells))
    one = next(one for one in words.about.comparisons if one.model == "small")
    assert one.decided
    low = re.search(r"\[(.*?),", words.difference(one.difference))[1]
    assert float(low.replace("−", "-")) > 0


def test_accuracy_stays_within_its_bounds():
    head, cells = exact_table([99.0, 99.9, 100.0], [98.0, 99.0, 100.0], metric="accuracy")
    cells = [{**cell, "measured": {"": {"accuracy": cell["measured"][""]["m"]}}} for cell in cells]
    (words,) = analysed((head, cells))
    for row in words.about.rows:
        assert row.ours.high < 100
        assert re.fullmatch(r"(99|99\.6|100) \[[89]\d, 99\.9\d*\]", words.value(row.ours)), words.value(row.ours)
    assert not re.search(r"10[0-9]\.\d", report.markdown([words]).replace("100.0", ""))


def grid(values, metric="bits_per_byte", **about):
    """A table of compare: RoPE and RoPE + values at the budgets of `values`, (without, with) by seed."""
    cells = [
        {"cell": f"compare/{model}/{size}/seed-{seed}", "model": model, "seed": seed, "steps": steps,
         "measured": {size: {metric: value}}}
        for (size, steps), sides in values.items()
        for model, side in zip(("scores, fixed", "both, fixed"), sides)
        for seed, value in enumerate(side)
    ]  # fmt: skip
    head = {
        "name": "compare", "title": "Does value transport help", "metric": metric, "data": "notes.txt",
        "models": ["scores, fixed", "both, fixed"], "baseline": "scores, fixed", "sizes": [size for size, _ in values],
    }  # fmt: skip
    return {**head, **about}, cells


def test_compare_answers_in_one_sentence_then_says_whether_it_lasts():
    base, near, far = [2.0, 2.1, 2.2, 2.3], [2.001, 2.1, 2.199, 2.3], [1.9, 1.99, 2.11, 2.2]
    short, long = ("", 300), ("1200 steps", 1200)
    told = {
        name: analysed(grid(values))[0].sentences
        for name, values in {
            "lasts": {short: (base, far), long: (base, far)},
            "fades": {short: (base, far), long: (base, near)},
            "alone": {short: (base, far)},
            "hurts": {short: (far, base), long: (base, far)},
        }.items()
    }
    first = "Value transport helps after 300 steps: −0.100 [−0.113, −0.087] bits per byte, RoPE + values against RoPE"
    assert all(told[name][0].startswith(first) for name in ("lasts", "fades", "alone")), told
    assert told["lasts"][1].startswith("It lasts: after 1,200 steps −0.100")
    assert told["fades"][1].startswith("It does not last: after 1,200 steps 0.000")
    assert told["alone"][1] == "Whether this lasts was not tested (--longer 4 does)."
    assert told["hurts"][0].startswith("Value transport hurts after 300 steps: +0.100")
    # The page and Markdown say the same.
    (words,) = analysed(grid({short: (base, far), long: (base, near)}))
    for text in (report.html([words]), report.markdown([words]).replace("\\", "")):
        assert all(sentence.replace("'", "&#39;") in text or sentence in text for sentence in words.sentences)


def test_the_longest_budget_has_the_last_word_whatever_came_first():
    """Another --longer on the same folder comes before the first one in the table's sizes."""
    base, far = [2.0, 2.1, 2.2, 2.3], [1.9, 1.99, 2.11, 2.2]
    (words,) = analysed(grid({("", 4): (base, far), ("16 steps", 16): (far, base), ("8 steps", 8): (base, far)}))
    assert words.sentences[1].startswith("It does not last: after 16 steps +0.100")


def test_only_a_difference_that_was_found_can_last():
    base, near, far = [2.0, 2.1, 2.2, 2.3], [2.001, 2.1, 2.199, 2.3], [1.9, 1.99, 2.11, 2.2]
    wide = [2.1, 2.0, 2.3, 2.2]
    for first, then, said in (
        (wide, wide, "After 1,200 steps it is inconclusive too: 0.00 [−0.18, 0.18] bits per byte."),
        (wide, far, "After 1,200 steps it helps: −0.10 [−0.11, −0.09] bits per byte."),
        (wide, near, "After 1,200 steps it makes no difference: 0.00 [0.00, 0.00] bits per byte."),
        (near, near, "After 1,200 steps it makes no difference either: 0.0000 [−0.0013, 0.0013] bits per byte."),
        (near, wide, "After 1,200 steps it is inconclusive: 0.00 [−0.18, 0.18] bits per byte."),
        (far, wide, "It is inconclusive whether it lasts: after 1,200 steps 0.00 [−0.18, 0.18] bits per byte."),
    ):
        (words,) = analysed(grid({("", 300): (base, first), ("1200 steps", 1200): (base, then)}))
        assert words.sentences[1] == said


def test_data_that_both_models_have_solved_cannot_tell():
    solved, nearly = [100.0] * 3, [99.0] * 3
    short, long = ("", 40), ("160 steps", 160)

    def told(sides, **about):
        return analysed(grid(sides, **{"metric": "accuracy"} | about))[0].sentences

    cannot = "both models get every held-out example right after {} steps, on all 3 seeds."
    remedy = " Use harder or more data, or fewer --steps."
    first = "This data cannot tell them apart: " + cannot.format(40)
    assert told({short: (solved, solved), long: (solved, solved)}) == [first + remedy, "Nor can it after 160 steps."]
    assert told({short: (nearly, solved), long: (solved, solved)})[1] == (
        "With more steps, this data cannot tell them apart: " + cannot.format(160)
    )
    assert told({short: (solved, solved)}, metric="event_f1")[0] == (
        "This data cannot tell them apart: both models reach 100 % F1 of events after 40 steps, on all 3 seeds."
        + remedy
    )
    assert told({short: ([100.0], [100.0])})[0].endswith("right after 40 steps, on one seed." + remedy)
    # Other tables have no --data to make harder; what is no bound, or is not reached, is no solution.
    models = {"recipe": "transport"}
    assert told({short: (solved, solved)}, **models)[0] == first
    for sides, metric in (((nearly, nearly), "accuracy"), ((solved, solved), "bits_per_byte")):
        said = told({short: sides}, metric=metric)[0]
        assert said.startswith("The effect of value transport is inconclusive after 40 steps: 0.000")
        assert said.endswith("RoPE + values against RoPE (3 seeds, no difference on all 3 seeds).")
    assert told({short: (solved, [100.0, 99.0, 100.0])})[0].startswith("The effect of value transport is inconclusive")


def test_comparisons_are_counted_with_what_they_compare():
    cifar, language, alone = analysed(synthetic.cifar(), synthetic.wikipedia(), synthetic.one_seed())
    assert len(cifar.about.comparisons) == 12
    assert sum(one.other == "rope2d" for one in cifar.about.comparisons) == 9
    assert any(sentence.startswith("Of 12 comparisons, 9 of them against RoPE: ") for sentence in cifar.sentences)
    assert any(sentence.startswith("Against RoPE: ") for sentence in language.sentences)
    assert alone.sentences == ["One seed: nothing can be decided; --seeds 3 gives intervals."]
    head, cells = synthetic.one_seed()
    (begun,) = analysed(({**head, "cells": [*head["cells"], "mnist/mlp/seed-1"]}, cells))
    assert begun.sentences == ["3 of 4 runs finished. One seed so far: nothing can be decided."]
    head, cells = exact_table([1.05], [0.99], baseline=None, reference=1.0)
    assert analysed((head, cells))[0].sentences == ["One round: nothing can be decided."]


def test_seeds_added_after_looking_are_named():
    head, cells = grid({("", 300): ([2.0, 2.1], [1.9, 2.0])}, looked=[2, 4])
    assert any(
        "Results had already been seen with 2 of these 4 runs" in note for note in analysed((head, cells))[0].notes
    )
    (planned,) = analysed(({**head, "looks": 2}, cells))
    assert not any("been seen" in note for note in planned.notes)
    assert any(
        "Planned for 2 looks: every interval of a difference and every verdict is at the 97.5 % level" in n
        for n in planned.notes
    )
    assert planned.about.comparisons[0].difference.level == pytest.approx(0.975)


def test_the_first_grid_shows_effects_by_data():
    page = report.html(analysed(synthetic.cifar(), synthetic.wikipedia(), synthetic.one_seed()))
    first = re.search(r'<table class="grid">.*?</table>', page, re.S)[0]
    assert re.findall(r'<th scope="row">(.*?)</th>', first) == ["RoPE", "learned RoPE", "all of these, pooled"]
    assert re.findall(r"<a [^>]*>(.*?)</a>", first) == ["cifar100", "cifar100", "enwik8", "enwik8"]
    for letter, verdict in re.findall(r'<td class="(\w)\w*"><b>(\w)</b>', first):
        assert letter.upper() == verdict
    assert page.index('<table class="grid">') < page.index("<nav")
    assert '<table class="grid">' not in report.html(analysed(synthetic.one_seed()))
    (head, cells), other = synthetic.wikipedia(), grid({("", 300): ([2.0, 2.1], [1.9, 2.0])}, data="enwik8")
    page = report.html(analysed((head, cells), other))
    told = re.findall(r"<a [^>]*>(.*?)</a>", re.search(r'<table class="grid">.*?</table>', page, re.S)[0])
    assert told == ["enwik8 · wikipedia recipe"] * 2 + ["enwik8"]  # two tables on the same data: which is which


def test_a_figure_of_the_paper_stands_beside_ours_only_where_the_setting_is_its():
    head, cells = synthetic.cifar()
    apart, beside = analysed((head, cells), ({**head, "comparable": True}, cells))
    assert "paper" not in report.columns.results(apart).head
    assert report.columns.results(beside).head.count("paper") == 1
    assert any("In another setting" in note and "RoPE (32) 50.91" in note for note in apart.notes)
    assert not any("50.91" in note for note in beside.notes)
    assert any("50.91" in row for row in report.columns.results(beside).rows)


def test_numbers_can_be_taken_away_as_csv(page):
    import csv
    from urllib.parse import unquote

    given = re.findall(r'href="data:text/csv;charset=utf-8,([^"]*)"', page)
    assert len(given) == 6
    rows = list(csv.DictReader(unquote(given[2]).splitlines()))
    assert rows[0].keys() == {"table", "data", "model", "name", "size", "seed", "metric", "value"}
    values = {
        (r["model"], r["size"], int(r["seed"])): float(r["value"]) for r in rows if r["metric"] == "bits_per_byte"
    }
    _, cells = synthetic.wikipedia()
    size = "n100, L2"
    assert all(
        values[c["model"], size, c["seed"]] == c["measured"][size]["bits_per_byte"]
        for c in cells
        if size in c["measured"]
    )


def test_times_of_training_runs_are_no_costs(folder):
    """Only what took turns with the baseline is a cost; the cells keep what they measured."""
    found = gathered(folder)
    wikipedia = next(words for words in found if words.table.name == "wikipedia")
    assert all(cell.number("step_ms") for cell in wikipedia.table.cells)
    for words in found:
        assert all((row.step_ms is None) == (words.table.name != "overhead") for row in words.about.rows)
    for text in (report.html([wikipedia]), report.markdown([wikipedia])):
        assert not re.search("ms per step|time, ×|× the time", text)
    again = report.as_json(found)["tables"]
    assert all(cell["step_ms"] for table in again if table["about"]["name"] == "wikipedia" for cell in table["cells"])


def test_pairs_are_with_minus_without():
    head, cells = exact_table([2.0, 2.1, 2.2], [1.0, 1.0, 1.0], baseline=None, pairs=[["none", "both"]], higher=True)
    (one,) = Analysis(read_table(head, cells)).comparisons
    assert (one.model, one.other, one.difference.verdict) == ("both", "none", "better")
    assert one.difference.centre == pytest.approx(1.1)
    head["baseline"] = "none"  # the same pair twice is one comparison
    assert len(Analysis(read_table(head, cells)).comparisons) == 1


def test_a_model_whose_cells_have_one_command_is_run_again_by_one():
    (whole,) = analysed(synthetic.wikipedia())
    assert whole.commands == [
        f"joformer reproduce wikipedia --only 'wikipedia/{model}/*'"
        for model in ("roformer", "fixed", "learned", "projected")
    ]
    assert all(command in report.markdown([whole]) for command in whole.commands)
    assert all(command.replace("'", "&#39;") in report.html([whole]) for command in whole.commands)
    # A cell that is missing, or was run by another command, is not one of them.
    head, cells = synthetic.wikipedia()
    gone, other = cells[0], cells[10]
    assert (gone["model"], other["model"]) == ("roformer", "fixed")
    other["command"] = f"joformer reproduce wikipedia --seeds 9 --only {other['cell']}"
    (part,) = analysed((head, cells[1:]))
    single = [cell["command"] for cell in cells if cell["model"] in ("roformer", "fixed") and cell is not gone]
    assert part.commands == [*single, *whole.commands[2:]]


def test_seeds_left_out_are_named():
    head, cells = synthetic.wikipedia()
    cells = [cell for cell in cells if (cell["model"], cell["seed"]) != ("fixed", 3)]
    found = analysed((head, cells))
    assert "seed 3 in only one of the two, left out" in report.html(found)
    cells[0]["measured"]["n100, L2"]["bits_per_byte"] = float("inf")
    assert "has no usable bits_per_byte at n100, L2" in report.markdown(analysed((head, cells))).replace("\\", "")


def test_never_bold_without_an_interval(page):
    for strong in re.findall(r"<strong>.*?</strong>(.{10})", page):
        assert strong.startswith(" <small>[")
    assert "<strong>" in page
    assert "<strong>" not in report.html(analysed(synthetic.one_seed()))
    head, cells = exact_table([0.90, 1.92, 2.91], [1.0, 2.0, 3.0])
    assert "<strong>" in report.html(analysed((head, cells)))
    assert "<strong>" not in report.html(analysed(({**head, "higher": True}, cells)))  # decided, and worse


def test_lines_fit_the_terminal(folder):
    told = report.lines(gathered(folder))
    assert max(map(len, told)) <= 100
    assert not any("…" in line for line in told)
    head, cells = synthetic.cifar()
    long = {
        name: f"{name} with a name that nobody would want to read in a table, ever, on any day"
        for name in head["models"]
    }
    head |= {"models": list(long.values()), "baseline": long["rope2d"], "pairs": []}
    cells = [{**cell, "model": long[cell["model"]]} for cell in cells]
    told = report.lines(analysed((head, cells)))
    assert max(map(len, told)) <= 100
    assert any("+1.8 [0.7, 2.8]" in line for line in told)  # numbers stay whole
    assert not any("…" in line for line in told)  # and so do names, on several lines: their ends tell models apart
    assert sum(line.split()[-1:] == ["day"] or " day " in line for line in told) >= len(long)


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
    assert all(link[1:] in read.ids for link in read.links if not link.startswith("data:text/csv;"))
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
        r'<svg[^>]*aria-labelledby="wikipedia-d0.*?</svg>', report.html(analysed(synthetic.wikipedia())), re.S
    )[0]
    zero = float(re.search(r'class="null" x1="([\d.]+)"', svg)[1])
    dots = [float(x) for x in re.findall(r'class="mark[^>]* cx="([\d.]+)"', svg)]
    assert len(dots) == 3
    assert all(dot < zero for dot in dots)
    assert dots[2] < dots[1] < dots[0]
    assert "← better" in svg
    assert "worse →" in svg
    higher = report.html(analysed(synthetic.cifar()))
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
    found = analysed((head, cells))
    text = report.html(found)
    assert "<script" not in text
    Reader(text)
    assert "<script" not in report.markdown(found).replace("\\<", "").split("```")[0]
    assert json.loads(json.dumps(report.as_json(found), allow_nan=False))
    report.lines(found)
    sentences(head, cells)


def test_curves_are_thinned_and_averaged():
    lines = [{"step": float(s), "train_loss": 1.0 + s} for s in range(1000)] + [{"step": 999.0, "loss": 2.0}]
    kept = thin(lines)
    assert len(kept) == 41
    assert thin(kept) == kept
    cells = [
        Cell("a", "", s, result={"curve": [{"step": 10 * i, "loss": 5.0 - i + s} for i in range(4 - s)]})
        for s in (0, 1)
    ]
    curve = over_seeds(cells, "loss")
    assert (curve.steps, curve.mean, curve.n) == ([0, 10, 20], [5.5, 4.5, 3.5], 2)
    assert (curve.least, curve.most) == ([5, 4, 3], [6, 5, 4])


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_three_files_and_says_where(folder, tmp_path, capsys):
    assert Report((folder,), out=tmp_path / "new").run() == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 7  # one sentence per table, then where the page is
    assert out[-1] == str(tmp_path / "new" / "report.html")
    assert all((tmp_path / "new" / name).is_file() for name in ("report.html", "report.md", "report.json"))
    assert Report((tmp_path / "new" / "report.json",), out=tmp_path, json=True).run() == 0
    told = capsys.readouterr()
    assert {t["about"]["name"] for t in json.loads(told.out)["tables"]} >= {"wikipedia", "length"}
    assert "report.html" in told.err
    assert (tmp_path / "report.html").read_text() == (tmp_path / "new" / "report.html").read_text()


def test_the_command_overwrites_reports_alone(folder, tmp_path, capsys):
    (tmp_path / "report.md").write_text("# What I found\n")
    with pytest.raises(ValueError, match=r"report\.md is not a report of joformer: choose another --out"):
        Report((folder,), out=tmp_path).run()
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    (tmp_path / "report.md").unlink()
    for _ in range(2):
        assert Report((folder,), out=tmp_path).run() == 0
    capsys.readouterr()


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
    return folder, "0 of 3 runs"


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
    return folder / "a.json", "not a report.json"


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
        lambda folder: (folder, "does not exist"),
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
