"""The hot rotation: against explicit matrices, other libraries, and its own algebra."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from joformer import CurvedFrames, FixedFrames, FlatFrames, convert_layout, positions, rotate
from joformer.frames._types import cos_sin
from joformer.rotation import _eager, rotate_packed_
from joformer.rotation._eager import cut_heads, rotate_real
from joformer.testing import (
    assert_close,
    assert_inverse,
    assert_is_rotation,
    assert_norm_preserved,
    assert_telescopes,
)

LAYOUTS = ["interleaved", "half"]
IDENTITIES = [assert_is_rotation, assert_norm_preserved, assert_inverse, assert_telescopes]


@st.composite
def cases(draw, dtypes=(torch.float32, torch.float64)):
    """x and frames that fit it, in every combination of what may broadcast or be partial."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from(dtypes))
    batch, tokens, frame_heads, group = (draw(st.integers(1, n)) for n in (3, 6, 3, 3))
    planes = draw(st.integers(1, 5))
    spare = draw(st.integers(0, 3))
    heads = frame_heads * group
    angles_batch = draw(st.sampled_from([1, batch]))
    angles = 10 * torch.randn(angles_batch, tokens, frame_heads, planes, dtype=torch.float64)
    x = torch.randn(batch, tokens, heads, 2 * planes + spare, dtype=dtype)
    if draw(st.booleans()):  # not contiguous: as it comes out of attention
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    return x, angles, draw(st.sampled_from(LAYOUTS))


@given(cases())
@settings(max_examples=300)
def test_identities(case):
    x, angles, layout = case
    for identity in IDENTITIES:
        identity(FlatFrames.of(angles, layout=layout), x)


@given(cases(), st.booleans())
@settings(max_examples=200)
def test_real_arithmetic_is_the_same_rotation_with_the_same_gradients(case, inverse):
    x, angles, layout = case
    results = []
    for how in (
        lambda x, a: rotate(x, FlatFrames.of(a, layout=layout), inverse),
        lambda x, a: rotate_real(x, cos_sin(a, x.dtype, layout), layout, inverse),
    ):
        xs, a = x.clone().requires_grad_(), angles.clone().requires_grad_()
        out = how(xs, a)
        weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
        results.append((out, *torch.autograd.grad((out * weights).sum(), (xs, a))))
    for fast, plain in zip(*results):
        assert_close(fast, plain, tolerance=1e-5 if x.dtype == torch.float32 else 1e-12)


@given(cases(dtypes=(torch.float32, torch.float64, torch.bfloat16)), st.sampled_from([(1, 1, 1), (1, 1, 0), (0, 0, 1)]))
@settings(max_examples=200)
def test_packed_in_place_is_rotating_each_part(case, moved):
    x, angles, layout = case
    group = x.shape[2] // angles.shape[2]
    kv_heads = x.shape[2] // group
    widths = [(x.shape[2], x.shape[3]), (kv_heads, x.shape[3]), (kv_heads, x.shape[3])]
    weight = torch.randn(sum(h * d for h, d in widths), 3, dtype=x.dtype)
    inputs = torch.randn(x.shape[0], x.shape[1], 3, dtype=x.dtype)
    results = []
    for packed in (True, False):
        a, t = angles.clone().requires_grad_(), inputs.clone().requires_grad_()
        frames = FlatFrames.of(a, layout=layout)
        each = [frames if move else None for move in moved]
        projected = torch.nn.functional.linear(t, weight)
        if packed:
            parts = rotate_packed_(projected, widths, each)
        else:
            parts = [p if f is None else rotate(p, f) for p, f in zip(cut_heads(projected, widths), each)]
        loss = sum((p * torch.linspace(-1, 1, p.numel(), dtype=p.dtype).view(p.shape)).sum() for p in parts)
        results.append((*parts, *torch.autograd.grad(loss, (t, a))))
    for fast, plain in zip(*results):
        wide = 1e-12 if x.dtype == torch.float64 else 2e-5 if x.dtype == torch.float32 else 3e-2
        assert_close(fast, plain, tolerance=wide)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_by_finite_differences(layout):
    x = torch.randn(2, 3, 4, 7, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(1, 3, 2, 3, dtype=torch.float64, requires_grad=True)
    for inverse in (False, True):

        def turned(x, a, inverse=inverse):
            return rotate(x, FlatFrames.of(a, layout=layout), inverse)

        assert gradcheck(turned, (x, angles))
        assert gradgradcheck(turned, (x, angles))


def test_packed_differentiates_twice():
    frames_angles = torch.randn(1, 3, 1, 2, dtype=torch.float64, requires_grad=True)
    t = torch.randn(1, 3, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(12, 3, dtype=torch.float64)

    def parts(t, a):
        frames = FlatFrames.of(a)
        return rotate_packed_(torch.nn.functional.linear(t, weight), [(1, 4)] * 3, [frames, frames, None])

    assert gradgradcheck(parts, (t, frames_angles))


def test_curved_identities(dtype):
    skew = torch.randn(1, 5, 2, 2, 3, 3, dtype=torch.float64)
    frames = CurvedFrames(torch.matrix_exp(skew - skew.mT))
    x = torch.randn(2, 5, 4, 7, dtype=dtype)
    for identity in IDENTITIES:
        identity(frames, x)


def test_matches_rotary_embedding_torch():
    """Same angles, interleaved layout: their rotate_queries_or_keys is our rotate."""
    theirs = pytest.importorskip("rotary_embedding_torch").RotaryEmbedding(dim=16)
    x = torch.randn(2, 9, 3, 16)
    ours = rotate(x, FixedFrames(16)(positions.sequence(9)))
    assert_close(theirs.rotate_queries_or_keys(x.transpose(1, 2)).transpose(1, 2), ours)


def test_matches_rotary_embedding_torch_axial_2d():
    """Their 2D axial frequencies on a non-square grid, where swapped height and width would show."""
    library = pytest.importorskip("rotary_embedding_torch")
    theirs = library.RotaryEmbedding(dim=8, theta=100)
    h, w = 3, 5
    cells = [theirs(torch.arange(n, dtype=torch.float32)) for n in (h, w)]
    grid = torch.cat((cells[0][:, None].expand(h, w, 8), cells[1][None].expand(h, w, 8)), -1).reshape(h * w, 16)
    x = torch.randn(2, h * w, 3, 16)
    ours = rotate(x, FixedFrames(16, axes=2, base=100.0)(positions.grid(h, w)))
    assert_close(library.apply_rotary_emb(grid, x.transpose(1, 2)).transpose(1, 2), ours)


def test_mixed_axes_are_the_product_of_the_axes_rotations(dtype):
    """Combined split: A_(m,n) = R_row^m R_column^n, one after the other."""
    module = FixedFrames(16, axes=2, split="combined")
    where = positions.grid(3, 4)
    x = torch.randn(1, 12, 2, 16, dtype=dtype)
    rows, columns = (where * torch.eye(2, dtype=torch.float64)[axis] for axis in (0, 1))
    step_by_step = rotate(rotate(x, module(columns)), module(rows))
    assert_close(rotate(x, module(where)), step_by_step)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_matches_hugging_face_llama_in_both_layouts(layout):
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=64)
    x = torch.randn(2, 9, 4, 16)
    embedding = llama.LlamaRotaryEmbedding(config)
    cos, sin = embedding(x, torch.arange(9)[None])
    in_half = x if layout == "half" else convert_layout(x, head_dim=16, to="half")
    theirs, _ = llama.apply_rotary_pos_emb(in_half.transpose(1, 2), in_half.transpose(1, 2), cos, sin)
    theirs = theirs.transpose(1, 2)
    if layout == "interleaved":
        theirs = convert_layout(theirs, head_dim=16, to="interleaved")
    ours = rotate(x, FixedFrames(16, layout=layout)(positions.sequence(9)))
    assert_close(theirs, ours)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=60)
def test_layout_converter_is_exact_and_invertible(heads, planes, spare):
    head_dim = 2 * planes + spare
    x = torch.randn(2, 3, heads * head_dim)
    half = convert_layout(x, head_dim=head_dim, to="half", planes=planes)
    back = convert_layout(half, head_dim=head_dim, to="interleaved", planes=planes)
    assert torch.equal(back, x)
    angles = torch.randn(1, 3, 1, planes)
    a = rotate(x.unflatten(-1, (heads, -1)), FlatFrames.of(angles)).flatten(2)
    b = rotate(half.unflatten(-1, (heads, -1)), FlatFrames.of(angles, layout="half")).flatten(2)
    assert_close(convert_layout(a, head_dim=head_dim, to="half", planes=planes), b)


@pytest.mark.parametrize("where", [0, 1_000_000])
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_low_precision_is_within_rounding_of_fp32_even_far_out(where, low):
    frames = FixedFrames(64)(positions.sequence(16, offset=where))
    x = torch.randn(2, 16, 2, 64)
    lowered = x.to(low)
    got = rotate(lowered, frames)
    assert got.dtype == low
    # One rounding of the result: half a unit in the last place, relative to the pair that was mixed.
    exact = rotate(lowered.double(), frames)
    assert_close(got, exact, tolerance=torch.finfo(low).eps / 2 * 1.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("block", [1, 40, 100, 500])
def test_large_tensors_are_rotated_block_by_block_to_the_same_bits(block, rows, layout, dtype, monkeypatch):
    """Blocks of several rows, of one row, of some tokens, of one token."""
    frames = FlatFrames.of(torch.rand(rows, 5, 2, 3) * 9, layout=layout)
    x = torch.randn(3, 5, 4, 7).to(dtype)
    whole, again = rotate(x, frames), rotate(x, frames, inverse=True)
    monkeypatch.setattr(_eager, "BLOCK", block)
    assert torch.equal(rotate(x, frames), whole)
    assert torch.equal(rotate(x, frames, inverse=True), again)
    (packed,) = rotate_packed_(x.flatten(2).clone(), [(4, 7)], [frames])
    assert torch.equal(packed, whole)


def test_autocast_does_not_touch_it():
    frames = FixedFrames(64)(positions.sequence(16))
    x = torch.randn(1, 16, 1, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = rotate(x, frames)
        curved = rotate(x, CurvedFrames(torch.linalg.qr(torch.randn(1, 16, 1, 1, 64, 64))[0]))
    assert inside.dtype == curved.dtype == torch.float32
    assert torch.equal(inside, rotate(x, frames))


def test_nothing_extra_is_saved_for_backward():
    """Frames without gradient: the graph keeps only what the frames value already holds."""
    frames = FixedFrames(64)(positions.sequence(16))
    x = torch.randn(1, 16, 1, 64, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        rotate(x, frames)
    own = {t.untyped_storage().data_ptr() for t in (frames.angles, frames.cos_sin)}
    assert {t.untyped_storage().data_ptr() for t in saved} <= own


def test_select_and_shift():
    angles = torch.randn(2, 6, 2, 3, dtype=torch.float64)
    frames = FlatFrames.of(angles)
    x = torch.randn(2, 6, 2, 6, dtype=torch.float64)
    whole = rotate(x, frames)
    for index in (slice(2, 5), [0, 3], torch.tensor([5, 1])):
        assert_close(rotate(x[:, index], frames.select(index)), whole[:, index])
    rows = torch.tensor([[0, 2], [5, 4]])
    each = torch.arange(2)[:, None]
    assert_close(rotate(x[each, rows], frames.select(rows)), whole[each, rows])
    shared = FlatFrames.of(angles[:1])
    assert_close(rotate(x[each, rows], shared.select(rows)), rotate(x, shared)[each, rows])
    by = torch.randn(3, dtype=torch.float64)
    assert_close(rotate(whole, FlatFrames.of(by.expand(1, 6, 1, 3))), rotate(x, frames.shift(by)))


def test_curved_select_and_shift():
    matrices = torch.linalg.qr(torch.randn(1, 6, 1, 1, 4, 4, dtype=torch.float64))[0]
    frames, by = CurvedFrames(matrices), torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    x = torch.randn(2, 6, 2, 4, dtype=torch.float64)
    assert_close(rotate(x[:, 2:4], frames.select(slice(2, 4))), rotate(x, frames)[:, 2:4])
    assert_close(rotate(x, frames.shift(by)), torch.einsum("ij,bthj->bthi", by, rotate(x, frames)))


def test_vmap_and_functional_gradients():
    x, angles = torch.randn(5, 2, 3, 2, 6, dtype=torch.float64), torch.randn(5, 1, 3, 2, 3, dtype=torch.float64)

    def turned(x, a):
        return rotate(x, FlatFrames.of(a))

    together = torch.vmap(turned)(x, angles)
    assert_close(together, torch.stack([turned(*pair) for pair in zip(x, angles)]))
    shared = FlatFrames.of(angles[0])
    assert_close(torch.vmap(lambda x: rotate(x, shared))(x)[3], rotate(x[3], shared))
    by_func = torch.func.grad(lambda a: turned(x[0], a).pow(3).sum())(angles[0])
    a = angles[0].clone().requires_grad_()
    (by_autograd,) = torch.autograd.grad(turned(x[0], a).pow(3).sum(), a)
    assert_close(by_func, by_autograd)
    _, tangent = torch.func.jvp(lambda a: turned(x[0], a), (angles[0],), (torch.ones_like(angles[0]),))
    step = 1e-6
    assert_close(
        tangent, (turned(x[0], angles[0] + step) - turned(x[0], angles[0] - step)) / (2 * step), tolerance=1e-7
    )


def test_frames_are_pytrees():
    from torch.utils._pytree import tree_flatten, tree_unflatten

    frames = FlatFrames.of(torch.randn(1, 4, 1, 3), layout="half", content=True)
    leaves, spec = tree_flatten(frames)
    again = tree_unflatten(leaves, spec)
    assert torch.equal(again.angles, frames.angles)
    assert (again.layout, again.content) == ("half", True)


GOOD = FlatFrames.of(torch.zeros(1, 5, 2, 3))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rotate(torch.zeros(2, 2, 5, 6), GOOD), r"transpose\(1, 2\)"),
        (lambda: rotate(torch.zeros(2, 5, 6), GOOD), "batch, tokens, heads, head_dim"),
        (lambda: rotate(torch.zeros(2, 4, 2, 6), GOOD), "4 tokens"),
        (lambda: rotate(torch.zeros(2, 5, 3, 6), GOOD), "divisor"),
        (lambda: rotate(torch.zeros(2, 5, 2, 4), GOOD), "head_dim is 4"),
        (lambda: rotate(torch.zeros(2, 5, 2, 6, dtype=torch.long), GOOD), "floating point"),
        (lambda: rotate(torch.zeros(2, 5, 2, 6), FlatFrames.of(torch.zeros(3, 5, 2, 3))), "batch 3"),
        (lambda: rotate(torch.zeros(2, 5, 2, 6, device="meta"), GOOD), r"frames.to\('meta'\)"),
        (lambda: rotate(torch.zeros(2, 5, 2, 6), FixedFrames(6)), "call the module first"),
        (lambda: GOOD.select(torch.ones(5, dtype=torch.bool)), "indices"),
        (lambda: FlatFrames.of(torch.zeros(5, 3)), "missing dimensions"),
        (lambda: FlatFrames.of(torch.zeros(1, 5, 1, 3), layout="neox"), "interleaved"),
        (lambda: FlatFrames.of(torch.zeros(1, 5, 1, 3, dtype=torch.bfloat16)), "float32 or float64"),
        (lambda: GOOD.select(torch.zeros(1, 1, 1, dtype=torch.long)), "slice"),
        (lambda: convert_layout(torch.zeros(7), head_dim=4, to="half"), "multiple of head_dim"),
        (lambda: convert_layout(torch.zeros(8), head_dim=4, to="half", planes=3), "at least 2·planes"),
        (lambda: convert_layout(torch.zeros(8), head_dim=4, to="quarter"), "interleaved"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
