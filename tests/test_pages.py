"""README, docs/results.md, report and bench state the same figures and verdicts: whatever is edited alone fails.

Numbers are compared as they are printed: a page's "1.04" is right where the file's number, rounded to two digits, is.
"""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from joformer.bench import page
from joformer.experiments import report, results
from joformer.experiments.names import plain
from joformer.experiments.results import gather
from joformer.experiments.statistics import holm, interaction, paired
from joformer.experiments.tables import read_table
from joformer.experiments.variants import FRAMES, SIDES

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "results" / "evidence" / "report.json"
NUMBER = r"[+−]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(rf"\[{NUMBER}, {NUMBER}\]")


# -- reading a page ----------------------------------------------------------------------------------------------------


def agrees(text, value):
    """Whether the text is this number, rounded to as many digits as the text has."""
    digits = len(text.partition(".")[2])
    plain = text.replace(",", "").replace("−", "-")
    # Halves are rounded either way in print.
    return any(
        f"{value + nudge:{'+' if text[0] == '+' else ''}.{digits}f}" == plain for nudge in (0.0, 1e-9, -1e-9)
    ) or (float(plain) == 0 and abs(value) <= 0.5 * 10.0**-digits)


def states(text, *values):
    """Assert that the numbers of the text are these."""
    found = re.findall(NUMBER, text)
    assert len(found) == len(values), f"{text!r} has {len(found)} numbers, the file {len(values)}"
    for one, value in zip(found, values):
        assert agrees(one, value), f"{text!r}: {one} is {value} in the file"


def sections(text):
    """Headings of a page, each with the rows of its tables (without heads), by the first cell."""
    found = {}
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        tables = re.findall(r"(?:^\|.*\n)+", body, flags=re.M)
        rows = [
            [[cell.strip().strip("*") for cell in line.strip().strip("|").split("|")] for line in table.splitlines()]
            for table in tables
        ]
        found[title] = [table[2:] for table in rows]
        assert all(re.fullmatch(r":?-+:?", cell) for table in rows for cell in table[1])
    return found


# -- the files ---------------------------------------------------------------------------------------------------------


class Told:
    """One table of the report, as report.json has it."""

    def __init__(self, name, steps=None):
        tables = json.loads(EVIDENCE.read_text())["tables"]
        (table,) = [
            t
            for t in tables
            if t["about"]["name"] == name and (steps is None or t["cells"][0]["recipe"]["steps"] == steps)
        ]
        self.about, self.said, self.cells = table["about"], table["said"], table["cells"]
        self.base = self.about["baseline"]

    def ours(self, model, size=None):
        size = self.about["sizes"][0] if size is None else size
        (row,) = [r for r in self.said["rows"] if (r["model"], r["size"]) == (model, size)]
        return row["ours"]

    def value(self, model, size=None):
        one = self.ours(model, size)
        return (one["centre"],) if one["low"] is None else (one["centre"], one["low"], one["high"])

    def paper(self, model, size=None):
        return self.about["paper"].get(model, {}).get(self.about["sizes"][0] if size is None else size)

    def comparison(self, model, other=None, size=None):
        size = self.about["sizes"][0] if size is None else size
        wanted = (model, other or self.base, size)
        (one,) = [c for c in self.said["comparisons"] if (c["model"], c["other"], c["size"]) == wanted]
        return one

    def difference(self, model, other=None, size=None):
        one = self.comparison(model, other, size)["difference"]
        return one["centre"], one["low"], one["high"]

    def verdict(self, model, other=None, size=None):
        return self.comparison(model, other, size)["verdict"]

    def pooled(self):
        """The pooled effect, from the cells themselves."""
        (words,) = report.analysed([read_table(self.about, self.cells)])
        _, one, verdict = words.about.effects[self.about["sizes"][0]][-1]
        assert verdict == "better"
        return one.centre, one.low, one.high

    def p(self, model, size=None):
        one = self.comparison(model, size=size)
        return one["difference"]["p"], one["corrected"]


@pytest.fixture(scope="module")
def tables():
    return sections((ROOT / "docs" / "results.md").read_text())


def curves(how, of):
    """A number of each seed's curve of the example."""
    done = json.loads((ROOT / "results" / "annealing" / "curves.json").read_text())["curves"]
    return {int(seed): of(list(ways[how].values())) for seed, ways in done.items()}


def last(run):
    return run[-1]


UNTOUCHED, AT_ONCE, EIGHTH, HALF = "untouched", "transport at once", "annealed over an eighth", "annealed over half"


def annealed(how, of):
    return paired(curves(how, of), curves(AT_ONCE, of), higher=False)


# -- docs/results.md and the report ------------------------------------------------------------------------------------


def beside_baseline(rows, told, models):
    """Rows of: value, difference from the baseline, verdict."""
    assert len(rows) == len(models)
    for (_, value, difference, verdict), model in zip(rows, models):
        states(value, *told.value(model))
        if model == told.base:
            assert (difference, verdict) == ("", "")
        else:
            states(difference, *told.difference(model))
            assert verdict == told.verdict(model)


def test_language(tables):
    models = ["roformer", "values only", "fixed", "learned", "projected", "projected on fixed", "cumulative"]
    (rows,) = tables["Language: enwik8, bytes"]
    beside_baseline(rows, Told("wikipedia"), models)


def analysed(folder):
    """The tables kept in results/FOLDER, by name."""
    return {words.table.name: words.about for words in report.analysed(gather([ROOT / "results" / folder]))}


def of(about, model, size):
    """The value, difference, verdict and last multiplier of a model."""
    (row,) = [row for row in about.rows if (row.model, row.size) == (model, size)]
    wanted = (model, about.table.baseline, size)
    (one,) = [c for c in about.comparisons if (c.model, c.other, c.size) == wanted] or [None]
    return row.ours, one, about.multipliers(model, size)[-1][1] if one else None


def triple(one):
    return one.centre, one.low, one.high


def beside_rope(rows, about):
    """Rows of: name, value, difference from RoPE, verdict; all models of the table, in its order."""
    assert about.table.missing == []
    values = {plain(about.table.recipe, row.model): row.ours for row in about.rows}
    against = {plain(about.table.recipe, c.model): c for c in about.comparisons if c.other == "scores, fixed"}
    assert [name for name, *_ in rows] == list(values)
    for name, value, difference, verdict in rows:
        states(value, *triple(values[name]))
        if name == "RoPE":
            assert (difference, verdict) == ("", "baseline")
        else:
            states(difference, *triple(against[name].difference))
            assert verdict == against[name].verdict


LARGER = {"0.1 million": "0.1M", "0.36 million": "0.4M"}


def test_enwik8_at_its_best_learning_rate(tables):
    rates, sizes, larger, grid, second = tables["enwik8 at RoPE's best learning rate"]
    found, elsewhere = analysed("enwik8"), analysed("wikitext-2")["sizes"]
    assert elsewhere.table.missing == found["sizes"].table.missing == []
    names = {"RoPE": "scores, fixed"} | {
        f"{name}RoPE + values": f"both, {angles}"
        for name, angles in (
            ("", "fixed"),
            ("learned ", "learned"),
            ("projected ", "projected"),
            ("cumulative ", "cumulative"),
        )
    }
    assert [row[0] for row in sizes] == [*names]
    assert [row[0] for row in second] == ["RoPE", "RoPE + values"]
    for about, size, (name, value, difference, verdict, needed) in [
        *((found["sizes"], "0.1M", row) for row in sizes),
        *((elsewhere, "0.1M", row) for row in second),
    ]:
        ours, one, more = of(about, names[name], size)
        states(value, *triple(ours))
        if one is not None:
            states(difference, *triple(one.difference))
            states(needed, *triple(more))
        assert verdict == ("" if one is None else one.verdict)
    pairs = [(found["rates"], f"lr {rate}", row) for rate, *row in rates]
    for words, seen, *row in larger:
        size = LARGER[words]
        pairs.append((found["sizes"], size, row))
        (cell, *_) = (c for c in found["sizes"].table.cells if c.model == "both, fixed" and size in c.measured)
        states(seen, cell.number("steps") * 16 * 256 / cell.number("parameters"))
    for about, size, (rope, both, difference, verdict, needed) in pairs:
        states(rope, *triple(of(about, "scores, fixed", size)[0]))
        ours, one, more = of(about, "both, fixed", size)
        states(both, *triple(ours))
        states(difference, *triple(one.difference))
        states(needed, *triple(more))
        assert verdict == one.verdict
    assert [words for words, *_ in larger] == [*LARGER]
    for (angles, *cells, added, verdict), kind in zip(grid, (*FRAMES, None), strict=True):
        if kind is None:
            states(cells[0], *triple(of(found["sizes"], "none", "0.1M")[0]))
            assert [*cells[1:], added, verdict] == [""] * 4
            continue
        assert angles.startswith(kind)
        for cell, side in zip(cells, SIDES, strict=True):
            states(cell, *triple(of(found["sizes"], f"{side}, {kind}", "0.1M")[0]))
        wanted = (f"both, {kind}", f"scores, {kind}", "0.1M")
        (one,) = [c for c in found["sizes"].comparisons if (c.model, c.other, c.size) == wanted]
        states(added, *triple(one.difference))
        assert verdict == one.verdict


def test_the_hierarchy(tables):
    (rows,) = tables["The paper's hierarchy, trained"]
    beside_rope(rows, analysed("hierarchy")["enwik8-hierarchy"])


def test_what_one_layer_can_tell(tables):
    (rows,) = tables["What one layer can tell"]
    found = analysed("separation")
    models = ("none", "scores, fixed", "values, fixed", "both, fixed")
    for question, _, *cells in rows:
        about = found[f"{question}-separation"]
        assert about.table.missing == []
        for model, cell in zip(models, cells, strict=True):
            (row,) = [row for row in about.rows if (row.model, row.size) == (model, "1 layer")]
            states(cell.strip("*"), row.ours.centre)
            assert row.ours.n == 5
    assert len(rows) == len(found) == 7


def test_keywords_in_a_stream(tables):
    (rows,) = tables["Keywords in a stream"]
    beside_rope(rows, analysed("spotting")["fsdd-spotting"])
    assert len(rows) == 5


def test_video(tables):
    asked = (("video", "class"), ("video-64", "class"), ("video", "next"))
    for (folder, question), rows in zip(asked, tables["Video: what moved where, what comes next"], strict=True):
        about = analysed(folder)[f"mnist-video-{question}"]
        assert about.table.missing == []
        values = {(plain(f"video-{question}", row.model), row.size): row.ours for row in about.rows}
        against = {
            (plain(f"video-{question}", c.model), c.size): c for c in about.comparisons if c.other == "scores, fixed"
        }
        assert [(name, attention) for name, attention, *_ in rows] == list(values)
        assert len(rows) == 10
        for name, attention, value, difference, verdict in rows:
            states(value, *triple(values[name, attention]))
            if name == "RoPE":
                assert (difference, verdict) == ("", "baseline")
            else:
                states(difference, *triple(against[name, attention].difference))
                assert verdict == against[name, attention].verdict
    for folder in ("video", "video-64"):
        moved = analysed(folder)["mnist-video-class"].effects
        assert all(moved[size][-1][2] == "better" for size in ("joint", "factorised"))  # pooled: see `prose`
    copied = {cell.measured[cell.size]["copy_error"] for cell in about.table.cells}
    assert [f"{one:.1f}" for one in copied] == ["25.5"]
    assert "repeating the last picture has an error of 25.5" in (ROOT / "docs/results.md").read_text()


LASTING = {
    "points with ink": ("points points-long", "mnist-points-ink", "", "fixed"),
    "video, joint": ("video video-long video-longer", "mnist-video-class", "joint", "fixed"),
    "video, joint, learned angles": ("video video-long", "mnist-video-class", "joint", "learned"),
    "video, factorised": ("video video-long video-longer", "mnist-video-class", "factorised", "fixed"),
    "video, factorised, learned angles": ("video video-long", "mnist-video-class", "factorised", "learned"),
    "hidden nodes": ("trees trees-long", "trees", "masked", "fixed"),
    "hidden nodes, dense tree frames": ("trees trees-long", "trees", "masked", "tree-dense"),
}


def test_does_it_last(tables):
    (rows,) = tables["Does it last"]
    where = [(task, folder, *rest) for task, (folders, *rest) in LASTING.items() for folder in folders.split()]
    for (task, steps, scores, both, difference, verdict), (wanted, folder, name, size, kind) in zip(
        rows, where, strict=True
    ):
        assert task == wanted
        about = analysed(folder)[name]
        assert about.table.missing == []
        found = {(row.model, row.size): row.ours for row in about.rows}
        names = [f"{side}, {kind}" for side in ("scores", "both")]
        for model, cell in zip(names, (scores, both), strict=True):
            states(cell, *triple(found[model, size]))
            (budget,) = {c.number("steps") for c in about.table.cells if c.model == model and size in c.measured}
            assert f"{budget:,.0f}" == steps
        (one,) = [c for c in about.comparisons if (c.model, c.other, c.size) == (names[1], names[0], size)]
        states(difference, *triple(one.difference))
        assert verdict == one.verdict


def test_trees(tables):
    both = tables["Syntax trees: hidden nodes, wrong variables"]
    about = analysed("trees")["trees"]
    assert about.table.missing == []
    for rows, size in zip(both, ("masked", "misuse"), strict=True):
        values = {plain("trees", row.model): row for row in about.rows if row.size == size}
        against = {
            plain("trees", c.model): c for c in about.comparisons if (c.other, c.size) == ("scores, fixed", size)
        }
        assert [name for name, *_ in rows] == list(values)
        for name, value, difference, verdict, *localised in rows:
            states(value, *triple(values[name].ours))
            if name == "RoPE":
                assert (difference, verdict) == ("", "baseline")
            else:
                states(difference, *triple(against[name].difference))
                assert verdict == against[name].verdict
            for found in localised:
                states(found, *triple(about.also("localised", values[name].model, size)))
        _, pooled, verdict = about.effects[size][-1]
        assert (verdict, pooled.n) == ("better" if size == "masked" else "inconclusive", 3)


def test_knowledge_graphs(tables):
    rows, ranked = tables["Knowledge graphs: do relations that need not commute help"]
    found = analysed("relations")
    for graph, model, *ranks in ranked:
        about = found[f"{graph}-relations"]
        for cell, name in zip(ranks, ("test_mrr", "test_hits_1", "test_hits_3", "test_hits_10"), strict=True):
            states(cell, *triple(about.also(name, model, "")))
    assert [graph for graph, *_ in ranked] == ["nations"] * 2 + ["kinships"] * 2 + ["umls"] * 2
    for graph, steps, planes, blocks, difference, verdict in rows:
        about = found[f"{graph}-relations"]
        assert about.table.missing == []
        assert {f"{cell.number('steps'):,.0f}" for cell in about.table.cells} == {steps}
        values = {row.model: row.ours for row in about.rows}
        (one,) = about.comparisons
        states(planes, *triple(values["planes"]))
        states(blocks, *triple(values["blocks of 4"]))
        states(difference, *triple(one.difference))
        assert verdict == one.verdict
    assert len(rows) == len(found) == 3


@pytest.mark.parametrize(("at", "recipe"), [(0, "points"), (1, "points-ink")])
def test_sets_in_space(tables, at, recipe):
    rows, about = tables["Sets in space"][at], analysed("points")[f"mnist-{recipe}"]
    assert about.table.missing == []
    found = {plain(recipe, row.model): row for row in about.rows}
    one = {plain(recipe, c.model): c for c in about.comparisons if c.other == about.table.baseline}
    assert [name for name, *_ in rows] == list(found)
    for name, ours, shifted, rotated, difference, verdict in rows:
        others = [about.also(f"accuracy_{how}", found[name].model, "") for how in ("shifted", "rotated")]
        for cell, estimate in zip((ours, shifted, rotated), (found[name].ours, *others), strict=True):
            states(cell, *(triple(estimate) if "[" in cell else (estimate.centre,)))
        if name in one:
            states(difference, *triple(one[name].difference))
            assert verdict == one[name].verdict
    (values,) = [c for c in about.comparisons if c.other == "scores, fixed"]
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    assert f"{values.difference.centre:.0f} points" in text.partition("RoPE alone is blind")[2]
    # Where coordinates are positions a shift changes no answer, in polar ones no rotation.
    blind = ("polar", "none", "scores, fixed") if recipe == "points" else ("polar", "none")
    for cell in about.table.cells:
        got = cell.measured[""]
        assert (got["accuracy"] == got["accuracy_shifted"]) == (cell.model != "coordinates")
        assert (got["accuracy"] == got["accuracy_rotated"]) == (cell.model in blind)


def test_images_with_text(tables):
    (rows,) = tables["Images with text"]
    about = analysed("pairs")["cifar100-pairs"]
    assert about.table.missing == []
    found = {plain("pairs", row.model): row for row in about.rows}
    assert [name for name, *_ in rows] == list(found)
    for name, hidden, recall, to_rope, verdict, to_scores, same in rows:
        model = found[name].model
        states(hidden, *triple(found[name].ours))
        states(recall, *triple(about.also("recall_1", model, "")))
        of_it = {one.other: one for one in about.comparisons if one.model == model}
        scores = of_it.get(model.replace("both", "scores")) if "both" in model else None
        for difference, said, one in ((to_rope, verdict, of_it.get("scores, fixed")), (to_scores, same, scores)):
            assert (difference == "") == (one is None)
            if one is not None:
                states(difference, *triple(one.difference))
                assert said == one.verdict


def test_heads():
    told = json.loads((ROOT / "results/heads/both-fixed/0.1m/seed-0/heads.json").read_text())
    ((_, one),) = told.items()
    alone = {tuple(e["off"][0]): e["change"]["centre"] for e in one["effects"] if len(e["off"]) == 1}
    first, second = ([value for (at, _), value in alone.items() if at == layer] for layer in (0, 1))
    every = max(e["change"]["centre"] for e in one["effects"])
    text = " ".join((ROOT / "docs/results.md").read_text().split())
    sentence = claimed(
        "one seed, {} bits per byte) switching the value transport of one head off costs {} to {} bits per byte in the "
        "first layer and {} to {} in the second, all heads {} ("
    ).findall(text)
    values = (one["bits_per_byte"]["centre"], min(first), max(first), min(second), max(second), every)
    states(" ".join(sentence[0]), *values)


def test_images(tables):
    models = ["learned", "rope2d", "joformer_old", "monoidal_axial", "joformer_axial"]
    (rows,) = tables["CIFAR-100, Setup B, D = 32"]
    beside_baseline(rows, Told("cifar100"), models)
    assert {row[3] for row in rows} == {"", "equivalent", "inconclusive"}


def test_spoken_digits(tables):
    told = Told("speech", 300)
    (rows,) = tables["Spoken digits as spectrograms"]
    pairs = {"joformer_old": "rope2d", "joformer_axial": "monoidal_axial"}
    for row, model in zip(rows, ["none", "rope2d", "joformer_old", "monoidal_axial", "joformer_axial"], strict=True):
        states(row[1], *told.value(model))
        if other := pairs.get(model):
            states(row[2], *told.difference(model, other))
            assert row[3] == told.verdict(model, other)
        else:
            assert row[2:] == ["", ""]


def test_digits(tables):
    told = Told("mnist")
    sizes = ["d = 2", "d = 8", "d = 32", "d = 784"]
    rows, start = tables["MNIST by one vector per image"]
    ours = {0: "learned", 2: "dft", 3: "diagonal", 5: "mlp"}
    papers = {1: "learned", 4: "diagonal", 6: "mlp"}  # the paper calls its diagonal the DFT
    assert len(rows) == 7
    for at, row in enumerate(rows):
        for cell, size in zip(row[1:], sizes, strict=True):
            if at in papers:
                value = told.paper(papers[at], size)
                states(cell, *[value] if value is not None else [])
            elif ours[at] != "mlp" or size == "d = 784":
                states(cell, *told.value(ours[at], size))
            else:
                assert cell == ""
    models = ["learned, from ±0.01", "learned, from ±0.05", "learned", "learned, from ±0.5", "learned, from ±3.1"]
    for cell, model in zip(start[0], models, strict=True):
        states(cell, *told.value(model, "d = 2"))


def test_lengths(tables):
    """Now each length scores the same bytes, so that a model may be compared with itself; in the older record not."""
    ((rows, record),) = [found for title, found in tables.items() if title.startswith("Length")]
    about, at = analysed("length")["enwik8-length"], ["256", "1024", "4096"]
    assert about.table.missing == []
    ours = {(plain("length", row.model), row.size): row.ours for row in about.rows}
    against = {(plain("length", c.model), c.size): c for c in about.comparisons if c.other == "rope"}
    growth = {plain("length", model): found["4096"] for model, found in about.ratios.items()}
    assert [row[0] for row in rows] == [*growth]
    assert len(rows) == 8
    for name, *cells, difference, verdict, grown in rows:
        for cell, size in zip(cells, at, strict=True):
            states(cell, *triple(ours[name, size]))
        states(grown, *triple(growth[name]))
        if name == "RoPE":
            assert (difference, verdict) == ("", "baseline")
        else:
            states(difference, *triple(against[name, "4096"].difference))
            assert verdict == against[name, "4096"].verdict
    told = Told("length")
    for row, model in zip(record, ["rope", "fixed", "projected", "cumulative"], strict=True):
        assert len(row) == 8
        for cell, size in zip(row[1:4], at, strict=True):
            states(cell, *told.value(model, size))
        if model == "rope":
            assert row[4:] == [""] * 4
            continue
        for cell, size in zip(row[4:7], at, strict=True):
            states(cell, *told.difference(model, size=size))
        assert {row[7]} == {told.verdict(model, size=size) for size in told.about["sizes"]}
    assert any("compare models at a length, not lengths of a model" in note for note in told.about["notes"])


def test_annealing(tables):
    (rows,) = tables["A trained Llama gets transport"]
    gaps = {how: [annealed(how, of) for of in (fmean, last)] for how in (EIGHTH, HALF)}
    corrected = holm([gap.p for both in gaps.values() for gap in both])
    assert max(corrected) <= 0.05  # so that each verdict stands after Holm's correction
    for row, how in zip(rows, [UNTOUCHED, AT_ONCE, EIGHTH, HALF], strict=True):
        states(row[1], fmean(curves(how, max).values()))
        if how in gaps:
            for (difference, verdict), gap in zip([row[2:4], row[4:6]], gaps[how], strict=True):
                states(difference, gap.centre, gap.low, gap.high)
                assert verdict == gap.verdict
        else:
            assert (row[2], row[3], row[5]) == ("", "", "")
            states(row[4], fmean(curves(how, last).values()))


# -- sentences ---------------------------------------------------------------------------------------------------------


def on_the_way(about, size, model, step):
    """Bits per byte of each seed at a step of its curve."""
    cells = [cell for cell in about.table.cells if cell.model == model and size in cell.measured]
    lines = [(cell.seed, line) for cell in cells for line in cell.curve if line["step"] == step]
    return {seed: line["bits_per_byte"] for seed, line in lines if "bits_per_byte" in line}


def prose():
    """Sentences with figures on README and docs/results.md, `{}` for each number, and the numbers."""
    enwik8, early, late = Told("wikipedia"), Told("speech", 300), Told("speech", 1500)
    mnist, cifar, length = Told("mnist"), Told("cifar100"), Told("length")
    longer = analysed("length")["enwik8-length"]
    (beside, at_once) = (
        next(c.difference for c in longer.comparisons if (c.model, c.other, c.size) == ("fixed", "rope", size))
        for size in ("4096", "256")
    )
    bins = {
        size: [
            fmean(places)
            for places in zip(*(c.facts("by_position")[size] for c in longer.table.cells if c.model == "rope"))
        ]
        for size in ("256", "512", "4096")
    }
    content = [c for c in longer.comparisons if c.model in ("projected from scratch", "cumulative")]
    assert [(c.verdict, c.model, c.size) for c in content if c.verdict != "inconclusive"] == [
        ("better", "projected from scratch", "2048")
    ]

    small = ("d = 2", "d = 8", "d = 32")
    rates, sizes = (analysed("enwik8")[name] for name in ("rates", "sizes"))
    _, best, _ = of(sizes, "both, fixed", "0.1M")
    sides = ("scores, fixed", "both, fixed")
    by_rate = [rates.table.values(side, f"lr {rate}") for side in sides for rate in ("0.003", "0.01")]
    apart = interaction(*by_rate, higher=False)
    early_scores, early_both = (on_the_way(rates, "lr 0.001", side, 600) for side in sides)
    after = paired(early_both, early_scores, higher=False)
    hierarchy = analysed("hierarchy")["enwik8-hierarchy"]
    (linear,) = [c for c in hierarchy.comparisons if c.other != hierarchy.table.baseline]
    assert linear.verdict == "better"
    trees = analysed("trees")["trees"]
    nodes, wrong = (trees.effects[size][-1][1] for size in ("masked", "misuse"))
    (dense,) = [c.corrected for c in trees.comparisons if (c.model, c.size) == ("scores, tree-dense", "masked")]
    bare = {row.model: row.ours.centre for row in analysed("points")["mnist-points"].rows}
    moved, larger = (
        {size: effects[-1][1] for size, effects in analysed(folder)["mnist-video-class"].effects.items()}
        for folder in ("video", "video-64")
    )

    def between(folder, name, model, other, size=""):
        """A difference that the page calls better, and that is."""
        (one,) = [c for c in analysed(folder)[name].comparisons if (c.model, c.other, c.size) == (model, other, size)]
        assert one.verdict == "better"
        return triple(one.difference)

    ink, later = (between(f, "mnist-points-ink", "both, fixed", "scores, fixed") for f in ("points", "points-long"))
    still = [
        number
        for size in ("joint", "factorised")
        for number in between("video-longer", "mnist-video-class", "both, fixed", "scores, fixed", size)
    ]
    faster = {
        folder: {(row.model, row.size): row.ours.centre for row in analysed(folder)["mnist-video-class"].rows}
        for folder in ("video-long", "video-longer")
    }
    _, nodes_late, verdict = analysed("trees-long")["trees"].effects["masked"][-1]
    assert verdict == "inconclusive"
    (images,) = analysed("cifar100-long").values()
    five, (epochs,) = {row.model: row.ours for row in images.rows}, images.comparisons
    assert (epochs.verdict, images.table.missing) == ("better", [])
    kept = [json.loads(file.read_text())["seconds"] for file in (ROOT / "results").rglob("result.json")]
    kept += [cell["seconds"] for table in json.loads(EVIDENCE.read_text())["tables"] for cell in table["cells"]]

    def gap(of):
        return fmean(curves(AT_ONCE, of).values()) - fmean(curves(UNTOUCHED, of).values())

    def turned(centre, low, high):
        return -centre, -high, -low

    return {
        "README.md": [
            ("was {} [{}, {}] better than RoPE after 600 steps", turned(*enwik8.difference("fixed"))),
            ("(spoken digits): {} points ahead after {} steps", (early.difference("joformer_old")[0], 300)),
            ("after 1,500, {} [{}, {}], inconclusive", late.difference("joformer_old")),
            ("after 2,000 steps, {} bits per byte [{}, {}], inconclusive", triple(best.difference)),
            (
                "{} points [{}, {}] ahead with joint\n  attention, {} [{}, {}] with factorised",
                (*triple(moved["joint"]), *triple(moved["factorised"])),
            ),
            ("after 6,000 steps {} [{}, {}] and {} [{}, {}] points, both decided", still),
            (
                "provably blind ({} %); with values it reaches {} %",
                [bare[f"{side}, fixed"] for side in ("scores", "both")],
            ),
        ],
        "docs/results.md": [
            ("larger there than at 0.003 is not decided (p = {})", (apart.p,)),
            ("at {} [{}, {}] after 600 steps at that rate", triple(after)),
            ("pooled over the four kinds is that decided: {} [{}, {}]", triple(sizes.effects["0.1M"][-1][1])),
            ("each alone (interaction {} [{}, {}], inconclusive)", triple(dict(sizes.synergies)["0.1M"])),
            ("scores reach {} % (all three seeds)", late.value("rope2d")),
            ("gains from values**: {} [{}, {}] against the same with scores alone, better", triple(linear.difference)),
            (
                "scores and values {}\n  [{}, {}]: {} [{}, {}], inconclusive; no positions {} [{}, {}].",
                (*late.value("joformer_old"), *late.difference("joformer_old"), *late.value("none")),
            ),
            ("value transport helps on hidden nodes: {} [{}, {}] points; for none", triple(nodes)),
            ('were "better" too (now p = {})', (dense,)),
            ("(values pooled: {} [{}, {}] points)", triple(wrong)),
            ("RoPE + values is {} bits per byte better than RoPE; all", (-enwik8.difference("fixed")[0],)),
            ("**After {} steps values are {} points ahead; after", (300, early.difference("joformer_old")[0])),
            ("values are ahead by {} points when pooled", cifar.pooled()[:1]),
            ("after five, the fixed ones by {}.**", (epochs.difference.centre,)),
            ("by {} points at d = 2 and", mnist.difference("learned", size="d = 2")[:1]),
            ("at d = 2 and {} at d = 8", mnist.difference("learned", size="d = 8")[:1]),
            ("reach {} % with 32 numbers", mnist.value("learned", "d = 32")[:1]),
            (
                "the advantage is gone** ({} [{}, {}], equivalent within 1 point)",
                mnist.difference("learned", size="d = 32"),
            ),
            ("frequencies are alike ({} [{}, {}])", mnist.difference("learned", size="d = 784")),
            ("(the DFT by {} [{}, {}])", mnist.difference("mlp", size="d = 784")),
            ("alike (p = {} each), and after correction (p = {})", cifar.p("joformer_old")),
            ("the one question asked beforehand, they help: {} [{}, {}]", cifar.pooled()),
            ("Together these runs took {} hours of one core", (sum(kept) / 3600,)),
            ("and after 6,000 is {} points behind. On trees", still[:1]),
            ("and after 6,000 is {} points behind ([does it last]", still[:1]),
            ("then it is {} [{}, {}] points with joint and {} [{}, {}] with factorised", still),
            (
                "RoPE after 6,000 steps ({} %) is still below what values reach after 1,500 ({} %)",
                (faster["video-longer"]["scores, fixed", "joint"], faster["video-long"]["both, fixed", "joint"]),
            ),
            ("the lead shrinks from {} to {} points, and is decided", (ink[0], later[0])),
            (
                "RoPE + values is {} [{}, {}] points ahead of them, better",
                between("points-long", "mnist-points-ink", "both, fixed", "coordinates"),
            ),
            ("what values add is {} [{}, {}] points, pooled", triple(nodes_late)),
            (
                "they are {} [{}, {}] points\n  ahead of RoPE, better",
                between("trees-long", "trees", "scores, tree-dense", "scores, fixed", "masked"),
            ),
            (
                "scores reach {} [{}, {}] %, scores and values\n  {} [{}, {}]: {} [{}, {}] points, better.",
                (*triple(five["rope2d"]), *triple(five["joformer_old"]), *triple(epochs.difference)),
            ),
            ("ratio at\n  16 times is {} [{}, {}], and", triple(longer.ratios["rope"]["4096"])),
            (
                "{} × [{}, {}] against RoPE at 4,096, inconclusive, and at 256 {} × [{}, {}].",
                (*triple(beside), *triple(at_once)),
            ),
            (
                "cost RoPE {} nats with nothing before them and {} with 256 bytes.",
                (bins["256"][0], bins["512"][0]),
            ),
            (
                "The other 240 cost {} at 256 and {} at",
                (fmean(bins["256"][1:]), fmean(bins["4096"][1:])),
            ),
            ("Fixed angles (p = {})", length.p("fixed", "256")[:1]),
            ("cumulative ones (p = {},", length.p("cumulative", "256")[:1]),
            ("(p = {} and {}:", (length.p("fixed", "256")[1], length.p("cumulative", "256")[1])),
            (
                "value transport helps: {} [{}, {}] points where all patches attend to all (joint), {} [{}, {}] where",
                (*triple(moved["joint"]), *triple(moved["factorised"])),
            ),
            (
                "values help here too: {} [{}, {}] points (joint), {} [{}, {}] (factorised)",
                (*triple(larger["joint"]), *triple(larger["factorised"])),
            ),
            ("The jump is small ({} nats)", (gap(lambda run: run[0]),)),
            ("untouched one** ({} behind at the end)", (gap(last),)),
            ("The printed frequencies give {}, {} and {} %", [mnist.value("diagonal", d)[0] for d in small]),
            ("two-dimensional DFT give {}, {} and {} %", [mnist.value("dft", d)[0] for d in small]),
        ],
    }


def claimed(template):
    return re.compile(re.escape(template).replace(r"\{\}", f"({NUMBER})"))


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_sentences_state_what_the_files_hold(name):
    text = (ROOT / name).read_text()
    for template, values in prose()[name]:
        found = claimed(template).findall(text)
        assert len(found) == 1, f"{name} has {template!r} {len(found)} times"
        states(" ".join([found[0]] if isinstance(found[0], str) else found[0]), *values)


@pytest.mark.parametrize("name", ["README.md", "docs/results.md"])
def test_no_interval_stands_unclaimed(name):
    """Every interval and p-value is in a table, in a sentence above, or written by the bench."""
    text = page.MARKED.sub("", (ROOT / name).read_text())
    for template, _ in prose()[name]:
        text = claimed(template).sub("", text)
    text = re.sub(r"^\|.*$", "", text, flags=re.M) if name == "docs/results.md" else text
    assert INTERVAL.findall(text) == []
    assert re.findall(rf"p = {NUMBER}", text) == []


def test_learned_frequencies_late_verdicts_in_words():
    late, mnist = Told("speech", 1500), Told("mnist")
    assert late.verdict("joformer_old") == "inconclusive"
    assert mnist.verdict("learned", size="d = 32") == "equivalent"
    said = {t["about"]["name"]: t["said"]["sentences"][0] for t in json.loads(EVIDENCE.read_text())["tables"]}
    assert said["cifar100"].startswith("Value transport helps after 600 steps")
    assert said["length"].startswith("The effect of value transport is inconclusive")
    short = (ROOT / "docs" / "results.md").read_text().partition("## In short")[2].partition("\n## ")[0]
    short = " ".join(short.split())
    assert "decided on enwik8 and on spoken digits, on CIFAR-100 only when two kinds of angles are pooled" in short
    assert "in the table of lengths they were ahead after 400 steps, undecidedly, and are level after 5,000" in short
    now = [c for c in analysed("length")["enwik8-length"].comparisons if (c.model, c.other) == ("fixed", "rope")]
    assert {c.verdict for c in now} <= {"inconclusive", "equivalent"}


# -- the report itself -------------------------------------------------------------------------------------------------


def test_the_report_is_what_its_json_makes_of_itself():
    """The pages that are kept are the ones that `joformer report results/evidence/report.json` writes now."""
    found = report.analysed(results.gather([EVIDENCE]))
    assert json.loads(EVIDENCE.read_text()) == json.loads(json.dumps(report.as_json(found)))
    assert (EVIDENCE.parent / "report.md").read_text() == report.markdown(found)
    assert (EVIDENCE.parent / "report.html").read_text() == report.html(found)
    assert not re.search("ms per step|× the time|undecided", report.markdown(found))


# -- README and the bench ----------------------------------------------------------------------------------------------


BENCHED = {"README.md": ["costs"], "docs/cost.md": ["table", "transforms", "embedding"]}


@pytest.mark.parametrize("name", BENCHED)
def test_pages_are_written_from_the_bench(name):
    text, rows = (ROOT / name).read_text(), page.read(ROOT / "results" / "bench.json")
    assert [found[1] for found in page.MARKED.findall(text)] == BENCHED[name]
    assert page.filled(text, rows) == text
    # At the start of a line a mark would be a block of HTML and end the paragraph.
    table = ["<!-- bench:table -->", "<!-- /bench -->"] if "table" in BENCHED[name] else []
    assert re.findall(r"^ *<!-- /?bench[^>]*>", text, re.M) == table
    assert {block for blocks in BENCHED.values() for block in blocks} == set(page.BLOCKS)


@pytest.mark.parametrize("name", BENCHED)
def test_no_other_cost_stands_there(name):
    """A ratio of times outside the marks would be nobody's."""
    text = page.MARKED.sub("", (ROOT / name).read_text())
    assert re.findall(r"\d(?:\.\d+)? ×(?! \d)|\d+ % of the (?:time|memory)|times (?:faster|slower)", text) == []


def test_a_figure_edited_alone_is_noticed():
    text, rows = (ROOT / "docs" / "cost.md").read_text(), page.read(ROOT / "results" / "bench.json")
    changed = {name: dict(row, value=row["value"] * 1.1) for name, row in rows.items()}
    assert page.filled(text, changed) != text
    assert page.filled(text.replace("within noise", "faster"), rows) == page.filled(text, rows).replace(
        "the difference is within noise", "the difference is faster"
    )
    assert not agrees("1.04", 1.05)
    assert agrees("1.05", 1.0500000001)
    assert not agrees("−1.04", 1.04)
    assert not agrees("+1.04", -1.04)
    with pytest.raises(AssertionError):
        states("1.04 [1.03, 1.05]", 1.04, 1.03)
    with pytest.raises(AssertionError):
        states("1.04 [1.03, 1.05]", 1.04, 1.03, 1.06)


@pytest.mark.refused
def test_mistakes_of_the_page_are_one_line(tmp_path, capsys):
    good, target = tmp_path / "bench.json", tmp_path / "page.md"
    good.write_text("[]")
    for text, told in (
        ("<!-- bench:table --><!-- /bench -->", "no row"),
        ("<!-- bench:x --><!-- /bench -->", "choose"),
    ):
        target.write_text(text)
        assert page.main([str(good), str(target)]) == 2
        assert told in (err := capsys.readouterr().err)
        assert err.count("\n") == 1
        assert target.read_text() == text
    row = {"name": page.EAGER, "value": 1.0, "low": None, "high": None, "rounds": 3}
    with pytest.raises(ValueError, match="too few rounds for an interval"):
        page.figure(row)
    for content in ("{", "[1]", '[{"a": 1}]', '{"name": 1}'):
        good.write_text(content)
        assert page.main([str(good), str(target)]) == 2
        assert "not a bench result" in capsys.readouterr().err
    assert page.main([]) == 2
