"""Encoded sources: what is found, what is refused in which words, and batches that depend on (index, seed) alone."""

import io
import multiprocessing
import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from runner import logged

from joformer.training.data import resolve, sources, streamed
from joformer.training.data.examples import hold_out, open_examples
from joformer.training.data.streamed import Streamed, centred, decode_image
from joformer.training.data.streamed import random_box as box_of


def png(pixels, suffix="PNG"):
    data = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(data, suffix)
    return data.getvalue()


def picture(seed, height=30, width=40):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def pictures(tmp_path):
    """Two classes in two splits, all images of different sizes."""
    for split, count in (("train", 8), ("valid", 3)):
        for number in range(count):
            folder = tmp_path / "set" / split / ("cat", "dog")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.png").write_bytes(png(picture(number, 30 + number, 40)))
    return tmp_path / "set"


def write_parquet(path, images, **columns):
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    cells = pyarrow.array([None if data is None else {"bytes": data, "path": None} for data in images],
                          pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]))  # fmt: skip
    pyarrow.parquet.write_table(pyarrow.table({"image": cells, **columns}), path)
    return path


def order(data, batches=3, size=4):
    return [[((3 * batch + 5 * row) % len(data), 100 * batch + row) for row in range(size)] for batch in range(batches)]


def test_a_batch_is_a_function_of_index_and_seed(pictures):
    data = Streamed(pictures, size=16, workers=0)
    assert (len(data), len(data.test), data.classes) == (8, 3, ("cat", "dog"))
    asked = order(data)
    before = torch.get_rng_state()
    one = list(data.batches(iter(asked)))
    assert all(images.shape == (4, 3, 16, 16) and images.dtype == torch.uint8 for images, _ in one)
    for pairs, (images, labels) in zip(asked, one):
        assert labels.tolist() == [int(data.labels[index]) for index, _ in pairs]
        for (index, seed), image in zip(pairs, images):
            alone, _ = next(data.batches([[(index, seed)]]))
            assert torch.equal(alone[0], image)
    for workers in (1, 2):
        many = list(Streamed(pictures, size=16, workers=workers).batches(iter(asked)))
        assert all(torch.equal(a, b) for first, second in zip(one, many) for a, b in zip(first, second))
    assert torch.equal(before, torch.get_rng_state())
    a, b, c = (next(data.batches([[(0, seed)]]))[0] for seed in (1, 2, 1))
    assert torch.equal(a, c)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_divided_among_workers(pictures, workers, monkeypatch):
    """Whatever the size of a chunk: batches of one chunk, of several, of a part of one, and none at all."""
    asked = [[(row % 8, row) for row in range(size)] for size in (5, 0, 2, 3, 1)]
    whole = list(Streamed(pictures, size=8, workers=0).batches(iter(asked)))
    monkeypatch.setattr(streamed, "CHUNK", 2)
    parted = list(Streamed(pictures, size=8, workers=workers).batches(iter(asked)))
    assert [len(labels) for _, labels in parted] == [5, 0, 2, 3, 1]
    assert all(torch.equal(a, b) for first, second in zip(whole, parted, strict=True) for a, b in zip(first, second))


def test_as_many_workers_as_cores(pictures, monkeypatch):
    monkeypatch.setattr(streamed.os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert Streamed(pictures, size=8).workers == 12
    assert Streamed(pictures, size=8, workers=3).test.workers == 3
    for processes, each in ((4, 3), (16, 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert Streamed(pictures, size=8).workers == each


def test_training_crops_are_the_box_scaled(pictures):
    data = Streamed(pictures, size=16, workers=0)
    for index, seed in [(0, 1), (5, 2), (7, 3)]:
        image = Image.open(data.records.name(index)).convert("RGB")
        want = image.resize((16, 16), Image.Resampling.BICUBIC, box=box_of(*image.size, seed))
        got, _ = next(data.batches([[(index, seed)]]))
        assert np.array_equal(got[0].permute(1, 2, 0).numpy(), np.asarray(want))


def test_evaluation_is_resize_then_centre_crop(tmp_path):
    """At 64 × 128 and size 28 the shorter side becomes 32 and all edges fall on whole pixels."""
    smooth = Image.fromarray(picture(0, 8, 16)).resize((128, 64), Image.Resampling.BICUBIC)
    want = np.asarray(smooth.resize((64, 32), Image.Resampling.BICUBIC))[2:30, 18:46]
    assert np.array_equal(np.asarray(centred(smooth, 28 * 256 / 224, 28)), want)
    for name in "ab":
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(5):
            smooth.save(tmp_path / "set" / name / f"{number}.png")
    data = Streamed(tmp_path / "set", size=28, train_crop="centre", workers=0)
    for part in (data, data.test):
        images, _ = next(part.batches([[(0, 1), (0, 2)]]))
        assert torch.equal(images[0], images[1])
        assert np.array_equal(images[0].permute(1, 2, 0).numpy(), want)


def test_the_short_side_may_be_either():
    wide, tall = picture(0, 20, 50), picture(0, 20, 50).transpose(1, 0, 2)
    a, b = (np.asarray(centred(Image.fromarray(x), 10, 10)) for x in (wide, tall))
    assert np.array_equal(a, b.transpose(1, 0, 2))


@given(st.integers(1, 700), st.integers(1, 700), st.integers(0, 2**62))
@settings(max_examples=40)
def test_boxes_stay_inside_with_the_area_and_ratio_allowed(width, height, seed):
    left, upper, right, lower = box_of(width, height, seed)
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    if min(width, height) > 100 and 0.5 < width / height < 2:
        w, h = right - left, lower - upper
        assert 0.079 < w * h / (width * height) <= 1
        assert 0.73 < w / h < 1.36


def test_boxes_cover_the_whole_range():
    boxes = torch.tensor([box_of(400, 400, seed) for seed in range(2000)], dtype=torch.float64)
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = w * h / 400**2, w / h
    assert area.min() < 0.1
    assert area.max() > 0.95
    assert ratio.min() < 0.77
    assert ratio.max() > 1.3
    assert abs(ratio.log().mean()) < 0.02
    assert abs((boxes[:, 0] + boxes[:, 2]).mean() / 2 - 200) < 5


def test_parquet_streams_like_files_and_survives_a_damaged_copy(pictures, tmp_path):
    files = Streamed(pictures, size=16, workers=0)
    for split, part in (("train", files), ("test", files.test)):
        data = [part.records.read(row) for row in range(len(part))]
        half = (len(data) + 1) // 2
        for number, some in enumerate((slice(0, half), slice(half, None))):
            name = tmp_path / "rows" / "data" / f"{split}-0000{number}-of-00002.parquet"
            write_parquet(name, data[some], label=part.labels[some].tolist())
    rows = Streamed(tmp_path / "rows", size=16, workers=0, cache=tmp_path / "cache")
    assert rows.records.name(5).endswith("train-00001-of-00002.parquet, row 1")
    assert rows.classes == ("0", "1")
    want = next(files.batches([[(0, 1), (7, 2)]]))
    assert all(torch.equal(a, b) for a, b in zip(next(rows.batches([[(0, 1), (7, 2)]])), want))
    assert all(
        torch.equal(a, b) for a, b in zip(next(pickle.loads(pickle.dumps(rows)).batches([[(0, 1), (7, 2)]])), want)
    )
    (copied,) = (tmp_path / "cache").rglob("train/**/*.arrow")
    copied.write_bytes(copied.read_bytes()[:300])
    again = Streamed(tmp_path / "rows", size=16, workers=0, cache=tmp_path / "cache")
    assert all(torch.equal(a, b) for a, b in zip(next(again.batches([[(0, 1), (7, 2)]])), want))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_undecodable_image_is_one_line_from_any_process(pictures, workers):
    data = Streamed(pictures, size=16, workers=workers)
    broken = pictures / "train" / "cat" / "2.png"
    broken.write_bytes(broken.read_bytes()[:500])
    with pytest.raises(ValueError, match=r"cat/2\.png cannot be decoded as an image \(.+\): repair it") as caught:
        list(data.batches([[(0, 0)], [(1, 0)], [(2, 0)]]))
    assert "\n" not in str(caught.value)
    broken.unlink()
    with pytest.raises(ValueError, match=r"^cannot read .*cat/2\.png: No such file or directory$"):
        list(data.batches([[(1, 0)]]))
    with pytest.raises(ValueError, match=r"^there is no image 8: choose 0 to 7$"):
        list(data.batches([[(8, 0)]]))
    assert not multiprocessing.active_children()  # though `caught` holds the frame of the loader


@given(st.lists(st.integers(0, 5), min_size=2, max_size=80))
@settings(max_examples=40)
def test_a_tenth_is_held_out(labels):
    labels = torch.tensor(labels)
    if len(labels.unique()) == len(labels):
        with pytest.raises(ValueError, match="each with its own class"):
            hold_out(labels)
        return
    train, test = hold_out(labels)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(labels)))
    assert len(test) == min(max(1, round(len(labels) / 10)), len(labels) - len(labels.unique()))
    assert set(labels[train].tolist()) == set(labels.tolist())
    assert torch.equal(hold_out(labels)[1], test)


def test_a_tenth_of_each_class_is_held_out():
    labels = torch.arange(1000) % 10
    assert labels[hold_out(labels)[1]].bincount().tolist() == [10] * 10


MODES = {
    "1": "L", "L": "L", "LA": "L", "P": "RGB", "RGB": "RGB", "RGBA": "RGB", "I;16": "L",
}  # fmt: skip


@pytest.mark.parametrize(("mode", "becomes"), MODES.items())
def test_modes(mode, becomes):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    data = io.BytesIO()
    image.save(data, "PNG", **({"transparency": bytes(range(256))} if mode == "P" else {}))
    got = decode_image(data.getvalue(), "x")
    assert got.mode == becomes
    if mode != "1":
        assert np.array_equal(np.asarray(got.convert("L")), grey)


def opened(path, **keywords):
    return open_examples(resolve(path, kind="images", **keywords), path.parent / "arrow")


def test_label_columns(tmp_path):
    data = [png(picture(0))] * 4
    both = write_parquet(tmp_path / "c.parquet", data, coarse_label=[0, 0, 1, 1], fine_label=[2, 2, 1, 0])
    assert opened(both).classes == ("0", "1", "2")
    assert opened(both, label="coarse_label").classes == ("0", "1")
    only = write_parquet(tmp_path / "o.parquet", data, kind=[0, 1, 0, 1], name=["x", "y", "x", "y"])
    assert opened(only).classes == ("0", "1")
    named = opened(only, label="name")
    assert named.classes == ("x", "y")
    assert sorted(named.train.labels.tolist() + named.test.labels.tolist()) == [0, 0, 1, 1]


def test_splits_that_are_left_aside_are_named(pictures):
    (pictures / "test").mkdir()
    (pictures / "test" / "nameless.png").write_bytes(png(picture(0)))
    shutil.copytree(pictures / "valid", pictures / "val")
    records = opened(pictures)
    said = [line for _, line in records.notes]
    assert said == ["the test split is left aside: it has no labels", "the val split is left aside"]
    assert len(records.test) == 3
    shutil.rmtree(pictures / "val")
    shutil.rmtree(pictures / "valid")
    records = opened(pictures)
    assert len(records.test) == 1
    assert records.notes[1][1] == "no test split with labels: 1 of 8 examples are held out, always the same ones"


def test_the_hub_is_read_like_tables(tmp_path, monkeypatch):
    """ImageNet's test split has labels of −1: validation tests instead."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features
    from datasets import Image as ImageFeature

    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["cat", "dog"])})
    cells = [{"bytes": png(picture(number)), "path": None} for number in range(4)]
    tables = DatasetDict(
        {
            split: Dataset.from_dict({"image": cells, "label": labels}, features=features)
            for split, labels in {
                "train": [0, 1, 1, 0],
                "test": [-1] * 4,
                "validation": [1, 1, 0, 0],
                "extra": [0] * 4,
            }.items()
        }
    )
    monkeypatch.setattr(sources, "hub", lambda name: tables)
    said = []
    with logged(said):
        data = Streamed("imagenet", size=16, train_crop="centre", workers=0, cache=tmp_path)
    assert said == [
        "fetching imagenet from the hub",
        "data: imagenet, images",
        "  2 classes: cat (2), dog (2)",
        "  train 4, test 4 images",
        "  the test split is left aside: it has no labels",
        "  the extra split is left aside",
        "  decoded while training, to 16 × 16",
    ]
    assert data.classes == ("cat", "dog")
    assert resolve("hub:owner/pets").kind == "images"
    assert data.test.labels.tolist() == [1, 1, 0, 0]
    images, labels = next(data.batches([[(1, 0), (3, 0)]]))
    want = centred(Image.fromarray(picture(3)), 16 * 256 / 224, 16)
    assert np.array_equal(images[1].permute(1, 2, 0).numpy(), np.asarray(want))
    assert labels.tolist() == [1, 0]
    tables["validation"] = Dataset.from_dict({"image": cells, "label": [1, 1, 0, 0]}, features=features).select([])
    with pytest.raises(
        ValueError, match=r"^the hub's validation split holds no rows: the validation split needs at least one$"
    ):
        Streamed("imagenet", cache=tmp_path)


def test_train_can_be_a_class(tmp_path):
    for name in ("bus", "train"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "set" / name / f"{number}.png").write_bytes(png(picture(number)))
    assert opened(tmp_path / "set").classes == ("bus", "train")


def spoil_files(root, what):
    cat = root / "train" / "cat"
    if what == "note":
        (cat / "note.txt").write_text("mine")
    elif what == "empty class":
        (root / "train" / "emu").mkdir()
    elif what == "unknown class":
        (root / "valid" / "emu").mkdir()
        (root / "valid" / "emu" / "1.png").write_bytes(png(picture(0)))
    elif what == "loose":
        (root / "train" / "1.png").write_bytes(png(picture(0)))
    elif what == "beside":
        (root / "1.png").write_bytes(png(picture(0)))
    elif what == "other folder":
        (root / "more").mkdir()
    elif what == "no train":
        (root / "train").rename(root / "test")
    elif what == "empty split":
        shutil.rmtree(root / "valid")
        (root / "valid").mkdir()
    elif what == "both":
        write_parquet(root / "train.parquet", [b""], label=[0])


@pytest.mark.refused
@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("note", r"cat/note\.txt is not a supported image file \(.*\): move it out of the class folder$"),
        ("empty class", r"the class folder .*train/emu holds no image files: fill it or remove it$"),
        ("unknown class", r"valid/emu/1\.png: class 'emu' is unknown to .*train: add examples of it there$"),
        ("loose", r"train/1\.png is not in a class folder: put every image into a folder named after its class$"),
        ("beside", r"1\.png is next to the train folder: move it into a class folder of a split$"),
        (
            "other folder",
            r"more is not a split: name it one of test, validation, valid, val, or move it away$",
        ),
        ("no train", r"has test, valid but no train folder: name the training split train$"),
        ("empty split", r"valid holds no class folders: put every image into a folder named after its class$"),
        ("both", r"holds both train\.parquet and .*\.png: keep one kind of source in a folder$"),
    ],
)
def test_folders_that_are_refused(pictures, what, says):
    spoil_files(pictures, what)
    with pytest.raises(ValueError, match=says) as caught:
        opened(pictures)
    assert "\n" not in str(caught.value)


DATA = png(picture(0))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("columns", "label", "says"),
    [
        ({"label": [0, None, 1]}, None, r"t\.parquet, row 1: label is missing: fill it or remove the row$"),
        ({"label": [0, 1, -2]}, None, r"t\.parquet, row 2: label is -2: labels count from 0$"),
        ({"label": [0, 1990, 1]}, None, r"row 1: label is 1990 among 3 examples: labels count the classes from 0$"),
        (
            {"a": [0, 1, 1], "b": [0, 0, 1]},
            None,
            r"does not show which column holds the labels: name it \(--label\), one of a, b$",
        ),
        ({"name": ["x", "y", "z"]}, None, r"which column holds the labels: name it \(--label\), one of name$"),
        (
            {"a": [0, 1, 1], "w": [0.0, 0.5, 1.0]},
            "w",
            r"has no labels in 'w': name another column \(--label\), one of a$",
        ),
        ({"label": [0, 1, 2]}, None, r"3 examples, each with its own class, leave none for testing: add a test split$"),
        ({"label": [0, 1, 1], "other": [b"", b"", b""]}, None, None),
    ],
)
def test_columns_that_are_refused(tmp_path, columns, label, says):
    path = write_parquet(tmp_path / "t.parquet", [DATA] * 3, **columns)
    if says is None:  # a struct is taken before plain bytes
        assert opened(path).train.column == "image"
        return
    with pytest.raises(ValueError, match=says) as caught:
        opened(path, label=label)
    assert "\n" not in str(caught.value)


@pytest.mark.refused
def test_tables_that_are_refused(tmp_path):
    from datasets import ClassLabel, Dataset, Features, Value

    rows = tmp_path / "rows"
    train = write_parquet(rows / "train.parquet", [DATA] * 3, label=[0, 1, 1])
    test = write_parquet(rows / "test.parquet", [DATA], label=[2])
    with pytest.raises(
        ValueError, match=r"test\.parquet, row 0: label is 2, a class that the training split does not have"
    ):
        opened(rows)
    write_parquet(test, [], label=__import__("pyarrow").array([], "int64"))
    with pytest.raises(ValueError, match=r"test\.parquet holds no rows: the test split needs at least one$"):
        opened(rows)
    test.write_bytes(train.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"test\.parquet is damaged or not a parquet file \(.*\): fetch it again$"):
        opened(rows)
    damaged = bytearray(train.read_bytes())
    damaged[4:60] = bytes(56)
    test.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"test\.parquet is damaged \(.*\): fetch it again$"):
        opened(rows)
    test.rename(rows / "more.parquet")
    with pytest.raises(ValueError, match=r"more\.parquet belongs to no split: name it train-… or test-…, or move it$"):
        opened(rows)
    write_parquet(rows / "more.parquet", [None, DATA], label=["a", "b"]).rename(rows / "test.parquet")
    with pytest.raises(ValueError, match=r"test\.parquet, row 0: label is 'a'|unknown to the training split"):
        opened(rows)
    names = Features({"wav": Value("binary"), "label": ClassLabel(names=["x", "y"])})
    Dataset.from_dict({"wav": [DATA] * 3, "label": [0, 1, 1]}, features=names).to_parquet(tmp_path / "n.parquet")
    assert opened(tmp_path / "n.parquet").classes == ("x", "y")
    with pytest.raises(ValueError, match=r"nothing does not exist"):
        resolve(tmp_path / "nothing")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(
        ValueError,
        match=r"a\.txt is not a parquet file or table: give a folder of images, parquet, or a table file,label$",
    ):
        opened(tmp_path / "a.txt")


@pytest.mark.refused
def test_a_missing_cell_is_named(tmp_path):
    path = write_parquet(tmp_path / "t.parquet", [DATA, None, DATA, DATA], label=[0, 1, 0, 1])
    records = opened(path)
    part, row = next(
        (part, row)
        for part in (records.train, records.test)
        for row in range(len(part))
        if part.name(row).endswith("1")
    )
    with pytest.raises(ValueError, match=r"t\.parquet, row 1: image is missing: fill it or remove the row$"):
        part.read(row)


@pytest.mark.refused
@pytest.mark.parametrize("keywords", [{"size": 0}, {"workers": -1}, {"train_crop": "left"}])
def test_settings_that_are_refused(pictures, keywords):
    with pytest.raises(ValueError, match=r"^(size|train_crop) is .*: give"):
        Streamed(pictures, **keywords)
