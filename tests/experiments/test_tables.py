"""Every table as it is planned, what it says of the paper, and the commands by which a person runs them."""

import dataclasses
import importlib
import json
import math
import os
import re
import shlex
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from joformer import cli, paper
from joformer.experiments import (
    NAMED_ONLY,
    TABLES,
    GraphSource,
    ImageSource,
    PairsSource,
    PointsSource,
    StreamSource,
    TextSource,
    TreeSource,
    VideoSource,
    run,
    sources,
)
from joformer.experiments.compare import tables as compared
from joformer.experiments.engine import Done
from joformer.experiments.metrics import METRICS
from joformer.experiments.places import find
from joformer.experiments.running import finished
from joformer.experiments.sequences import QUESTIONS
from joformer.experiments.tables import RESULT, TABLE, read
from joformer.experiments.variants import BASELINES, NAMES, matched, variant
from joformer.models import LMConfig, ViTConfig, initialise
from joformer.training import Recipe, Streams, load_graph, load_points
from joformer.training.data.streams import Recordings

SCALES = ("laptop", "paper")
# What the data of a name looks like: images, their number, classes.
IMAGES = {
    "digits": ((1, 8, 8), 1438, 10),
    "words": ((1, 64, 64), 1200, 10),
    "fsdd": ((1, 64, 48), 2700, 10),
    "mnist": ((1, 28, 28), 60_000, 10),
    "cifar100": ((3, 32, 32), 50_000, 100),
    "imagenet": ((3, 224, 224), 1_281_167, 1000),
}
TEXTS = ("stdlib", "enwik8", "wikitext-2", "wikipedia", "openwebtext")


class Split(SimpleNamespace):
    def __len__(self):
        return len(self.images)


def images_like(source):
    shape, count, classes = IMAGES[Path(source.data).name]
    train = Split(images=torch.empty(count, *shape, device="meta"))
    return SimpleNamespace(train=train, classes=range(classes), fingerprint=f"that of {source.data}")


def text_like(source):
    assert Path(source.data).name in TEXTS
    tokens, tokenizer = torch.empty(9000, device="meta"), SimpleNamespace(vocab=source.vocab)
    return SimpleNamespace(train=tokens, valid=tokens, tokenizer=tokenizer, fingerprint=f"that of {source.data}")


def pairs_like(source):
    shape = (1, 16, 24) if source.data == "captions" else IMAGES[Path(source.data).name][0]
    split = Split(images=torch.empty(1000, *shape, device="meta"), tokens=torch.empty(1000, 6, device="meta"))
    tokenizer = SimpleNamespace(vocab=source.vocab)
    return SimpleNamespace(train=split, test=split, tokenizer=tokenizer, fingerprint=f"that of {source.data}")


@pytest.fixture
def offline(monkeypatch):
    """Data that is never read, only looked at."""
    monkeypatch.setattr(ImageSource, "load", images_like)
    monkeypatch.setattr(TextSource, "load", text_like)
    family = load_graph("family")
    monkeypatch.setattr(GraphSource, "load", lambda source: family)
    sets = load_points("digits", points=2)
    monkeypatch.setattr(PointsSource, "load", lambda source: sets)
    short = Recordings(torch.zeros(999, 64, dtype=torch.uint8), torch.tensor([999]), torch.tensor([[5, 40, 9]]))
    streams = Streams(short, short, tuple("0123456789"), 0.016, "that of streams")
    monkeypatch.setattr(StreamSource, "load", lambda source: streams)
    monkeypatch.setattr(PairsSource, "load", pairs_like)
    few = SimpleNamespace(counts=torch.tensor([20, 30]))
    trees = SimpleNamespace(kinds=("If", "Name"), depth=12, branches=16, train=few, fingerprint="that of trees")
    monkeypatch.setattr(TreeSource, "load", lambda source: trees)
    film = Split(images=torch.empty(50, 1, 32, 32, 8, device="meta"))
    clips = SimpleNamespace(train=film, classes=range(8), mirrored=True, fingerprint="that of clips")
    monkeypatch.setattr(VideoSource, "load", lambda source: clips)


@pytest.fixture
def folder(tmp_path):
    """A folder of data as the documentation describes it."""
    for name in ("mnist", "cifar100", "imagenet", "enwik8", "wikitext-2", "fsdd", "kg/nations", "kg/umls", "code"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "mnist" / "one.png").touch()  # images, of which clips are made
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    """Its own cache, and one thread: small models wait for the others longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    yield
    torch.set_num_threads(threads)


def planned(name, scale="laptop", data=None, seeds=(0, 1), steps=None):
    return TABLES[name](scale, data, seeds, steps, True)


def model_of(config):
    return config.build()


# -- what is planned ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("given", [False, True], ids=["embedded", "data"])
def test_every_table_is_whole(offline, folder, tmp_path, scale, given):
    tables = [(name, table) for name in TABLES for table in planned(name, scale, folder if given else None)]
    more = ["points-ink", *(["cifar100-liere", "length-150k"] if scale == "paper" else [])]
    assert {table.recipe for _, table in tables} == {*TABLES, "video-next", "video-class", *more} - {"video"}
    names = [cell.name for _, table in tables for cell in table.cells]
    assert len(set(names)) == len(names)
    for name, table in tables:
        source = table.cells[0].source
        assert table.scale == scale
        assert {cell.table for cell in table.cells} == {table.name}
        assert {cell.seed for cell in table.cells} == {0, 1}
        # A name carries the data that was used, and no other's.
        assert table.data == Path(source.data).name
        assert table.name in (table.recipe, f"{table.data}-{table.recipe}")
        assert not ({table.name, *table.name.split("-")[:1]} & ({*IMAGES, *TEXTS} - {table.data}))
        lengths = {str(length) for cell in table.cells for length in cell.lengths}
        assert {cell.size for cell in table.cells if not cell.lengths} | lengths == set(table.sizes)
        assert {*sum(table.pairs, ()), *([table.baseline] if table.baseline else []), *table.paper} <= set(table.models)
        assert {size for row in table.paper.values() for size in row} <= set(table.sizes)
        assert table.comparable <= (scale == "paper" or table.data == "mnist")
        for cell in table.cells:
            assert cell.source == (dataclasses.replace(source, question=cell.size) if name == "trees" else source)
            assert cell.describe() == json.loads(json.dumps(cell.describe()))
            assert str(tmp_path) not in json.dumps(cell.describe()), "where data is is nobody's business"
            assert cell.work > 0
            assert cell.alone == (name == "overhead")
        run = {name for cell in table.cells for name, _ in cell.rivals} or {cell.model for cell in table.cells}
        assert run | {cell.yarn for cell in table.cells if cell.yarn} == set(table.models)
        assert set(table.also) <= set(METRICS)
        assert set(table.also_paper) <= set(table.also)
        about = table.about()
        assert about["cells"] == [cell.name for cell in table.cells]
        assert about["unit"]
        assert about["higher"] == (table.metric.name in ("accuracy", "mrr", "masked_accuracy", "event_f1"))
    if not given:
        embedded = {table.cells[0].source.data for _, table in tables}
        wanted = {"mnist", "cifar100", "imagenet", "wikipedia", "openwebtext", "words"}
        laptop = ("digits", "stdlib", "words", "captions", "moving")
        made = {"family", "stdlib-trees", *QUESTIONS}
        assert embedded == {*made, *(laptop if scale == "laptop" else wanted)}
    first = tables[0][1]
    first.begin(tmp_path / "out")
    kept = read(tmp_path / "out" / first.name / TABLE)
    assert {key: value for key, value in kept.items() if key != "settings"} == first.about()


def test_the_models_are_as_large_as_the_paper_says(offline):
    """Built on no memory: millions of parameters, where the paper prints them."""
    sizes = {
        (name, cell.model): cell.parameters / 1e6
        for name in ("cifar100", "imagenet", "length")
        for table in planned(name, "paper", seeds=(0,))
        for cell in table.cells
    }
    assert sizes["cifar100", "liere64"] == pytest.approx(14.9, rel=0.005)
    assert sizes["imagenet", "rope2d"] == sizes["imagenet", "joformer_old"] == pytest.approx(22, rel=0.005)
    assert sizes["length", "cumulative"] == pytest.approx(163, rel=0.005)


def test_steps_shorten_every_run(offline):
    for name in TABLES:
        for plan in planned(name, steps=7):
            assert {cell.recipe.total for cell in plan.cells} == {1 if name == "overhead" else 7}


@pytest.mark.parametrize("scale", SCALES)
def test_the_rows_of_the_length_table_are_trained_equally(offline, scale):
    plan, *shorter = planned("length", scale)
    assert len({cell.recipe.total for cell in plan.cells}) == 1
    assert scale == "laptop" or plan.cells[0].recipe.total == 200_000
    assert {cell.lengths for cell in plan.cells} == {tuple(map(int, plan.sizes))}
    assert plan.cells[0].lengths[0] == plan.cells[0].source.context
    if scale == "paper":
        assert plan.cells[0].lengths[:4] == paper.LENGTHS
    assert {cell.config.pattern.count("N") for cell in plan.cells} == {1 if scale == "laptop" else 3}
    stages = {cell.model: [stage.frames for stage in cell.recipe.sequence] for cell in plan.cells}
    names = ("rope", "fixed", "learned", "projected from scratch", "cumulative", "none")
    assert stages == dict.fromkeys(names, [None] * 3) | {"projected": [None, None, "projected"]}
    assert {cell.model: cell.yarn for cell in plan.cells if cell.yarn} == {"rope": "rope, yarn"}
    assert len({tuple((s.steps, s.lr) for s in cell.recipe.sequence) for cell in plan.cells}) == 1
    # The row that the paper lacks ends as the staged one does.
    from joformer.training.stages import changed

    ends = {cell.model: changed(cell.config, cell.recipe.sequence[-1].frames) for cell in plan.cells}
    assert ends["projected"] == ends["projected from scratch"]
    for table in shorter:  # the paper's budget of RoPE: its first two stages
        assert {cell.model for cell in table.cells} == {*names}
        assert {tuple((s.steps, s.lr) for s in cell.recipe.sequence) for cell in table.cells} == {
            ((100_000, 5e-4), (50_000, 2e-4))
        }
    # With odd numbers too.
    for steps in (11, 2, 1):
        assert {cell.recipe.total for cell in planned("length", scale, steps=steps)[0].cells} == {steps}


def test_the_printed_figures_are_the_papers(offline):
    printed = {plan.recipe: plan.paper for name in TABLES for plan in planned(name, "paper", seeds=(0,))}
    dims = [f"d = {dim}" for dim in paper.MNIST_DIMS]
    assert printed["mnist"] == {
        "learned": dict(zip(dims, paper.MNIST["learned"])),
        "diagonal": dict(zip(dims[:3], paper.MNIST["dft"])),
        "mlp": {"d = 784": 97.2},
    }
    for model, row in paper.CIFAR_SCALING.items():
        assert printed["cifar100"][model] == dict(zip(("D = 32", "D = 64", "D = 128", "D = 256"), row))
    for without, rotated, a, b, _ in paper.V_ROTATION.values():
        assert (printed["cifar100"][without]["D = 256"], printed["cifar100"][rotated]["D = 256"]) == (a, b)
    assert printed["cifar100-liere"]["liere64_v"] == {"400 epochs": 69.41}
    assert printed["cifar100-liere"]["axial_dense"] == {"400 epochs": 70.61}
    assert planned("cifar100", "paper", steps=9)[1].paper["liere64_v"] == {"": 69.41}
    assert printed["imagenet"] == {"rope2d": {"": 80.71}, "joformer_old": {"": 81.11}}
    for size, row in paper.WIKIPEDIA.items():
        assert (
            tuple(printed["wikipedia"][model][size] for model in ("roformer", "fixed", "learned", "projected")) == row
        )
    # Beside the budget that they are of.
    for table, models in (("length", {"projected"}), ("length-150k", {"fixed", "rope"})):
        assert set(printed[table]) == models
        for model in models:
            assert printed[table][model] == dict(zip(("512", "1024", "2048", "4096"), paper.LENGTH[model]))
    assert printed["overhead"]["joformer_axial"][""] == round(94 / 72, 2)
    beside = {plan.recipe: plan.also_paper for name in TABLES for plan in planned(name, "paper", seeds=(0,))}
    assert beside["imagenet"] == {"top_5": {"rope2d": {"": 95.26}, "joformer_old": {"": 95.53}}}
    assert beside["overhead"]["hours"]["rope2d"] == {"": 72.0}
    assert {one for table, one in beside.items() if table not in ("imagenet", "overhead") for one in one} == set()
    assert printed["transport"] == printed["speech"] == printed["separation"] == {}
    # At another scale only what is under the same heading is named.
    assert planned("wikipedia")[0].paper["roformer"] == {"n100, L2": 7.24}
    assert planned("cifar100")[0].paper["rope2d"] == {"D = 32": 50.91}
    # … and lengths by their multiple of the length of training.
    assert planned("length")[0].paper["rope"] == {"256": 26.82, "512": 41.90, "1024": 90.10, "2048": 168.67}


def test_the_papers_scale_is_the_papers(offline, tmp_path):
    setup_b, setup_a = planned("cifar100", "paper", seeds=(0,))
    assert {"rope2dv2_literal", "joformer_fixed_literal"} <= set(setup_b.models)
    assert ("rope2dv2_literal", "joformer_fixed_literal") in setup_b.pairs
    assert "rope2dv2_literal" not in planned("cifar100")[0].models
    assert setup_a.sizes == ("200 epochs", "400 epochs")
    assert {cell.recipe.total for cell in setup_a.cells if cell.size == "200 epochs"} == {200 * 50_000 // 128}
    (wiki,) = planned("wikipedia", "paper", seeds=(0,))
    assert (wiki.cells[0].source.percent, wiki.cells[0].source.held_out) == (1, None)
    # Hours are those of 300 epochs, of every model, the baseline itself among them.
    (timed,) = planned("overhead", "paper", seeds=(0,))
    assert timed.cells[0].recipe.total == round(300 * 1_281_167 / 1024)
    assert timed.models[0] == "rope2d"
    assert timed.cells[0].rivals[0] == ("rope2d", timed.cells[0].config)
    # GPT-2's tokenizer, where it is; where it lies is no part of a description.
    (tmp_path / "openwebtext").mkdir()
    (tmp_path / "gpt2").mkdir()
    assert planned("length", "paper", tmp_path)[0].cells[0].source.tokenizer is None
    (tmp_path / "gpt2" / "tokenizer.json").touch()
    table = planned("length", "paper", tmp_path)[0]
    assert table.cells[0].source.tokenizer == str(tmp_path / "gpt2" / "tokenizer.json")
    assert table.cells[0].describe()["source"]["tokenizer"] == "gpt2"
    assert any("GPT-2's" in note for note in table.notes)


@pytest.mark.refused
def test_other_data_or_settings_are_not_mixed_into_a_table(tmp_path):
    """Not even where their cells are others: more seeds, say."""
    text = tmp_path / "text.txt"

    def begin(words, seed, **settings):
        text.write_text(words * 400)
        sources._text.cache_clear()
        source = TextSource(str(text), context=16, batch=4)
        for plan in compared(source, (seed,), Recipe(steps=2), **({"dim": 16, "heads": 2, "grid": True} | settings)):
            plan.begin(tmp_path / "out")

    begin("all work and no play ", 0)
    begin("all work and no play ", 1)
    with pytest.raises(ValueError, match=r"^\S+compare holds none with other settings or data: choose another --out$"):
        begin("all work and no play ", 2, dim=32)
    with pytest.raises(ValueError, match="other settings or data"):
        begin("all play and no work ", 2)
    about = json.loads((tmp_path / "out" / "compare" / TABLE).read_text())
    assert {name.rpartition("-")[2] for name in about["cells"]} == {"0", "1"}


def test_questions_that_were_planned_stay_in_a_table(tmp_path):
    """--grid, then the same command without it: what values add to each kind of angles is still asked."""
    text = tmp_path / "text.txt"
    text.write_text("all work and no play " * 400)
    source = TextSource(str(text), context=16, batch=4)
    for asked in (True, False):
        table, *_ = compared(source, (0,), Recipe(steps=2), dim=16, heads=2, grid=asked)
        table.begin(tmp_path / "out")
    about = json.loads((tmp_path / "out" / "compare" / TABLE).read_text())
    assert ["scores, learned", "both, learned"] in about["pairs"]
    assert len(about["pairs"]) == len({tuple(pair) for pair in about["pairs"]}) == 3


def test_tables_of_version_0_1_are_recognised(tmp_path):
    """Where a vision model was a name; the checksums of its settings are those that version wrote.

    Not those of times: they are measured another way now, all models in one process.
    """
    table, _ = compared(ImageSource("digits", batch=8), (0,), Recipe(steps=2), dim=16, heads=2, grid=True)
    said = {"none, ": "80d1bebebfe09151", "scores, fixed, ": "34513a0e37bf8a01",
            "values, projected, ": "468a8848cf85f6de", "both, learned, ": "c74cd42ee54f47ae"}  # fmt: skip
    place = tmp_path / table.name / TABLE
    place.parent.mkdir()
    place.write_text(json.dumps(table.about() | {"settings": said}))
    table.begin(tmp_path)
    place.write_text(json.dumps(table.about() | {"settings": dict.fromkeys(said, "0" * 16)}))
    with pytest.raises(ValueError, match="holds none with other settings or data"):
        table.begin(tmp_path)
    # A finished cell, too.
    cell = next(cell for cell in table.cells if cell.model == "scores, fixed")
    described = cell.describe()
    row = {"frames", "split", "transport", "per_layer"}
    before = {name: value for name, value in described["config"].items() if name not in row}
    for named in ({"model": "joformer_old", "transport": "scores"}, {"model": "rope2d", "transport": None}):
        place = tmp_path / "out" / cell.name / RESULT
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"described": described | {"config": before | named}}))
        assert finished(cell, tmp_path / "out")
    place.write_text(
        json.dumps({"described": described | {"config": before | {"model": "rope2dv2", "transport": None}}})
    )
    with pytest.raises(ValueError, match="holds a run with other settings"):
        finished(cell, tmp_path / "out")


# -- the grid ----------------------------------------------------------------------------------------------------------

LANGUAGE = LMConfig(vocab=256, dim=64, layers=2, heads=2, transport="none")
VISION = ViTConfig(
    model="none", shape=(8, 8), patch=(2, 2), channels=1, classes=10, dim=64, layers=2, heads=2, pool="mean"
)


def test_the_grid_has_thirteen_cells(offline):
    (plan,) = planned("transport", seeds=range(3))
    assert plan.models == NAMES
    assert len(NAMES) == 13
    assert len(plan.cells) == 39
    assert len(plan.pairs) == 4
    assert len({cell.recipe for cell in plan.cells}) == 1


@pytest.mark.parametrize("plain", [LANGUAGE, VISION], ids=["language", "vision"])
def test_variants_have_as_many_parameters(plain):
    count = sum(weight.numel() for weight in model_of(plain).parameters())
    for name in NAMES:
        made = variant(plain, name)
        own = sum(weight.numel() for weight in model_of(made).parameters())
        assert own == pytest.approx(count, rel=0.002), name
        free = variant(plain, name, match=False)
        assert dataclasses.replace(made, hidden=None) == free


def test_variants_are_the_models_they_are_called():
    """The same function of the same weights as a configuration written by hand."""
    tokens, pixels = torch.randint(256, (2, 12)), torch.rand(2, 1, 8, 8)
    own = {"vocab": 256, "dim": 64, "layers": 2, "heads": 2}
    seen = {k: v for k, v in dataclasses.asdict(VISION).items() if k not in vars(VISION.variant)}
    by_hand = {
        ("fixed", "scores"): "rope2d",
        ("fixed", "both"): "joformer_old",
        ("learned", "scores"): "monoidal_axial",
        ("learned", "both"): "joformer_axial",
        ("projected", "both"): "projected",
        ("cumulative", "both"): "cumulative",
    }
    with torch.no_grad():
        words, sights = {}, {}
        for name in NAMES:
            side, _, frames = name.partition(", ")
            mine, hand = (
                initialise(model_of(config), 1).eval()
                for config in (
                    variant(LANGUAGE, name, match=False),
                    LMConfig(**own, transport=side, **({"frames": frames} if frames else {})),
                )
            )
            words[name] = mine(tokens)
            assert torch.equal(words[name], hand(tokens)), name
            looking = initialise(model_of(variant(VISION, name, match=False)), 1).eval()
            sights[name] = looking(pixels)
            if (frames, side) in by_hand:
                hand = initialise(model_of(ViTConfig(model=by_hand[frames, side], **seen)), 1).eval()
                assert torch.equal(sights[name], hand(pixels)), name
        for found in (words, sights):
            for frames in ("fixed", "learned", "projected", "cumulative"):
                sides = [found["none"], *(found[f"{side}, {frames}"] for side in ("scores", "values", "both"))]
                for i, one in enumerate(sides):
                    for other in sides[:i]:
                        assert (one - other).abs().max() > 1e-4, (frames, i)


@pytest.mark.refused
def test_variants_that_cannot_be():
    with pytest.raises(ValueError, match=r"^unknown variant 'both, odd': choose from none; scores, fixed;"):
        variant(LANGUAGE, "both, odd")
    with pytest.raises(ValueError, match=r"^10 parameters are too few for this model's frames: use a wider model$"):
        matched(LANGUAGE, 10)


def test_cells_of_one_seed_differ_in_nothing_but_the_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"{n} squared is {n * n};" for n in range(3000)))
    for name in ("transport", "wikipedia"):
        (plan,) = planned(name, data=text, steps=5)
        first, *others = (cell for cell in plan.cells if cell.seed == 0)
        later = next(cell for cell in plan.cells if cell.seed == 1)

        def batches(cell):
            task = cell.source.task()
            return [task.batch(cell.seed, step, 0, 1) for step in (0, 3)]

        def same(one, other):
            return all(torch.equal(a, b) for a, b in zip(torch.utils._pytree.tree_leaves(one),
                                                         torch.utils._pytree.tree_leaves(other)))  # fmt: skip

        given, weights = batches(first), initialise(model_of(first.config), 0).state_dict()
        assert not same(given, batches(later))
        for cell in others:
            assert same(given, batches(cell))
            assert cell.recipe == first.recipe
            mine = initialise(model_of(cell.config), cell.seed).state_dict()
            shared = [key for key in weights if key in mine and weights[key].shape == mine[key].shape]
            # All but the feed-forward, where frames take their parameters from it.
            assert all(re.search(r"\.(up|down)\.", key) for key in weights if key not in shared), cell.name
            assert len(shared) > len(weights) / 2
            assert all(torch.equal(weights[key], mine[key]) for key in shared), cell.name
        other = initialise(model_of(later.config), 1).state_dict()
        assert not all(torch.equal(weights[key], other[key]) for key in weights)


# -- commands ----------------------------------------------------------------------------------------------------------


def commands():
    """What the files of the tables and the command's own help tell a person to type."""
    for name in TABLES:
        module = importlib.import_module(f"joformer.experiments.{name}")
        found = re.findall(r"^ +joformer (reproduce .*?)(?:   |$)", module.__doc__, re.MULTILINE)
        assert len(found) >= 2, name
        yield from found
    yield from re.findall(r"^ +joformer (reproduce .*)$", cli.Reproduce.__doc__, re.MULTILINE)


@pytest.mark.parametrize("typed", [*commands()])
def test_what_the_files_tell_to_type(offline, joformer, folder, typed):
    places = {"DATA": folder, "~/data": folder, "FOLDER": folder / "imagenet"}
    words = [str(places.get(word, word)) for word in shlex.split(typed)]
    code, said, told = joformer(*words, "--dry-run")
    assert (code, told) == (0, "")
    table, (*lines, total) = words[1], said.splitlines()
    seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else 3
    many = rf"{seeds} {{}}{'s' * (seeds > 1)}"
    run = rf".+: [\d,]+ parameters, [\d,]+ steps, {many.format('seed')}"
    timed = rf"\d+ models timed, {many.format('round')}"
    assert all(re.fullmatch(rf"[^\s:]+  ({run}|{timed}), \S+", line) for line in lines)
    assert any(re.match(rf"(\S+-)?{table}(-\w+)?/", line) for line in lines)
    what = f"{len(lines) * seeds} {'round' if table == 'overhead' else 'run'}s"
    assert total == f"Total: {what}{' of timing' * (table == 'overhead')}"


def test_a_dry_run_as_json(joformer):
    shape = ("--data", "stdlib", "--seeds", 2, "--steps", 6, "--context", 32, "--dim", 32, "--dry-run")
    (_, said, _), (code, told, _) = joformer("compare", *shape), joformer("compare", *shape, "--json")
    assert code == 0
    found = json.loads(told)
    assert (found["runs"], found["rounds"]) == (8, 3)
    *lines, timed, total = said.splitlines()
    assert total == "Total: 8 runs and 3 rounds of timing"
    for one, line in zip(found["models"], lines):
        what = f"{one['model']}: {one['parameters']:,} parameters, {one['steps']:,} steps, 2 seeds, {one['data']}"
        assert line == f"{one['name']}  {what}"
    assert found["models"][-1] == {"name": timed.split()[0], "data": "stdlib", "seeds": [0, 1, 2]}
    code, told, _ = joformer("train", "lm", "--data", "stdlib", "--vocab", 256, "--dry-run", "--json", "--out", "run")
    about = json.loads(told)
    assert about.pop("parameters") > 1e6
    assert (code, about) == (0, {"model": "LMConfig", "steps": 1000, "data": "stdlib", "out": "run"})


@pytest.mark.refused
def test_a_context_longer_than_the_text_is_refused_before_anything_runs(joformer, tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 200)
    code, _, told = joformer("compare", "--data", tmp_path / "a.txt", "--context", 100_000, "--out", tmp_path / "out")
    assert code == 2
    assert "the train split has 3420 tokens: a context is from 1 to 3419, got 100000" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.refused
@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 are Linux's")
def test_a_name_that_is_not_utf_8_is_refused_in_one_line(joformer, tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    place.write_text("to be or not to be\n" * 200)
    words = ("--data", place, "--context", 8, "--steps", 2, "--seeds", 1, "--longer", 1, "--out", tmp_path / "out")
    code, _, told = joformer("compare", *words)
    assert code == 2
    assert "is not valid UTF-8: rename it" in told
    assert "Traceback" not in told
    assert not (tmp_path / "out" / "command.toml").exists()


def test_all_tables_at_once(offline, joformer, folder):
    code, said, _ = joformer("reproduce", "--dry-run", "--seeds", 1)
    assert code == 0
    *lines, total = said.splitlines()
    assert total == f"Total: {len(lines) - 1} runs and 1 round of timing"
    assert list(dict.fromkeys(line.split("/")[0].rpartition("-")[2] for line in lines)) == [
        name for name in TABLES if name not in NAMED_ONLY
    ]
    # The folder of several tables is not the data of any; what is not in it is embedded.
    (folder / "fsdd").rmdir()
    code, said, _ = joformer("reproduce", "--dry-run", "--seeds", 1, "--data", folder)
    assert code == 0
    data = {line.split("/")[0].rpartition("-")[2]: line.split()[-1] for line in said.splitlines()[:-1]}
    assert data["speech"] == "words"
    assert data["wikipedia"] == str(folder / "enwik8")
    some = joformer("reproduce", "--dry-run", "--only", "mnist/*/d-2/seed-1", "wikipedia/fixed/n100-l2/seed-0")
    whole = joformer("reproduce", "--dry-run", "--only", "digits-mnist/*/d-2/seed-1", "stdlib-wikipedia/fixed/*/seed-0")
    assert some == whole
    *lines, total = some[1].splitlines()
    assert [(line.split()[0], re.search(r"1 seed( \(\d\))?, ", line)[1]) for line in lines] == [
        ("digits-mnist/learned/d-2", " (1)"),
        ("digits-mnist/dft/d-2", " (1)"),
        ("digits-mnist/diagonal/d-2", " (1)"),
        *((f"digits-mnist/learned-from-{spread}/d-2", " (1)") for spread in ("0.01", "0.05", "0.5", "3.1")),
        ("stdlib-wikipedia/fixed/n100-l2", None),
    ]
    assert total == "Total: 8 runs"


@pytest.mark.refused
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "nosuch"], "there is no table 'nosuch': choose from mnist, cifar100, "),
        (
            ["reproduce", "mnist", "--seeds", "0"],
            "--seeds takes a number of seeds, 1 or more, or several different seeds, got 0",
        ),
        (["reproduce", "mnist", "--steps", "-1"], "--steps must be 1 or more, got -1"),
        (["reproduce", "mnist", "--data", "missing"], "--data missing does not exist: give a folder that holds mnist"),
        (
            ["reproduce", "mnist", "--only", "nothing"],
            "--only nothing matches no run: names look like digits-mnist/",
        ),
        (
            ["reproduce", "mnist", "--only", "*/learned/*", "digits-mnist/lerned/*"],
            "--only digits-mnist/lerned/* matches no run: names look like digits-mnist/learned",
        ),
        (["reproduce", "mnist", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["reproduce", "mnist", "--engine", "nosuch"], "nosuch"),
        (["reproduce", "mnist", "--scale", "moon"], "moon"),
        (["compare"], "--data"),
        (["compare", "--data", "missing"], "missing does not exist: give a file or a folder, or a name: stdlib"),
        (["compare", "--data", "{text}", "--seeds", "0"], "--seeds must be 1 or more, got 0"),
        (["compare", "--data", "{text}", "--longer", "0"], "--longer must be 1 or more, got 0"),
        (
            ["compare", "--data", "{text}", "--only", "x"],
            "--only x matches no run: names look like compare/scores-fixed/seed-0",
        ),
        (["compare", "--data", "{text}", "--dim", "30"], "dim"),
        (["compare", "--data", "{text}", "--dim", "8", "--heads", "1", "--jobs", "0"], "--jobs must be 1 or more"),
    ],
)
def test_a_mistake_is_one_line(offline, joformer, tmp_path, monkeypatch, words, said):
    text = tmp_path / "stdlib"
    text.write_text("all work and no play " * 400)
    monkeypatch.chdir(tmp_path)
    code, out, told = joformer(*(word.format(text=text) for word in words), "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert "Traceback" not in told
    if "--help" not in told:  # what the option parser refuses comes in its own frame
        assert len(told.splitlines()) == 1
        assert told.startswith("joformer: ")
    assert said in " ".join(told.replace("│", " ").split())


def test_the_options_are_these():
    """An option more is a decision, not an accident."""
    parts = (cli.Reproduce, cli.Compare, cli.Report)
    assert {part.__name__: " ".join(field.name for field in dataclasses.fields(part)) for part in parts} == {
        "Reproduce": "tables scale data seeds steps batch precision compile deterministic processes shard accumulate "
        "workers drift only jobs engine slurm out dry_run smoke throughput json",
        "Compare": "data kind question seeds steps longer grid looks dim layers heads context vocab batch column label "
        "size length rate seconds bands hop lr only jobs engine slurm out dry_run json",
        "Report": "runs out text json",
    }


def test_where_data_is_found(tmp_path):
    names, more = ("enwik8", "wikitext-2"), {"hub": "wikipedia", "embedded": "stdlib"}
    assert find(None, names, "laptop", sole=True, **more) == "stdlib"
    assert find(None, names, "paper", sole=False, **more) == "wikipedia"
    assert find(None, names, "paper", sole=True, hub=None, embedded="words") == "words"
    assert find(tmp_path, names, "laptop", sole=True, **more) == str(tmp_path.resolve())
    assert find(tmp_path, names, "laptop", sole=False, **more) == "stdlib"
    assert find(tmp_path, names, "paper", sole=False, **more) == "wikipedia"
    (tmp_path / "wikitext-2").mkdir()
    for sole in (True, False):
        assert find(tmp_path, names, "paper", sole=sole, **more) == str(tmp_path.resolve() / "wikitext-2")
    (tmp_path / "enwik8").touch()
    assert find(tmp_path, names, "laptop", sole=False, **more) == str(tmp_path.resolve() / "enwik8")
    with pytest.raises(ValueError, match=r"nowhere does not exist: give a folder that holds enwik8 or wikitext-2$"):
        find(tmp_path / "nowhere", names, "laptop", sole=True, **more)


# -- compare -----------------------------------------------------------------------------------------------------------


def write_text(place):
    place.write_text(" ".join(f"{n} squared is {n * n};" for n in range(2000)))
    return place


def write_images(place):
    from PIL import Image

    for number in range(40):
        (place / ("dark", "light")[number % 2]).mkdir(parents=True, exist_ok=True)
        shade = 100 * (number % 2) + number
        Image.new("L", (8, 8), shade).save(place / ("dark", "light")[number % 2] / f"{number}.png")
    return place


def write_sounds(place):
    for number in range(20):
        (place / ("low", "high")[number % 2]).mkdir(parents=True, exist_ok=True)
        with wave.open(str(place / ("low", "high")[number % 2] / f"{number}.wav"), "wb") as file:
            file.setparams((1, 1, 4000, 0, "NONE", ""))
            pitch = (0.1, 0.4)[number % 2] + number / 1000
            file.writeframes(bytes(int(128 + 100 * math.sin(pitch * n)) for n in range(2000)))
    return place


@pytest.fixture
def in_turn(monkeypatch):
    """Cells in this process, and briefly: that they could be run in others is tested elsewhere."""

    def one_by_one(cells, out, *, jobs, execution):
        for cell in cells:
            yield Done(cell, run(cell, out))

    monkeypatch.setattr("joformer.experiments.engine.run_local", one_by_one)
    monkeypatch.setattr("joformer.experiments.compare.ROUNDS", 1)
    monkeypatch.setattr("joformer.experiments.cost.TURNS", 1)


SMALL = ["--steps", 1, "--dim", 16, "--layers", 1, "--heads", 2, "--batch", 4, "--context", 16]


@pytest.mark.parametrize("write", [write_text, write_images, write_sounds])
def test_compare_answers_first(joformer, in_turn, tmp_path, write):
    data, out = write(tmp_path / "mine"), tmp_path / "out"
    words = ["compare", "--data", data, "--seeds", 2, "--longer", 2, *SMALL, "--out", out]
    code, said, told = joformer(*words)
    assert code == 0, told
    answer, cost, page = said.splitlines()
    pattern = r"Does value transport help: mine\. (Value|The effect of value) transport.* after 1 steps: .* \(2 seeds"
    assert re.match(pattern, answer), answer
    assert re.search("(After|after) 2 steps", answer), answer
    pattern = (
        r"What a step costs compared with RoPE\. A step with values takes \d.* × the time of RoPE's, measured once"
    )
    assert re.match(pattern, cost), cost
    assert page == str(out / "report.html")
    result = json.loads((out / "cost" / "round" / "seed-0" / RESULT).read_text())
    assert result["timed"]["both, fixed"][""]["ratio"] > 0
    if write is write_text:  # the same command has nothing left to do, and gives the same answer
        code, again, told = joformer(*words)
        assert (code, again) == (0, said)
        assert "9 of 9 runs" in told
        # … nor has the file that the run wrote down.
        code, again, told = joformer("compare", "--config", out / "command.toml", "--seeds", 2)
        assert (code, again) == (0, said), told


def test_a_command_of_which_all_runs_fail_leaves_its_folder_to_another(joformer, tmp_path):
    data, out = write_text(tmp_path / "mine"), tmp_path / "out"
    words = ["compare", "--data", data, "--seeds", 1, "--longer", 1, "--jobs", 1, "--out", out]
    no_memory = ["--dim", 4_000_000, *SMALL[:2], *SMALL[4:]]
    code, _, told = joformer(*words, *no_memory)
    assert (code, "runs failed" in told) == (2, True)
    code, _, told = joformer(*words, *SMALL)
    assert code == 0, told
    # What was computed is not mixed with other settings.
    assert joformer(*words, *SMALL, "--context", 32)[0] == 2


def test_compare_with_the_whole_grid(joformer, in_turn, tmp_path):
    data, out = write_text(tmp_path / "mine"), tmp_path / "out"
    code, said, told = joformer("compare", "--data", data, "--grid", "--seeds", 2, "--longer", 1, *SMALL, "--out", out)
    assert code == 0, told
    assert "pooled over 4 kinds of angles (2 seeds)" in said
    assert "Whether this lasts was not tested" in said
    # What a step takes is of the model as it is: frames of their own are parameters more.
    timed = json.loads((out / "cost" / "round" / "seed-0" / RESULT).read_text())["timed"]
    others = [name for name in (*NAMES, *BASELINES) if name != "scores, fixed"]
    assert list(timed) == others
    assert [name for name in others if timed[name][""]["extra_parameters"] > 0] == [
        name for name in others[3:] if name != "alibi"
    ]


def test_looks_stop_when_it_is_decided(joformer, in_turn, tmp_path, monkeypatch):
    """Two seeds a look: the second look is taken only where the first did not decide."""
    from joformer.cli import compare

    data = write_text(tmp_path / "mine")
    for decided, wanted in ((False, [4, 8, 12]), (True, [4])):
        monkeypatch.setattr(compare, "decided", lambda out, cells, d=decided: d)
        out = tmp_path / f"out-{decided}"
        words = ["compare", "--data", data, "--seeds", 2, "--looks", 3, "--longer", 1, *SMALL, "--out", out]
        assert joformer(*words)[0] == 0
        about = json.loads((out / "compare" / TABLE).read_text())
        assert (about["looks"], about["looked"]) == (3, wanted)
    # Resumed when a later look had begun, the looks are the planned ones.
    monkeypatch.setattr(compare, "decided", lambda out, cells: False)
    broken = json.loads((tmp_path / "out-False" / "compare" / TABLE).read_text())
    (tmp_path / "out-False" / "compare" / TABLE).write_text(json.dumps(broken | {"looked": [4]}))
    for name in ("both-fixed/seed-3", "scores-fixed/seed-4", "both-fixed/seed-4", "scores-fixed/seed-5"):
        (tmp_path / "out-False" / "compare" / name / RESULT).unlink()
    words = [
        "compare",
        "--data",
        data,
        "--seeds",
        2,
        "--looks",
        3,
        "--longer",
        1,
        *SMALL,
        "--out",
        tmp_path / "out-False",
    ]
    assert joformer(*words)[0] == 0
    assert json.loads((tmp_path / "out-False" / "compare" / TABLE).read_text())["looked"] == [4, 8, 12]
    # Not planned, it is said.
    code, *_ = joformer("compare", "--data", data, "--seeds", 3, "--longer", 1, *SMALL, "--out", tmp_path / "once")
    assert (code, "been seen" in (tmp_path / "once" / "report.md").read_text()) == (0, False)
    told = joformer("compare", "--data", data, "--seeds", 4, "--longer", 1, *SMALL, "--out", tmp_path / "once")[2]
    assert "compare: its results had already been seen before these runs were added" in told
    assert "Results had already been seen with 6 of these 8 runs" in (tmp_path / "once" / "report.md").read_text()
