"""Every table as it is planned, what it says of the paper, and the commands by which a person runs them."""

import dataclasses
import importlib
import json
import math
import re
import shlex
import sys
import wave
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from joformer import cli, paper
from joformer.experiments import TABLES, ImageSource, TextSource, run, sources
from joformer.experiments.cells import finished
from joformer.experiments.compare import is_text
from joformer.experiments.compare import plans as compared
from joformer.experiments.engine import Done
from joformer.experiments.places import find
from joformer.experiments.results import RESULT, TABLE
from joformer.experiments.variants import NAMES, matched, variant
from joformer.models import LMConfig, ViTConfig, initialise
from joformer.models._saving import MODELS, written
from joformer.training import Recipe

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
    return SimpleNamespace(tokenizer=SimpleNamespace(vocab=source.vocab), fingerprint=f"that of {source.data}")


@pytest.fixture
def offline(monkeypatch):
    """Data that is never read, only looked at."""
    monkeypatch.setattr(ImageSource, "load", images_like)
    monkeypatch.setattr(TextSource, "load", text_like)


@pytest.fixture
def folder(tmp_path):
    """A folder of data as the documentation describes it."""
    for name in ("mnist", "cifar100", "imagenet", "enwik8", "wikitext-2", "fsdd"):
        (tmp_path / "data" / name).mkdir(parents=True)
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory, monkeypatch):
    """Its own cache, and one thread: small models wait for the others longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def joformer(monkeypatch, capsys):
    def command(*words):
        monkeypatch.setattr(sys, "argv", ["joformer", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said, told = capsys.readouterr()
        return ended.value.code, said, told

    return command


def planned(name, scale="laptop", data=None, seeds=(0, 1), steps=None):
    return TABLES[name](scale, data, seeds, steps, True)


def model_of(config):
    return MODELS[written(config)["model"]](config)


# -- what is planned ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("given", [False, True], ids=["embedded", "data"])
def test_every_table_is_whole(offline, folder, tmp_path, scale, given):
    plans = [plan for name in TABLES for plan in planned(name, scale, folder if given else None)]
    assert {plan.name for plan in plans} == {*TABLES, *(["cifar100-liere"] if scale == "paper" else [])}
    names = [cell.name for plan in plans for cell in plan.cells]
    assert len(set(names)) == len(names)
    for plan in plans:
        assert plan.scale == scale
        assert {cell.table for cell in plan.cells} == {plan.name}
        assert {cell.model for cell in plan.cells} == set(plan.models)
        assert {cell.seed for cell in plan.cells} == {0, 1}
        lengths = {str(length) for cell in plan.cells for length in cell.lengths}
        assert {cell.size for cell in plan.cells if not cell.lengths} | lengths == set(plan.sizes)
        assert {*sum(plan.pairs, ()), *([plan.baseline] if plan.baseline else []), *plan.paper} <= set(plan.models)
        assert {size for row in plan.paper.values() for size in row} <= set(plan.sizes)
        # Every model is paired with itself alone, and every seed has the same cells.
        assert len(plan.cells) % 2 == 0
        for cell in plan.cells:
            assert cell.source == plan.source
            assert cell.describe() == json.loads(json.dumps(cell.describe()))
            assert str(tmp_path) not in json.dumps(cell.describe()), "where data is is nobody's business"
            assert cell.work > 0
            assert cell.alone == (plan.name == "overhead")
        about = plan.about()
        assert about["cells"] == [cell.name for cell in plan.cells]
        assert about["unit"]
        assert about["higher"] == (plan.metric == "accuracy")
    if not given:
        embedded = {plan.source.data for plan in plans}
        wanted = {"mnist", "cifar100", "imagenet", "wikipedia", "openwebtext", "words"}
        assert embedded == ({"digits", "stdlib", "words"} if scale == "laptop" else wanted)
    plans[0].begin(tmp_path / "out")
    assert json.loads((tmp_path / "out" / plans[0].name / TABLE).read_text()) == plans[0].about()


def test_the_models_are_as_large_as_the_paper_says(offline):
    """Built on no memory: millions of parameters, where the paper prints them."""
    sizes = {
        (name, cell.model): cell.parameters / 1e6
        for name in ("cifar100", "imagenet", "length")
        for cell in planned(name, "paper", seeds=(0,))[-1].cells
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
    (plan,) = planned("length", scale)
    assert len({cell.recipe.total for cell in plan.cells}) == 1
    assert scale == "laptop" or plan.cells[0].recipe.total == 200_000
    assert {cell.lengths for cell in plan.cells} == {tuple(map(int, plan.sizes))}
    assert plan.cells[0].lengths[0] == plan.source.context
    if scale == "paper":
        assert plan.cells[0].lengths[:4] == paper.LENGTHS
    assert {cell.config.pattern.count("N") for cell in plan.cells} == {1 if scale == "laptop" else 3}
    stages = {cell.model: [stage.frames for stage in cell.recipe.sequence] for cell in plan.cells}
    assert stages == {
        "rope": [None] * 3,
        "fixed": [None] * 3,
        "projected": [None, None, "projected"],
        "cumulative": [None] * 3,
    }
    assert len({tuple((s.steps, s.lr) for s in cell.recipe.sequence) for cell in plan.cells}) == 1
    # With odd numbers too.
    assert {cell.recipe.total for cell in planned("length", scale, steps=11)[0].cells} == {11}


def test_the_printed_figures_are_the_papers(offline):
    printed = {plan.name: plan.paper for name in TABLES for plan in planned(name, "paper", seeds=(0,))}
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
    assert printed["cifar100-liere"]["liere64_v"] == {"": 69.41}
    assert printed["cifar100-liere"]["axial_dense"] == {"": 70.61}
    assert printed["imagenet"] == {"rope2d": {"": 80.71}, "joformer_old": {"": 81.11}}
    for size, row in paper.WIKIPEDIA.items():
        assert (
            tuple(printed["wikipedia"][model][size] for model in ("roformer", "fixed", "learned", "projected")) == row
        )
    for model, row in paper.LENGTH.items():
        assert printed["length"][model] == dict(zip(("512", "1024", "2048", "4096"), row))
    assert printed["overhead"]["joformer_axial"][""] == round(94 / 72, 2)
    assert printed["transport"] == printed["speech"] == {}
    # At another scale only what is under the same heading is set beside ours.
    assert planned("wikipedia")[0].paper["roformer"] == {"n100, L2": 7.24}
    assert planned("cifar100")[0].paper["rope2d"] == {"D = 32": 50.91}
    # … and lengths by their multiple of the length of training.
    assert planned("length")[0].paper["rope"] == {"256": 26.82, "512": 41.90, "1024": 90.10, "2048": 168.67}


@pytest.mark.refused
def test_other_data_or_settings_are_not_mixed_into_a_table(tmp_path):
    """Not even where their cells are others: more seeds, say."""
    text = tmp_path / "text.txt"

    def begin(words, seed, **settings):
        text.write_text(words * 400)
        sources._text.cache_clear()
        source = TextSource(str(text), context=16, batch=4)
        for plan in compared(source, (seed,), Recipe(steps=2), **({"dim": 16, "heads": 2} | settings)):
            plan.begin(tmp_path / "out")

    begin("all work and no play ", 0)
    begin("all work and no play ", 1)
    with pytest.raises(ValueError, match=r"^\S+compare holds none with other settings or data: choose another --out$"):
        begin("all work and no play ", 2, dim=32)
    with pytest.raises(ValueError, match="other settings or data"):
        begin("all play and no work ", 2)
    about = json.loads((tmp_path / "out" / "compare" / TABLE).read_text())
    assert {name.rpartition("-")[2] for name in about["cells"]} == {"0", "1"}


def test_tables_of_version_0_1_are_recognised(tmp_path):
    """Where a vision model was a name; the checksums of its settings are those that version wrote."""
    plans = compared(ImageSource("digits", batch=8), (0,), Recipe(steps=2), dim=16, heads=2)
    plans += planned("overhead", seeds=(0,))
    said = {
        "compare": {"none, ": "80d1bebebfe09151", "scores, fixed, ": "34513a0e37bf8a01",
                    "values, projected, ": "468a8848cf85f6de", "both, learned, ": "c74cd42ee54f47ae"},
        "cost": {"none, ": "9ec47d892870d834", "both, cumulative, ": "4ac1be4f8a6fcbc8"},
        "overhead": {"none, ": "6d565db055e87ac9", "joformer_old, ": "329978a401701528",
                     "joformer_axial_perlayer, ": "6bc53a5fa016ab97"},
    }  # fmt: skip
    for plan in plans:
        place = tmp_path / plan.name / TABLE
        place.parent.mkdir()
        place.write_text(json.dumps(plan.about() | {"settings": said[plan.name]}))
        plan.begin(tmp_path)
        place.write_text(json.dumps(plan.about() | {"settings": dict.fromkeys(said[plan.name], "0" * 16)}))
        with pytest.raises(ValueError, match="holds none with other settings or data"):
            plan.begin(tmp_path)
    # A finished cell, too.
    cell = next(cell for cell in plans[0].cells if cell.model == "scores, fixed")
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
    with pytest.raises(ValueError, match="holds a cell of other settings"):
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
    with pytest.raises(ValueError, match=r"^10 parameters are too few for this model's frames: take a wider model$"):
        matched(LANGUAGE, 10)
    with pytest.raises(ValueError, match=r"^unknown baseline 'RoPE': choose from none;"):
        compared(TextSource("stdlib"), (0,), Recipe(), baseline="RoPE")


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
    table = words[1]
    assert all(re.fullmatch(r"\S+/seed-\d  [\d,]+ parameters, [\d,]+ steps, \S+", line) for line in said.splitlines())
    assert any(line.startswith(f"{table}/") for line in said.splitlines())
    seeds = int(words[words.index("--seeds") + 1]) if "--seeds" in words else 3
    assert len({line.split()[0].rpartition("-")[2] for line in said.splitlines()}) == seeds


def test_all_tables_at_once(offline, joformer, folder):
    code, said, _ = joformer("reproduce", "--dry-run", "--seeds", 1)
    assert code == 0
    assert list(dict.fromkeys(line.split("/")[0] for line in said.splitlines())) == list(TABLES)
    # The folder of several tables is not the data of any; what is not in it is embedded.
    (folder / "fsdd").rmdir()
    code, said, _ = joformer("reproduce", "--dry-run", "--seeds", 1, "--data", folder)
    assert code == 0
    data = {line.split("/")[0]: line.split()[-1] for line in said.splitlines()}
    assert data["speech"] == "words"
    assert data["wikipedia"] == str(folder / "enwik8")
    some = joformer("reproduce", "--dry-run", "--only", "mnist/*/d-2/seed-1", "wikipedia/fixed/n100-l2/seed-0")
    assert [line.split()[0] for line in some[1].splitlines()] == [
        "mnist/learned/d-2/seed-1",
        "mnist/dft/d-2/seed-1",
        "mnist/diagonal/d-2/seed-1",
        *(f"mnist/learned-from-{spread}/d-2/seed-1" for spread in ("0.01", "0.05", "0.5", "3.1")),
        "wikipedia/fixed/n100-l2/seed-0",
    ]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reproduce", "nosuch"], "there is no table 'nosuch': choose from mnist, cifar100, "),
        (["reproduce", "mnist", "--seeds", "0"], "--seeds and --steps are 1 or more, got 0 and None"),
        (["reproduce", "mnist", "--steps", "-1"], "--seeds and --steps are 1 or more, got 3 and -1"),
        (["reproduce", "mnist", "--data", "missing"], "--data missing is not there: give a folder that holds mnist"),
        (
            ["reproduce", "mnist", "--only", "nothing"],
            "--only nothing is no cell of these tables: they are called like",
        ),
        (["reproduce", "mnist", "--jobs", "0"], "--jobs must be 1 or more, got 0"),
        (["reproduce", "mnist", "--engine", "nosuch"], "nosuch"),
        (["reproduce", "mnist", "--scale", "moon"], "moon"),
        (["compare"], "--data"),
        (["compare", "--data", "missing"], "missing does not exist: give a file or a folder, or a name: stdlib"),
        (["compare", "--data", "{text}", "--seeds", "0"], "--seeds and --steps are 1 or more, got 0 and 300"),
        (["compare", "--data", "{text}", "--baseline", "rope"], "unknown baseline 'rope': choose from none; "),
        (
            ["compare", "--data", "{text}", "--only", "x"],
            "--only x is no cell: they are called like compare/both-fixed/seed-0",
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
        "Reproduce": "tables scale data seeds steps only jobs engine out dry_run json",
        "Compare": "data seeds steps dim layers heads context vocab batch label size lr baseline only jobs engine out "
        "json",
        "Report": "runs out json",
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
    with pytest.raises(ValueError, match=r"nowhere is not there: give a folder that holds enwik8 or wikitext-2$"):
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


@pytest.mark.parametrize("write", [write_text, write_images, write_sounds])
def test_compare_answers_for_every_variant(joformer, monkeypatch, tmp_path, write):
    """In this process, and briefly: that the cells could be run in others is tested elsewhere."""

    def in_turn(cells, out, *, jobs):
        for cell in cells:
            yield Done(cell, run(cell, out))

    monkeypatch.setattr("joformer.experiments.engine.run_local", in_turn)
    monkeypatch.setattr("joformer.experiments.compare.ROUNDS", 1)
    monkeypatch.setattr("joformer.experiments.cost.TURNS", 1)
    data, seeds = write(tmp_path / "mine"), 2 if write is write_text else 1
    small = ["--seeds", seeds, "--steps", 1, "--dim", 16, "--layers", 1, "--heads", 2, "--batch", 4, "--context", 16]
    code, said, told = joformer("compare", "--data", data, *small, "--out", tmp_path / "out")
    assert code == 0, told
    others = [name for name in NAMES if name != "scores, fixed"]
    sentences = said.rpartition("\n\n")[2].splitlines()
    # One for each variant beside RoPE; then what values add to scores, where that is not said yet.
    assert [line.partition(": ")[0] for line in sentences[:12]] == others
    assert len(sentences) == 12
    if seeds > 1:
        assert all(re.search(r": (better|worse|undecided|equal)", line) for line in sentences), sentences
        assert all(f"{seeds} seeds" in line for line in sentences)
    assert (tmp_path / "out" / "report.html").is_file()
    # What a step takes is of the model as it is: frames of their own are parameters more.
    cost = {name: json.loads((tmp_path / "out" / cell_of(name) / RESULT).read_text()) for name in others}
    more = {name: result["measured"][""]["extra_parameters"] for name, result in cost.items()}
    assert all(result["measured"][""]["ratio"] > 0 for result in cost.values())
    assert [name for name in others if more[name] > 0] == others[3:]
    # The same command has nothing left to do, and gives the same answers.
    if write is write_text:
        code, again, told = joformer("compare", "--data", data, *small, "--out", tmp_path / "out")
        assert (code, again.splitlines()[-12:]) == (0, sentences)
        assert "38 of 38 cells" in told


def cell_of(name):
    return f"cost/{name.replace(', ', '-')}/seed-0"


def test_text_is_told_from_what_has_classes(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    assert is_text("stdlib")
    assert is_text("wikipedia")
    assert is_text("openwebtext")
    for name in ("digits", "tones", "words", "mnist", "cifar100", "imagenet"):
        assert not is_text(name)
    assert is_text(str(write_text(tmp_path / "notes")))
    assert not is_text(str(write_images(tmp_path / "pictures")))
    assert not is_text(str(write_sounds(tmp_path / "sounds")))
    assert not is_text(str(tmp_path / "sounds" / "low"))
    (tmp_path / "books").mkdir()
    write_text(tmp_path / "books" / "one.txt")
    write_text(tmp_path / "books" / "two.txt.gz")
    assert is_text(str(tmp_path / "books"))
    bytes_of = pa.array([{"bytes": b"x", "path": "x.png"}], pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    tables = {"articles": ({"title": ["a"], "text": ["b"]}, True), "images": ({"image": bytes_of, "label": [1]}, False)}
    for name, (columns, wanted) in tables.items():
        (tmp_path / name).mkdir()
        parquet.write_table(pa.table(columns), tmp_path / name / "train-0.parquet")
        assert is_text(str(tmp_path / name)) == wanted
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    assert not is_text(str(tmp_path / "broken.parquet"))
    with pytest.raises(ValueError, match="does not exist"):
        is_text(str(tmp_path / "nowhere"))
