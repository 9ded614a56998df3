"""JoFormerTree: padding changes nothing, each kind of frames sees what it should, and saving gives it back."""

import pytest
import torch

from joformer import positions
from joformer.frames import DenseTreeFrames
from joformer.frames import _tree as tree_frames
from joformer.models import LMConfig, TreeConfig, ViTConfig, load, save
from joformer.models._tree import PathCode
from joformer.testing import assert_close

PARENTS, BRANCHES = [-1, 0, 0, 1, 1, 2, 5], [0, 0, 1, 0, 1, 0, 3]
FRAMES = [("tree", "both"), ("tree-dense", "both"), ("tree", "scores"), ("fixed", "both"), ("shiv-quirk", None),
          ("none", None)]  # fmt: skip


def model(frames, transport=None, **more):
    torch.manual_seed(0)
    return TreeConfig(kinds=6, names=20, dim=16, heads=2, frames=frames, transport=transport, **more).build().double()


def nodes(batch=2):
    return torch.randint(6, (batch, 7)), torch.randint(1000, (batch, 7))


@pytest.mark.parametrize(("frames", "transport"), FRAMES)
def test_padding_changes_nothing(frames, transport):
    net, (kinds, names) = model(frames, transport), nodes()
    where = positions.tree(PARENTS, branches=BRANCHES)
    alone = net(kinds, names, where)
    more = torch.full((2, 3), 5), torch.full((2, 3), 77)
    real = torch.arange(10).expand(2, 10) < 7
    padded = torch.cat((where, torch.full((3, where.shape[1]), torch.nan, dtype=torch.float64))).expand(2, -1, -1)
    together = net(torch.cat((kinds, more[0]), 1), torch.cat((names, more[1]), 1), padded, real=real)
    assert_close(together[:, :7], alone)
    assert together.isfinite().all()


@pytest.mark.parametrize(("frames", "transport"), FRAMES)
def test_what_each_kind_of_frames_sees(frames, transport):
    """Of nodes in another order only the sequence knows, of nodes on another branch only the path."""
    net, (kinds, names) = model(frames, transport), nodes(1)
    where = positions.tree(PARENTS, branches=BRANCHES)
    out = net(kinds, names, where)
    order = torch.tensor([0, 2, 1, 5, 6, 3, 4])
    moved = net(kinds[:, order], names[:, order], where[order])
    assert torch.allclose(moved, out[:, order]) is (frames != "fixed")
    elsewhere = net(kinds, names, positions.tree(PARENTS, branches=[0, 3, 1, 0, 1, 0, 3]))
    assert torch.allclose(elsewhere, out) is (frames in ("fixed", "none"))


def test_dense_frames_know_the_order_of_branches_at_any_depth():
    left_right, right_left = (positions.tree([-1, 0, 1], branches=path) for path in ([0, 0, 1], [0, 1, 0]))
    kinds, names = torch.zeros(2, 1, 3, dtype=torch.int64)
    dense = model("tree-dense")
    assert not torch.allclose(dense(kinds, names, left_right)[:, 2], dense(kinds, names, right_left)[:, 2])


@pytest.mark.parametrize("depth", [None, 4])
def test_products_shared_by_paths_are_the_products(depth, monkeypatch):
    module = DenseTreeFrames(6, branches=4, depth=depth, heads=2)
    paths = torch.randint(4, (3, 20, 4)).double()
    paths[torch.arange(4) >= torch.randint(5, (3, 20, 1))] = torch.nan
    shared = module(paths).matrices
    (made,) = torch.autograd.grad(shared.sin().sum(), module.generators)
    monkeypatch.setattr(tree_frames, "readable", lambda _: False)
    plain = module(paths).matrices
    assert torch.equal(shared, plain)
    assert_close(made, torch.autograd.grad(plain.sin().sum(), module.generators)[0])


def test_shiv_and_quirks_code_by_hand():
    code = PathCode(depth=3, branches=4, dim=5)
    where = positions.tree(PARENTS, branches=BRANCHES)  # two of three deep, or three
    weight = code.weight.detach().view(3, 4, 5)
    got = code(where)
    assert_close(got[0], torch.zeros(5))
    assert_close(got[4], weight[0, 1] + weight[1, 0])  # branch 0, then 1: the newest first
    assert_close(got[6], weight[0, 3] + weight[1, 0] + weight[2, 1])


@pytest.mark.parametrize("reads", ["kinds", "nodes"])
def test_saved_and_loaded(reads, tmp_path):
    torch.manual_seed(0)
    net = TreeConfig(kinds=6, names=20, dim=16, heads=2, frames="tree-dense", reads=reads).build()
    save(net, tmp_path)
    again, (kinds, names) = load(tmp_path), nodes()
    where = positions.tree(PARENTS, branches=BRANCHES)
    assert again.config == net.config
    assert torch.equal(again(kinds, names, where), net.eval()(kinds, names, where))
    assert again(kinds, names, where).shape == ((2, 7, 6) if reads == "kinds" else (2, 7))


def test_a_name_is_a_vector_and_no_name_another():
    net = model("none")
    kinds, where = torch.zeros(1, 2, dtype=torch.int64), positions.tree([-1, 0])
    x, _ = net.start(kinds, torch.tensor([[0, 19]]), where)
    assert_close(x[0, 0], net.kinds.weight[0] + net.names.weight[0])
    assert_close(x[0, 1], net.kinds.weight[0] + net.names.weight[1])  # 19 of 19 buckets for names
    last, _ = net.start(kinds, torch.tensor([[18, 2**31 - 1]]), where)
    assert_close(last[0, 0], net.kinds.weight[0] + net.names.weight[19])


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: TreeConfig(frames="learned"), "frames must be one of tree, tree-dense, fixed, shiv-quirk, none"),
        (lambda: TreeConfig(frames="none", transport="both"), "cannot transport anything"),
        (lambda: TreeConfig(transport="all"), "transport must be one of"),
        (lambda: TreeConfig(reads="words"), "reads must be 'kinds' or 'nodes'"),
        (lambda: TreeConfig(dim=30), "does not divide into 4 heads"),
        (lambda: TreeConfig(depth=0), "depth must be 1 or more"),
        (lambda: model("tree")(*nodes(), positions.tree([-1, 0])), "kinds and names must be"),
        (lambda: model("tree", depth=1)(*nodes(), positions.tree(PARENTS)), "paths are 3 deep but the frames"),
        (lambda: model("shiv-quirk", depth=1)(*nodes(), positions.tree(PARENTS)), "paths are 3 deep but the frames"),
        (lambda: PathCode(3, 2, 8)(torch.tensor([[2.0]])), r"branches on a path must be whole numbers 0 … 1, got 2"),
        (lambda: LMConfig(frames="tree"), "frames must be one of fixed, learned"),
        (lambda: ViTConfig(frames="tree"), "frames must be one of fixed, learned"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
