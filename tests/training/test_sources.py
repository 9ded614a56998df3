"""Names and paths, compressed files, and a cache that is whole or not there."""

import errno
import gzip
import hashlib
import json
import lzma
from pathlib import Path

import pytest

from joformer.training.data import cache
from joformer.training.data import hub as hub_module
from joformer.training.data.cache import cache_folder, cached, is_whole
from joformer.training.data.files import content_hash, files_under, read_chunks, require_path
from joformer.training.data.hub import HUB, hub, hub_name, is_hub

TEXT = "Grüße, 世界 and a line\n".encode() * 40_000


def packed(kind: str, data: bytes) -> bytes:
    if kind == "zst":
        import pyarrow

        return pyarrow.compress(data, codec="zstd", asbytes=True)
    return {"gz": gzip.compress, "xz": lzma.compress, "plain": bytes}[kind](data)


def one_line(call, *wanted: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    for part in wanted:
        assert part in message
    return message


def test_cache_folder_is_given_or_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("JOFORMER_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder("/c") == Path("/c")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("JOFORMER_CACHE")
    assert cache_folder() == Path("/b/joformer")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "joformer"
    assert cache_folder("~/x") == tmp_path / "x"


def test_the_hash_is_of_content_order_and_kind(tmp_path):
    for name, data in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / name).write_bytes(data)
    a, b, c = (tmp_path / name for name in "abc")
    assert content_hash(a, b) == content_hash(c, b) == content_hash(b"one", b"two")
    different = [content_hash(*parts) for parts in ((a, b), (b, a), (a,), (a, b, b""), ("one",), (1,), ("1",), ())]
    assert len(set(different)) == len(different)
    inner = [hashlib.sha256(data).digest() for data in (b"one", b"two")]
    assert content_hash(a, b) == hashlib.sha256(b"".join(inner)).hexdigest()


def test_files_come_in_one_order_without_hidden_ones_and_loops(tmp_path):
    for name in ("b/x.txt", "a.txt", "b.txt", "B.txt", ".git/config", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "b" / "up").symlink_to(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in files_under(tmp_path)] == [
        "B.txt",
        "a.txt",
        "b.txt",
        "b/x.txt",
    ]


@pytest.mark.parametrize("kind", ["plain", "gz", "xz", "zst"])
def test_compression_is_told_by_content_whatever_the_name(tmp_path, kind):
    path = tmp_path / "text.txt"
    path.write_bytes(packed(kind, TEXT))
    assert b"".join(read_chunks(path)) == TEXT
    assert max(map(len, read_chunks(path, 1000))) <= 1000
    # Archives written one after the other are one text.
    path.write_bytes(packed(kind, TEXT) + packed(kind, b"more"))
    assert b"".join(read_chunks(path)) == TEXT + b"more"


@pytest.mark.refused
@pytest.mark.parametrize("kind", ["gz", "xz", "zst"])
def test_damaged_archives_are_named(tmp_path, kind):
    data, path = packed(kind, TEXT + bytes(range(256)) * 40), tmp_path / f"text.{kind}"
    if kind == "zst":  # with the checksum that the command zstd writes
        zstandard = pytest.importorskip("zstandard")
        data = zstandard.ZstdCompressor(write_checksum=True).compress(TEXT + bytes(range(256)) * 40)
    middle = len(data) // 2
    altered = data[:middle] + bytes([data[middle] ^ 0xFF, data[middle + 1] ^ 0xFF]) + data[middle + 2 :]
    for wrong in (data[:-4], data[:middle], data[:20], altered, b"just text"):
        path.write_bytes(wrong)
        one_line(lambda: list(read_chunks(path)), str(path), "damaged or truncated")


@pytest.mark.refused
def test_paths_that_cannot_be_read_are_named(tmp_path):
    one_line(lambda: require_path(tmp_path / "none.txt"), "none.txt does not exist")
    (tmp_path / "file").write_text("x")
    one_line(lambda: require_path(tmp_path / "file" / "below"), "below does not exist")
    one_line(lambda: require_path("a\0b"), "cannot read")
    one_line(lambda: require_path("n" * 5000), "cannot read")
    one_line(lambda: content_hash(tmp_path), "cannot read")
    assert require_path(str(tmp_path)) == tmp_path


def test_names_of_the_hub():
    assert hub_name("mnist") == ("ylecun/mnist", None)
    assert hub_name("hub:a/b:en") == ("a/b", "en")
    assert hub_name("hub:a/b") == ("a/b", None)
    assert all(is_hub(name) for name in HUB)
    assert not any(is_hub(name) for name in ("./mnist", "mnist.txt", "hub:", Path("mnist")))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (
            ConnectionError("Couldn't reach 'ylecun/mnist' on the Hub"),
            "cannot reach the hub for ylecun/mnist: no network",
        ),
        (FileNotFoundError("Dataset 'ylecun/mnist' is gated\n\nask for it"), "ylecun/mnist from the hub: Dataset"),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot store ylecun/mnist"),
        (RuntimeError("the connection broke"), "the connection broke"),
    ],
)
def test_the_hub_fails_in_one_line(monkeypatch, error, wanted):
    datasets = pytest.importorskip("datasets")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    one_line(lambda: hub("mnist"), wanted)
    one_line(lambda: hub("unheard"), "'unheard' is not a data set")


@pytest.mark.refused
def test_without_a_network_the_hub_fails_at_once(monkeypatch):
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def no_name(*_):
        raise hub_module.socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(hub_module.socket, "getaddrinfo", no_name)
    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    message = one_line(lambda: hub("hub:nobody/nothing-of-this-name"))
    assert message.endswith("no network; give a folder of parquet files instead")
    assert before == (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)


def fill(folder: Path) -> None:
    (folder / "tokens.bin").write_bytes(bytes(range(200)))
    (folder / "more.json").write_text("{}")


def test_what_is_cached_is_built_once_and_again_when_damaged(tmp_path):
    built = []

    def build(folder: Path) -> None:
        built.append(folder)
        fill(folder)

    made = cached("text-1", build, cache=tmp_path)
    assert cached("text-1", build, cache=tmp_path) == made == tmp_path / "text-1"
    assert len(built) == 1
    tokens = made / "tokens.bin"
    whole = tokens.read_bytes()
    spoilers = [
        lambda: tokens.write_bytes(whole[:-1]),
        lambda: tokens.write_bytes(whole[:-1] + b"\0"),
        tokens.unlink,
        (made / cache.MANIFEST).unlink,
        lambda: (made / cache.MANIFEST).write_text("{"),
        lambda: (made / cache.MANIFEST).write_text("[1]"),
        lambda: (made / cache.MANIFEST).write_text('{"tokens.bin": 3}'),
    ]
    for times, spoil in enumerate(spoilers, start=2):
        spoil()
        assert not is_whole(made)
        assert cached("text-1", build, cache=tmp_path).joinpath("tokens.bin").read_bytes() == whole
        assert len(built) == times
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["text-1"]
    assert json.loads((made / cache.MANIFEST).read_text()).keys() == {"tokens.bin", "more.json"}


def test_a_build_that_fails_leaves_nothing(tmp_path):
    def fail(folder: Path) -> None:
        fill(folder)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("text-1", fail, cache=tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


@pytest.mark.refused
def test_a_full_disk_and_a_file_in_the_way_are_told(tmp_path):
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    one_line(lambda: cached("text-1", full, cache=tmp_path), "cannot write into", "No space left", "JOFORMER_CACHE")
    (tmp_path / "file").write_text("x")
    one_line(lambda: cached("text-1", fill, cache=tmp_path / "file"), "is a file")


def test_where_locks_do_not_reach_the_second_takes_what_the_first_built(tmp_path):
    def slow(folder: Path) -> None:
        fill(folder)
        other = tmp_path / "text-1"
        other.mkdir()
        fill(other)
        cache._seal(other)
        (folder / "tokens.bin").write_bytes(b"ours")

    made = cached("text-1", slow, cache=tmp_path)
    assert (made / "tokens.bin").read_bytes() == bytes(range(200))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["text-1"]
