"""Resident images: pixels against PIL and scikit-learn, exact statistics, a cache that is checked, plain refusals."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runner import logged

from joformer.training.data.images import Images, Labelled, load_images

DATA = Path(os.environ.get("JOFORMER_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")


def pixels(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 6), ("test", 4)):
        for number in range(count):
            save(tmp_path / "set" / split / ("cat", "dog")[number % 2] / f"{number}.png", pixels(number, 12, 20, 3))
    return tmp_path / "set"


def test_pixels_labels_and_layout(folder, tmp_path):
    said = []
    with logged(said):
        data = load_images(folder, cache=tmp_path / "cache")
    assert said == [
        "decoding 10 images (once)",
        "data: set, images as 3 × 12 × 20 bytes",
        "  2 classes: cat (3), dog (3)",
        "  train 6, test 4 examples",
    ]
    assert data.train.images.shape == (6, 3, 12, 20)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for row, number in enumerate([0, 2, 4, 1, 3, 5]):
        assert np.array_equal(data.train.images[row].permute(1, 2, 0).numpy(), pixels(number, 12, 20, 3))
    data.train.images[0] = 0  # mapped from the cache, but the cache is not written to
    with logged(said):
        again = load_images(folder, cache=tmp_path / "cache")
    assert said[4:] == said[1:4]
    assert np.array_equal(again.train.images[0].permute(1, 2, 0).numpy(), pixels(0, 12, 20, 3))
    assert again.fingerprint == data.fingerprint
    assert load_images(folder, size=8, cache=tmp_path / "cache").fingerprint != data.fingerprint


def test_statistics_are_those_of_the_training_split():
    images = torch.from_numpy(pixels(0, 50, 3, 5, 7))
    images[:, 2] //= 3
    data = Images(Labelled(images, torch.zeros(50).long()), Labelled(images[:1], torch.zeros(1).long()), ("a",), "")
    scaled = images.double() / 255
    torch.testing.assert_close(data.mean, scaled.mean((0, 2, 3)), rtol=0, atol=1e-14)
    torch.testing.assert_close(data.std, scaled.std((0, 2, 3), correction=0), rtol=0, atol=1e-14)
    assert data.mean.dtype == torch.float64
    assert data.to("meta").test.labels.device.type == "meta"


def test_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    data, want = load_images("digits"), load_digits()
    assert (len(data.train), len(data.test), data.classes) == (1438, 359, tuple("0123456789"))
    everything = {
        (image.tobytes(), int(label)) for split in (data.train, data.test)
        for image, label in zip(split.images.numpy(), split.labels)
    }  # fmt: skip
    scaled = np.round(want.images / 16 * 255).astype(np.uint8)
    assert everything == {(image.tobytes(), int(label)) for image, label in zip(scaled, want.target)}
    share = data.test.labels.bincount() / (data.test.labels.bincount() + data.train.labels.bincount())
    assert ((share - 0.2).abs() < 0.01).all()
    assert load_images("digits").fingerprint == data.fingerprint


def test_grey_stays_grey_until_something_is_in_colour(tmp_path):
    for number in range(4):
        save(tmp_path / "set" / "train" / "ab"[number % 2] / f"{number}.png", pixels(number, 6, 6))
        save(tmp_path / "set" / "test" / "ab"[number % 2] / f"{number}.png", pixels(number, 6, 6))
    grey = load_images(tmp_path / "set", cache=tmp_path / "cache")
    assert grey.train.images.shape == (4, 1, 6, 6)
    save(tmp_path / "set" / "test" / "b" / "3.png", pixels(9, 6, 6, 3))
    mixed = load_images(tmp_path / "set", cache=tmp_path / "cache")
    assert torch.equal(mixed.train.images, grey.train.images.expand(-1, 3, -1, -1))
    assert torch.equal(mixed.test.images[:3], grey.test.images[:3].expand(-1, 3, -1, -1))
    assert np.array_equal(mixed.test.images[3].permute(1, 2, 0).numpy(), pixels(9, 6, 6, 3))


def test_size_scales_the_shorter_side_and_cuts_the_centre(tmp_path):
    smooth = Image.fromarray(pixels(0, 6, 10, 3)).resize((40, 24), Image.Resampling.BICUBIC)
    for number in range(3):
        save(tmp_path / "set" / "a" / f"{number}.png", np.asarray(smooth))
        save(tmp_path / "set" / "b" / f"{number}.png", np.asarray(smooth))
    save(tmp_path / "set" / "a" / "9.png", np.asarray(smooth).transpose(1, 0, 2))
    with pytest.raises(ValueError, match=r"a/9\.png is 24 × 40, .*a/\d\.png is 40 × 24: give a size"):
        load_images(tmp_path / "set", cache=tmp_path / "cache")
    data = load_images(tmp_path / "set", size=12, cache=tmp_path / "cache")
    want = np.asarray(smooth.resize((20, 12), Image.Resampling.BICUBIC))[:, 4:16]
    assert np.array_equal(data.train.images[0].permute(1, 2, 0).numpy(), want)


def test_the_cache_is_made_again_when_damaged_and_when_the_data_changes(folder, tmp_path):
    data = load_images(folder, cache=tmp_path / "cache")
    (kept,) = (tmp_path / "cache").rglob("data.safetensors")
    whole = kept.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    for damaged in (whole[:-10], bytes(flipped), b""):
        kept.write_bytes(damaged)
        assert torch.equal(load_images(folder, cache=tmp_path / "cache").test.images, data.test.images)
        assert kept.read_bytes() == whole
    save(folder / "train" / "cat" / "0.png", pixels(99, 12, 20, 3))
    changed = load_images(folder, cache=tmp_path / "cache")
    assert changed.fingerprint != data.fingerprint
    assert np.array_equal(changed.train.images[0].permute(1, 2, 0).numpy(), pixels(99, 12, 20, 3))
    assert not list((tmp_path / "cache").glob(".arrow-*"))


@pytest.mark.refused
def test_every_cut_of_every_format_is_refused_by_name(tmp_path):
    for suffix in ("png", "jpeg", "webp", "bmp", "gif", "tiff", "ppm"):
        root = tmp_path / suffix
        for number in range(3):
            save(root / "a" / f"{number}.{suffix}", pixels(number, 16, 16, 3))
            save(root / "b" / f"{number}.{suffix}", pixels(number, 16, 16, 3))
        whole = (root / "a" / f"1.{suffix}").read_bytes()
        for length in (0, 1, 10, len(whole) // 2):
            (root / "a" / f"1.{suffix}").write_bytes(whole[:length])
            with pytest.raises(
                ValueError, match=rf"a/1\.{suffix} cannot be decoded as an image \(.*\): repair it"
            ) as caught:
                load_images(root, cache=tmp_path / "cache")
            assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.refused
def test_input_that_is_refused(folder, tmp_path):
    with pytest.raises(ValueError, match=r"^size is 0: give a whole number of pixels, 1 or more \(--size\)$"):
        load_images(folder, size=0)
    with pytest.raises(
        ValueError,
        match=r"^digits are 8 × 8 with only one kind of label: leave out label and size \(--label, --size\)$",
    ):
        load_images("digits", size=16)
    with pytest.raises(ValueError, match=r"nowhere does not exist: give"):
        load_images(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file is a file: give a directory$"):
        load_images(folder, cache=tmp_path / "file")
    for name in ("cat", "dog"):
        for path in (folder / "test" / name).iterdir():
            save(path, pixels(0, 10, 20, 3))
    with pytest.raises(
        ValueError, match=r"test/cat/0\.png is 20 × 10, .*train/cat/0\.png is 20 × 12: give a size \(--size\)$"
    ):
        load_images(folder, cache=tmp_path / "cache")


@pytest.mark.refused
def test_pixels_beyond_memory_are_refused_before_they_are_decoded(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", lambda name: 40)
    with pytest.raises(
        ValueError, match=r"GB of pixels do not fit into memory: give a smaller size \(--size\), or stream"
    ):
        load_images(folder, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "label", "shape", "classes"),
    [
        ("mnist", None, (1, 28, 28), ("0", "1", "2")),
        ("cifar100", None, (3, 32, 32), ("apple", "aquarium_fish", "baby")),
        ("cifar100", "coarse_label", (3, 32, 32), ("aquatic_mammals", "fish", "flowers")),
    ],
)
def test_real_tables(name, label, shape, classes, tmp_path):
    """The first rows of the real files, written out again as the hub writes them."""
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is not here")
    import pyarrow.parquet

    for split in ("train", "test"):
        file = pyarrow.parquet.ParquetFile(DATA / name / f"{split}.parquet")
        rows = next(file.iter_batches(200))
        pyarrow.parquet.write_table(
            pyarrow.Table.from_batches([rows], file.schema_arrow), tmp_path / f"{split}.parquet"
        )
    data = load_images(tmp_path, label=label, cache=tmp_path / "cache")
    assert data.train.images.shape == (200, *shape)
    assert data.classes[:3] == classes
    assert len(data.classes) == {"mnist": 10, "cifar100": 100 if label is None else 20}[name]
    cell, number = (
        rows.column(0)[17].as_py()["bytes"],
        rows.column(label or ("label" if name == "mnist" else "fine_label")),
    )
    want = np.asarray(Image.open(io.BytesIO(cell)))
    assert np.array_equal(data.test.images[17].permute(1, 2, 0).squeeze(-1).numpy(), want)
    assert data.test.labels.tolist() == number.to_pylist()
