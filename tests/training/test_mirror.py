"""Runs whose --out is an address: killed anywhere, on machines with empty disks, they end with the same bits."""

import json
import logging
import os
import random
import shutil
import time

import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import register_implementation
from runner import config_of, lm_task, logged, recipe_of

from joformer import _remote
from joformer._remote import OWNER, Store, Unreachable
from joformer.training import load_weights, open_run, train
from joformer.training.mirror import Mirror, fetch_run

RECIPE = {"steps": 6, "save_every": 2, "evaluate_every": 3, "log_every": 2, "accumulate": 1, "warmup": 1, "keep": 1}
CONFIG = {"layers": 1, "frames": "learned"}


class Killed(BaseException):
    """As SIGKILL: nothing that the process would still do reaches the store."""


class Flaky(MemoryFileSystem):
    """A store that stops answering, or takes its writer with it, at the n-th change; a list of all changes."""

    protocol = "flaky"
    store, pseudo_dirs = {}, [""]
    changes, at, how = [], 0, Killed

    def _change(self, what, path):
        if self.at and len(self.changes) + 1 >= self.at:
            raise self.how("the store does not answer")
        if OWNER not in path:
            self.changes.append((what, path.removeprefix("flaky://run/")))

    def pipe_file(self, path, value, **more):
        self._change("put", path)
        super().pipe_file(path, value, **more)

    def put_file(self, lpath, rpath, **more):
        self._change("put", rpath)
        super().put_file(lpath, rpath, **more)

    def rm_file(self, path):
        self._change("remove", path)
        super()._rm(path)


register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def flaky(monkeypatch, memory):
    monkeypatch.setattr(_remote, "STALE", 0.02)
    monkeypatch.setattr(_remote, "BEAT", 60.0)
    monkeypatch.setattr(_remote, "AT_ONCE", (*_remote.AT_ONCE, "flaky"))
    monkeypatch.setenv("JOFORMER_CACHE", str(memory / "first"))
    Flaky.store.clear()
    Flaky.changes.clear()
    Flaky.at, Flaky.how = 0, Killed
    torch.set_num_threads(1)
    return Flaky


@pytest.fixture
def machine(monkeypatch, memory):
    """Another machine, whose disk is empty."""
    count = iter(range(10_000))
    return lambda: monkeypatch.setenv("JOFORMER_CACHE", str(memory / f"machine-{next(count)}"))


def run(out, **changes):
    return train(config_of("lm", CONFIG), lm_task(), recipe_of(RECIPE | changes), out, loggers=())


@pytest.fixture(scope="module")
def whole(fast_folder, result_of):
    """An uninterrupted run in a folder."""
    torch.set_num_threads(1)
    with fast_folder() as folder:
        run(folder)
        return result_of(folder)


def copied(folder, store="flaky"):
    """What lies in the store, as a folder: names are the same."""
    for name, size in Store(f"{store}://run").names().items():
        Store(f"{store}://run").get(name, folder / name, size)
    return folder


def test_what_is_published_is_the_folder(flaky, whole, result_of, memory):
    assert run("flaky://run") == run("flaky://run")  # the second has nothing to do
    assert result_of(copied(memory / "copy")) == whole
    assert sorted(Store("flaky://run").names()) == [
        *(f"checkpoints/00000006/{name}" for name in
          ("averaged.safetensors", "config.json", "model.safetensors", "optimizer.safetensors", "state.json")),
        "config.json", "manifest.json", "metrics.jsonl", "model.safetensors", "speed.jsonl", "tokenizer.json",
    ]  # fmt: skip
    assert OWNER not in Store("flaky://run").listed()


def test_seals_are_written_last_and_removed_first(flaky):
    run("flaky://run")
    run("flaky://run", steps=8)  # extended: its manifest is no longer true
    puts = [name for what, name in flaky.changes if what == "put"]
    for step in ("00000002", "00000004", "00000006", "00000008"):
        inside = [name for name in puts if name.startswith(f"checkpoints/{step}")]
        assert inside[-1].endswith("state.json")
        removed = [(at, name) for at, (what, name) in enumerate(flaky.changes) if what == "remove" and step in name]
        if removed:  # when the next was whole, its seal before the rest
            assert removed[0][0] > flaky.changes.index(("put", f"checkpoints/{int(step) + 2:08d}/state.json"))
            assert removed[0][1].endswith("state.json")
    assert puts[-1] == "manifest.json"
    first = flaky.changes.index(("put", "manifest.json"))
    assert flaky.changes[first + 1] == ("remove", "manifest.json")


def test_killed_between_any_two_objects_it_ends_with_the_same_bits(flaky, machine, result_of, memory):
    run("flaky://run", steps=4)
    whole = result_of(copied(memory / "whole"))
    total = len(flaky.changes)
    assert total > 20
    for at in range(1, total + 1):
        flaky.store.clear()
        flaky.changes.clear()
        flaky.at = at
        machine()
        with pytest.raises(Killed):
            run("flaky://run", steps=4)
        flaky.at = 0
        machine()
        sealed = [name.split("/")[1] for what, name in flaky.changes if what == "put" and name.endswith("state.json")]
        if sealed:  # a reader finds the last one that was whole, or the final weights
            ended = ("put", "model.safetensors") in flaky.changes
            assert open_run("flaky://run").step == (None if ended else int(sealed[-1]))
        run("flaky://run", steps=4)
        folder = memory / f"copy-{at}"
        assert result_of(copied(folder)) == whole, f"killed at change {at}"
        shutil.rmtree(folder)


def test_a_store_that_fails_is_a_warning_and_in_the_end_an_error(flaky, machine, whole, result_of, memory):
    flaky.at, flaky.how, lines = 8, OSError, []
    with logged(lines), pytest.raises(ValueError, match="the same command publishes it") as error:
        run("flaky://run")
    assert "\n" not in str(error.value)
    assert "cannot write flaky://run" in str(error.value)
    assert [line for line in lines if "trying again at the next checkpoint" in line]
    folder = Mirror("flaky://run").folder
    assert result_of(folder) == whole  # all of it is on this machine
    flaky.at = 0
    run("flaky://run")
    assert result_of(copied(memory / "copy")) == whole
    machine()
    assert open_run("flaky://run").step is None


def test_while_it_is_made_up_for_there_is_a_whole_checkpoint(flaky, machine, monkeypatch, memory):
    run("flaky://run", keep=2)
    flaky.at, flaky.how = 2 + flaky.changes.index(("put", "checkpoints/00000004/state.json")), OSError
    flaky.store.clear()
    flaky.changes.clear()
    machine()
    here = os.environ["JOFORMER_CACHE"]
    with pytest.raises(ValueError, match="the same command publishes it"):
        run("flaky://run", keep=2)
    published, flaky.how, made_up = dict(flaky.store), Killed, 0
    while True:
        flaky.store.clear()
        flaky.store.update(published)
        flaky.changes.clear()
        made_up += 1
        flaky.at = made_up
        monkeypatch.setenv("JOFORMER_CACHE", here)
        try:
            run("flaky://run", keep=2)
            break
        except Killed:
            flaky.at = 0
            machine()
            assert open_run("flaky://run").step in (4, 6, None)
    assert made_up > 10


@pytest.mark.parametrize("name", ["model", "optimizer", "state"])
def test_a_damaged_object_is_noticed(flaky, machine, whole, result_of, memory, name):
    run("flaky://run", keep=2)
    damaged = f"checkpoints/00000006/{name}.{'json' if name == 'state' else 'safetensors'}"
    data = bytearray(Store("flaky://run").read(damaged, 1 << 30))
    data[len(data) // 2] ^= 1
    Store("flaky://run").write(damaged, bytes(data))
    Store("flaky://run").remove(["manifest.json", "model.safetensors"])
    machine()
    lines = []
    with logged(lines):
        assert open_run("flaky://run").step == 4
    assert "checksum is wrong" in lines[0]
    assert "flaky://run/checkpoints/00000006" in lines[0]
    run("flaky://run")
    assert result_of(copied(memory / "copy")) == whole


def test_damaged_weights_are_replaced_by_the_checkpoint(flaky, machine, caplog):
    run("flaky://run")
    Store("flaky://run").write("model.safetensors", b"nothing")
    machine()
    with caplog.at_level(logging.WARNING):
        assert open_run("flaky://run").step == 6


def test_a_copy_that_is_further_or_behind(flaky, machine, whole, result_of, monkeypatch, memory):
    run("flaky://run", steps=4)
    here = Mirror("flaky://run").folder
    kept = memory / "kept"
    shutil.copytree(here, kept)
    machine()
    run("flaky://run", steps=6)  # elsewhere it was extended
    shutil.copytree(kept, Mirror("flaky://run").folder, dirs_exist_ok=True)
    monkeypatch.setenv("JOFORMER_CACHE", str(memory / "first"))
    lines = []
    with logged(lines):
        run("flaky://run", steps=6)
    assert lines == [f"{here} is already finished: 6 steps"]
    assert (here / "manifest.json").read_bytes() == Store("flaky://run").read("manifest.json")
    flaky.store.clear()  # somebody removed what was published
    with logged(lines):
        run("flaky://run", steps=6)
    assert "is ahead of flaky://run" in lines[1]
    assert "manifest.json" in Store("flaky://run").names()


def test_a_copy_of_another_run_is_not_published_over_it(flaky, machine, monkeypatch, memory):
    """The user starts over: elsewhere, with another seed. The copy of the first run, which is further, stays a copy."""
    run("flaky://run", steps=6)
    first = Mirror("flaky://run").folder
    flaky.store.clear()
    machine()
    train(config_of("lm", CONFIG), lm_task(), recipe_of(RECIPE | {"steps": 4}), "flaky://run", seed=1, loggers=())
    published = dict(flaky.store)
    monkeypatch.setenv("JOFORMER_CACHE", str(memory / "first"))
    for seed in (0, 1):
        with pytest.raises(
            ValueError, match=r"flaky://run holds another run than \S+, its copy here, which is further"
        ):
            train(config_of("lm", CONFIG), lm_task(), recipe_of(RECIPE | {"steps": 6}), "flaky://run", seed=seed)
    assert dict(flaky.store) == published
    assert (first / "manifest.json").is_file()


def test_a_checkpoint_has_an_address_and_weights_can_start_another_run(flaky, machine):
    run("flaky://run", keep=2)
    machine()
    assert open_run("flaky://run/checkpoints/00000004").step == 4
    with pytest.raises(ValueError, match="no complete checkpoint 00000002 at flaky://run"):
        open_run("flaky://run/checkpoints/00000002")
    with pytest.raises(ValueError, match="there is no run at flaky://none"):
        open_run("flaky://none")
    model = open_run("flaky://run").model
    load_weights(model, "flaky://run")
    config, task, recipe = config_of("lm", CONFIG), lm_task(), recipe_of(RECIPE | {"steps": 2})
    train(config, task, recipe, "flaky://second", start="flaky://run", loggers=())
    assert json.loads(Store("flaky://second").read("config.json"))["run"]["start"]


def test_what_is_there_already_is_not_fetched_again(flaky, machine, monkeypatch):
    run("flaky://run")
    machine()
    fetch_run("flaky://run")
    got = []
    get = Store.get
    monkeypatch.setattr(Store, "get", lambda self, name, *rest: (got.append(name), get(self, name, *rest)))
    fetch_run("flaky://run")
    assert "model.safetensors" not in got
    assert not [name for name in got if "checkpoints" in name]


def test_nothing_of_others_is_removed(flaky):
    Store("flaky://run").write("notes/mine.txt", b"mine")
    Store("flaky://run").write("checkpoints/mine.txt", b"mine")
    run("flaky://run")
    assert {"notes/mine.txt", "checkpoints/mine.txt"} <= {*Store("flaky://run").names()}


def test_a_run_that_was_taken_over_stops(flaky, machine):
    mirror = Mirror("flaky://run")
    with mirror:
        mirror.folder.mkdir(parents=True, exist_ok=True)
        (mirror.folder / "config.json").write_text("{}")
        mirror.publish()
        machine()
        with Mirror("flaky://run"), pytest.raises(ValueError, match="was taken over by process"):
            mirror.publish()
        mirror.publish()  # the other has ended, and nothing of it is there


def test_killed_again_and_again_on_one_machine_after_another(server, memory, result_of):
    """With real processes, SIGKILL and a store that is a folder."""
    job, began = {"kind": "lm", "recipe": {"steps": 12}}, time.monotonic()
    assert server.run(memory / "whole", **job).code == 0
    whole = time.monotonic() - began
    address, draw, kills = f"file://{memory}/store", random.Random(0), 0
    for attempt in range(40):
        machine = str(memory / f"machine-{attempt}")
        pid = server.start(memory / f"run-{attempt}", address=address, machine=machine, **job)
        ended = server.kill(pid, whole * draw.uniform(0.1, 0.3 + 0.1 * attempt)) if attempt < 12 else server.wait(pid)
        kills += ended.code == -9
        if ended.code == 0:
            break
    assert ended.code == 0
    assert kills > 2
    assert result_of(memory / "store") == result_of(memory / "whole")


def test_unreachable_is_a_mistake_in_one_line(flaky):
    flaky.at, flaky.how = 1, OSError
    with pytest.raises(Unreachable, match=r"cannot write flaky://run/\.owner: the store does not answer"):
        run("flaky://run")
