"""Planes at the end of a head, as in DeepSeek's keys: everything is what a head rolled to the front gives."""

import copy

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from joformer import (
    FixedFrames,
    FlatFrames,
    JourneyAttention,
    JourneyCache,
    convert_layout,
    journey_attention,
    positions,
    rotate,
)
from joformer.rotation import rotate_packed_, unrotate_linear
from joformer.testing import assert_close, assert_matches_reference

layouts = pytest.mark.parametrize("layout", ["interleaved", "half"])


def rolled(x, frames, inverse=False):
    """The slow way: the last entries first, rotated there, and back."""
    front = FlatFrames.of(frames.angles, layout=frames.layout)
    return rotate(x.roll(frames.width, -1), front, inverse).roll(-frames.width, -1)


def frames_at_the_end(planes, heads=1, tokens=5, dtype=torch.float64, layout="interleaved"):
    return FlatFrames.of(torch.randn(1, tokens, heads, planes, dtype=dtype), layout=layout, at="end")


@given(
    st.integers(0, 4),
    st.integers(0, 5),
    st.sampled_from([(1, 1), (4, 1), (4, 2), (3, 3)]),
    st.sampled_from(["interleaved", "half"]),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.booleans(),
)
@settings(max_examples=150)
def test_rotating_the_end_is_rotating_the_front_of_the_rolled_head(planes, more, heads, layout, dtype, inverse):
    heads, own = heads
    frames = frames_at_the_end(planes, own, layout=layout)
    x = torch.randn(2, 5, heads, 2 * planes + more, dtype=dtype)
    assert_close(rotate(x, frames, inverse), rolled(x, frames, inverse))
    assert torch.equal(rotate(x, frames)[..., :more], x[..., :more])
    assert_close(rotate(x.transpose(1, 2), frames, format="bhtd").transpose(1, 2), rolled(x, frames))


@layouts
def test_gradients_of_tensors_and_angles(layout, dtype):
    angles = torch.randn(1, 5, 2, 2, dtype=dtype, requires_grad=True)
    x, weights = torch.randn(2, 5, 4, 7, dtype=dtype, requires_grad=True), torch.randn(2, 5, 4, 7, dtype=dtype)
    found = []
    for how in (rotate, rolled):
        out = how(x, FlatFrames.of(angles, layout=layout, at="end"))
        found.append(torch.autograd.grad((out * weights).sum(), (x, angles)))
    for a, b in zip(*found):
        assert_close(a, b)


def test_second_derivatives():
    x, angles = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((1, 2, 2, 5), (1, 2, 1, 2)))
    assert torch.autograd.gradgradcheck(lambda x, a: rotate(x, FlatFrames.of(a, at="end")), (x, angles))


@layouts
def test_packed_and_projected(layout, dtype):
    frames = frames_at_the_end(2, layout=layout)
    packed, linear = torch.randn(2, 5, 3 * 4 * 7, dtype=dtype), nn.Linear(28, 6, dtype=dtype)
    parts = packed.unflatten(-1, (3, 4, 7)).unbind(2)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            q, k, v = rotate_packed_(packed.clone(), [(4, 7)] * 3, [frames, frames, None])
            for got, want in zip((q, k, v), (rolled(parts[0], frames), rolled(parts[1], frames), parts[2])):
                assert_close(got, want)
            want = linear(rolled(parts[0], frames, inverse=True).flatten(2))
            assert_close(unrotate_linear(parts[0].clone(), frames, linear), want)


@layouts
@pytest.mark.parametrize("transport", ["scores", "values", "both"])
@pytest.mark.parametrize("window", [None, 2])
def test_attention_is_the_reference(layout, transport, window, dtype):
    q, k, v = (torch.randn(2, 5, heads, 7, dtype=dtype) for heads in (4, 2, 2))
    frames = frames_at_the_end(2, 2, layout=layout)
    assert_matches_reference(q, k, v, frames, transport=transport, window=window, causal=True)
    # The reference itself, against rolled heads.
    front = FlatFrames.of(frames.angles, layout=layout)
    out = journey_attention(*(t.roll(4, -1) for t in (q, k, v)), front, transport=transport, window=window, causal=True)
    got = journey_attention(q, k, v, frames, transport=transport, window=window, causal=True, backend="reference")
    assert_close(got, out.roll(-4, -1))


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_the_reference_reads_the_layout_of_the_side_that_is_rotated(layout):
    """Queries at the identity have no layout of their own."""
    q, k, v = torch.randn(3, 1, 5, 2, 6, dtype=torch.float64)
    keys, still = (
        FlatFrames.of(torch.randn(1, 5, 1, 2).double(), layout=layout, at="end"),
        FlatFrames.of(torch.zeros(1, 5, 1, 0)),
    )
    assert_matches_reference(q, k, v, still, key_frames=keys)


@layouts
def test_module_with_cache_and_oracle(layout):
    attention = JourneyAttention(24, 4, kv_heads=2, head_dim=8, value_dim=6, causal=True).double()
    oracle = copy.deepcopy(attention)
    oracle.backend = "reference"
    module, x = FixedFrames(8, planes=2, at="end", layout=layout), torch.randn(2, 7, 24, dtype=torch.float64)
    whole = attention(x, module(positions.sequence(7)))
    assert_close(whole, oracle(x, module(positions.sequence(7))))
    cache = JourneyCache()
    with torch.no_grad():
        pieces = [attention(x[:, i:j], module(positions.sequence(j - i, i)), cache=cache) for i, j in ((0, 4), (4, 7))]
    assert_close(torch.cat(pieces, 1), whole)


@pytest.mark.compiled
@layouts
@pytest.mark.parametrize("planes", [2, 4])
def test_compiled(layout, planes):
    torch._dynamo.reset()
    attention, x = JourneyAttention(24, 3, causal=True), torch.randn(2, 5, 24)
    module = FixedFrames(8, planes=planes, at="end", layout=layout)

    def layer(x):
        return attention(x, module(positions.sequence(5)))

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), layer(x), tolerance=1e-5)


def test_vmap(dtype):
    frames, x = frames_at_the_end(2), torch.randn(3, 2, 5, 2, 7, dtype=dtype)
    assert_close(torch.vmap(lambda x: rotate(x, frames))(x), torch.stack([rolled(each, frames) for each in x]))


@layouts
def test_values_that_are_made_of_others_keep_their_end(layout):
    frames = frames_at_the_end(2, layout=layout)
    leaves, spec = pytree.tree_flatten(frames)
    tables = frames.cos_sin.double()
    made = [
        frames.select([0, 1]),
        frames.shift(torch.ones(2)),
        frames.to("meta"),
        pytree.tree_unflatten(leaves, spec),
        FlatFrames.from_cos_sin(tables[..., 0], tables[..., 1], layout=layout, at="end"),
    ]
    assert [each.at for each in made] == ["end"] * len(made)
    assert "at='end'" in repr(frames)
    assert "at=" not in repr(FlatFrames.of(frames.angles))


@layouts
def test_converting_the_layout_of_the_end(layout):
    other = "half" if layout == "interleaved" else "interleaved"
    frames, x = frames_at_the_end(3, layout=layout), torch.randn(2, 5, 2, 8)
    convert = lambda t: convert_layout(t, head_dim=8, to=other, planes=3, at="end")  # noqa: E731
    converted = rotate(convert(x), FlatFrames.of(frames.angles, layout=other, at="end"))
    assert_close(converted, convert(rotate(x, frames)))


@pytest.mark.refused
def test_both_ends_of_a_journey_must_agree():
    q, k, v = torch.randn(3, 1, 5, 2, 8)
    front, end = (FixedFrames(8, planes=2, at=at)(positions.sequence(5)) for at in ("front", "end"))
    with pytest.raises(ValueError, match="one kind"):
        journey_attention(q, k, v, front, key_frames=end)
    for x, says in ((q[..., :3], "head_dim is 3"), (q[:, :4], "4 tokens"), (q[0], "batch, tokens")):
        with pytest.raises(ValueError, match=says):
            rotate(x, end)
