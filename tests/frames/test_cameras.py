"""Frames that are invertible and not orthogonal: cameras against PRoPE's formula, and what any such frame promises."""

import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from joformer import (
    CameraFrames,
    CurvedFrames,
    FixedFrames,
    FlatFrames,
    JointFrames,
    JourneyAttention,
    JourneyCache,
    journey_attention,
    positions,
    rotate,
)
from joformer.testing import assert_close, assert_matches_reference

ROWS, COLUMNS, HEIGHT, WIDTH = 2, 3, 40, 60


def views(count, dtype=torch.float64, seed=0):
    """Cameras that look about: extrinsics (count, 4, 4), intrinsics (count, 3, 3)."""
    rng = torch.Generator().manual_seed(seed)
    skew = torch.randn(count, 3, 3, generator=rng, dtype=torch.float64) / 2
    extrinsics = torch.eye(4, dtype=torch.float64).repeat(count, 1, 1)
    extrinsics[:, :3, :3] = torch.matrix_exp(skew - skew.mT)
    extrinsics[:, :3, 3] = torch.randn(count, 3, generator=rng, dtype=torch.float64)
    intrinsics = torch.eye(3, dtype=torch.float64).repeat(count, 1, 1)
    intrinsics[:, 0, 0], intrinsics[:, 1, 1] = 50 + 20 * torch.rand(2, count, generator=rng, dtype=torch.float64)
    intrinsics[:, 0, 2], intrinsics[:, 1, 2] = 20 + 10 * torch.rand(2, count, generator=rng, dtype=torch.float64)
    return extrinsics.to(dtype), intrinsics.to(dtype)


def plane(angle):
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]], dtype=torch.float64)


def half(angles):
    """RoPE(θ) on (a_1 … a_m, b_1 … b_m): plane i is (a_i, b_i), as PRoPE orders its entries."""
    order = torch.arange(2 * len(angles)).view(-1, 2).T.flatten()
    return torch.block_diag(*map(plane, angles))[order][:, order]


def prope(q, k, v, extrinsics, intrinsics):
    """Li et al., 2025: O = D ⊙ Attn(Dᵀ ⊙ Q, D⁻¹ ⊙ K, D⁻¹ ⊙ V) with D_t = diag(I ⊗ P̃_c, RoPE(x_t), RoPE(y_t))."""
    dim = q.shape[-1]
    frequencies = [100.0 ** (-i / (dim // 8)) for i in range(dim // 8)]
    operators = []
    for view in range(len(extrinsics)):
        lifted = torch.eye(4, dtype=torch.float64)
        if intrinsics is not None:
            given = intrinsics[view].double()
            lifted[0, 0], lifted[0, 2] = given[0, 0] / WIDTH, given[0, 2] / WIDTH - 0.5
            lifted[1, 1], lifted[1, 2] = given[1, 1] / HEIGHT, given[1, 2] / HEIGHT - 0.5
        projection = lifted @ extrinsics[view].double()
        for y in range(ROWS):
            for x in range(COLUMNS):
                rope = [half([w * at for w in frequencies]) for at in (x, y)]
                operators.append(torch.block_diag(*[projection] * (dim // 8), *rope))
    d = torch.stack(operators)
    scores = torch.einsum("bihd,ide,jef,bjhf->bhij", q, d, torch.linalg.inv(d), k) / math.sqrt(dim)
    return torch.einsum("bhij,ide,jef,bjhf->bihd", scores.softmax(-1), d, torch.linalg.inv(d), v)


@pytest.mark.parametrize("calibrated", [True, False], ids=["PRoPE", "GTA"])
def test_attention_with_cameras_is_the_papers_formula(calibrated, dtype):
    """Entry for entry after one permutation: columns come before rows there, and both entries of a plane swap."""
    dim, (extrinsics, intrinsics) = 16, views(3, dtype)
    given = {"intrinsics": intrinsics, "image": (HEIGHT, WIDTH)} if calibrated else {}
    where = positions.cameras(extrinsics, (ROWS, COLUMNS), **given)
    q, k, v = torch.randn(3, 2, 3 * ROWS * COLUMNS, 2, dim, dtype=dtype)
    ours = journey_attention(q, k, v, CameraFrames(dim)(where))
    rows, columns = torch.arange(dim // 2, dim).view(2, -1, 2).unbind()
    order = torch.cat((torch.arange(dim // 2), *(axis.flip(-1).T.flatten() for axis in (columns, rows))))
    theirs = prope(*(t[..., order].double() for t in (q, k, v)), extrinsics, intrinsics if calibrated else None)
    assert_close(ours[..., order].double(), theirs, tolerance=2e-5 if dtype == torch.float32 else 1e-12)


def test_what_one_camera_sees_of_a_point_becomes_what_the_other_sees():
    extrinsics, intrinsics = views(2)
    where = positions.cameras(extrinsics, (1, 1), intrinsics=intrinsics, image=(HEIGHT, WIDTH))
    point = torch.tensor([0.3, -0.2, 4.0, 1.0], dtype=torch.float64)
    pixel = intrinsics @ (extrinsics @ point)[:, :3, None]  # (u·z, v·z, z)
    seen = torch.cat((pixel[:, 0] / WIDTH - pixel[:, 2] / 2, pixel[:, 1] / HEIGHT - pixel[:, 2] / 2, pixel[:, 2]), -1)
    v = F.pad(seen, (0, 1), value=1.0).repeat(1, 2).view(1, 2, 1, 8)
    frames = CameraFrames(8)(where)
    assert_close(rotate(v, frames)[0, :, 0, :4], point.expand(2, 4))  # the common frame is the world
    other = torch.tensor([[False, True], [True, False]])[None, None]
    got = journey_attention(v, v, v, frames, mask=other, transport="values")
    assert (v[0, 0] - v[0, 1]).abs().max() > 0.1
    assert_close(got[0, :, 0, :4], v[0, :, 0, :4])
    assert_close(got[0, :, 0, 4:], v[0, :, 0, 4:].flip(0))  # one patch each: the planes of row and column are at 0


def test_the_choice_of_the_world_is_gauge():
    extrinsics, _ = views(2)
    world = views(1, seed=5)[0][0]
    module, q = CameraFrames(16), torch.randn(1, 12, 2, 16, dtype=torch.float64)
    here = module(positions.cameras(extrinsics, (ROWS, COLUMNS)))
    there = module(positions.cameras(extrinsics @ world, (ROWS, COLUMNS)))
    expected = journey_attention(q, q, q, here)
    assert_close(journey_attention(q, q, q, there), expected)
    shifted = here.shift(torch.randn(4, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64))
    assert (rotate(q, shifted) - rotate(q, here)).abs().max() > 0.1
    assert_close(journey_attention(q, q, q, shifted), expected, tolerance=1e-10)
    moved = module(positions.cameras(world @ extrinsics, (ROWS, COLUMNS)))  # every camera carried along is no gauge
    assert (journey_attention(q, q, q, moved) - expected).abs().max() > 0.01


def test_gradients_reach_the_cameras_by_finite_differences():
    extrinsics, intrinsics = views(2)
    rotation, q = extrinsics[:, :3, :3], torch.randn(1, 4, 1, 8, dtype=torch.float64)
    last = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).expand(2, 1, 4)

    def attended(at, focal):
        pose = torch.cat((torch.cat((rotation, at[..., None]), -1), last), -2)
        where = positions.cameras(pose, (1, 2), intrinsics=intrinsics + focal, image=(HEIGHT, WIDTH))
        return journey_attention(q, q, q, CameraFrames(8)(where))

    at = extrinsics[:, :3, 3].clone().requires_grad_()
    focal = torch.diag_embed(torch.tensor([3.0, 5.0, 0.0], dtype=torch.float64)).requires_grad_()
    assert gradcheck(attended, (at, focal))


def invertible(*shape, repeat=1, seed=0):
    a = torch.matrix_exp(0.4 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    return CurvedFrames(a, inverses=torch.linalg.inv(a), repeat=repeat)


def joint(batch, tokens, seed=0):
    planes = FlatFrames.of(torch.randn(1, tokens, 2, 2, dtype=torch.float64), layout="half")
    return JointFrames((invertible(batch, tokens, 1, 1, 3, 3, repeat=2, seed=seed), planes))


@pytest.mark.parametrize("transport", ["none", "scores", "values", "both"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 2}, {"weighting": "softplus"}], ids=str)
def test_joint_frames_are_the_value_path_formula(transport, options, dtype):
    q, k, v = (torch.randn(2, 6, heads, 11, dtype=dtype) for heads in (4, 2, 2))
    assert_matches_reference(q, k, v, joint(2, 6), transport=transport, **options)
    assert_matches_reference(q[:, 1:4], k, v, joint(1, 3), key_frames=joint(2, 6, seed=1), transport=transport)


def test_the_middle_level_needs_the_dual_for_queries():
    q, k, v = torch.randn(3, 2, 6, 2, 10, dtype=torch.float64)
    frames = joint(2, 6)
    rq, rk, rv = (rotate(t, its).transpose(1, 2) for t, its in ((q, frames.dual), (k, frames), (v, frames)))
    o = rotate(F.scaled_dot_product_attention(rq, rk, rv).transpose(1, 2), frames, inverse=True)
    assert_close(o, journey_attention(q, k, v, frames))
    curved = frames.parts[0]
    assert curved.dual.dual.matrices is not curved.matrices
    assert torch.equal(curved.dual.dual.matrices, curved.matrices)
    orthogonal = CurvedFrames(torch.linalg.qr(torch.randn(1, 6, 1, 1, 4, 4))[0])
    flat = FixedFrames(8)(positions.sequence(6))
    assert orthogonal.dual is orthogonal
    assert flat.dual is flat


def test_repeated_blocks_are_the_blocks_written_out(dtype):
    frames, x = invertible(2, 5, 2, 2, 3, 3, repeat=3), torch.randn(2, 5, 4, 19, dtype=dtype)
    written = CurvedFrames(frames.matrices.repeat(1, 1, 1, 3, 1, 1), inverses=frames.inverses.repeat(1, 1, 1, 3, 1, 1))
    for inverse in (False, True):
        assert_close(rotate(x, frames, inverse), rotate(x, written, inverse))
    assert torch.equal(rotate(x, frames)[..., 18:], x[..., 18:])


@pytest.mark.parametrize("kind", ["dynamic", "length", "window"])
def test_decoding_a_third_view_patch_by_patch(kind):
    """Keys and values are cached as A_j k_j and A_j v_j; each new query brings its own A⁻ᵀ."""
    torch.manual_seed(1)
    window = 5 if kind == "window" else None
    attention = JourneyAttention(24, 4, kv_heads=2, head_dim=8, causal=True, window=window).double()
    oracle = JourneyAttention(24, 4, kv_heads=2, head_dim=8, causal=True, window=window, backend="reference").double()
    oracle.load_state_dict(attention.state_dict())
    frames = CameraFrames(8)(positions.cameras(views(3)[0], (ROWS, COLUMNS)))
    x = torch.randn(2, 18, 24, dtype=torch.float64)
    cache = {
        "dynamic": JourneyCache,
        "length": lambda: JourneyCache(length=18),
        "window": lambda: JourneyCache(window=5),
    }
    with torch.no_grad():
        kept = cache[kind]()
        parts = [
            attention(x[:, a:b], frames.select(slice(a, b)), cache=kept)
            for a, b in ((0, 12), *((t, t + 1) for t in range(12, 18)))
        ]
        assert_close(torch.cat(parts, 1), oracle(x, frames))


def test_cross_attention_from_one_view_to_another():
    extrinsics, _ = views(2)
    module = CameraFrames(8)
    here, there = (module(positions.cameras(extrinsics[i : i + 1], (ROWS, COLUMNS))) for i in (0, 1))
    cross = JourneyAttention(24, 2, head_dim=8, context_dim=10).double()
    x, context = torch.randn(2, 6, 24, dtype=torch.float64), torch.randn(2, 6, 10, dtype=torch.float64)
    q = cross.q(x).unflatten(-1, (2, 8))
    k, v = cross.kv(context).unflatten(-1, (2, 2, 8)).unbind(2)
    right = journey_attention(q, k, v, here, key_frames=there, backend="reference")
    assert_close(cross(x, here, context=context, key_frames=there), cross.out(right.flatten(2)))


def test_half_precision_is_rounded_once():
    frames = CameraFrames(16)(positions.cameras(views(3)[0], (ROWS, COLUMNS)))
    x = torch.randn(2, 18, 2, 16).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got = rotate(x, frames)
    assert got.dtype == torch.bfloat16
    assert_close(got, rotate(x.double(), frames), tolerance=torch.finfo(torch.bfloat16).eps / 2 * 1.01)


def test_a_frames_value_is_a_pytree_and_selects():
    frames, x = joint(2, 6), torch.randn(2, 6, 2, 10, dtype=torch.float64)
    leaves, spec = tree_flatten(frames)
    again = tree_unflatten(leaves, spec)
    assert (again.width, again.heads, again.tokens, again.content) == (10, 2, 6, False)
    assert torch.equal(rotate(x, again), rotate(x, frames))
    rows, each = torch.tensor([[0, 2], [5, 4]]), torch.arange(2)[:, None]
    assert_close(rotate(x[:, 2:5], frames.select(slice(2, 5))), rotate(x, frames)[:, 2:5])
    assert_close(rotate(x[each, rows], frames.select(rows)), rotate(x, frames)[each, rows])
    assert frames.to("cpu").parts[0] is frames.parts[0]
    assert frames.to("meta").dual.parts[0].inverses.device.type == "meta"
    together = torch.vmap(lambda x: rotate(x, frames))(x.expand(3, *x.shape))
    assert_close(together[1], rotate(x, frames))


def test_positions_of_cameras_are_tensors_like_all_others():
    extrinsics, intrinsics = views(4)
    where = positions.cameras(extrinsics, (ROWS, COLUMNS), intrinsics=intrinsics, image=(HEIGHT, WIDTH))
    assert where.shape == (24, 18)
    assert where.dtype == torch.float64
    assert where[7, 16:].tolist() == [0.0, 1.0]  # the second view's second patch
    both = positions.cameras(
        extrinsics.view(2, 2, 4, 4), (ROWS, COLUMNS), intrinsics=intrinsics.view(2, 2, 3, 3), image=(HEIGHT, WIDTH)
    )
    assert torch.equal(both, where.view(2, 12, 18))
    # In units of the image, or in pixels of another size: the same camera.
    half_size = intrinsics * torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64)[:, None]
    again = positions.cameras(extrinsics, (ROWS, COLUMNS), intrinsics=half_size, image=(HEIGHT // 2, WIDTH // 2))
    assert_close(again, where)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda e, k: positions.cameras(e[0], (2, 2)), r"\(views, 4, 4\)"),
        (lambda e, k: positions.cameras(e[:, :3], (2, 2)), r"\(views, 4, 4\)"),
        (lambda e, k: positions.cameras(e.mT, (2, 2)), "last row"),
        (lambda e, k: positions.cameras(e / 0, (2, 2)), "extrinsics must be finite"),
        (lambda e, k: positions.cameras(e.bfloat16(), (2, 2)), "extrinsics are torch.bfloat16"),
        (lambda e, k: positions.cameras(e, (2, 2), intrinsics=k), "image="),
        (lambda e, k: positions.cameras(e, (2, 2), intrinsics=k[:1], image=(4, 4)), r"\(2, 3, 3\)"),
        (
            lambda e, k: positions.cameras(e, (2, 2), intrinsics=k * torch.nan, image=(4, 4)),
            "intrinsics must be finite",
        ),
        (lambda e, k: positions.cameras(e, (2, 0)), "a grid needs"),
        (
            lambda e, k: CameraFrames(8)(positions.cameras(e * torch.tensor([1.0, 1, 0, 1])[:, None], (1, 1))),
            "invertible",
        ),
        (
            lambda e, k: CameraFrames(8)(positions.cameras(e, (1, 1)) * torch.tensor([torch.nan] + [1.0] * 17)),
            "invertible",
        ),
        (lambda e, k: CameraFrames(8)(positions.grid(2, 2)), r"\(tokens, 18\)"),
        (lambda e, k: CameraFrames(12), "multiple of 8"),
        (lambda e, k: CameraFrames(8, base=-1.0), "positive"),
        (lambda e, k: CurvedFrames(2 * torch.eye(4).expand(1, 3, 1, 1, 4, 4)), "inverses="),
        (lambda e, k: CurvedFrames(e.view(1, 2, 1, 1, 4, 4), inverses=e.view(1, 2, 1, 1, 4, 4)), "linalg.inv"),
        (lambda e, k: CurvedFrames(e.view(1, 2, 1, 1, 4, 4), inverses=e.view(1, 1, 1, 2, 4, 4)), "one for each"),
        (lambda e, k: invertible(1, 2, 1, 1, 4, 4).shift(torch.zeros(4, 4).double()), "by must be invertible"),
        (lambda e, k: JointFrames(()), "same tokens"),
        (lambda e, k: JointFrames((joint(1, 3).parts[0], joint(1, 4).parts[1])), "same tokens"),
        (lambda e, k: rotate(torch.zeros(1, 6, 2, 9), joint(1, 6)), "10 entries of a head but head_dim is 9"),
        (lambda e, k: rotate(torch.zeros(1, 5, 2, 10), joint(1, 6)), "5 tokens"),
        (lambda e, k: journey_attention(*torch.zeros(3, 1, 6, 3, 10), joint(1, 6)), "2 heads"),
        (
            lambda e, k: journey_attention(
                *torch.zeros(3, 1, 6, 2, 10), joint(1, 6), key_frames=invertible(1, 6, 1, 1, 3, 3)
            ),
            "of one kind",
        ),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call(*views(2, torch.float32))
    assert "\n" not in str(caught.value)


def test_cumulative_frames_have_a_state_that_no_part_could_carry():
    flat = FlatFrames.of(torch.zeros(1, 3, 1, 2), end=torch.zeros(1, 1, 1, 2))
    with pytest.raises(ValueError, match="state"):
        JointFrames((flat,))
