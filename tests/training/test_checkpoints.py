"""Checkpoints, logs and locks by themselves: any byte that is not what was written is seen."""

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runner import logged

from joformer._io import Lock
from joformer.training import checkpoints, runs
from joformer.training.runs import Log, circumstances, require_exact, require_same

STATE = {"recent": [0.1, 1e-30, 2 / 3], "settings": {"lr": 5e-05, "name": "Röhre"}, "metrics": {"bytes": 0}}


def undamaged(folder):
    """The newest checkpoint, none of those before it skipped."""
    lines: list[str] = []
    with logged(lines):
        newest = checkpoints.latest(folder)
    assert not lines
    return newest


def tensors(seed: int = 0):
    made = torch.Generator().manual_seed(seed)
    model = {"w": torch.randn(3, 2, generator=made), "frequencies": torch.randn(4, dtype=torch.float64, generator=made)}
    moments = {"exp_avg/w": torch.randn(3, 2, generator=made), "step/w": torch.tensor(7.0)}
    return {"model": model, "optimizer": moments, "averaged": {}}


def save(folder: Path, step: int, **options):
    return checkpoints.save(folder, step, tensors(step), STATE, {"model": "JoFormerLM", "config": {}}, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(tmp_path_factory.mktemp("checkpoints"), 20)


def test_what_is_read_is_what_was_saved(tmp_path):
    place = save(tmp_path, 20)
    assert names(place) == ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    read = undamaged(tmp_path)
    assert read.step == 20
    assert {key: read.state[key] for key in STATE} == STATE
    for name, wanted in tensors(20).items():
        found = read.tensors(name)
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert found[key].dtype == value.dtype
            assert torch.equal(found[key], value)


def test_tensors_that_are_views_are_saved_by_value(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    checkpoints.save(tmp_path, 1, {"model": {"t": base.t()}}, {}, {})
    assert torch.equal(undamaged(tmp_path).tensors("model")["t"], base.t())


@pytest.mark.parametrize("keep", range(1, 8))
def test_the_last_few_are_kept(tmp_path, keep):
    for step in range(1, 10):
        save(tmp_path, step, keep=keep)
        assert names(tmp_path) == [f"{n:08d}" for n in range(max(1, step - keep + 1), step + 1)]


def test_leftovers_of_a_kill_are_swept_away(tmp_path):
    for left in (".partial-00000020", ".partial-00000010", ".partial-old-00000005"):
        (tmp_path / left).mkdir()
        (tmp_path / left / "model.safetensors").write_bytes(b"half")
    assert undamaged(tmp_path) is None
    save(tmp_path, 20)
    assert names(tmp_path) == ["00000020"]
    (tmp_path / ".partial-00000030").mkdir()
    checkpoints.sweep(tmp_path)
    assert names(tmp_path) == ["00000020"]


def test_what_is_not_ours_stays(tmp_path):
    """A folder that only has such a name is no checkpoint, and nothing in it is lost."""
    (tmp_path / "20240101").mkdir()
    (tmp_path / "20240101" / "precious").write_text("mine")
    (tmp_path / "7").mkdir()
    for step in (10, 20):
        save(tmp_path, step, keep=1)
    assert undamaged(tmp_path).step == 20
    assert names(tmp_path) == ["00000020", "20240101", "7"]
    assert (tmp_path / "20240101" / "precious").read_text() == "mine"


def test_a_damaged_one_is_replaced_and_newer_ones_go(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    for step in (20, 30):
        (tmp_path / f"{step:08d}" / "state.json").write_text("{}")
    heard = []
    with logged(heard):
        assert checkpoints.latest(tmp_path).step == 10
    assert [line.count("\n") for line in heard] == [0, 0]
    assert "00000030" in heard[0]
    assert "trying the previous one, 00000020" in heard[0]
    assert "trying the previous one, 00000010" in heard[1]
    save(tmp_path, 20)
    assert names(tmp_path) == ["00000010", "00000020"]
    assert undamaged(tmp_path).step == 20


@settings(max_examples=40)
@given(data=st.data())
def test_any_byte_that_changes_is_seen(saved, tmp_path_factory, data):
    file = data.draw(st.sampled_from(names(saved)))
    content = bytearray((saved / file).read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    _refused(saved, tmp_path_factory, file, bytes(content))


@settings(max_examples=30)
@given(data=st.data())
def test_any_cut_is_seen(saved, tmp_path_factory, data):
    file = data.draw(st.sampled_from(names(saved)))
    content = (saved / file).read_bytes()
    _refused(saved, tmp_path_factory, file, content[: data.draw(st.integers(0, len(content) - 1))])


@settings(max_examples=10)
@given(more=st.binary(min_size=1, max_size=9), file=st.integers(0, 3))
def test_any_addition_is_seen(saved, tmp_path_factory, more, file):
    name = names(saved)[file]
    _refused(saved, tmp_path_factory, name, (saved / name).read_bytes() + more)


@pytest.mark.parametrize("at", range(4))
def test_every_byte_of_a_file_counts(saved, tmp_path, at):
    """Not a sample of them: each."""
    place, file = shutil.copytree(saved, tmp_path / saved.name), names(saved)[at]
    content = (place / file).read_bytes()
    for byte in range(len(content)):
        (place / file).write_bytes(content[:byte] + bytes([content[byte] ^ (1 << byte % 8)]) + content[byte + 1 :])
        with pytest.raises(ValueError, match=r"damaged|altered|missing"):
            checkpoints.read(place)


def _refused(saved: Path, factory, file: str, content: bytes) -> None:
    folder = factory.mktemp("altered")
    place = shutil.copytree(saved, folder / saved.name)
    assert checkpoints.read(place).step == 20
    (place / file).write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|altered") as refusal:
        checkpoints.read(place)
    assert "\n" not in str(refusal.value)
    heard = []
    with logged(heard):
        assert checkpoints.latest(folder) is None
    assert len(heard) == 1


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{}", b"3", b'{"sha256": 1, "files": 3, "step": 1}', b"[" * 9999]
)
def test_any_other_json_is_no_state(saved, tmp_path, content):
    place = shutil.copytree(saved, tmp_path / saved.name)
    (place / "state.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"state\.json is damaged"):
        checkpoints.read(place)


def test_whitespace_and_repeated_keys_are_no_state(saved, tmp_path):
    place = shutil.copytree(saved, tmp_path / saved.name)
    text = (place / "state.json").read_text()
    for other in (text.replace("\n", " "), text + " ", text.replace("{", '{"step": 1,', 1)):
        (place / "state.json").write_text(other)
        with pytest.raises(ValueError, match="altered"):
            checkpoints.read(place)


def test_a_checkpoint_under_another_name_is_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="altered"):
        checkpoints.read(shutil.copytree(saved, tmp_path / "00000021"))


class _Runs:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["state", "model", "folder", "zip"])
def test_a_pickle_is_never_read(saved, tmp_path, how):
    place, marker = shutil.copytree(saved, tmp_path / saved.name), tmp_path / "it ran"
    pickled = pickle.dumps(_Runs(marker))
    if how == "folder":
        shutil.rmtree(place)
        place.write_bytes(pickled)
    elif how == "zip":
        torch.save(_Runs(marker), place / "model.safetensors")
    else:
        (place / {"state": "state.json", "model": "model.safetensors"}[how]).write_bytes(pickled)
    heard = []
    with logged(heard):
        assert checkpoints.latest(tmp_path) is None
    assert "a pickle, which can run code when loaded, is never read" in heard[0]
    assert not marker.exists()
    save(tmp_path, 20)
    assert undamaged(tmp_path).step == 20


def test_a_failed_save_leaves_the_others(tmp_path, monkeypatch):
    save(tmp_path, 10)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("fsync", "rename", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, _full)
            with pytest.raises(ValueError, match="No space left on device") as refusal:
                save(tmp_path, 20)
        assert "\n" not in str(refusal.value)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert names(tmp_path) == ["00000010"]


def _full(*_, **__):
    raise OSError(28, "No space left on device")


def test_room_is_asked_for_first(tmp_path):
    checkpoints.require_room(tmp_path / "new", 1)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(ValueError, match=r"MB free and a checkpoint takes .* MB, two at a time: make room"):
        checkpoints.require_room(tmp_path, free)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: give a directory"):
        checkpoints.require_room(tmp_path / "file", 1)
    with pytest.raises(ValueError, match="cannot write into /proc"):
        checkpoints.require_room(Path("/proc/joformer"), 1)


# -- logs --------------------------------------------------------------------------------------------------------------


@given(
    lines=st.lists(st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=2), max_size=6),
    cut=st.integers(0, 6),
)
@settings(max_examples=30)
def test_a_log_goes_back_to_its_place(tmp_path_factory, lines, cut):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    log = Log(path)
    log.restore(None)
    place, kept = log.place(), b""
    for number, line in enumerate(lines):
        log.write(line)
        if number < cut:
            place, kept = log.place(), path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"step": 1')  # a line cut short by a kill
    again = Log(path)
    again.restore(json.loads(json.dumps(place)))
    assert path.read_bytes() == kept
    for line in lines[cut:]:
        again.write(line)
    assert again.place() == log.place()
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines
    again.restore(None)
    assert path.read_bytes() == b""


def test_a_log_that_was_altered_is_refused(tmp_path):
    log = Log(tmp_path / "metrics.jsonl")
    log.restore(None)
    log.write({"step": 1})
    log.write({"step": 2})
    place, content = log.place(), log.path.read_bytes()
    for other in (content.replace(b"1", b"3"), content[:-1], b"", None):
        log.path.unlink() if other is None else log.path.write_bytes(other)
        with pytest.raises(ValueError, match="has changed since the checkpoint was saved") as refusal:
            Log(log.path).restore(place)
        assert "\n" not in str(refusal.value)
        assert (log.path.read_bytes() if log.path.exists() else None) == other  # left as it is


def test_a_log_on_a_full_disk_says_so(tmp_path, monkeypatch):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    monkeypatch.setattr(runs, "open_log", lambda path: open("/dev/full", "ab"))  # noqa: SIM115
    with pytest.raises(ValueError, match=r"cannot write .*metrics\.jsonl: No space left on device"):
        Log(tmp_path / "metrics.jsonl").write({"step": 1})


# -- who may continue --------------------------------------------------------------------------------------------------


def test_one_lock_a_folder(tmp_path):
    with Lock(tmp_path / "run"):
        with pytest.raises(ValueError, match="is in use by another run") as refusal, Lock(tmp_path / "run"):
            pass
        assert "\n" not in str(refusal.value)
        with Lock(tmp_path / "other"):
            pass
    with Lock(tmp_path / "run"):
        pass


def test_the_lock_of_the_dead_is_free(tmp_path):
    pid = os.fork()
    if pid == 0:
        Lock(tmp_path).__enter__()
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    with Lock(tmp_path):
        pass


SETTINGS = {"seed": 0, "recipe": {"lr": 0.1, "betas": [0.9, 0.95], "clip": None}, "task": {"text": "a"}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("seed",), 1),
        (("recipe", "lr"), 0.2),
        (("recipe", "lr"), float("inf")),
        (("recipe", "betas"), [0.9, 0.99]),
        (("recipe", "clip"), 1.0),
        (("recipe", "more"), 1),
        (("task", "text"), "b"),
        (("task",), None),
    ],
)
def test_other_settings_are_named(path, value):
    other = json.loads(json.dumps(SETTINGS))
    inner = other
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    for was, now in ((SETTINGS, other), (other, SETTINGS)):
        said = "on other data: give the same" if path == ("task", "text") else f"with {'.'.join(path)} = "
        with pytest.raises(ValueError, match=f"holds a run {said}") as refusal:
            require_same(was, now, Path("run"))
        assert "\n" not in str(refusal.value)
    require_same(other, json.loads(json.dumps(other)), Path("run"))


def test_other_circumstances_are_named():
    here = circumstances(torch.device("cpu"), 1, False)
    require_exact(json.loads(json.dumps(here)), here, Path("run"))
    for key in here:
        with pytest.raises(ValueError, match=rf"was made with {key} = other, but here it is .*--drift"):
            require_exact(here | {key: "other"}, here, Path("run"))
