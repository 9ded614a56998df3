"""Folders into which a stranger may write: nothing is written through a link, and no half is taken for a whole."""

import json
import os
from pathlib import Path

import pytest
import torch

from joformer import _io as files
from joformer._io import Lock, open_log, write_json, write_whole
from joformer.training import checkpoints
from joformer.training.data.cache import MANIFEST, cached, is_whole
from joformer.training.runs import Log

pytestmark = pytest.mark.refused


def one_line(call, *wanted):
    with pytest.raises(ValueError, match=r"^.*$") as caught:
        call()
    for part in wanted:
        assert part in str(caught.value)


def test_temporary_names_cannot_be_known_before(tmp_path, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(Path(a).name), replace(a, b)))
    for _ in range(2):
        write_json(tmp_path / "a.json", {})
    assert len(set(seen)) == 2
    # One that is there all the same is not written to.
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    monkeypatch.setattr(files, "random_name", lambda name: ".planted")
    (tmp_path / ".planted").symlink_to(target)
    one_line(lambda: write_whole(tmp_path / "a.json", b"theirs"), "a.json")
    assert target.read_bytes() == b"mine"


@pytest.mark.parametrize("at", ["file", "nowhere"])
def test_logs_are_not_written_through_links(tmp_path, at):
    target = tmp_path / "target"
    if at == "file":
        target.write_bytes(b"mine\n")
    before = target.read_bytes() if target.exists() else None
    out = tmp_path / "out"
    out.mkdir()
    log = Log(out / "metrics.jsonl")
    (out / "metrics.jsonl").symlink_to(target)
    one_line(lambda: log.write({"step": 1}), str(log.path), "symbolic link")
    one_line(lambda: log.restore(None), str(log.path), "symbolic link")
    (out / ".lock").symlink_to(target)
    one_line(lambda: Lock(out).__enter__(), str(out), "symbolic link")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / ".text-12.lock").symlink_to(target)
    one_line(lambda: cached("text-12", lambda folder: None, cache=cache), str(cache), "symbolic link")
    with pytest.raises(OSError, match="symbolic link"):
        open_log(out / "metrics.jsonl")
    assert (target.read_bytes() if target.exists() else None) == before


def test_workers_do_not_write_through_links(tmp_path):
    from joformer.experiments.team import LOG, write_to

    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / LOG).symlink_to(target)
    pid = os.fork()
    if not pid:
        write_to(tmp_path / LOG)
        os.write(1, b"x")
        os._exit(0)
    os.waitpid(pid, 0)
    assert target.read_bytes() == b"mine"


def test_a_planted_partial_checkpoint_is_not_written_into(tmp_path):
    """Nor does it stop the run: neither a link nor a folder that others may write to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in (".partial-00000001", ".partial-00000002", ".partial-old-00000001"):
        (folder / name).symlink_to(elsewhere)
    for step in (1, 2):
        checkpoints.save(folder, step, {"model": {"w": torch.ones(2)}}, {}, {}, keep=1)
    assert checkpoints.latest(folder).step == 2
    assert list(elsewhere.iterdir()) == []


def test_an_empty_or_partial_manifest_is_not_whole(tmp_path):
    def build(folder):
        (folder / "a.bin").write_bytes(b"abc")
        (folder / "b.bin").write_bytes(b"def")

    made = cached("text-12", build, cache=tmp_path)
    whole = (made / MANIFEST).read_text()
    assert is_whole(made)
    listed = json.loads(whole)
    for wrong in ("{}", "[]", "null", "", json.dumps({"a.bin": listed["a.bin"]}), "[" * 100_000):
        (made / MANIFEST).write_text(wrong)
        assert not is_whole(made), wrong
        assert is_whole(cached("text-12", build, cache=tmp_path))
    (made / "planted.bin").write_bytes(b"")
    assert not is_whole(made)
    (made / MANIFEST).write_text(json.dumps({**listed, "../text-12/a.bin": listed["a.bin"]}))
    (made / "planted.bin").unlink()
    assert not is_whole(made)


def test_the_mode_of_what_is_written_is_the_users(tmp_path):
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "a.json", b"{}")
        open_log(tmp_path / "a.log").close()
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a.json", "a.log")] == [0o640, 0o640]
