"""Tables whose --out is an address: each cell is published by who runs it, and read from there."""

import json

import pytest

from joformer import _remote
from joformer._remote import Store, local
from joformer.experiments import ImageSource, results, running
from joformer.experiments.tables import Cell, plan
from joformer.models import ClassifierConfig
from joformer.training import Recipe
from joformer.training.mirror import Mirror


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Another machine, whose disk is empty."""
    monkeypatch.setattr(_remote, "STALE", 0.02)
    count = iter(range(100))

    def move():
        monkeypatch.setenv("JOFORMER_CACHE", str(tmp_path / f"machine-{next(count)}"))

    move()
    return move


WORDS = ("--data", "digits", "--seeds", "2", "--steps", "2", "--longer", "1", "--dim", "16", "--layers", "1",
         "--only", "compare/*")  # fmt: skip


def in_process(monkeypatch, ran):
    """Cells run one after another in this process, and on a machine of their own."""

    def engine(cells, out, *, jobs, execution):
        from joformer.experiments.engine import Done

        for cell in cells:
            ran.append(cell.name)
            yield Done(cell, running.run(cell, out, execution))

    monkeypatch.setattr("joformer.experiments.engine.run_local", engine)


def test_compare_keeps_everything_at_the_address(joformer, monkeypatch, machine, tmp_path):
    ran = []
    in_process(monkeypatch, ran)
    address = f"file://{tmp_path}/store"
    code, said, told = joformer("compare", *WORDS, "--out", address)
    assert code == 0, told
    store = Store(address)
    names = store.names()
    assert {"command.toml", "compare/table.json", "report.html", "report.md", "report.json"} <= {*names}
    assert len([name for name in names if name.endswith("/result.json")]) == len(ran) == 4
    assert str(tmp_path) not in json.loads(store.read("compare/both-fixed/seed-0/result.json"))["command"]

    machine()  # with an empty disk: nothing is run again, seeds are added
    code, again, told = joformer("compare", *WORDS, "--out", address)
    assert code == 0, told
    assert len(ran) == 4
    assert said.replace("machine-0", "machine-1") == again

    store.remove(["compare/both-fixed/seed-1/result.json"])
    machine()
    assert joformer("compare", *WORDS, "--out", address)[0] == 0
    assert ran[4:] == ["compare/both-fixed/seed-1"]  # its training had ended: only the result is made again
    assert "has ended" not in said

    machine()
    code, shown, _ = joformer("report", address, "--out", tmp_path / "page")
    assert code == 0
    assert shown.splitlines()[0] == again.splitlines()[0]
    code, shown, _ = joformer("report", f"{address}/report.json", "--out", f"{address}/pages")
    assert shown.splitlines()[-1] == f"{address}/pages/report.html"
    assert "pages/report.html" in store.names()


def small(address, seed=0):
    config = ClassifierConfig(shape=(8, 8), classes=10, dim=8)
    made = Cell("learned", "", seed, config, ImageSource("digits", cells=True), Recipe(steps=2, save_every=1))
    (cell,) = plan("mnist", "One vector", "accuracy", [made]).cells
    return Cell(**{**vars(cell), "address": address})


def test_a_cell_is_resumed_and_read_anywhere(machine, tmp_path, monkeypatch):
    cell = small("memory://cells")
    published = Mirror.publish
    monkeypatch.setattr(Mirror, "publish", lambda self, last=False: published(self) if not last else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        running.run(cell, tmp_path / "elsewhere")
    monkeypatch.setattr(Mirror, "publish", published)
    machine()
    result = running.run(cell, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert len((local(cell.address) / cell.name / "attempts.jsonl").read_text().splitlines()) == 2
    machine()
    assert running.run(cell, tmp_path) == json.loads(json.dumps(result))


def test_a_result_that_could_not_be_published_fails_the_cell_and_comes_later(machine, tmp_path, monkeypatch):
    cell = small("memory://later")
    put = Store.put

    def fails(self, name, file):
        if name == "result.json":
            raise _remote.Unreachable(f"cannot write {self.address}/{name}: no route")
        put(self, name, file)

    monkeypatch.setattr(Store, "put", fails)
    with pytest.raises(ValueError, match="cannot write memory://later/digits-mnist/learned/seed-0/result"):
        running.run(cell, tmp_path)
    monkeypatch.setattr(Store, "put", put)
    running.run(cell, tmp_path)
    assert f"{cell.name}/result.json" in Store("memory://later").names()


def test_runs_are_called_by_their_address(joformer, tmp_path, machine):
    words = ("train", "monoidal", "--data", "digits", "--dim", "8", "--steps", "2", "--log", "none")
    address = f"file://{tmp_path}/run"
    assert joformer(*words, "--out", address)[0] == 0
    machine()
    (table,) = results.gather([address])
    assert table.models == (address,)
    assert table.notes == (f"{address}: MonoidalClassifier on digits.",)
    code, said, told = joformer("evaluate", address, "--json")
    assert code == 0, told
    assert json.loads(said)[0]["accuracy"] >= 0
    assert joformer(*words, "--out", tmp_path / "next", "--from", address)[0] == 0
    assert "start" in json.loads((tmp_path / "next" / "config.json").read_text())["run"]
