"""Data and folders that a stranger filled: no file of the machine is read, nothing is waited for, sizes are bounded."""

import gzip
import io
import itertools
import json
import lzma
import os
import re
import signal
import socket
import struct
import zlib
from contextlib import contextmanager

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from runner import logged
from scipy.io import wavfile

from joformer import _io as files
from joformer.training import checkpoints
from joformer.training.data import audio, load_audio, load_images, load_labelled, load_text
from joformer.training.data import files as data_files
from joformer.training.data.audio import decode_sound, resampled
from joformer.training.data.cache import MANIFEST, cached, is_whole
from joformer.training.data.examples import Files
from joformer.training.data.files import read_chunks
from joformer.training.data.streamed import Streamed, decode_image
from joformer.training.data.tokenizer import Tokenizer

pytestmark = pytest.mark.refused


class TooLong(BaseException):
    """No Exception, so that nothing on the way takes it for a damaged file."""


@contextmanager
def within(seconds):
    def stop(*_):
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def one_line(call, *wanted):
    with within(20), pytest.raises((ValueError, OSError)) as caught:
        call()
    said = str(caught.value)
    assert "\n" not in said
    for part in wanted:
        assert part in said, said
    return said


def png(seed=0, size=8):
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)).save(data, "PNG")
    return data.getvalue()


def wav(samples=800, rate=8000, dtype="int16"):
    data = io.BytesIO()
    wavfile.write(data, 8000, (np.sin(np.arange(samples)) * 2**14).astype(dtype))
    width = np.dtype(dtype).itemsize
    return data.getvalue()[:24] + struct.pack("<II", rate, width * rate % 2**32) + data.getvalue()[32:]


def table(path, cells, labels):
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    columns = {"image": pyarrow.array(cells, kind), "label": labels}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


# -- paths in rows --------------------------------------------------------------------------------------------------


@pytest.fixture
def outside(tmp_path):
    """A picture that is not part of the data, and the data's folder beside it."""
    (tmp_path / "secret.png").write_bytes(png(9))
    (tmp_path / "data").mkdir()
    return tmp_path / "secret.png"


def reads(folder, cache):
    return lambda: load_images(folder, cache=cache).train.images


@pytest.mark.parametrize("how", ["absolute", "dots", "link", "folder link", "file alone"])
def test_a_row_reads_no_file_outside_of_the_data(outside, tmp_path, how):
    data = tmp_path / "data"
    path = {"absolute": str(outside), "dots": "../secret.png", "file alone": str(outside)}.get(how, "in.png")
    if how == "link":
        (data / "in.png").symlink_to(outside)
    if how == "folder link":
        (data / "in").symlink_to(tmp_path)
        path = "in/secret.png"
    table(data / "train.parquet", [{"bytes": png(k), "path": None} for k in range(3)] + [{"path": path}], [0, 1, 0, 1])
    given = data / "train.parquet" if how == "file alone" else data
    links = {"link", "folder link"} & {how}
    if links:  # beside a link that is a picture the table would be refused for another reason
        given = data / "train.parquet"
    said = one_line(reads(given, tmp_path / "cache"), "train.parquet, row 3: image names ", "outside of")
    assert repr(path) in said
    streamed = Streamed(given, size=8, workers=0, cache=tmp_path / "cache")
    everything = [[(row, 0)] for row in range(len(streamed))]
    one_line(lambda: [list(part.batches(everything)) for part in (streamed,)], "outside of")


def test_a_row_reads_files_of_its_own_folder(tmp_path):
    """Beside the table, by a name relative to it, whatever the current folder is; absolute paths into it too."""
    data = tmp_path / "data"
    (data / "more").mkdir(parents=True)
    for k in range(4):
        (data / "more" / f"{k}.dat").write_bytes(png(k))
    cells = [{"path": f"more/{k}.dat"} for k in range(3)] + [{"path": str(data / "more" / "3.dat")}]
    table(data / "train.parquet", cells, [0, 1, 0, 1])
    for given in (data, data / "train.parquet"):
        found = Streamed(given, size=8, workers=0, cache=tmp_path / "cache")
        both = sorted(part.records.read(row) for part in (found, found.test) for row in range(len(part)))
        assert both == sorted(png(k) for k in range(4))


@pytest.mark.parametrize("path", ["", "a\0b", "no-such.png", "."])
def test_paths_that_lead_nowhere_are_named(tmp_path, path):
    (tmp_path / "data").mkdir()
    table(tmp_path / "data" / "train.parquet", [{"bytes": png(0)}, {"path": path}, {"bytes": png(1)}], [0, 1, 0])
    found = Streamed(tmp_path / "data", size=8, workers=0, cache=tmp_path / "cache")
    one_line(lambda: [part.records.read(row) for part in (found, found.test) for row in range(len(part))], "row 1")


# -- what is no file ------------------------------------------------------------------------------------------------


@pytest.fixture(params=["pipe", "socket", "device"])
def odd(request):
    """Makes, at a path, what is no regular file; devices are there already and are linked to."""
    kept = []

    def make(path):
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            kept.append(socket.socket(socket.AF_UNIX))
            here = os.open(path.parent, os.O_RDONLY)
            kept[0].bind(f"/proc/self/fd/{here}/{path.name}")  # names of sockets are short
            os.close(here)
        return path

    yield make
    for one in kept:
        one.close()


@pytest.mark.parametrize("name", ["b.txt", "b.txt.gz", "b.parquet", "b/b.txt"])
def test_text_that_is_no_file(tmp_path, odd, name):
    data = tmp_path / "data"
    (data / name).parent.mkdir(parents=True)
    (data / "a.txt").write_text("to be or not to be\n" * 50)
    place = odd(data / name)
    for given in (data, place):
        one_line(
            lambda given=given: load_text(given, vocab=256, cache=tmp_path / "c"), str(place), "only files are read"
        )


@pytest.mark.parametrize("name", ["cat/b.png", "train.parquet", "cat/b.wav"])
def test_examples_that_are_no_file(tmp_path, odd, name):
    data = tmp_path / "data"
    (data / "cat").mkdir(parents=True)
    place = odd(data / name)
    for load in (load_images, load_audio, load_labelled, lambda given, cache: Streamed(given, cache=cache, size=8)):
        one_line(lambda load=load: load(data, cache=tmp_path / "cache"), str(place), "only files are read")


def test_state_that_is_no_file(tmp_path, odd):
    place = odd(tmp_path / "00000001")
    one_line(lambda: Tokenizer.load(place), str(place), "only files are read")
    (tmp_path / "at" / "00000001").mkdir(parents=True)
    odd_state = tmp_path / "at" / "00000001" / "state.json"
    os.mkfifo(odd_state)
    one_line(lambda: checkpoints.read(odd_state.parent), str(odd_state.parent))
    # A cache that lists one, as its manifest may say anything, is not whole.
    made = cached("text-12", lambda folder: (folder / "a.bin").write_bytes(b"abc"), cache=tmp_path / "cache")
    (made / "a.bin").unlink()
    os.mkfifo(made / "a.bin")
    (made / MANIFEST).write_text(json.dumps({"a.bin": (0, "12")}))
    with within(5):
        assert not is_whole(made)


# -- sizes ----------------------------------------------------------------------------------------------------------


def packed(kind, data):
    if kind == "zst":
        return pyarrow.compress(data, codec="zstd", asbytes=True)
    return {"gz": gzip.compress, "xz": lzma.compress}[kind](data)


@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_archives_that_expand_beyond_all_measure(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(data_files, "FREE", 1 << 20)
    path = tmp_path / f"a.txt.{kind}"
    path.write_bytes(packed(kind, bytes(8 << 20)))
    size = path.stat().st_size
    given = 0

    def read():
        nonlocal given
        for chunk in read_chunks(path):
            given += len(chunk)

    one_line(read, str(path), "expands", "JOFORMER_LIMITS")
    most = (1 << 20) + 100 * size
    assert given <= most  # and no more was made of it than this
    one_line(lambda: load_text(path, vocab=256, cache=tmp_path / "c"), str(path), "expands")
    monkeypatch.setenv("JOFORMER_LIMITS", "1000")
    given = 0
    read()
    assert given == 8 << 20
    # Real text is far from it, however large.
    monkeypatch.delenv("JOFORMER_LIMITS")
    monkeypatch.setattr(data_files, "FREE", 0)
    text = b"".join(b"%d the quick brown fox jumps\n" % (k * k) for k in range(2000))
    path.write_bytes(packed(kind, text))
    assert b"".join(read_chunks(path)) == text


def test_xz_that_asks_for_gigabytes_to_be_unpacked(tmp_path):
    compressor = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    whole = bytearray(compressor.compress(b"text\n" * 9) + compressor.flush())
    # The block header says how large the dictionary is, in one byte: 40 is 4 GB. Then its checksum.
    header = whole[12 : 12 + (whole[12] + 1) * 4]
    at = header.index(bytes([lzma.FILTER_LZMA2, 1])) + 2
    header[at] = 40
    header[-4:] = struct.pack("<I", zlib.crc32(bytes(header[:-4])))
    whole[12 : 12 + len(header)] = header
    (tmp_path / "a.xz").write_bytes(whole)
    one_line(lambda: list(read_chunks(tmp_path / "a.xz")), "a.xz", "xz")


def test_several_streams_in_one_xz(tmp_path):
    path = tmp_path / "a.xz"
    path.write_bytes(lzma.compress(b"one ") + bytes(8) + lzma.compress(b"") + lzma.compress(b"two") + bytes(4))
    assert b"".join(read_chunks(path, size=3)) == b"one two"


@pytest.mark.parametrize("value", ["much", "0", "-1", "nan"])
def test_limits_that_make_no_sense(monkeypatch, value, tmp_path):
    monkeypatch.setenv("JOFORMER_LIMITS", value)
    (tmp_path / "a.json").write_text("{}")
    one_line(lambda: files.read_json(tmp_path / "a.json"), "JOFORMER_LIMITS is")


@pytest.mark.parametrize("rate", [0, 1, 2, 999, 768_001, 15_000_000, 2**31 - 1])
def test_rates_that_no_sound_has(rate, tmp_path):
    (tmp_path / "data").mkdir()
    for name, data in (("a_1", wav()), ("a_2", wav(rate=rate)), ("b_1", wav()), ("b_2", wav())):
        (tmp_path / "data" / f"{name}.wav").write_bytes(data)
    said = one_line(lambda: load_audio(tmp_path / "data", cache=tmp_path / "cache"), "a_2.wav")
    assert "1,000 to 768,000" in said or rate == 0


@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_any_two_fields_of_a_header_may_lie(dtype):
    whole = wav(40, dtype=dtype)
    fields = [(4, "<I"), (16, "<I"), (20, "<H"), (22, "<H"), (24, "<I"), (28, "<I"), (32, "<H"), (34, "<H"), (40, "<I")]
    for first, second in itertools.combinations(fields, 2):
        for values in itertools.product((0, 1, 3, 6, 8, 24, 0x7FFF, 0xFFFE, 0xFFFF), repeat=2):
            data = bytearray(whole)
            for (at, kind), value in zip((first, second), values):
                struct.pack_into(kind, data, at, value * (65537 if kind == "<I" and value > 24 else 1))
            said = ""
            try:
                wave, rate, _ = decode_sound(bytes(data), "a.wav")
            except ValueError as error:
                said = str(error)
            assert re.fullmatch(r"a\.wav .*", said) if said else wave.isfinite().all() and 1000 <= rate <= 768_000


@pytest.mark.parametrize("rate", [1000, 7351, 8000, 22050, 44100, 96000])
def test_only_the_part_of_a_clip_that_is_seen_is_worked_on(rate, monkeypatch, tmp_path):
    """And it is what it would have been: the same bits as of the whole clip."""
    (tmp_path / "data").mkdir()
    sounds = np.random.default_rng(0).integers(-(2**15), 2**15, 12 * rate).astype(np.int16)
    for name in ("a_1", "a_2", "b_1", "b_2"):
        wavfile.write(tmp_path / "data" / f"{name}.wav", rate, sounds)
    seen = []
    monkeypatch.setattr(audio, "resampled", lambda wave, *rates: seen.append(len(wave)) or resampled(wave, *rates))
    said = []
    with logged(said):
        data = load_audio(tmp_path / "data", frames=16, cache=tmp_path / "cache")
    assert said[-1].startswith("  4 of 4 clips last longer than 0.27 s and lose their end, 98% of all sound")
    assert max(seen) < 1.5 * rate
    whole = resampled(decode_sound((tmp_path / "data" / "a_1.wav").read_bytes(), "a")[0], rate, 8000)
    assert torch.equal(data.train.images[0], audio.spectrograms([whole], 8000, 64, 16)[0])


def test_examples_of_absurd_size(tmp_path, monkeypatch):
    (tmp_path / "data" / "a").mkdir(parents=True)
    for name in ("1.png", "2.png", "3.png"):
        (tmp_path / "data" / "a" / name).write_bytes(png())
    with open(tmp_path / "data" / "a" / "2.png", "ab") as file:  # which takes no room on the disk
        file.truncate(1 << 40)
    records = Files([os.fsencode(tmp_path / "data" / "a" / "2.png")], torch.tensor([0]))
    one_line(lambda: records.read(0), "2.png", "JOFORMER_LIMITS")
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(1 << 40)
    one_line(lambda: Tokenizer.load(tmp_path / "a.json"), "a.json", "JOFORMER_LIMITS")


def test_pictures_of_absurd_size(monkeypatch):
    def says(width, height):
        body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        chunk = b"IHDR" + body
        head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        data = zlib.compress(bytes(1 << 20))
        return head + struct.pack(">I", len(data)) + b"IDAT" + data + struct.pack(">I", zlib.crc32(b"IDAT" + data))

    for width, height in ((10_000, 10_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)):
        one_line(lambda w=width, h=height: decode_image(says(w, h), "a.png"), "a.png", "JOFORMER_LIMITS")
    whole = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(whole, "PNG")
    one_line(lambda: decode_image(whole.getvalue(), "a.png"), "a.png", "100000000 pixels", "JOFORMER_LIMITS")
    monkeypatch.setenv("JOFORMER_LIMITS", "2")
    assert decode_image(whole.getvalue(), "a.png").size == (10_000, 10_000)


def test_tables_that_expand_beyond_all_measure(tmp_path, monkeypatch):
    """A dictionary and run lengths: a few bytes that stand for many rows."""
    monkeypatch.setattr(data_files, "FREE", 1 << 20)
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "train.parquet"
    rows, once = 2000, png(size=60)
    columns = {
        "image": pyarrow.array([once] * rows, pyarrow.binary()),
        "label": pyarrow.array([0, 1] * (rows // 2)),
        "text": pyarrow.array(["a" * 10_000] * rows),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert path.stat().st_size < 1 << 16
    one_line(lambda: load_images(tmp_path / "data", cache=tmp_path / "cache"), str(path), "JOFORMER_LIMITS")
    one_line(lambda: load_text(path, vocab=256, cache=tmp_path / "cache"), str(path), "JOFORMER_LIMITS")
