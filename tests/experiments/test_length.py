"""The table of lengths from a run to its page: YaRN on the same weights, ratios to the training length, positions."""

import json
import math
from dataclasses import replace

import pytest

from joformer.experiments import TABLES, TextSource, run
from joformer.experiments.report import analysed, as_json, html, lines, markdown
from joformer.experiments.results import gather
from joformer.experiments.statistics import paired
from joformer.experiments.tables import RESULT, read_cells
from joformer.models import LMConfig
from joformer.training import Recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two rows and two seeds of it, at lengths of 16 to 64 on a small text."""
    place = tmp_path_factory.mktemp("length")
    text = place / "text.txt"
    text.write_text(" ".join(f"{n} squared is {n * n};" for n in range(1500)))
    (table,) = TABLES["length"]("laptop", text, (0, 1), 2, True)
    source = TextSource(str(text), context=16, batch=4, held_out=5)
    small = {"dim": 16, "layers": 2, "heads": 2, "pattern": "FN"}
    cells = tuple(
        replace(
            cell, lengths=(16, 32, 64), source=source, recipe=Recipe(steps=2, evaluate_every=2),
            config=LMConfig(vocab=256, **small, **({"transport": "scores"} if cell.model == "rope" else {})),
        )
        for cell in table.cells
        if cell.model in ("rope", "fixed")
    )  # fmt: skip
    table = replace(
        table, cells=cells, planned=tuple(c.name for c in cells), sizes=("16", "32", "64"),
        models=("rope", "rope, yarn", "fixed"),
    )  # fmt: skip
    table.begin(place / "out")
    for cell in cells:
        run(cell, place / "out")
    return place / "out"


def test_yarn_is_a_row_of_the_same_run(folder):
    (table,) = gather([folder])
    result = json.loads((folder / table.name / "rope" / "seed-0" / RESULT).read_text())
    assert list(result["also"]) == ["rope, yarn"]
    assert {n: len(parts) for n, parts in result["by_position"].items()} == {"16": 16, "32": 16, "64": 16}
    plain, scaled = read_cells(result)
    # At the length of training nothing is scaled; beyond it is.
    assert scaled.measured["16"] == plain.measured["16"]
    assert scaled.measured["64"] != plain.measured["64"]
    assert (plain.number("seconds") or 0) > 0
    assert scaled.number("seconds") is None, "its training is counted once"
    assert set(table.values("rope, yarn", "64")) == {0, 1}
    for cell in table.cells:
        for size, parts in cell.facts("by_position").items():
            assert sum(parts) / len(parts) == pytest.approx(cell.measured[size]["loss"], rel=1e-12)
    assert not table.missing


def test_ratios_are_paired_and_in_every_form_of_the_report(folder):
    report = analysed(gather([folder]))
    (words,) = report
    table = words.table
    assert table.protocol == "the same tokens at every length"
    for model in ("rope", "rope, yarn", "fixed"):
        for size in ("32", "64"):
            d = words.about.ratios[model][size]
            there, first = table.values(model, size), table.values(model, "16")
            by_hand = sum(math.log(there[seed] / first[seed]) for seed in (0, 1)) / 2
            assert math.log(d.centre) == pytest.approx(by_hand, abs=1e-12)
            assert d == paired(there, first, higher=False, log=True)
    shown = words.ratio(words.about.ratios["fixed"]["64"])
    page, text = html(report), markdown(report)
    centre = shown.partition(" [")[0]
    assert all(centre in form for form in (page, text, "\n".join(lines(report))))
    assert "Perplexity relative to that at 16, the same tokens at every length, paired by seed" in text
    assert "Loss by position" in page
    assert "RoPE, YaRN" in page
    assert "bits per byte" in text
    # The JSON gives the same page again.
    again = folder.parent / "report.json"
    again.write_text(json.dumps(as_json(report)))
    assert html(analysed(gather([again]))) == page


def test_old_tables_have_no_ratio(folder):
    """Where each length had text of its own, nothing says that lengths may be compared."""
    (table,) = gather([folder])
    (words,) = analysed([replace(table, protocol="")])
    assert words.about.ratios == {}
    assert "relative to that at 16" not in markdown([words])
    cell = TABLES["length"]("laptop", None, (0,), 2, True)[0].cells[0]
    assert cell.describe()["targets"] == cell.lengths[0] == 256


@pytest.mark.refused
def test_old_and_new_are_never_in_one_table(folder, tmp_path):
    about = json.loads((folder / gather([folder])[0].name / "table.json").read_text())
    (table,) = TABLES["length"]("laptop", None, (0,), 2, True)
    place = tmp_path / table.name / "table.json"
    place.parent.mkdir()
    old = {key: value for key, value in about.items() if key != "protocol"} | {"data": table.data}
    place.write_text(json.dumps(old))
    with pytest.raises(ValueError, match="with other settings or data: choose another --out"):
        table.begin(tmp_path)
