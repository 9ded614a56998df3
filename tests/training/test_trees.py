"""Trees: paths by hand, one wrong use and its answer, files that are none, and a run resumes to the same bits."""

import ast
import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import TreeFrames, algebra, positions, rotate
from joformer.models import TreeConfig
from joformer.models._losses import IGNORED
from joformer.testing import assert_close
from joformer.training import Processes, Recipe, TreeTask, load_labelled, load_trees, open_run, resolve, train
from joformer.training.data.syntax import json_nodes, pieces, python_nodes, variables
from joformer.training.data.trees import BRANCHES, DEPTH, LEAST, Forest, Rows
from joformer.training.tasks.trees import hide, misuse

TWICE = b"def twice(x):\n    return x + x\n"


def function(number):
    """A function with three variables, like no other."""
    return (
        f"def f{number}(items, limit):\n    total = {number}\n    for item in items:\n"
        f"        if item.g{number} < limit:\n            total = total + item * limit\n"
        f"    return h{number}(total, items)\n\n"
    )


def written(folder, files=20, each=3):
    folder.mkdir(exist_ok=True)
    for number in range(files):
        text = "".join(function(each * number + k) for k in range(each))
        (folder / f"m{number}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp("code")
    return load_trees(written(folder / "source"), cache=folder / "cache")


def test_paths_of_a_snippet_are_those_of_its_syntax():
    tree = python_nodes(TWICE)
    assert list(zip(tree.kinds, tree.names, tree.parents, tree.branches)) == [
        ("Module", "", -1, 0),
        ("FunctionDef", "twice", 0, 0),
        ("arguments", "", 1, 0),
        ("arg", "x", 2, 0),
        ("Return", "", 1, 1),
        ("BinOp", "", 4, 0),
        ("Name", "x", 5, 0),
        ("Add", "", 5, 1),
        ("Name", "x", 5, 2),
    ]
    paths = positions.tree(tree.parents, branches=tree.branches)
    assert paths[8].nan_to_num(nan=-1).tolist() == [0, 1, 0, 2]
    assert tree.sizes == [9, 8, 2, 1, 5, 4, 1, 1, 1]


def test_frames_are_the_product_of_their_generators():
    """By `algebra`, one generator per branch and depth as an axis of a torus; what two paths share cancels."""
    tree, depth, branches, planes = python_nodes(TWICE), 4, 3, 5
    where = positions.tree(tree.parents, branches=tree.branches)
    module = TreeFrames(2 * planes, branches=branches, depth=depth, base=10.0)
    made = module(where).angles[0, :, 0].double()
    steps = module.generators.detach()[:, 0].double().reshape(depth * branches, planes)
    generators, torus = algebra.Generators.torus(steps), algebra.Torus(planes)
    for node, path in enumerate(where.tolist()):
        word = [d * branches + int(branch) for d, branch in enumerate(path) if not math.isnan(branch)]
        product = algebra.path_transport(generators, word) if word else torch.zeros(planes, dtype=torch.float64)
        assert torus.distance(product, made[node]) < 1e-5
    left, right = tree.names.index("x", 4), len(tree.names) - 1  # the two uses of x: siblings
    journey = made[left] - made[right]
    assert torus.distance(journey, steps[3 * branches] - steps[3 * branches + 2]) < 1e-5
    assert torus.distance(journey, steps[3 * branches + 2] - steps[3 * branches]) > 1e-2  # not the other way


@given(seed=st.integers(0, 99), count=st.integers(1, 30), depth=st.integers(1, 6))
@settings(max_examples=20)
def test_forests_have_the_paths_of_positions(seed, count, depth):
    make = torch.Generator().manual_seed(seed)
    each, level = [], []
    for size in (count, 1, max(1, count // 2)):
        parents, deep = [-1], [0]
        for node in range(1, size):
            allowed = [above for above in range(node) if deep[above] < depth]
            parents.append(allowed[int(torch.randint(len(allowed), (), generator=make))])
            deep.append(deep[parents[-1]] + 1)
        each.append((parents, torch.randint(4, (size,), generator=make).tolist()))
        level.append(deep)
    counts = torch.tensor([len(parents) for parents, _ in each])
    flat = [torch.tensor([*itertools.chain(*part)]) for part in zip(*each)]
    zero = torch.zeros_like(flat[0])
    forest = Forest(counts, zero, zero, *flat, zero, depth)
    rows = forest.rows(torch.tensor([2, 0]))
    for row, (parents, branches) in zip(rows.where, (each[2], each[0])):
        expected = positions.tree(parents, branches=branches)
        assert torch.equal(row[: len(parents), : expected.shape[1]].nan_to_num(nan=-1), expected.nan_to_num(nan=-1))
        assert row[len(parents) :].isnan().all()
    assert rows.real.sum().item() == counts[0] + counts[2]


def test_json_and_variables_by_hand():
    tree = json_nodes(b'{"a": [1, true, {"b": null}], "c": "d"}')
    assert tree.kinds == ["object", "array", "number", "boolean", "object", "null", "string"]
    assert tree.names == ["", "a", "", "", "", "b", "c"]
    assert tree.parents == [-1, 0, 1, 1, 1, 4, 0]
    tree = python_nodes(function(0).encode())
    found = dict(zip(tree.names, variables(tree.kinds, tree.names)))
    assert {name: number for name, number in found.items() if number >= 0} == {
        "items": 0, "limit": 1, "total": 2, "item": 3
    }  # fmt: skip


def test_pieces_do_not_overlap_and_are_as_large_as_may_be():
    methods = "".join(f"    def m{n}(self): return self.a{n}\n" for n in range(9))
    tree = python_nodes(f"{function(0)}class A:\n{methods}".encode())
    for most in (5, 9, 30, 500):
        found = list(pieces(tree, most, 3))
        nodes = [node for piece in found for node in range(piece.start, piece.stop)]
        assert len(nodes) == len({*nodes})
        assert all(3 <= piece.stop - piece.start <= most for piece in found)
        for piece in found:  # what is above is too large, or no part of a function
            above = tree.parents[piece.start]
            assert tree.sizes[above] > most or tree.kinds[piece.start] == "FunctionDef"
    assert [tree.kinds[piece.start] for piece in pieces(tree, 500, 3)] == ["FunctionDef"] * 10
    script = python_nodes(b"x = 1\ny = x + 2")
    assert [piece.start for piece in pieces(script, 50, 3)] == [0]


def test_loaded_trees(trees):
    assert [len(part) for part in (trees.train, trees.valid, trees.test)] == [48, 6, 6]
    names = {int(part.names[start]) for part in (trees.train, trees.valid, trees.test) for start in part.starts}
    assert len(names) == 60  # every function once
    rows = trees.train.rows(torch.tensor([0]))
    kinds = [trees.kinds[kind] for kind in rows.kinds[0]]
    plain = [type(node).__name__ for node in ast.walk(ast.parse(function(0))) if not isinstance(node, ast.expr_context)]
    assert sorted(kind.split()[0] for kind in kinds) == sorted(plain[1:])


def test_a_snippet_is_the_tree_that_was_loaded(trees):
    rows = trees.parse(function(7) + function(8))
    held = [part.rows(torch.arange(len(part))) for part in (trees.train, trees.valid, trees.test)]
    n = rows.kinds.shape[1]
    same = [(part.names[:, :n] == rows.names).all(1).nonzero()[:, 0].tolist() for part in held]
    ((split, at),) = [(split, at) for split, found in enumerate(same) for at in found]
    assert torch.equal(held[split].kinds[at, :n], rows.kinds[0])
    assert torch.equal(held[split].where[at, :n].nan_to_num(nan=-1), rows.where[0].nan_to_num(nan=-1))


def test_deep_and_wide_trees_are_cut_and_said(tmp_path, caplog):
    caplog.set_level("INFO", logger="joformer")
    for number in range(3):
        deep = "-" * 20 + f"x{number}"
        wide = ", ".join(f"a{number}{k}" for k in range(20))
        (tmp_path / f"{number}.py").write_text(f"def f{number}(x):\n    y = {deep}\n    return g({wide})\n")
    loaded = load_trees(tmp_path, cache=tmp_path / "cache")
    assert "nodes are deeper than 12 and cut off" in caplog.text
    assert "branches beyond 16 count as the last" in caplog.text
    rows = loaded.train.rows(torch.tensor([0]))
    assert rows.where.shape[-1] == DEPTH
    assert rows.where.nan_to_num().max() == BRANCHES - 1


def test_splits_share_no_file_and_copies_count_once(tmp_path, caplog):
    for split, first in (("train", 0), ("valid", 100), ("test", 200)):
        written(tmp_path / split, files=3, each=1)
        for number in range(3):
            (tmp_path / split / f"m{number}.py").write_text(function(first + number) + function(7))
    caplog.set_level("INFO", logger="joformer")
    loaded = load_trees(tmp_path, cache=tmp_path / "cache")
    assert [len(part) for part in (loaded.train, loaded.valid, loaded.test)] == [4, 3, 3]
    assert "8 trees stand twice and count once" in caplog.text


def test_folders_of_splits_are_kept_and_what_is_missing_is_cut_from_train(tmp_path, caplog):
    for name, count in (("train", 30), ("test", 10), ("more", 5)):
        for n in range(count):
            place = tmp_path / name / f"{n}.py"
            place.parent.mkdir(exist_ok=True)
            place.write_text(f"def {name}{n}(x, y):\n    return {'+'.join(['x'] * (n + 2))} * y")
    caplog.set_level("INFO", logger="joformer")
    found = load_trees(tmp_path, cache=tmp_path / "cache")
    # Trees of the same shape and names count once: those of test have names of their own.
    assert [len(part) for part in (found.train, found.valid, found.test)] == [27, 3, 10]
    assert "5 files are in no folder of a split and are left aside" in caplog.text


def test_what_cannot_be_parsed_is_said_and_left_out(tmp_path, caplog, joformer):
    assert resolve(written(tmp_path / "code")).kind == "text"  # unless it is said
    bad = {
        "wrong.py": "def f(:\n",
        "binary.py": "\0\1\2",
        "nested.py": "x = " + "(" * 10_000 + ")" * 10_000,
        "minus.py": "x = " + "-" * 100_000 + "1",
        "deep.json": "[" * 100_000 + "]" * 100_000,
        "wrong.json": "{'a': 1}",
    }
    for name, text in bad.items():
        (tmp_path / "code" / name).write_text(text)
    load_trees(tmp_path / "code", cache=tmp_path / "cache")
    assert "6 of 26 files are left out" in caplog.text
    code, out, _ = joformer("check", tmp_path / "code", "--kind", "trees")
    assert code == 2
    assert all(f"{name} is not " in out for name in bad), out
    assert out.count("fix it, or remove it") == 6


@pytest.mark.refused
def test_bad_folders(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds 0 files of Python or JSON: give a folder of 3 or more"):
        load_trees(tmp_path / "empty", cache=tmp_path)
    place = written(tmp_path / "code", files=3)
    with pytest.raises(ValueError, match=r"a tree has at most 3 nodes: allow 12 or more"):
        load_trees(place, nodes=3, cache=tmp_path)
    with pytest.raises(ValueError, match=r"holds trees: give images or sounds, or train trees"):
        load_labelled(resolve(place, kind="trees"))
    with pytest.raises(ValueError, match=r"stdlib holds text, not trees: give other data"):
        load_trees("stdlib")
    monkeypatch.setenv("JOFORMER_LIMITS", "1e-5")  # 83 bytes of a file
    with pytest.raises(ValueError, match=r"3 files cannot be parsed, such as cannot read .*more than the 83 bytes"):
        load_trees(place, cache=tmp_path)
    monkeypatch.delenv("JOFORMER_LIMITS")
    monkeypatch.setattr("joformer.training.data.trees.ALL", 100)
    with pytest.raises(ValueError, match=r"the files hold more than 100 nodes: give fewer, or set JOFORMER_LIMITS=10"):
        load_trees(place, cache=tmp_path)


def test_hidden_nodes(trees):
    task = TreeTask(trees, batch=16, share=0.3)
    asked = task.batch(3, 5, 0, 1)
    gone = asked.answers != IGNORED
    assert 0.2 < gone.sum() / asked.rows.real.sum() < 0.4
    assert (asked.rows.kinds[gone] == len(trees.kinds)).all()
    assert (asked.rows.names[gone] == 0).all()
    assert not (gone & ~asked.rows.real).any()


def test_one_use_is_wrong_and_the_answer_names_it(trees):
    task = TreeTask(trees, question="misuse", batch=16)
    seen = []
    for step in range(6):
        asked = task.batch(0, step, 0, 1)
        for at, row in enumerate(asked.answers.tolist()):
            names, numbers = asked.rows.names[at], asked.rows.variables[at]
            bound = {int(n): int(names[k]) for k, n in enumerate(numbers) if n >= 0 and not asked.among[at, k]}
            right = torch.tensor([bound.get(int(n), -1) for n in numbers])
            differ = ((numbers >= 0) & (names != right)).nonzero()[:, 0].tolist()
            assert differ == ([row] if row else [])
            if row:
                assert int(names[row]) in bound.values()
                assert trees.kinds[asked.rows.kinds[at, row]] == "Name"
            assert asked.among[at, row]
            seen.append(row)
    assert 0.3 < sum(row > 0 for row in seen) / len(seen) < 0.7
    assert len({*seen}) > 3


def test_wrong_uses_are_drawn_evenly():
    kinds, numbers = torch.tensor([[9, 1, 1, 1, 2, 2]]), torch.tensor([[-1, 0, 1, 2, 0, 1]])
    rows = Rows(kinds, 50 + numbers, torch.zeros(1, 6, 1).double(), kinds > 0, numbers)
    count = {}
    for which in (0.1, 0.6):
        for by in (0.0, 0.6):
            asked = misuse(rows, torch.tensor([[0.0, which, by]]), kinds == 2)
            at = asked.answers.item()
            count[at, asked.rows.names[0, at].item()] = True
    assert {*count} == {(4, 51), (4, 52), (5, 52), (5, 50)}
    right = misuse(rows, torch.tensor([[0.5, 0.1, 0.0]]), kinds == 2)
    assert right.answers.item() == 0
    assert torch.equal(right.rows.names, rows.names)


@pytest.mark.parametrize("question", ["masked", "misuse"])
def test_a_batch_is_the_same_in_any_number_of_parts(trees, question):
    task = TreeTask(trees, question=question, batch=12)
    reads = {"masked": "kinds", "misuse": "nodes"}[question]
    model = TreeConfig(kinds=len(trees.kinds), reads=reads, dim=16, heads=2).build()
    whole, parts = task.batch(5, 7, 0, 1), [task.batch(5, 7, part, 3) for part in range(3)]
    for name in Rows.__annotations__:
        joined = torch.cat([getattr(part.rows, name) for part in parts])
        assert torch.equal(joined.nan_to_num(nan=-1), getattr(whole.rows, name).nan_to_num(nan=-1))
    assert torch.equal(torch.cat([part.answers for part in parts]), whole.answers)
    assert_close(sum(task.loss(model, part) for part in parts) / 3, task.loss(model, whole))
    epoch = torch.cat([task.batch(0, step, 0, 1).rows.names[:, 0] for step in range(8)])
    assert len(epoch.unique()) == 48 if question == "misuse" else len(epoch) == 96


def test_the_loss_by_hand(trees):
    torch.manual_seed(0)
    task = TreeTask(trees, batch=8)
    model = TreeConfig(kinds=len(trees.kinds), dim=16, heads=2).build().double()
    asked = task.batch(0, 0, 0, 1)
    rows = asked.rows
    each = []
    for tree in range(8):  # without padding
        n = int(rows.real[tree].sum())
        logits = model(rows.kinds[tree : tree + 1, :n], rows.names[tree : tree + 1, :n], rows.where[tree, :n])[0]
        for node in range(n):
            if (kind := int(asked.answers[tree, node])) >= 0:
                each.append(-logits[node].log_softmax(-1)[kind])
    assert_close(task.loss(model, asked), torch.stack(each).mean())


@pytest.mark.parametrize("question", ["masked", "misuse"])
def test_a_run_that_breaks_off_ends_with_the_same_bits_and_learns(question, tmp_path, joformer):
    place = written(tmp_path / "code")
    loaded = load_trees(place)
    reads = {"masked": "kinds", "misuse": "nodes"}[question]
    config = TreeConfig(kinds=len(loaded.kinds), names=64, reads=reads, dim=16, heads=2, frames="tree-dense")
    recipe = Recipe(steps=60, lr=1e-2, end=0.1, save_every=20, evaluate_every=30)

    class Breaking(TreeTask):
        def loss(self, model, batch):
            self.calls = getattr(self, "calls", 0) + 1
            if self.calls == 47:
                raise KeyboardInterrupt
            return super().loss(model, batch)

    make, notes = {"batch": 16, "question": question}, {"data": str(place)}
    found = train(config, TreeTask(loaded, **make), recipe, tmp_path / "whole", notes=notes)
    with pytest.raises(KeyboardInterrupt):
        train(config, Breaking(loaded, **make), recipe, tmp_path / "broken")
    assert train(config, TreeTask(loaded, **make), recipe, tmp_path / "broken") == found
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    if question == "masked":
        assert found["accuracy"] > 60, found
    test = TreeTask(loaded, question=question).evaluate(open_run(tmp_path / "whole").model, Processes(), split="test")
    code, out, _ = joformer("evaluate", tmp_path / "whole", "--split", "test", "--json")
    assert code == 0
    assert json.loads(out)[0] == {"split": "test", **test}


@pytest.mark.refused
def test_a_model_of_other_trees(trees, tmp_path):
    recipe, kinds = Recipe(steps=1), len(trees.kinds)
    with pytest.raises(ValueError, match=rf"the trees have {kinds} kinds, the model has 3: set kinds={kinds}"):
        train(TreeConfig(kinds=3), TreeTask(trees), recipe, tmp_path / "run")
    with pytest.raises(ValueError, match=r"the trees have 12 depth, the model has 2: set depth=12"):
        train(TreeConfig(kinds=kinds, depth=2), TreeTask(trees), recipe, tmp_path / "run")
    with pytest.raises(ValueError, match=r"misuse is read from nodes: set reads='nodes'"):
        train(TreeConfig(kinds=kinds), TreeTask(trees, question="misuse"), recipe, tmp_path / "run")
    with pytest.raises(ValueError, match=r"the trees have kinds that the model lacks: Add"):
        trees.renumbered(trees.kinds[1:])
    with pytest.raises(ValueError, match=r"the source has kinds that these trees lack: Module, While, Pass"):
        trees.parse("while x: pass")
    with pytest.raises(ValueError, match=r"the source is not Python that can be parsed: SyntaxError: invalid syntax"):
        trees.parse("def f(:")
    other = trees.renumbered(trees.kinds[::-1])
    words = ([some.kinds[kind] for kind in some.train.kinds[:9]] for some in (trees, other))
    assert next(words) == next(words)
    for call in (lambda: TreeTask(trees, question="what"), lambda: TreeTask(trees, share=1.0)):
        with pytest.raises(ValueError, match=r"(question must be one of masked, misuse|share between 0 and 1)"):
            call()


@pytest.mark.refused
def test_json_has_no_variables_and_is_asked_for_kinds(tmp_path):
    for number in range(4):
        record = {f"name {number}": "n", "list": [number, None, {"a": True}], "more": [[1.5], "x", number, 1, 2]}
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    loaded = load_trees(tmp_path, cache=tmp_path / "cache")
    assert loaded.kinds == ("array", "boolean", "null", "number", "object", "string")
    assert loaded.train.counts.min() >= LEAST
    assert TreeTask(loaded, batch=2).batch(0, 0, 0, 1).answers.shape[0] == 2
    with pytest.raises(ValueError, match=r"no tree in train has two variables and a use: give Python, or more of it"):
        TreeTask(loaded, question="misuse")


def test_from_the_command_line(tmp_path, joformer):
    place = written(tmp_path / "code")
    code, out, _ = joformer(
        "train", "trees", "--data", place, "--question", "misuse", "--dim", 16, "--heads", 2, "--frames", "tree-dense",
        "--steps", 2, "--batch", 8, "--warmup", 0, "--out", tmp_path / "run", "--log", "none",
    )  # fmt: skip
    assert code == 0
    assert "localised" in out
    assert open_run(tmp_path / "run").model.config.frames == "tree-dense"
    code, first, _ = joformer("report", tmp_path / "run")
    assert code == 0
    # A report beside a run may be of an earlier state: the run is read.
    (tmp_path / "run" / "report.json").write_text('{"tables": []}')
    assert joformer("report", tmp_path / "run")[:2] == (0, first)
    assert "trees.json" in json.loads((tmp_path / "run" / "manifest.json").read_text())["files"]
    assert joformer("evaluate", tmp_path / "run")[0] == 0
    kinds = json.loads((tmp_path / "run" / "trees.json").read_text())["kinds"]
    for content in ({"kinds": kinds[::-1]}, {"kinds": 3}, {}):
        (tmp_path / "run" / "trees.json").write_text(json.dumps(content))
        code, _, said = joformer("evaluate", tmp_path / "run")
        assert (code, "trees.json" in said.splitlines()[-1]) == (2, True)
    code, out, _ = joformer("compare", "--data", place, "--kind", "trees", "--grid", "--seeds", 2, "--dry-run")
    assert code == 0
    assert "compare/both-tree-dense  " in out
    assert "compare/shiv-quirk/1200-steps  " in out
    code, out, _ = joformer("reproduce", "trees", "--data", place, "--dry-run")
    assert code == 0
    assert "code-trees/both-tree-dense/misuse  " in out


def test_hide_is_what_it_says(trees):
    rows = trees.valid.rows(torch.arange(2))
    chance = torch.rand(rows.kinds.shape)
    asked = hide(rows, chance, 0.5, 99)
    gone = (chance < 0.5) & rows.real
    assert torch.equal(asked.answers[gone], rows.kinds[gone])
    assert torch.equal(asked.rows.kinds[~gone], rows.kinds[~gone])
    assert torch.equal(asked.rows.names[~gone], rows.names[~gone])


def test_cousins_transport_by_what_they_do_not_share():
    """The value that reaches one node from another is rotated by the way up and the way down, and nothing above."""
    module = TreeFrames(8, branches=3, depth=4, base=10.0).double()
    where = positions.tree([-1, 0, 1, 1, 2, 3], branches=[0, 2, 0, 1, 2, 0])  # cousins 4 and 5, below 2 and 3
    frames = module(where)
    x = torch.randn(1, 6, 1, 8, dtype=torch.float64)
    arrived = rotate(rotate(x, frames)[:, [4] * 6], frames, inverse=True)[:, 5]
    generators = module.generators.detach().double()[:, 0]
    angle = generators[1, 0] + generators[2, 2] - generators[1, 1] - generators[2, 0]
    by_hand = algebra.Torus(4).act(angle, x[0, 4, 0])
    torch.testing.assert_close(arrived[0, 0], by_hand, atol=1e-6, rtol=0)
