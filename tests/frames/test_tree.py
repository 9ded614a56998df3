"""Tree frames: up to the common ancestor and down again; order of branches; Shiv and Quirk's codes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer import CurvedFrames, DenseTreeFrames, TreeFrames, journey_attention, positions
from joformer.algebra import Orthogonal, Torus, journey, value_path
from joformer.testing import assert_close

HEAD, BRANCHES = 6, 3

KINDS = {
    "commuting": lambda: TreeFrames(HEAD, branches=BRANCHES, base=3.0),
    "commuting by depth": lambda: TreeFrames(HEAD, branches=BRANCHES, depth=4, base=3.0),
    "dense": lambda: DenseTreeFrames(HEAD, branches=BRANCHES),
    "dense by depth": lambda: DenseTreeFrames(HEAD, branches=BRANCHES, depth=4),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
paths_of_a_tree = st.lists(st.lists(st.integers(0, BRANCHES - 1), max_size=4), min_size=2, max_size=6)


def rows(paths):
    """Paths of different depth as one tensor (nodes, depth), NaN below each node."""
    depth = max(1, *map(len, paths))
    return torch.tensor([p + [float("nan")] * (depth - len(p)) for p in paths], dtype=torch.float64)


def build(kind, dtype=torch.float64):
    torch.manual_seed(4)
    return KINDS[kind]().to(dtype)


def operators(frames):
    """The group and the absolute operators of the first head, (nodes, *element)."""
    if isinstance(frames, CurvedFrames):
        return Orthogonal(frames.width), frames.matrices[0, :, 0, 0]
    return Torus(frames.planes), frames.angles[0, :, 0]


def generator(module, depth, branch):
    """R_{d,b} of the first head, straight from the parameter."""
    given = module.generators[0 if module.depth is None else depth, 0, branch]
    return torch.matrix_exp(given - given.mT) if isinstance(module, DenseTreeFrames) else given


def walked(module, group, src, dst):
    """Up from src to the common ancestor and down to dst, one branch after the other, as one operator on content.

    A node's content is told in the node's own frame: going up branch b is R_b, going down it R_b⁻¹, and whatever
    comes later stands further left.
    """
    shared = 0
    while shared < min(len(src), len(dst)) and src[shared] == dst[shared]:
        shared += 1
    operator = group.identity(dtype=torch.float64)
    for depth in reversed(range(shared, len(src))):
        operator = group.multiply(generator(module, depth, src[depth]), operator)
    for depth in range(shared, len(dst)):
        operator = group.multiply(group.inverse(generator(module, depth, dst[depth])), operator)
    return operator


@every_kind
@given(paths=paths_of_a_tree)
@settings(max_examples=20)
def test_a_journey_goes_up_to_the_common_ancestor_and_down(kind, paths):
    module = build(kind)
    group, at = operators(module(rows(paths)))
    for i, src in enumerate(paths):
        for j, dst in enumerate(paths):
            expected = walked(module, group, src, dst)
            assert group.distance(journey(group, src=at[i], dst=at[j]), expected) < 1e-12


@every_kind
def test_attention_between_nodes_is_made_of_those_walks(kind, dtype):
    module = build(kind, dtype)
    paths = [[], [0], [1], [0, 2], [0, 1, 1], [2, 0]]
    q, k, v = torch.randn(3, 1, len(paths), 1, HEAD, dtype=dtype).unbind()
    frames = module(rows(paths))
    got = journey_attention(q, k, v, frames, transport="values")
    weights = torch.softmax(torch.einsum("id,jd->ij", q[0, :, 0], k[0, :, 0]) / HEAD**0.5, -1)
    group, _ = operators(frames)
    wide = build(kind).to(torch.float64)
    expected = torch.zeros(len(paths), HEAD, dtype=torch.float64)
    for i, dst in enumerate(paths):
        for j, src in enumerate(paths):
            expected[i] += weights[i, j] * group.act(walked(wide, group, src, dst), v[0, j, 0].double())
    assert_close(got[0, :, 0], expected.to(dtype))
    _, at = operators(frames)
    assert_close(got[0, :, 0], value_path(weights, v[0, :, 0], group=group, src=at.to(dtype), dst=at.to(dtype)))


@every_kind
def test_what_is_above_the_common_ancestor_is_forgotten(kind):
    module = build(kind)
    below = ([1, 0], [2])
    group, at = operators(module(rows([[0, *below[0]], [0, *below[1]], [2, *below[0]], [2, *below[1]]])))
    here, there = (journey(group, src=at[i], dst=at[i + 1]) for i in (0, 2))
    assert group.distance(here, there) < 1e-12
    assert group.distance(at[0], at[2]) > 0.1  # though the nodes themselves are elsewhere


@pytest.mark.parametrize("kind", ["commuting", "dense"])
def test_a_whole_tree_may_hang_anywhere_where_depths_share_generators(kind):
    module = build(kind)
    paths = [[], [0], [1, 2], [2]]
    group, here = operators(module(rows(paths)))
    _, there = operators(module(rows([[1, 0, *p] for p in paths])))
    assert group.distance(here, there).min() > 0.1
    for i in range(4):
        assert (
            group.distance(journey(group, src=here[i], dst=here[0]), journey(group, src=there[i], dst=there[0])) < 1e-12
        )


@pytest.mark.parametrize(("kind", "seen"), [("commuting", False), ("commuting by depth", True), ("dense", True)])
def test_who_sees_the_order_of_branches(kind, seen):
    group, at = operators(build(kind)(rows([[0, 1], [1, 0]])))
    apart = group.distance(at[0], at[1]).item()
    assert apart > 0.1 if seen else apart < 1e-12


def test_dense_frames_multiply_from_the_root_down():
    module = build("dense")
    left, right = generator(module, 0, 0), generator(module, 0, 1)
    _, at = operators(module(rows([[0, 1]])))
    assert_close(at[0], left @ right)
    assert (at[0] - right @ left).abs().max() > 0.1


def test_dense_frames_stay_orthogonal_a_thousand_deep(dtype):
    module = build("dense", dtype)
    deep = torch.randint(BRANCHES, (1, 1000)).double()
    _, at = operators(module(deep))
    assert (at[0] @ at[0].mT - torch.eye(HEAD, dtype=dtype)).abs().max() < (1e-6 if dtype == torch.float32 else 1e-12)


@every_kind
def test_positions_from_parents_and_heads_of_their_own(kind):
    where = positions.tree([-1, 0, 0, 1, 1, 2])
    torch.manual_seed(0)
    cls = DenseTreeFrames if "dense" in kind else TreeFrames
    module = cls(HEAD, branches=2, heads=2)
    with torch.no_grad():
        module.generators.normal_()
    q, k, v = torch.randn(3, 2, 6, 4, HEAD).unbind()
    fast = journey_attention(q, k, v, module(where))
    assert_close(fast, journey_attention(q, k, v, module(where), backend="reference"))


def code(path, branches, depth, decay=1.0):
    """Shiv and Quirk's code of a node, depth from the root: one slot per depth, the branch's one-hot vector in it."""
    x = torch.zeros(depth, branches, dtype=torch.float64)
    for d, branch in enumerate(path):
        x[d, branch] = decay**d
    return x.flatten()


def pushed(path, branches, depth):
    """Their own recursion: the root is 0, and branch b pushes its one-hot vector before all that is there."""
    x = torch.zeros(depth * branches, dtype=torch.float64)
    for branch in path:
        x = torch.cat((torch.eye(branches, dtype=torch.float64)[branch], x[:-branches]))
    return x


PATHS = [[], [0], [2], [1, 0], [0, 1], [0, 1, 2], [1, 1, 1], [2, 0, 1]]


@pytest.mark.parametrize("decay", [1.0, 0.6])
def test_journeys_of_one_hot_frames_know_the_inner_products_of_the_codes(decay):
    module = TreeFrames.one_hot(20, branches=3, depth=3, decay=decay)
    angles = module(rows(PATHS)).angles[0, :, 0]
    assert angles.shape[-1] == 9
    codes = torch.stack([code(p, 3, 3, decay) for p in PATHS])
    turned = (angles[:, None] - angles[None]).cos().sum(-1)
    assert_close(turned, 9 - (codes[:, None] - codes[None]).square().sum(-1), tolerance=1e-6)
    inner = (9 + turned - turned[:, :1] - turned[:1]) / 2  # row and column 0 are the root's
    assert_close(inner, codes @ codes.mT, tolerance=1e-6)


def test_the_code_is_what_one_hot_frames_make_of_a_constant():
    # A_node e with e = (1, 0) on every plane has the code as its second entries.
    e = torch.tensor([1.0, 0.0], dtype=torch.float64).repeat(9)
    angles = TreeFrames.one_hot(18, branches=3, depth=3)(rows(PATHS)).angles[0, :, 0]
    assert_close(Torus(9).act(angles, e)[:, 1::2], torch.stack([code(p, 3, 3) for p in PATHS]), tolerance=1e-6)


def test_reversed_paths_give_the_stack_order_of_shiv_and_quirk():
    module = TreeFrames.one_hot(18, branches=3, depth=3)
    angles = module(rows([p[::-1] for p in PATHS])).angles[0, :, 0]
    codes = torch.stack([pushed(p, 3, 3) for p in PATHS])
    assert_close(angles.sin(), codes, tolerance=1e-6)
    straight = module(rows(PATHS)).angles[0, :, 0]
    assert (straight.sin() - codes).abs().max() > 0.9  # and the order is another one


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
def test_dense_trees_are_one_graph():
    torch._dynamo.reset()
    module, where = build("dense", torch.float32), rows([[], [0, 1], [2]])
    fast = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_close(fast(where).matrices, module(where).matrices)
    torch._dynamo.reset()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: DenseTreeFrames(8, branches=0), "1 or more"),
        (lambda: DenseTreeFrames(8, branches=2, depth=0), "1 or more"),
        (lambda: DenseTreeFrames(1, branches=2), "2 or more"),
        (lambda: DenseTreeFrames(8, branches=2, heads=0), "heads must be"),
        (lambda: DenseTreeFrames(8, branches=2)(torch.tensor([[2.0]])), "0 … 1"),
        (lambda: DenseTreeFrames(8, branches=2)(torch.tensor([[-1.0]])), "whole numbers"),
        (lambda: DenseTreeFrames(8, branches=2, depth=1)(positions.tree([-1, 0, 1])), "2 deep"),
        (lambda: DenseTreeFrames(8, branches=2)(torch.zeros(3)), "must be paths"),
        (lambda: TreeFrames(8, branches=2)([[0, 1]]), "positions.tree"),
        (lambda: TreeFrames(8, branches=2)(torch.zeros(3, 0)), "must be paths"),
        (lambda: TreeFrames(8, branches=2, angles=torch.zeros(2, 4)), "table"),
        (lambda: TreeFrames.one_hot(8, branches=2, depth=2, decay=0.0), "decay"),
        (lambda: TreeFrames.one_hot(8, branches=3, depth=2), "planes"),
    ],
)
def test_bad_trees_are_refused_in_one_line(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
