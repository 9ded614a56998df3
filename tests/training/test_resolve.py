"""The front door: what a path holds, the formats people have, and that nothing is decided in silence."""

import gzip
import io
import json
import logging
import sys
import types

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from runner import logged
from scipy.io import wavfile

from joformer.training.data import Streamed, load_audio, load_images, load_labelled, load_text, resolve
from joformer.training.data.audio import decode_sound, spectrograms
from joformer.training.data.examples import identity, open_examples
from joformer.training.data.sources import split_of
from joformer.training.data.streamed import ROTATED, decode_image
from joformer.training.data.tables import read_rows

LINE = "the quick brown fox\n"


def save(path, seed=0, mode=None, size=(6, 6), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8))
    (image.convert(mode) if mode else image).save(path, **options)
    return path


def say(path, seconds=0.1, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, rate, (np.sin(np.arange(int(seconds * rate)) / 5) * 2**14).astype(np.int16))
    return path


def tree(root, *names, count=3, make=save):
    for name in names:
        for number in range(count):
            make(root / name / f"{number}{'.png' if make is save else '.wav'}")
    return root


def opened(path, **options):
    return open_examples(resolve(path, **options), path.parent / "arrow")


def text_of(path, tmp_path, **options):
    loaded = load_text(path, vocab=256, cache=tmp_path / "cache", **options)
    return "".join(loaded.tokenizer.decode(getattr(loaded, split)) for split in ("train", "valid", "test"))


# -- what it is -----------------------------------------------------------------------------------------------------


def test_kinds_are_told_without_a_network_and_carried(tmp_path):
    names = {"stdlib": "text", "wikipedia": "text", "digits": "images", "imagenet": "images", "words": "sounds"}
    assert {name: resolve(name).kind for name in names} == names
    (tmp_path / "notes.txt").write_text(LINE)
    source = resolve(tmp_path / "notes.txt")
    assert (source.kind, source.name, source.spec) == ("text", "notes.txt", str(tmp_path / "notes.txt"))
    assert resolve(source) == source
    pictures = tree(tmp_path / "pictures", "a", "b")
    (pictures / "README.md").write_text("mine")
    assert resolve(pictures).kind == "images"
    assert resolve(tree(tmp_path / "clips", "a", "b", make=say)).kind == "sounds"
    (tmp_path / "songs").mkdir()
    for name in ("1.m4a", "2.m4a", "cover.png"):
        (tmp_path / "songs" / name).write_bytes(b"")
    assert resolve(tmp_path / "songs").kind == "sounds"


def test_a_path_leads_there_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text(LINE * 50)
    monkeypatch.chdir(tmp_path)
    source = resolve("notes.txt")
    assert source.spec == str(tmp_path / "notes.txt")
    assert str(source.path) == "notes.txt"


@pytest.mark.refused
def test_other_kinds_are_refused_in_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text(LINE)
    for call, says in [
        (lambda: load_text("digits"), r"^digits holds images, not text: give other data$"),
        (lambda: load_images("words"), r"^words holds sounds, not images"),
        (lambda: load_labelled(tmp_path / "notes.txt"), r"notes\.txt holds text: give images or sounds, or train a"),
        (lambda: load_labelled("digits", rate=16000), r"^digits holds images: leave out --rate$"),
        (lambda: load_labelled("words", size=8), r"leave out size \(--size\) and give --bands and --seconds$"),
        (lambda: load_images(resolve("words")), r"^words holds sounds, not images"),
    ]:
        with pytest.raises(ValueError, match=says):
            call()


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.txt", "train"), ("data/Test-00000-of-00002.parquet", "test"), ("wiki.val.tokens", "val"),
        ("validation/a.txt", "validation"), ("train0.csv", "train"), ("restrained.txt", None), ("testing/a.txt", None),
        ("train/test.txt", "train"),
    ],
)  # fmt: skip
def test_one_rule_for_split_names(path, split):
    assert split_of(path) == split


def test_what_systems_leave_behind_is_ignored(tmp_path):
    root = tree(tmp_path / "set", "a", "b")
    before = identity(resolve(root))
    (root / "__MACOSX" / "a").mkdir(parents=True)
    for name in ("a/Thumbs.db", "a/desktop.ini", "b/.DS_Store", "__MACOSX/a/._1.png"):
        (root / name).write_bytes(b"\xff")
    assert opened(root).classes == ("a", "b")
    assert identity(resolve(root)) == before


# -- text -----------------------------------------------------------------------------------------------------------

ROWS = [f"row {number}, with a comma\nand a line" for number in range(40)]
TABLES = {
    "a.jsonl": "".join(json.dumps({"n": k, "text": row, "other": "x"}) + "\n" for k, row in enumerate(ROWS)),
    "a.csv": 'n,text,other\n' + "".join(f'{k},"{row}",x\n' for k, row in enumerate(ROWS)),
    "a.tsv": 'n\ttext\tother\n' + "".join(f'{k}\t"{row}"\tx\n' for k, row in enumerate(ROWS)),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_a_column_of_a_table_is_text(tmp_path, name):
    path = tmp_path / name
    path.write_text(TABLES[name])
    assert text_of(path, tmp_path) == "\n".join(ROWS)
    assert text_of(path, tmp_path, column="other") == "\n".join("x" * 40)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(("\ufeff" + TABLES[name]).encode()))
    assert text_of(packed, tmp_path) == "\n".join(ROWS)
    path.write_bytes(TABLES[name].encode("utf-16"))
    assert text_of(path, tmp_path) == "\n".join(ROWS)


def test_splits_of_tables_and_notes_beside_them(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps({"text": split * 20}) + "\n")
    (tmp_path / "README.md").write_text("about it")
    said = []
    with logged(said):
        loaded = load_text(tmp_path, vocab=256, cache=tmp_path / ".cache")
    assert loaded.tokenizer.decode(loaded.valid) == "validation" * 20
    assert loaded.tokenizer.decode(loaded.test) == "test" * 20
    assert said[1:] == [
        f"data: {tmp_path.name}, text",
        "  train 100, valid 200, test 80 bytes",
        "  only 3 files like test.jsonl are read, 1 others are not: README.md",
    ]
    (tmp_path / "code.py").write_text(LINE * 40)  # beside text a table is left aside, and named
    with logged(said):
        assert text_of(tmp_path, tmp_path / ".other") == "about it\n" + LINE * 40
    assert said[-2] == "  only 2 files like README.md are read, 3 others are not: test.jsonl"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-le"])
def test_text_with_a_byte_order_mark_is_decoded_and_logged(tmp_path, encoding):
    mark = "" if encoding in ("utf-16", "utf-32") else "\ufeff"
    text = "größer 世界 😀\n" * 70_000  # more than a chunk
    (tmp_path / "a.txt").write_bytes((mark + text).encode(encoding))
    (tmp_path / "b.txt").write_text(text, encoding="utf-8")
    said = []
    for _ in range(2):  # once prepared, once from the cache
        with logged(said):
            found = load_text(tmp_path / "a.txt", vocab=256, cache=tmp_path / "cache")
        assert said[-2] == f"  1 file in {encoding[:6].upper()}, decoded: a.txt"
    assert found.fingerprint == load_text(tmp_path / "b.txt", vocab=256, cache=tmp_path / "cache").fingerprint


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"%PDF-1.4 text " * 99, r"is a PDF, not text: extract its text, for example by pdftotext$"),
        ("a", b"PK\x03\x04 text " * 99, r"is a zip archive or an office document, not text: unpack it"),
        ("a.tar", b"name".ljust(257, b"\0") + b"ustar" + b"\0" * 999, r"is a tar archive, not text: unpack it$"),
        ("a.tgz", gzip.compress(b"n".ljust(257, b"\0") + b"ustar" + b"\0" * 99, mtime=0), r"a tar archive, not text"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 7}\n', r"a\.jsonl has no text in row 2: fill it or drop the row$"),
        (
            "a.json",
            b'[{"text": "a"},\n{"text": "b"}]',
            r"a\.json, line 1 is not a JSON object: write one object per line",
        ),
        ("a.jsonl", b'{"a": "x", "b": "y"}\n', r"which column holds the text: name it \(--column\), one of a, b$"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl, row 1, is not UTF-8"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl is not UTF-8"),
        ("a.csv", b"text,n\na,1,2\n", r"a\.csv, line 2: more cells than the header: quote those that hold ','$"),
        ("a.txt", "\ufefftext".encode("utf-16")[:-1], r"a\.txt is damaged or not UTF-16"),
        (
            "a.txt",
            "größer 世\n".encode("utf-16-le") * 99,
            r"a\.txt looks like UTF-16 .*: convert it by iconv -f UTF-16LE ",
        ),
        (
            "a.csv",
            "text,n\na,1\n".encode("utf-16-be"),
            r"a\.csv looks like UTF-16 .*: convert it by iconv -f UTF-16BE ",
        ),
    ],
)
def test_what_is_no_text_is_called_what_it_is(tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=says) as caught:
        load_text(tmp_path / name, vocab=256, cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)


# -- tables of files ------------------------------------------------------------------------------------------------


def listing(path, rows, header="file,label"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_table_lists_files_and_classes(tmp_path):
    for number in range(6):
        save(tmp_path / "set" / "pictures" / f"{number}.png", number)
    rows = [f"pictures/{number}.png,{('10', '9')[number % 2]}" for number in range(6)]
    table = listing(tmp_path / "set" / "labels.csv", rows)
    for given in (table, tmp_path / "set"):
        records = opened(given)
        assert records.classes == ("10", "9")
        both = [(part.name(k)[-5:], int(part.labels[k])) for part in records[:2] for k in range(len(part))]
        assert sorted(both) == [(f"{number}.png", number % 2) for number in range(6)]
    rows = [f"{row},{('train', 'Test')[k > 3]},x" for k, row in enumerate(rows)]
    listing(table, rows, "file,kind,split,other")
    records = opened(table, label="kind")
    assert [part.name(k)[-5:] for part in records[1:2] for k in range(len(part))] == ["4.png", "5.png"]
    assert len(records.train) == 4
    lines = [json.dumps({"file_name": f"pictures/{k}.png", "label": k % 2}) for k in range(6)]
    (tmp_path / "set" / "labels.csv").unlink()
    (tmp_path / "set" / "meta.jsonl").write_text("\n".join(lines))
    data = load_images(tmp_path / "set", cache=tmp_path / "cache")
    assert (data.classes, len(data.train), len(data.test)) == (("0", "1"), 5, 1)


def test_the_identity_of_a_table_is_of_the_files_it_lists(tmp_path):
    for number in range(4):
        save(tmp_path / f"{number}.png", number)
    table = listing(tmp_path / "labels.csv", [f"{number}.png,{number % 2}" for number in range(3)])
    found = {identity(resolve(table))}
    save(tmp_path / "3.png", 9)  # not listed
    found.add(identity(resolve(table)))
    assert len(found) == 1
    save(tmp_path / "2.png", 9)
    found.add(identity(resolve(table)))
    listing(table, [f"{number}.png,{number // 2}" for number in range(3)])
    found.add(identity(resolve(table)))
    assert len(found) == 3


def test_class_folders_come_before_a_table_beside_them(tmp_path):
    root = tree(tmp_path / "set", "a", "b")
    listing(root / "labels.csv", ["a/0.png,x", "b/0.png,y"])
    records = opened(root)
    assert records.classes == ("a", "b")
    assert (logging.INFO, "not read, beside the class folders: labels.csv") in records.notes


@pytest.mark.refused
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("../secret.png,a", r"row 3: file names '\.\./secret\.png', outside of the data's folder"),
        ("link.png,a", r"row 3: file names 'link\.png', outside of the data's folder"),
        ("nowhere.png,a", r"row 3: file names 'nowhere\.png', which does not exist: correct it, or add the file$"),
        ("0.png,b", r"row 3: file names '0\.png' appears twice: remove one of the rows$"),
        (",a", r"row 3: file is missing: fill it or remove the row$"),
        ("2.png,", r"row 3: label is missing: fill it or remove the row$"),
        ("labels.csv,a", r"row 3: file names 'labels\.csv', which is not a supported image file: remove the row$"),
    ],
)
def test_rows_that_are_refused(tmp_path, row, says):
    root = tmp_path / "set"
    save(tmp_path / "secret.png")
    for number in range(3):
        save(root / f"{number}.png", number)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match=says):
        opened(listing(root / "labels.csv", ["0.png,a", "1.png,b", row]))


# -- nothing silent -------------------------------------------------------------------------------------------------


@pytest.mark.refused
def test_a_flat_split_beside_class_folders_is_an_error(tmp_path):
    root = tree(tmp_path / "set", "train/a", "train/b")
    for number in range(3):
        save(root / "val" / f"{number}.png")
    with pytest.raises(ValueError, match=r"the 3 images in .*/val have no class folders: move each into val/CLASS, or"):
        opened(root)
    tree(root, "test/a", "test/b", count=1)  # another split has labels
    assert len(opened(root).test) == 2


@pytest.mark.refused
def test_one_class_is_an_error(tmp_path):
    for make in (save, say):
        root = tree(tmp_path / make.__name__, "a", make=make)
        with pytest.raises(ValueError, match=r"holds one class, 'a': there must be two or more"):
            opened(root)


def test_a_class_that_cannot_be_tested_is_named(tmp_path):
    tree(tmp_path / "set", "a", "b", count=10)
    tree(tmp_path / "set", "c", count=1)
    notes = opened(tmp_path / "set").notes
    assert notes[-1] == (logging.WARNING, "too few examples to be tested, accuracy says nothing of them: c")


def test_images_stand_upright_and_what_was_converted_is_counted(tmp_path):
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8))
    for number, (turn, orientation) in enumerate([(Image.Transpose.ROTATE_90, 6), (Image.Transpose.ROTATE_180, 3)]):
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{number}.png"
        upright.transpose(turn).save(path, exif=exif)
        assert np.array_equal(np.asarray(decode_image(path.read_bytes(), "x")), np.asarray(upright))
    for name in "ab":
        for number, mode in enumerate(["RGBA", "P", "LA", "RGB"]):
            save(tmp_path / "set" / name / f"{number}.png", number, mode, (8, 6))
    plain = load_images(tmp_path / "set", cache=tmp_path / "cache")
    streamed = Streamed(tmp_path / "set", size=4, workers=0)
    (tmp_path / "set" / "a" / "4.png").write_bytes(path.read_bytes())
    said = []
    for _ in range(2):
        with logged(said):
            turned = load_images(tmp_path / "set", cache=tmp_path / "cache")
        assert said[-3:] == [
            "  4 images: alpha dropped", "  2 images: palette to colours", "  1 image: rotated as EXIF says",
        ]  # fmt: skip
    with logged(said):
        again = Streamed(tmp_path / "set", size=4, workers=0)
    assert said[-1].endswith("images that were checked: rotated as EXIF says")
    assert again.fingerprint != streamed.fingerprint
    assert turned.fingerprint != plain.fingerprint


@pytest.mark.parametrize("alpha", [False, True])
def test_colours_of_16_bits_are_said_to_become_8(tmp_path, alpha):
    """Pillow cannot write such a PNG, and opens one as 8 bits: this one is written by hand."""
    import struct
    import zlib

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    width, channels = 4, 3 + alpha
    head = struct.pack(">IIBBBBB", width, width, 16, 6 if alpha else 2, 0, 0, 0)
    rows = b"".join(
        b"\0" + struct.pack(f">{width * channels}H", *[row * 9000] * width * channels) for row in range(width)
    )
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    for name in "ab":
        save(tmp_path / "set" / name / "0.png", 0, "RGB", (4, 4))
        save(tmp_path / "set" / name / "1.png", 1, "RGB", (4, 4))
    (tmp_path / "set" / "a" / "0.png").write_bytes(data)
    said = []
    with logged(said):
        load_images(tmp_path / "set", cache=tmp_path / "cache")
    assert [line for line in said if "16 bits" in line] == ["  1 image: 16 bits reduced to 8"]


def test_the_fingerprint_of_rotated_images_is_a_new_one(tmp_path, monkeypatch):
    """Where EXIF was not applied, the same files gave other tensors: their old cache and runs are not theirs."""
    from joformer.training.data import images

    tree(tmp_path / "set", "a", "b")
    exif = Image.Exif()
    exif[0x0112] = 3
    with Image.open(tmp_path / "set" / "a" / "0.png") as image:
        image.save(tmp_path / "set" / "a" / "0.png", exif=exif)
    turned = load_images(tmp_path / "set", cache=tmp_path / "cache").fingerprint
    monkeypatch.setattr(images, "ROTATED", "never")
    assert load_images(tmp_path / "set", cache=tmp_path / "other").fingerprint != turned
    assert ROTATED != "never"


# -- sounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.refused
def test_a_tree_that_fits_two_conventions_asks_which(tmp_path):
    for speaker in ("01", "02"):
        for digit in range(3):
            say(tmp_path / "set" / speaker / f"{digit}_{speaker}_0.wav")
    says = r"may be its folders \(01, 02\) or the beginning of each name \(0, 1, 2\): choose --label folder or --label"
    with pytest.raises(ValueError, match=says):
        opened(tmp_path / "set")
    assert opened(tmp_path / "set", label="folder").classes == ("01", "02")
    assert opened(tmp_path / "set", label="name").classes == ("0", "1", "2")
    with pytest.raises(ValueError, match=r"have no column 'speaker': leave out --label"):
        opened(tmp_path / "set", label="speaker")


def test_names_that_begin_with_a_speaker_are_no_second_convention(tmp_path):
    for word in ("yes", "no"):
        for speaker in ("0a7c", "11f3", "9b2e"):
            say(tmp_path / "set" / word / f"{speaker}_nohash_0.wav")
    assert opened(tmp_path / "set").classes == ("no", "yes")
    folder, asked = (load_audio(tmp_path / "set", label=label, cache=tmp_path / "c") for label in (None, "folder"))
    assert folder.fingerprint == asked.fingerprint
    for word in ("yes", "no"):
        for take in range(8):
            say(tmp_path / "both" / word / f"{'ab'[take % 2]}_{take}.wav")
    with pytest.raises(ValueError, match="--label folder or --label name"):
        opened(tmp_path / "both")


def test_seconds_and_hop(tmp_path):
    tree(tmp_path / "set", "a", "b", make=lambda path: say(path, 1.0))
    load = lambda **options: load_audio(tmp_path / "set", cache=tmp_path / "cache", **options)  # noqa: E731
    assert load(seconds=0.5).train.images.shape[2:] == (64, 30)  # 256 + 29 · 128 samples are 0.496 s
    assert load(seconds=0.5, hop=8, bands=16).train.images.shape[2:] == (16, 59)
    assert load(hop=16).fingerprint == load().fingerprint != load(hop=8).fingerprint
    wave = decode_sound((tmp_path / "set" / "a" / "0.wav").read_bytes(), "a")[0]
    fine, coarse = spectrograms([wave], 8000, 64, 20, 64), spectrograms([wave], 8000, 64, 10)
    assert (fine[..., ::2].int() - coarse.int()).abs().max() <= 1
    for wrong in ({"hop": 0}, {"hop": 40}, {"seconds": 0}, {"seconds": 1, "frames": 3}):
        with pytest.raises(ValueError, match=r": give .*--(hop|seconds)"):
            load(**wrong)


def test_compressed_sounds_need_soundfile(tmp_path, monkeypatch):
    for name in ("a_1.flac", "a_2.flac", "b_1.mp3", "b_2.ogg"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(b"sound")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert resolve(tmp_path / "set").kind == "sounds"
    with pytest.raises(ValueError, match=r"\.(flac|mp3|ogg) is (flac|mp3|ogg): pip install 'joformer\[audio\]' to"):
        load_audio(tmp_path / "set", cache=tmp_path / "cache")

    class File:
        samplerate, frames = 16000, 160_000

        def __init__(self, data):
            assert data.read() == b"sound"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def read(self, count, dtype, always_2d):
            assert count < 2 * self.samplerate  # not all of it: a few bytes may be hours
            return np.full((count, 2), 0.5, dtype)

    monkeypatch.setitem(sys.modules, "soundfile", types.SimpleNamespace(SoundFile=File))
    wave, rate, length = decode_sound(b"sound", "a.mp3", 0.5)
    assert (len(wave), rate, length) == (8000, 16000, 10.0)
    assert torch.equal(wave, torch.full((8000,), 0.5))
    said = []
    with logged(said):
        assert load_audio(tmp_path / "set", cache=tmp_path / "cache").classes == ("a", "b")
    assert said[-1].startswith("  4 of 4 clips last longer than 1.04 s and lose their end, 90% of all sound")


def coded(name, count=8000, rate=8000):
    """A tone as the bytes of a compressed file, and its samples."""
    kind, data = name.partition(".")[2], io.BytesIO()
    wave = (0.5 * np.sin(2 * np.pi * 440 * np.arange(count) / rate)).astype(np.float32)
    soundfile.write(data, wave, rate, format=kind.upper())
    return data.getvalue(), wave


@pytest.mark.parametrize(("name", "error"), [("a.flac", 2**-15), ("a.ogg", 0.05), ("a.mp3", 0.1)])
def test_compressed_sounds_are_what_was_written(name, error):
    data, wave = coded(name)
    for called in (name, "a"):  # rows of a table may have bytes without a name
        samples, rate, length = decode_sound(data, called)
        assert (len(samples), rate, length) == (8000, 8000, 1.0)
        assert np.abs(samples.numpy() - wave).max() < error
    assert torch.equal(decode_sound(data, name, 0.25)[0], samples[:2000])


@pytest.mark.refused
@pytest.mark.parametrize("kept", [0, 20, 0.5])
@pytest.mark.parametrize("name", ["a.flac", "a.ogg", "a.mp3"])
def test_compressed_sounds_that_end_early_are_named(name, kept):
    data, _ = coded(name)
    cut = data[: kept if kept >= 1 else int(kept * len(data))]
    with pytest.raises(ValueError, match=r"^a\.\w+ is damaged, truncated or not a sound file \([^<\n]+\): repair"):
        decode_sound(cut, name)


def noisy(**how):
    """A tone in noise as the bytes of a compressed file: 4 s, the second half silent, so that the bit rate varies."""
    data, at = io.BytesIO(), np.arange(64_000)
    wave = 0.3 * np.sin(0.1 * at) + 0.05 * np.random.default_rng(0).normal(size=64_000)
    soundfile.write(data, (wave * (at < 32_000)).astype(np.float32), 16_000, **how)
    return data.getvalue()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.tsv",
            'text\tlabel\nfirst\t0\n"Oh no\t1\nthird\t0\n"Fifth," he said.\t0\n',
            "a.tsv, line [0-9]: a quote opens a cell",
        ),
        (
            "a.csv",
            'text,n\n"one",1\n"two, which is cut of',
            "a.csv, line [0-9]: a quote opens a cell and does not close it",
        ),
        ("a.csv", "file,label,label\na.png,x,y\n", "has two columns called 'label': rename one"),
    ],
)
def test_rows_are_not_swallowed_by_a_quote(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        list(read_rows(tmp_path / name))


def test_a_file_is_listed_once_however_it_is_spelled(tmp_path):
    for n in range(8):
        save(tmp_path / f"{n}.png", n)
    (tmp_path / "train.csv").write_text("file,label\n" + "".join(f"{n}.png,{'ab'[n % 2]} \n" for n in range(8)))
    assert load_images(tmp_path).classes == ("a", "b")
    (tmp_path / "test.csv").write_text("file,label\n./3.png,b\n")
    with pytest.raises(ValueError, match=r"row \d: file names '(\./)?3\.png' appears twice"):
        load_images(tmp_path)
    (tmp_path / "test.csv").unlink()
    rows = "".join(f"{n}.png,{'ab'[n % 2]},{'TRAIN' if n < 6 else 'test'}\n" for n in range(8))
    (tmp_path / "train.csv").write_text(f"file,label,Split\n{rows}")
    assert [len(part) for part in (load_images(tmp_path).train, load_images(tmp_path).test)] == [6, 2]


def test_the_folder_one_stands_in(tmp_path, monkeypatch):
    tree(tmp_path, "cat", "dog")
    monkeypatch.chdir(tmp_path)
    assert load_images(".").fingerprint == load_images(tmp_path).fingerprint


def test_the_same_bytes_as_csv_and_as_tsv_are_other_text(tmp_path):
    (tmp_path / "a.csv").write_text("text\tlabel\n" + "hello world\t1\n" * 200)
    first = load_text(tmp_path / "a.csv", vocab=256)
    (tmp_path / "a.csv").rename(tmp_path / "a.tsv")
    second = load_text(tmp_path / "a.tsv", vocab=256)
    assert bytes(second.train[:24]) == b"hello world\nhello world\n"
    assert first.fingerprint != second.fingerprint


@pytest.mark.refused
@pytest.mark.parametrize("kind", ["VORBIS", "OPUS"])
def test_an_ogg_that_breaks_off_is_never_a_shorter_sound(kind):
    data = noisy(format="OGG", subtype=kind)
    assert len(decode_sound(data, "a.ogg")[0]) == 64_000
    for kept in np.linspace(1, len(data) - 1, 40).astype(int):
        with pytest.raises(ValueError, match=r"^a\.ogg is damaged, truncated or not a sound file \(.*\): repair it"):
            decode_sound(data[:kept], "a.ogg")
    with pytest.raises(ValueError, match="another stream follows the first"):
        decode_sound(2 * data, "a.ogg")


def test_an_mp3_that_does_not_say_how_long_it_is_is_not_cut():
    data = noisy(format="MP3", bitrate_mode="VARIABLE", compression_level=0.5)
    assert len(decode_sound(data, "a.mp3")[0]) == 64_000
    # The first frame is no sound: it holds how long the file is (a Xing header). Frames begin with the same 11 bits.
    start = next(at for at in range(4, 2000) if data[at] == 0xFF and data[at + 1] == data[1])
    assert b"Xing" in data[:start]
    with pytest.raises(
        ValueError, match=r"does not say how long it is, and goes on after the estimate: encode it again"
    ):
        decode_sound(data[start:], "a.mp3")


@pytest.mark.refused
def test_sounds_that_cannot_be_read_are_called_that(tmp_path):
    tree(tmp_path / "set", "a", "b", make=say)
    (tmp_path / "set" / "a" / "9.m4a").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a/9\.m4a is not a supported sound file \(.*\): convert it to wav$"):
        opened(tmp_path / "set")
