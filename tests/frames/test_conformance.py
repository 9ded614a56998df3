"""One file over every frames class: what all of them promise. A class without a case fails."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._pytree import tree_leaves

import joformer
from joformer import (
    CameraFrames,
    CumulativeFrames,
    CurvedFrames,
    DenseFrames,
    DenseTreeFrames,
    FixedFrames,
    FlatFrames,
    JointFrames,
    JourneyAttention,
    LearnedFrames,
    NoFrames,
    ProjectedFrames,
    TreeFrames,
    journey_attention,
    positions,
    rotate,
)
from joformer.frames import FramesModule
from joformer.frequencies import DynamicNTK, Llama3, LongRoPE, mrope
from joformer.testing import (
    assert_close,
    assert_inverse,
    assert_is_rotation,
    assert_matches_reference,
    assert_norm_preserved,
    assert_shift_invariant,
    assert_telescopes,
)

HEAD, DIM, HEADS = 8, 12, 2
SEQUENCE = positions.sequence(6)
GRID = positions.grid(2, 3, prefix=1)
TREE = positions.tree([-1, 0, 0, 1, 1, 2])
MULTIMODAL = positions.mrope(2, (1, 2, 2), 1)
PACKED = positions.packed([(1, 2), (2, 2)], prefix=1)
EXTRINSICS = torch.tensor(
    [[[1.0, 0, 0, 0.3], [0, 0.8, -0.6, 0], [0, 0.6, 0.8, 1], [0, 0, 0, 1]], torch.eye(4).tolist()]
)
INTRINSICS = torch.tensor([[60.0, 0, 24], [0, 50, 20], [0, 0, 1]]).repeat(2, 1, 1)
VIEWS = positions.with_prefix(positions.cameras(EXTRINSICS, (2, 3), intrinsics=INTRINSICS, image=(40, 60)), 1)
RIGID = positions.cameras(EXTRINSICS, (2, 2))


class CumulativeOnGrid(CumulativeFrames):
    """Cumulative frames that know their grid, so that they are called like the others."""

    def forward(self, positions, x=None):
        return super().forward(positions, x, grid=(2, 3))


CASES = {
    "fixed": (lambda: FixedFrames(HEAD), SEQUENCE),
    "fixed grid": (lambda: FixedFrames(HEAD, axes=2, base=100.0), GRID),
    "fixed combined half": (lambda: FixedFrames(HEAD, axes=2, split="combined", layout="half"), GRID),
    "fixed partial": (lambda: FixedFrames(HEAD, planes=2), SEQUENCE),
    "fixed end": (lambda: FixedFrames(HEAD, planes=2, at="end"), SEQUENCE),
    "fixed diagonal": (lambda: FixedFrames(HEAD, axes=2, split="diagonal"), GRID),
    "fixed scaled": (lambda: FixedFrames(HEAD, scaling=Llama3(8.0, 512)), SEQUENCE),
    "fixed long": (lambda: FixedFrames(HEAD, scaling=LongRoPE(4.0, 512, (1.0,) * 4, (1.0, 2.0, 3.0, 4.0))), SEQUENCE),
    "fixed dynamic": (lambda: FixedFrames(HEAD, scaling=DynamicNTK(2.0, 4, 6)), SEQUENCE),
    "fixed sections": (lambda: FixedFrames(HEAD, axes=3, frequencies=mrope((2, 1, 1), 100.0)), MULTIMODAL),
    "fixed alternating": (
        lambda: FixedFrames(HEAD, axes=3, layout="half", frequencies=mrope((2, 1, 1), 100.0, interleaved=True)),
        MULTIMODAL,
    ),
    "fixed packed": (lambda: FixedFrames(HEAD, axes=2, base=100.0), PACKED),
    "learned": (lambda: LearnedFrames(HEAD, heads=HEADS), SEQUENCE),
    "learned grid": (lambda: LearnedFrames(HEAD, axes=2, heads=HEADS), GRID),
    "learned combined": (lambda: LearnedFrames(HEAD, axes=2, split="combined"), GRID),
    "learned end": (lambda: LearnedFrames(HEAD, heads=HEADS, planes=3, at="end", layout="half"), SEQUENCE),
    "projected": (lambda: ProjectedFrames(DIM, HEAD, heads=HEADS), SEQUENCE),
    "projected learned grid": (lambda: ProjectedFrames(DIM, HEAD, heads=HEADS, axes=2, on="learned"), GRID),
    "projected none": (lambda: ProjectedFrames(DIM, HEAD, heads=HEADS, on="none"), SEQUENCE),
    "projected end": (lambda: ProjectedFrames(DIM, HEAD, heads=HEADS, planes=2, at="end"), SEQUENCE),
    "cumulative": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS), SEQUENCE),
    "cumulative learned": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS, on="learned"), SEQUENCE),
    "cumulative none": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS, on="none"), SEQUENCE),
    "cumulative grid": (lambda: CumulativeOnGrid(DIM, HEAD, heads=HEADS, axes=2), GRID),
    "cumulative end": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS, planes=2, at="end"), SEQUENCE),
    "cumulative selective": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS, steps="selective"), SEQUENCE),
    "cumulative carope": (lambda: CumulativeFrames(DIM, HEAD, heads=HEADS, steps="carope"), SEQUENCE),
    "tree": (lambda: TreeFrames(HEAD, branches=2, heads=HEADS), TREE),
    "tree by depth": (lambda: TreeFrames(HEAD, branches=2, depth=3), TREE),
    "tree end": (lambda: TreeFrames(HEAD, branches=2, depth=3, planes=3, at="end"), TREE),
    "tree one-hot": (lambda: TreeFrames.one_hot(HEAD, branches=2, depth=2, decay=0.7), TREE),
    "tree dense": (lambda: DenseTreeFrames(HEAD, branches=2, heads=HEADS), TREE),
    "tree dense by depth": (lambda: DenseTreeFrames(HEAD, branches=2, depth=3), TREE),
    "lie": (lambda: DenseFrames(HEAD, axes=2, heads=HEADS), GRID),
    "axial dense": (lambda: DenseFrames(HEAD, axes=2, heads=HEADS, split="axial"), GRID),
    "lie in blocks": (lambda: DenseFrames(HEAD, axes=2, heads=HEADS, block=4), GRID),
    "commuting": (lambda: DenseFrames(HEAD, axes=2, heads=HEADS, block=4, commuting=True), GRID),
    "commuting axial": (lambda: DenseFrames(HEAD, axes=2, block=2, split="axial", commuting=True), GRID),
    "camera": (lambda: CameraFrames(HEAD), VIEWS),
    "camera rigid": (lambda: CameraFrames(HEAD, base=10.0), RIGID),
    "none": (NoFrames, SEQUENCE),
}

every_case = pytest.mark.parametrize("name", CASES)


def build(name, dtype=torch.float64, *, awake=True):
    """The module, its positions, content and a q, k, v that fit. Awake: zero-started weights are moved off zero."""
    make, where = CASES[name]
    torch.manual_seed(3)
    module = make().to(dtype)
    if awake:
        with torch.no_grad():
            for parameter in module.parameters():
                if not parameter.abs().sum():
                    parameter.normal_(std=0.3)
    n = where.shape[-2]
    return module, where, torch.randn(2, n, DIM, dtype=dtype), torch.randn(3, 2, n, 4, HEAD, dtype=dtype).unbind()


def tensors(frames):
    """All that a frames value is made of."""
    return [leaf for leaf in tree_leaves(frames) if leaf is not None]


def leaves(cls):
    below = cls.__subclasses__()
    return {cls} if not below else set().union(*map(leaves, below)) | {c for c in below if c in PUBLIC}


PUBLIC = {getattr(joformer, name) for name in joformer.__all__ if name.endswith("Frames")}
PUBLIC -= {FlatFrames, CurvedFrames, JointFrames}  # values, not modules


def test_every_frames_class_has_a_case():
    covered = {type(make()) for make, _ in CASES.values()}
    ours = {c for c in leaves(FramesModule) | PUBLIC if c.__module__.startswith("joformer.")}
    assert ours <= covered, f"no case for {ours - covered}"


@every_case
def test_identities(name, dtype):
    module, where, x, (q, _, _) = build(name, dtype)
    frames = module(where, x)
    assert isinstance(frames, FlatFrames | CurvedFrames | JointFrames)
    assert frames.tokens == where.shape[-2]
    assert frames.content == module.content
    assert frames.heads == module.heads
    for identity in (assert_inverse, assert_telescopes):
        identity(frames, q)
    for identity in (assert_is_rotation, assert_norm_preserved):
        if name.startswith("camera"):  # invertible, not orthogonal
            with pytest.raises((AssertionError, ValueError), match=r"norm|orthogonal"):
                identity(frames, q)
        else:
            identity(frames, q)


@every_case
def test_attention_is_the_value_path_formula(name, dtype):
    module, where, x, (q, k, v) = build(name, dtype)
    with torch.no_grad():
        frames = module(where, x)
    assert_matches_reference(q, k, v, frames)


@every_case
def test_positions_without_coordinates_are_the_identity(name):
    module, where, x, (q, _, _) = build(name)
    somewhere = where.clone()
    somewhere[0] = torch.nan
    frames = module(somewhere, x)
    assert torch.equal(rotate(q, frames)[:, 0], q[:, 0])


@every_case
def test_shift_invariance_where_promised(name):
    module, where, x, _ = build(name)
    if where is TREE:
        pytest.skip("a path in a tree has no displacement")
    if "cumulative grid" in name:
        where, x = where[1:], x[:, 1:]  # a prefix token with coordinates would not be one
    where = where.nan_to_num(nan=0.0)
    by = torch.arange(1.0, where.shape[-1] + 1, dtype=torch.float64) * 37
    if module.shift_invariant:
        assert_shift_invariant(module, where, by, x=x, dtype=torch.float64)
    elif getattr(module, "split", "") == "combined":
        with pytest.raises(AssertionError, match="after a shift"):
            assert_shift_invariant(module, where, by, x=x, dtype=torch.float64)


@every_case
def test_gradients_reach_every_parameter_by_finite_differences(name):
    module, where, x, (q, k, v) = build(name)
    parameters = dict(module.named_parameters())
    if not parameters:
        assert name.startswith(("fixed", "none", "camera"))
        return

    def attended(*values):
        frames = torch.func.functional_call(module, dict(zip(parameters, values)), (where, x))
        return journey_attention(q[:1, :, :2], k[:1, :, :2], v[:1, :, :2], frames.select(slice(None)), causal=True)

    x = x[:1]
    assert gradcheck(attended, tuple(p.detach().clone().requires_grad_() for p in parameters.values()), fast_mode=True)


@every_case
def test_gradients_reach_the_content_by_finite_differences(name):
    module, where, x, (q, k, v) = build(name)
    if not module.content:
        for first, second in zip(tensors(module(where, x)), tensors(module(where, x + 1))):
            assert torch.equal(first, second)
        return
    attended = lambda x: journey_attention(q, k, v, module(where, x))  # noqa: E731
    assert gradcheck(attended, (x.requires_grad_(),), fast_mode=True)


@every_case
def test_gradients_are_alive_at_initialisation(name):
    module, where, x, (q, k, v) = build(name, awake=False)
    if not list(module.parameters()):
        return
    journey_attention(q, k, v, module(where, x), causal=True).pow(2).sum().backward()
    last = [p for n, p in module.named_parameters() if n.endswith(("frequencies", "generators", "w2.weight"))]
    assert last
    for parameter in last:
        assert parameter.grad.abs().max() > 1e-8


@every_case
def test_nothing_is_downcast(name):
    module, where, x, _ = build(name, torch.float32)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    want = module(where, x)
    holder = torch.nn.Sequential(module).to(torch.bfloat16)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert holder[0] is module
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = module(where, x)
    for right, found in zip(tensors(want), tensors(got)):
        assert found.dtype in (torch.float32, torch.float64)
        assert torch.equal(found, right)


@every_case
def test_meta_device_then_reset_parameters(name):
    make, where = CASES[name]
    right = make()
    with torch.device("meta"):
        module = make()
    module.to_empty(device="cpu")
    for parameter in module.parameters():
        torch.nn.init.constant_(parameter, math.nan)
    for each in (right, module):
        torch.manual_seed(5)
        if hasattr(each, "reset_parameters"):
            each.reset_parameters()
    x = torch.randn(2, where.shape[-2], DIM)
    for a, b in zip(tensors(module(where, x)), tensors(right(where, x))):
        assert a.isfinite().all()
        assert_close(a, b)


@every_case
def test_state_dict_round_trip(name):
    module, where, x, _ = build(name)
    other = CASES[name][0]().to(torch.float64)
    other.load_state_dict(module.state_dict())
    for a, b in zip(tensors(module(where, x)), tensors(other(where, x))):
        assert torch.equal(a, b)


@every_case
def test_batched_positions_are_the_rows_one_by_one(name):
    module, where, x, (q, _, _) = build(name)
    both = torch.stack((where, where.flip(0))) if where is not TREE else torch.stack((where, where))
    if "grid" in name and "cumulative" in name:
        both = torch.stack((where, where))
    together = rotate(q, module(both, x))
    for row in (0, 1):
        alone = rotate(q[row : row + 1], module(both[row], x[row : row + 1]))
        assert_close(together[row : row + 1], alone)


@every_case
def test_works_inside_journey_attention_module(name):
    module, where, x, _ = build(name, torch.float32)
    attention = JourneyAttention(DIM, 4, kv_heads=2, head_dim=HEAD)
    oracle = JourneyAttention(DIM, 4, kv_heads=2, head_dim=HEAD, backend="reference")
    oracle.load_state_dict(attention.state_dict())
    frames = module(where, x)
    assert_close(attention(x, frames), oracle(x, frames), tolerance=1e-5)


@pytest.mark.refused
@every_case
def test_wrong_positions_are_refused(name):
    module, where, x, _ = build(name)
    if name in ("none", "tree", "tree dense"):  # anything goes, paths of any depth
        return
    with pytest.raises(ValueError, match=r"positions must be|paths are") as caught:
        module(torch.zeros(where.shape[-2], where.shape[-1] + 5), x)
    assert "\n" not in str(caught.value)
    if module.content:
        with pytest.raises(ValueError, match="content"):
            module(where)
        with pytest.raises(ValueError, match="one row per position"):
            module(where, x[:, 1:])
