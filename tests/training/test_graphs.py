"""Knowledge graphs: every form of triples is the same graph, faults are named, and a run resumes to the same bits."""

import csv
import gzip
import json

import pytest
import torch

from joformer.models import RelationsConfig
from joformer.training import Processes, Recipe, RelationsTask, load_graph, load_labelled, open_run, resolve, train

FACTS = [(f"p{a}", kind, f"p{(a + step) % 30}") for a in range(30) for kind, step in (("next", 1), ("far", 11))]


def lines(facts):
    return "".join("\t".join(fact) + "\n" for fact in facts)


def written(folder, form):
    """FACTS as train, valid and test in this form."""
    folder.mkdir()
    for split, part in (("train", FACTS[:40]), ("valid", FACTS[40:50]), ("test", FACTS[50:])):
        if form == "parquet":
            import pyarrow
            import pyarrow.parquet

            columns = dict(zip(("subject", "predicate", "object"), map(list, zip(*part))))
            pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{split}.parquet")
        elif form == "jsonl":
            rows = [json.dumps(dict(zip(("head", "relation", "tail"), fact))) + "\n" for fact in part]
            (folder / f"{split}.jsonl").write_text("".join(rows))
        elif form in ("csv", "tsv with a header"):
            with open(folder / f"{split}.{form[:3]}", "w", newline="") as file:
                writer = csv.writer(file, delimiter="," if form == "csv" else "\t")
                writer.writerows([("Head", "Relation", "Tail"), *part])
        elif form == "txt.gz":
            (folder / f"{split}.txt.gz").write_bytes(gzip.compress(lines(part).encode()))
        else:
            (folder / f"{split}.{form}").write_text(lines(part))
    return folder


@pytest.mark.parametrize("form", ["txt", "tsv", "txt.gz", "csv", "tsv with a header", "jsonl", "parquet"])
def test_every_form_is_the_same_graph(form, tmp_path):
    place = written(tmp_path / "graph", form)
    assert resolve(place).kind == "graph"
    graph = load_graph(place)
    plain = load_graph(written(tmp_path / "plain", "txt"))
    assert graph.fingerprint == plain.fingerprint
    named = [(graph.entities[h], graph.relations[r], graph.entities[t]) for h, r, t in graph.train.tolist()]
    assert named == FACTS[:40]
    assert [len(part) for part in (graph.train, graph.valid, graph.test, graph.known)] == [40, 10, 10, 60]


@pytest.mark.parametrize("suffix", [".txt", ".tsv", ""])
def test_a_header_is_no_triple(suffix, tmp_path):
    rows = "".join(f"e{n}\tknows\te{n + 1}\n" for n in range(40))
    (tmp_path / f"a{suffix}").write_text(f"head\trelation\ttail\n{rows}")
    assert load_graph(tmp_path / f"a{suffix}").relations == ("knows",)


def test_text_and_tables_of_other_things_are_no_graph(tmp_path):
    (tmp_path / "notes.txt").write_text("a line\tof notes\n" * 30)
    assert resolve(tmp_path / "notes.txt").kind == "text"
    (tmp_path / "some.tsv").write_text("text\tlabel\tsplit\n" + "a\tb\ttrain\n" * 30)
    assert resolve(tmp_path / "some.tsv").kind == "text"
    (tmp_path / "one.txt").write_text(lines(FACTS[:30]) + "and then\tthere was prose\n")
    assert resolve(tmp_path / "one.txt").kind == "text"


def test_one_file_is_cut_and_says_so(tmp_path, caplog):
    (tmp_path / "facts.tsv").write_text(lines(FACTS + FACTS[:3]))
    caplog.set_level("INFO", logger="joformer")
    graph = load_graph(tmp_path / "facts.tsv")
    assert [len(part) for part in (graph.train, graph.valid, graph.test)] == [54, 3, 3]
    assert len(graph.known.unique(dim=0)) == 60
    assert "3 triples occur twice in a split and count once" in caplog.text
    assert "no valid and no test split: cut from train, one triple in 20 each" in caplog.text


def test_leaks_and_strangers_are_said(tmp_path, caplog):
    (tmp_path / "train.txt").write_text(lines(FACTS))
    (tmp_path / "valid.txt").write_text(lines(FACTS[:2]))
    (tmp_path / "test.txt").write_text("nobody\tnext\tp1\n")
    load_graph(tmp_path)
    assert "2 triples of valid are also in train" in caplog.text
    assert "1 entities are in no training triple" in caplog.text


@pytest.mark.refused
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(FACTS[:60]) + "p1\tnext\n", r"facts.txt, line 61 has 2 names, not three: write head, relation"),
        (lines(FACTS[:60]) + "p1\t\tp2\n", r"facts.txt, line 61 has 2 names, not three"),
        (lines(FACTS[:5]), r"facts.txt has too few triples for (valid|test): give 20 or more"),
    ],
)
def test_what_is_no_triple_is_named(content, message, tmp_path):
    (tmp_path / "facts.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        load_graph(tmp_path / "facts.txt")


@pytest.mark.refused
def test_other_data_and_other_loaders(tmp_path, joformer):
    (tmp_path / "notes.txt").write_text("prose\n" * 30)
    with pytest.raises(ValueError, match=r"notes.txt holds text, not graph: give other data"):
        load_graph(resolve(tmp_path / "notes.txt"))
    with pytest.raises(ValueError, match=r"holds a graph: give images or sounds, or train relations"):
        load_labelled(written(tmp_path / "graph", "txt"))
    (tmp_path / "graph" / "train.txt").write_text(lines(FACTS[:40]) * 2 + "p1\n")
    code, out, _ = joformer("check", tmp_path / "graph")
    assert code == 2
    assert "train.txt, line 81 has 1 names, not three" in out


def small(folder):
    return load_graph(written(folder, "txt")), RelationsConfig(30, 2, 8)


def test_a_batch_is_the_same_in_any_number_of_parts(tmp_path):
    graph, _ = small(tmp_path / "graph")
    task = RelationsTask(graph, batch=12, negatives=3)
    whole = task.batch(5, 7, 0, 1)
    parts = [task.batch(5, 7, part, 3) for part in range(3)]
    assert torch.equal(torch.cat([part[0] for part in parts]), whole[0])
    assert torch.equal(torch.cat([part[1] for part in parts], 1), whole[1])
    assert not (whole[1] == whole[0].T[[2, 0], :, None]).any()


def test_a_run_that_breaks_off_ends_with_the_same_bits_and_learns(tmp_path, joformer):
    graph, config = small(tmp_path / "graph")
    recipe = Recipe(steps=150, lr=0.1, end=0.0, weight_decay=0.0, clip=None, save_every=40, evaluate_every=50)

    class Breaking(RelationsTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 97:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    make, notes = {"batch": 16, "negatives": 8}, {"data": str(tmp_path / "graph")}
    found = train(config, RelationsTask(graph, **make), recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        train(config, Breaking(graph, **make), recipe, tmp_path / "broken")
    assert train(config, RelationsTask(graph, **make), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert found["mrr"] > 30, found  # 13 by chance
    test = RelationsTask(graph).evaluate(open_run(tmp_path / "whole").model, Processes(), split="test")
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--split", "test", "--json")
    assert code == 0
    assert json.loads(out)[0] == {"split": "test", **test}
    named = json.loads((tmp_path / "whole" / "graph.json").read_text())
    assert named["relations"] == ["far", "next"]


@pytest.mark.refused
def test_a_model_of_another_graph(tmp_path, joformer):
    graph, _ = small(tmp_path / "graph")
    with pytest.raises(ValueError, match=r"the graph has 30 entities, the model has 29: set entities=30"):
        train(RelationsConfig(29, 2, 8), RelationsTask(graph), Recipe(steps=1), tmp_path / "run")
    train(RelationsConfig(30, 2, 8), RelationsTask(graph), Recipe(steps=1), tmp_path / "run")
    (tmp_path / "other.txt").write_text(lines((a, r, "q" + t) for a, r, t in FACTS))
    code, _, said = joformer("evaluate", tmp_path / "run", "--data", tmp_path / "other.txt")
    assert code == 2
    assert "is not the graph that the model was trained on" in said


def test_from_the_command_line(tmp_path, joformer):
    graph = written(tmp_path / "graph", "txt")
    code, out, _ = joformer(
        "train", "relations", "--data", graph, "--dim", 8, "--block", 4, "--steps", 2, "--batch", 8, "--out",
        tmp_path / "run", "--log", "none",
    )  # fmt: skip
    assert code == 0
    assert "mrr" in out
    assert open_run(tmp_path / "run").model.block == 4
    code, out, _ = joformer(
        "compare", "--data", graph, "--steps", 3, "--seeds", 2, "--jobs", 1, "--out", tmp_path / "c"
    )
    assert code == 0
    assert "rotations in blocks of 4" in out
    code, out, _ = joformer("reproduce", "relations", "--dry-run")
    assert code == 0
    assert "family-relations/blocks-of-4  " in out
