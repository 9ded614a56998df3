"""Addresses: what is one, what lies there, who owns it, and data that is fetched from it."""

import json
import time
from pathlib import Path

import pytest

from joformer import _remote
from joformer._remote import OWNER, Owner, Store, Unreachable, fetch, is_address, local
from joformer.training import load_text, resolve
from joformer.training.mirror import pull


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    made = Store("memory://store" if request.param == "memory" else f"file://{tmp_path}/store")
    yield made
    made.remove([*made.listed()])


def test_a_store_holds_what_was_put(store, tmp_path):
    assert store.names() == {}
    assert store.read("a/b.txt") is None
    store.write("a/b.txt", b"one")
    (tmp_path / "c.bin").write_bytes(b"three")
    store.put("c.bin", tmp_path / "c.bin")
    store.write("a/b.txt", b"four")
    assert store.names() == {"a/b.txt": 4, "c.bin": 5}
    assert store.read("a/b.txt") == b"four"
    assert store.has("a")
    assert not store.has("d")
    store.get("c.bin", tmp_path / "copy" / "c.bin", 5)
    assert (tmp_path / "copy" / "c.bin").read_bytes() == b"three"
    for size in (4, 6):  # it was listed with another size
        with pytest.raises(Unreachable, match="has changed while it was read"):
            store.get("c.bin", tmp_path / "copy" / "d.bin", size)
    assert not (tmp_path / "copy" / "d.bin").exists()
    store.remove(["c.bin", "c.bin", "never.bin"])
    assert store.names() == {"a/b.txt": 4}
    with pytest.raises(ValueError, match="larger than the 2 bytes"):
        store.read("a/b.txt", 2)


def test_a_file_that_is_being_written_has_no_name_yet(tmp_path, monkeypatch):
    store = Store(f"file://{tmp_path}/store")
    store.write("a.txt", b"before")

    def torn(path, value):
        Path(path).write_bytes(value[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr(store._fs, "pipe_file", torn)
    with pytest.raises(KeyboardInterrupt):
        store.write("a.txt", b"after this")
    assert store.names() == {"a.txt": 6}
    assert store.read("a.txt") == b"before"


def test_a_folder_at_home_is_there(monkeypatch, tmp_path):
    """A shell leaves the ~ of --out=~/runs as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local("~/runs") == tmp_path / "runs"


def test_the_working_copy_of_what_is_below_is_below(cache):
    assert local("s3://bucket/runs/a") == cache / "stored" / "s3" / "bucket" / "runs" / "a"
    assert local("s3://bucket/runs/") / "a" == local("s3://bucket//runs/a")
    assert local("gs://bucket/a*b:c").name == "a%2Ab%3Ac"
    assert local("runs/a") == Path("runs/a")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://", "s3:// names no place: give an address such as s3://BUCKET/NAME"),
        ("s3://bucket/../other", "names no place"),
        ("s3://key:secret@bucket/run", "an address must not hold a password"),
        ("simplecache::s3://bucket/run", "is a chain of addresses"),
        ("hf://datasets/owner/name", "data of the hub is given as hub:OWNER/NAME"),
        (Path("s3://bucket/run"), "s3:/bucket/run was an address before it became a Path: give it as a str"),
        ("nosuch://bucket/run", "fsspec knows no nosuch://"),
        ("s3://bucket/run", "s3:// needs s3fs, which is not installed: pip install s3fs"),
        ("gs://bucket/run", "gs:// needs gcsfs, which is not installed: pip install gcsfs"),
    ],
)
def test_a_bad_address_is_one_line(address, said):
    with pytest.raises(ValueError, match=said) as error:
        is_address(address) and Store(address)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.refused
@pytest.mark.parametrize(
    "words",
    [
        ["check", "memory://nothing/there"],
        ["train", "lm", "--out", "nosuch://a/b"],
        ["train", "lm", "--data", "memory://nothing/there", "--out", "memory://out/run"],
        ["evaluate", "memory://nothing/there"],
        ["generate", "nosuch://a/b"],
        ["report", "memory://nothing/there"],
        ["reproduce", "mnist", "--data", "memory://nothing/there", "--out", "memory://out/run"],
        ["compare", "--data", "digits", "--seeds", "1", "--steps", "1", "--out", "nosuch://a/b"],
    ],
)
def test_a_command_says_so_in_one_line(joformer, words):
    code, said, told = joformer(*words)
    assert code == 2
    assert (said + told).count("there is no") + (said + told).count("knows no") + told.count("holds no") == 1
    assert "Traceback" not in told


# -- owners -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Another machine."""
    return lambda name: monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / name))


def test_an_owner_that_lives_is_left_alone(monkeypatch, machine):
    monkeypatch.setattr(_remote, "BEAT", 0.02)
    store = Store("memory://owned")
    with Owner(store) as first:
        machine("second")
        with pytest.raises(ValueError, match=r"memory://owned is in use by process \d+ on .*: wait for it"):
            Owner(store).__enter__()
        first.require()
    assert OWNER not in store.listed()
    with Owner(store) as second:
        second.require()


def test_an_owner_that_died_is_followed(monkeypatch, machine):
    monkeypatch.setattr(_remote, "STALE", 0.05)
    store = Store("memory://followed")
    first = Owner(store).__enter__()  # which never shows a sign of life again
    machine("second")
    began = time.monotonic()
    with Owner(store) as second:
        assert time.monotonic() - began >= 0.05
        second.require()
        with pytest.raises(ValueError, match="was taken over by process"):
            first.require()
        first.__exit__()  # and does not take the other's record with it
        second.require()
        assert OWNER in store.listed()


def test_on_the_same_machine_the_lock_decides(store):
    Owner(store).__enter__()  # killed
    began = time.monotonic()
    with Owner(store) as second:
        second.require()
    assert time.monotonic() - began < 10  # not the minute that another machine would wait


def test_a_record_that_makes_no_sense_is_none(store):
    store.write(OWNER, b"\x80nonsense")
    with Owner(store) as owner:
        owner.require()
        assert json.loads(store.read(OWNER))["process"]


# -- data -------------------------------------------------------------------------------------------------------------


def test_data_is_fetched_once_for_every_version(store, monkeypatch):
    for name, text in (("train/a.txt", "one "), ("valid/b.txt", "two "), (".hidden", "three"), ("train/.x/c", "four")):
        store.write(name, (text * 400).encode())
    got, get = [], Store.get
    monkeypatch.setattr(Store, "get", lambda self, name, *rest: (got.append(name), get(self, name, *rest)))
    folder = fetch(store.address)
    assert folder.name == "store"
    assert (folder / "train" / "a.txt").read_text() == "one " * 400
    assert sorted(got) == ["train/a.txt", "valid/b.txt"]
    assert fetch(store.address) == folder
    assert len(got) == 2
    (folder / "valid" / "b.txt").unlink()
    assert fetch(store.address) == folder
    assert got[2:] == ["valid/b.txt"]
    time.sleep(0.01)
    store.write("train/a.txt", b"new " * 400)
    other = fetch(store.address)
    assert other != folder
    assert (other / "train" / "a.txt").read_text() == "new " * 400


def test_data_by_address_is_the_data(store, tmp_path):
    text = "the quick brown fox jumps over the lazy dog\n" * 200
    store.write("notes.txt", text.encode())
    (tmp_path / "notes.txt").write_text(text)
    source = resolve(f"{store.address}/notes.txt")
    assert (source.spec, source.name, source.kind) == (f"{store.address}/notes.txt", "notes.txt", "text")
    assert load_text(source).fingerprint == load_text(tmp_path / "notes.txt").fingerprint


@pytest.mark.parametrize("name", ["../a.txt", "a/../../b.txt", "a\\b.txt", "a//b.txt"])
def test_names_that_lead_elsewhere_are_not_followed(monkeypatch, name, tmp_path, cache):
    store = Store("memory://names")
    store.write("good.txt", b"good")
    found = store._fs.find(store._root, detail=True)
    monkeypatch.setattr(type(store._fs), "find", lambda *_, **__: {**found, f"{store._root}/{name}": {"size": 4}})
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        fetch("memory://names")
    with pytest.raises(ValueError, match="cannot be the name of a file"):
        pull(store, tmp_path / "copy", lambda _: True)


def test_what_is_fetched_is_bounded(monkeypatch):
    store = Store("memory://large")
    store.write("a.txt", b"text")
    store.write("b.txt", b"text")
    monkeypatch.setattr(_remote, "FILES", 1)
    with pytest.raises(ValueError, match="holds 2 files, more than the 1 that are allowed"):
        fetch("memory://large")
    monkeypatch.setattr(_remote, "FILES", 2)
    monkeypatch.setattr(_remote.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 7}))
    with pytest.raises(ValueError, match="make room"):
        fetch("memory://large")
