"""Images with text: every form is the same pairs, faults are named, and a run resumes to the same bits."""

import io
import json

import pytest
import torch
from torch.nn import functional as F

from joformer.experiments import PairsSource, compare, run
from joformer.models import PairsConfig, initialise
from joformer.training import (
    PairsTask,
    Processes,
    Recipe,
    load_labelled,
    load_pairs,
    open_run,
    resolve,
    train,
)
from joformer.training.data.captions import OF_TWO
from joformer.training.tasks.pairs import contrast, first_right

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250), "grey": (99, 99, 99)}
SAID = [f"a {name} square number {n}" for n, name in enumerate([*COLOURS] * 5)]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))


def picture(n, side=8):
    from PIL import Image

    file = io.BytesIO()
    image = Image.new("RGB", (side, side), COLOURS[[*COLOURS][n % 4]])
    image.putpixel((n % side, 0), (n, n, n))
    image.save(file, "PNG")
    return file.getvalue()


def written(folder, form):
    """Twenty images with text, sixteen of them to train with, in this form."""
    folder.mkdir(parents=True)
    rows = [(f"{n:02}.png", said, "train" if n < 16 else "test") for n, said in enumerate(SAID)]
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet

        for split in ("train", "test"):
            of_it = [n for n in range(20) if rows[n][2] == split]
            image = [{"bytes": picture(n), "path": None} for n in of_it]
            table = pyarrow.table({"image": image, "caption": [SAID[n] for n in of_it]})
            pyarrow.parquet.write_table(table, folder / f"{split}.parquet")
        return folder
    beside = form == "beside"
    for n, (name, said, split) in enumerate(rows):
        place = folder / split / name if beside else folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(picture(n))
        if beside:
            place.with_suffix(".txt").write_text(f"{said}\n")
    if form == "csv":
        (folder / "captions.csv").write_text("file,caption,split\n" + "".join(",".join(row) + "\n" for row in rows))
    if form == "jsonl":
        lines = [json.dumps({"image": name, "text": said, "split": split}) for name, said, split in rows]
        (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def fitting(split):
    """Which pairs fit each one: those of its caption or its picture."""
    rows = split.groups.tolist()
    return [{m for m, other in enumerate(rows) if any(a == b for a, b in zip(row, other))} for row in rows]


@pytest.mark.parametrize("form", ["beside", "csv", "jsonl", "parquet"])
def test_every_form_is_the_same_pairs(form, tmp_path):
    place = written(tmp_path / "pairs", form)
    assert resolve(place).kind == "pairs"
    pairs = load_pairs(place, vocab=300)
    assert [pairs.caption(pairs.train, row) for row in range(16)] == SAID[:16]
    assert [pairs.caption(pairs.test, row) for row in range(4)] == SAID[16:]
    assert pairs.train.images[5, :, 7, 7].tolist() == list(COLOURS["green"])
    assert fitting(pairs.train) == [{n} for n in range(16)]
    again = load_pairs(place, vocab=300)
    assert again.fingerprint == pairs.fingerprint
    assert load_pairs(place, vocab=256).fingerprint != pairs.fingerprint
    with pytest.raises(ValueError, match=r"holds images with text: give images or sounds, or train pairs"):
        load_labelled(place)


def test_a_table_alone_and_one_with_classes_too(tmp_path):
    place = written(tmp_path / "pairs", "csv")
    pairs = load_pairs(place / "captions.csv", vocab=300)
    assert len(pairs.train) == 16
    rows = [line.split(",") for line in (place / "captions.csv").read_text().splitlines()]
    labelled = ["file,caption,split,label"] + [",".join([*row, row[1].split()[1]]) for row in rows[1:]]
    (place / "captions.csv").write_text("\n".join(labelled))
    assert resolve(place).kind == "images"
    assert resolve(place, label="caption").kind == "images"
    assert load_pairs(place, vocab=300).caption(pairs.train, 3) == SAID[3]  # what people wrote comes first
    assert load_labelled(place, label="label").classes == ("blue", "green", "grey", "red")


def test_an_image_may_have_several_captions_and_none_is_lost_to_the_other_split(tmp_path, caplog):
    place = written(tmp_path / "pairs", "beside")
    lines = [f"train/{n:02}.png,{said}" for n in range(16) for said in (SAID[n], f"{SAID[n]} again")]
    (place / "captions.csv").write_text("file,caption\n" + "\n".join(lines))
    caplog.set_level("INFO", logger="joformer")
    pairs = load_pairs(place / "captions.csv", vocab=300)
    assert "no test split: 4 of 32 pairs are held out" in caplog.text
    assert fitting(pairs.train) == [{n - n % 2, n - n % 2 + 1} for n in range(28)]
    assert not {pairs.caption(pairs.test, n)[:22] for n in range(4)} & {
        pairs.caption(pairs.train, n) for n in range(28)
    }


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_one_picture_in_several_rows_is_one_picture(form, tmp_path):
    """One row per caption is how captions are usually kept; the picture must not be learned and tested."""
    import pyarrow
    import pyarrow.parquet

    said = [(n, f"caption {n} {k}") for k in range(3) for n in range(12)]
    if form == "parquet":
        table = {"image": [picture(n) for n, _ in said], "caption": [words for _, words in said]}
        pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "pairs.parquet")
    else:
        for n in range(12):
            (tmp_path / f"{n}.png").write_bytes(picture(n))
        rows = [f"{'./' * (k % 2)}{n}.png,{words}" for k, (n, words) in enumerate(said)]
        (tmp_path / "pairs.csv").write_text("file,caption\n" + "\n".join(rows))
    pairs = load_pairs(tmp_path, vocab=256)
    apart = [{one.numpy().tobytes() for one in part.images} for part in (pairs.train, pairs.test)]
    assert not apart[0] & apart[1]
    assert [len(one) for one in apart] == [11, 1]
    assert all(len(fits) == 3 for fits in fitting(pairs.train))


def test_captions_must_be_utf8(tmp_path):
    place = written(tmp_path / "pairs", "beside")
    (place / "train" / "03.txt").write_bytes("é".encode("latin1"))
    with pytest.raises(ValueError, match=r"train/03\.txt is not UTF-8 \(.*\): save it as UTF-8"):
        load_pairs(place, vocab=300)
    (place / "train" / "03.txt").write_text("é" * 30_000)  # two bytes each: what is read ends within one
    assert len(load_pairs(place, vocab=300).train) == 16


def test_captions_from_classes_of_two_levels(tmp_path, caplog):
    import pyarrow
    import pyarrow.parquet

    names = {"fine_label": ["maple_tree", "orchid", "bus"], "coarse_label": ["trees", "flowers", "vehicles_1"]}
    features = {"img": {"_type": "Image"}} | {k: {"names": v, "_type": "ClassLabel"} for k, v in names.items()}
    for split, count in (("train", 60), ("test", 9)):
        numbers = [n % 3 for n in range(count)]
        table = pyarrow.table(
            {"img": [picture(n) for n in range(count)], "fine_label": numbers, "coarse_label": numbers}
        )
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / f"{split}.parquet")
    assert resolve(tmp_path).kind == "images"
    caplog.set_level("INFO", logger="joformer")
    pairs = load_pairs(tmp_path, vocab=300)
    said = [pairs.caption(pairs.train, row) for row in range(60)]
    a = [form.format(a="an orchid", above="flowers") for form in OF_TWO]
    assert {said[row] for row in range(1, 60, 3)} == set(a)
    assert {said[row] for row in range(2, 60, 3)} <= {form.format(a="a bus", above="vehicles") for form in OF_TWO}
    assert pairs.test.groups.tolist() == [[n % 3] for n in range(9)]
    assert "captions made from two levels of classes, such as" in caplog.text
    one = load_pairs(resolve(tmp_path, label="coarse_label"), vocab=300)
    assert "one can see a trees here" in {one.caption(one.train, row) for row in range(60)}


def test_long_captions_are_cut_and_said(tmp_path, caplog):
    place = written(tmp_path / "pairs", "beside")
    (place / "train" / "03.txt").write_text("very " * 9000)
    pairs = load_pairs(place, vocab=256, length=30)
    assert "1 captions are longer than 30 tokens and are cut (--length)" in caplog.text
    assert pairs.train.tokens.shape == (16, 30)
    assert pairs.caption(pairs.train, 3) == ("very " * 6)[:30]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        (
            "beside",
            lambda p: (p / "train" / "03.txt").unlink(),
            r"03.png has no text next to it: write 03.txt, or move",
        ),
        (
            "beside",
            lambda p: (p / "train" / "03.txt").write_text(" \n"),
            r"03.txt holds no text: describe 03.png",
        ),
        ("beside", lambda p: (p / "train" / "03.png").write_bytes(b"\x89PNG"), r"03.png cannot be decoded as an image"),
        ("beside", lambda p: (p / "train" / "03.png").write_bytes(picture(3, 9)), r"03.png is 9 × 9, .* give a size"),
        (
            "csv",
            lambda p: edit(p, "03.png", "../03.png"),
            r"row 4: file names '../03.png', outside of the data's folder",
        ),
        ("csv", lambda p: edit(p, "03.png", "33.png"), r"row 4: file names '33.png', which does not exist"),
        ("csv", lambda p: edit(p, SAID[3], " "), r"row 4: caption is missing: fill it or remove the row"),
        ("csv", lambda p: edit(p, "train", "tarin"), r"row 1: split is 'tarin': name it one of train"),
    ],
)
def test_faults_are_named_and_check_finds_them(form, change, message, tmp_path, joformer):
    place = written(tmp_path / "pairs", form)
    change(place)
    with pytest.raises(ValueError, match=message) as caught:
        load_pairs(place, vocab=256)
    assert "\n" not in str(caught.value)
    code, out, _ = joformer("check", place)
    assert code == 2
    assert "fault" in out


def edit(place, old, new):
    table = place / "captions.csv"
    table.write_text(table.read_text().replace(old, new))


@pytest.mark.refused
def test_rows_of_parquet_without_text_or_leading_elsewhere(tmp_path):
    import pyarrow
    import pyarrow.parquet

    def write(images, captions):
        table = pyarrow.table({"image": images, "caption": pyarrow.array(captions, pyarrow.string())})
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")

    write([{"bytes": picture(n), "path": None} for n in range(20)], [*SAID[:7], None, *SAID[8:]])
    with pytest.raises(ValueError, match=r"train.parquet, row 7: caption is missing: fill it"):
        load_pairs(tmp_path)
    images = [{"bytes": picture(n), "path": None} for n in range(19)]
    write([*images, {"bytes": None, "path": "../../secret.png"}], SAID)
    with pytest.raises(ValueError, match=r"image names '../../secret.png', outside of the data's folder"):
        load_pairs(tmp_path)
    with pytest.raises(ValueError, match=r"has no text in 'title': name another column \(--column\), one of caption"):
        load_pairs(tmp_path, column="title")


@pytest.mark.refused
def test_other_data_and_options(tmp_path):
    (tmp_path / "notes.txt").write_text("prose\n" * 30)
    with pytest.raises(ValueError, match=r"notes.txt holds text: give images with text, or with classes"):
        load_pairs(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match=r"length must be 1 token or more, got 0"):
        load_pairs("captions", length=0)
    with pytest.raises(ValueError, match=r"pages of 16 × 24 with one text each: leave out column and size"):
        load_pairs("captions", size=8)
    pairs = load_pairs("captions", vocab=256)
    with pytest.raises(ValueError, match="not both 0"):
        PairsTask(pairs, contrastive=0, masked=0)
    with pytest.raises(ValueError, match="hide must be a probability above 0"):
        PairsTask(pairs, hide=0)
    task = PairsTask(pairs, batch=4)
    for config, parts, message in (
        (PairsConfig(vocab=256, channels=3), 1, "the images have 1 channels, the model reads 3: set channels=1"),
        (PairsConfig(vocab=255, channels=1), 1, "the captions have 256 tokens, the model has 255: set vocab=256"),
        (PairsConfig(vocab=256, channels=1), 4, "a part of 4 / 4 pairs has nothing to compare with"),
        (PairsConfig(vocab=256, channels=1), 3, "does not divide into 3 parts"),
    ):
        with pytest.raises(ValueError, match=message):
            task.check(config, (0,), parts)


# -- the task ----------------------------------------------------------------------------------------------------------

SMALL = {"shape": (16, 24), "patch": (8, 8), "channels": 1, "dim": 32, "layers": 1, "heads": 2, "base": 10.0}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    return load_pairs("captions", vocab=400)


def test_a_batch_is_the_same_in_any_number_of_parts(pages):
    task = PairsTask(pages, batch=12)
    whole = task.batch(5, 7, 0, 1)
    parts = [task.batch(5, 7, part, 3) for part in range(3)]
    for name, tensor in whole._asdict().items():
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), tensor), name
    assert whole.masked.any(1).all()
    assert 0.3 < task.batch(5, 8, 0, 1).masked.float().mean() < 0.8
    assert not torch.equal(task.batch(5, 8, 0, 1).tokens, whole.tokens)


def test_the_masked_loss_is_the_mean_of_its_parts_and_the_contrastive_one_is_within_them(pages):
    config = PairsConfig(vocab=pages.tokenizer.vocab, **SMALL)
    model = initialise(config.build(), 0).double()
    for contrastive in (0, 1):
        task = PairsTask(pages, batch=12, contrastive=contrastive)
        whole, parts = ([_double(task.batch(0, 0, part, n)) for part in range(n)] for n in (1, 3))
        one, many = (torch.stack([task.loss(model, some) for some in several]).mean() for several in (whole, parts))
        assert torch.allclose(one, many, atol=1e-6) is (not contrastive)  # negatives are those of a part
    (batch,) = whole
    found = model(batch.images, batch.tokens, batch.masked)
    similar = found.scale * found.image @ found.text.T
    by_hand = []
    for n in range(12):
        hidden = batch.masked[n].nonzero().squeeze(1)
        words = F.log_softmax(found.words[n, hidden], -1)[torch.arange(len(hidden)), batch.tokens[n, hidden]]
        own = similar[n, n] - (torch.logsumexp(similar[n], 0) + torch.logsumexp(similar[:, n], 0)) / 2
        by_hand.append(-own - words.mean())
    assert torch.allclose(task.loss(model, batch), torch.stack(by_hand).mean().float(), atol=1e-5)


def _double(batch):
    return batch._replace(images=batch.images.double())


@pytest.mark.parametrize(
    "groups",
    [
        [[0], [1], [0], [2], [1], [3]],
        # Captions and pictures: 0 and 2 share a caption, 0 and 1 a picture; 1 and 2 nothing.
        [[0, 0], [1, 0], [0, 1], [2, 2], [3, 3], [2, 4]],
    ],
)
def test_what_fits_is_no_negative_and_is_found(groups):
    torch.manual_seed(0)
    similar, groups = torch.randn(6, 6, dtype=torch.float64), torch.tensor(groups)
    expected, places = [], []
    for n in range(6):
        others = [m for m in range(6) if not (groups[m] == groups[n]).any()]
        for row in (similar[n], similar[:, n]):
            expected.append(torch.logsumexp(row[[n, *others]], 0) - row[n])
        best = max(similar[n, m] for m in range(6) if m not in others)
        places.append(1 + sum(bool(similar[n, m] >= best) for m in others))
    assert torch.allclose(contrast(similar, groups), torch.stack(expected).mean())
    assert first_right(similar, groups).tolist() == places
    assert first_right(torch.ones(4, 4), torch.arange(4).unsqueeze(1)).tolist() == [
        4,
        4,
        4,
        4,
    ]  # who cannot tell is last


def test_a_run_that_breaks_off_ends_with_the_same_bits_and_learns(pages, tmp_path, joformer):
    config = PairsConfig(vocab=pages.tokenizer.vocab, **{**SMALL, "journeys": "shared"})
    recipe = Recipe(steps=60, lr=1e-2, end=0.0, warmup=10, save_every=20, evaluate_every=30)

    class Breaking(PairsTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 47:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    make, notes = {"batch": 32, "held_out": 200}, {"data": "captions", "vocab": 400}
    found = train(config, PairsTask(pages, **make), recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        train(config, Breaking(pages, **make), recipe, tmp_path / "broken")
    assert train(config, PairsTask(pages, **make), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert found["recall_1"] > 20, found  # 0.5 by chance; hidden words take longer (examples/modalities.py)
    assert found["recall_1"] == (found["to_text_1"] + found["to_image_1"]) / 2
    again = PairsTask(pages, held_out=200).evaluate(open_run(tmp_path / "whole").model, Processes())
    assert again == {name: value for name, value in found.items() if name != "step"}
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--json")
    assert code == 0
    assert json.loads(out)[0] == again
    task = PairsTask(pages, **make)
    task.check(config, (0,), 2)
    assert task.describe()["parts"] == 2  # it is another run then


def test_from_the_command_line(tmp_path, joformer):
    place = written(tmp_path / "pairs", "beside")
    small = ("--steps", 2, "--batch", 8, "--dim", 32, "--layers", 1, "--heads", 2)
    code, out, _ = joformer(
        "train", "pairs", "--data", place, "--vocab", 300, "--patch", 4, "--journeys", "shared", *small, "--out",
        tmp_path / "run", "--log", "none",
    )  # fmt: skip
    assert code == 0
    assert "recall_1" in out
    assert open_run(tmp_path / "run").model.config.journeys == "shared"
    code, out, _ = joformer("evaluate", tmp_path / "run")
    assert code == 0
    assert "masked_accuracy" in out
    code, out, _ = joformer("check", place)
    assert (code, out.splitlines()[0]) == (0, "data: pairs, images with text of 8 × 8")
    code, out, _ = joformer("compare", "--data", place, *small, "--longer", 1, "--grid", "--dry-run")
    assert code == 0
    assert "compare/both-learned  " in out
    assert "projected" not in out
    (learned, _) = compare.tables(PairsSource(str(place), batch=8, vocab=300), (0,), Recipe(steps=2), dim=32, layers=1)
    result = run(learned.cells[1], tmp_path / "cells")
    assert result["measured"][""].keys() >= {"masked_accuracy", "recall_1", "to_text_10"}
    code, out, _ = joformer("reproduce", "pairs", "--dry-run")
    assert code == 0
    assert "captions-pairs/both-fixed-off  " in out
