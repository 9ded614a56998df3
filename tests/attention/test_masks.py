"""What masks mean, the same for every backend: what forbids, what is a bias, and which two dimensions are meant."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import flex_attention as flex

from joformer import FixedFrames, FlatFrames, JourneyAttention, journey_attention, positions
from joformer.attention import window_attention
from joformer.testing import assert_close

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5, torch.float64: 1e-11}
BACKENDS = ["reference", "sdpa", "window", "flex"]


def attended(backend, q, k, v, frames, mask, **options):
    """Every backend on everything; a window over all keys is no restriction."""
    if backend == "window":
        return journey_attention(q, k, v, frames, mask=mask, window=k.shape[1], **options)
    if backend != "flex":
        return journey_attention(q, k, v, frames, mask=mask, backend=backend, **options)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        # The kernel itself is compiled and slow to build: its own unfused form has the same meaning.
        patch.setattr("joformer.attention._functional._compiled_flex", lambda: flex.flex_attention)
        patch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        return journey_attention(q, k, v, frames, mask=mask, backend=backend, **options)


def by_hand(q, k, v, frames, see, bias):
    """Softmax over the visible keys alone, a query at a time, zeros where there are none."""
    from joformer import rotate

    q, k, v = (rotate(t.double(), frames) for t in (q, k, v))
    out = torch.zeros_like(q)
    for b, i, h in ((b, i, h) for b in range(q.shape[0]) for i in range(q.shape[1]) for h in range(q.shape[2])):
        seen = see[b, h, i]
        if seen.any():
            scores = k[b, seen, h] @ q[b, i, h] / math.sqrt(q.shape[-1]) + bias[b, h, i, seen].double()
            out[b, i, h] = torch.softmax(scores, 0) @ v[b, seen, h]
    return rotate(out, frames, inverse=True)


@st.composite
def masked(draw, backend):
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32] if backend == "flex" else FLOATS))
    mask_dtype = draw(st.sampled_from(FLOATS))
    batch, tokens, heads = draw(st.integers(1, 2)), draw(st.integers(3, 6)), draw(st.integers(1, 2))
    q, k, v = torch.randn(3, batch, tokens, heads, 4).to(dtype)
    see = torch.rand(batch, heads, tokens, tokens) > 0.4
    see[:, :, draw(st.integers(0, tokens - 1))] = False
    bias = torch.randn(see.shape).to(mask_dtype)
    forbids = {
        "inf": -math.inf,
        "mask": torch.finfo(mask_dtype).min,
        "q": max(torch.finfo(dtype).min, torch.finfo(mask_dtype).min),
    }[draw(st.sampled_from(["inf", "mask", "q"]))]
    frames = FlatFrames.of(torch.randn(1, tokens, 1, 2, dtype=torch.float64))
    return (q, k, v, frames), bias.masked_fill(~see, forbids), see, bias


@pytest.mark.compiled  # flex looks at the graph, and shape checks would break it
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_most_negative_number_forbids_in_every_dtype(backend):
    @given(masked(backend))
    @settings(max_examples=60)
    def check(case):
        call, mask, see, bias = case
        got = attended(backend, *call, mask)
        assert got.dtype == call[0].dtype
        assert got.masked_select(~see.any(-1).transpose(1, 2)[..., None]).abs().sum() == 0
        low = min((call[0].dtype, mask.dtype), key=lambda d: d.itemsize)
        assert_close(got.double(), by_hand(*call, see, bias), tolerance=max(TOLERANCE[low], TOLERANCE[call[0].dtype]))

    check()


@pytest.mark.parametrize("backend", BACKENDS[:3])
@pytest.mark.parametrize("weighting", ["softmax", "softplus"])
def test_forbidden_by_number_has_the_gradients_of_forbidden_by_truth(backend, weighting, dtype):
    see = torch.rand(1, 2, 5, 5) > 0.4
    see[:, :, 2] = False
    results = []
    for mask in (see, torch.zeros(see.shape).masked_fill(~see, torch.finfo(torch.float32).min)):
        torch.manual_seed(1)
        q, k, v = (torch.randn(1, 5, 2, 8, dtype=dtype, requires_grad=True) for _ in range(3))
        out = attended(backend, q, k, v, FixedFrames(8)(positions.sequence(5)), mask, weighting=weighting)
        weights = torch.linspace(-1, 1, out.numel(), dtype=dtype).view(out.shape)
        results.append([out, *torch.autograd.grad((out * weights).sum(), (q, k, v))])
    for a, b in zip(*results):
        assert_close(b, a, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("backend", BACKENDS[:3])
@pytest.mark.parametrize("mask_dtype", FLOATS)
def test_any_other_number_is_a_bias(backend, mask_dtype, dtype):
    """The same on all keys changes nothing, however negative, as long as it is not the last of its dtype."""
    q, k, v = torch.randn(3, 1, 5, 2, 8, dtype=dtype)
    frames = FixedFrames(8)(positions.sequence(5))
    mask = torch.full((1, 1, 5, 5), -1e4).to(mask_dtype)
    want = attended(backend, q, k, v, frames, None)
    assert_close(attended(backend, q, k, v, frames, mask), want, tolerance=1e-2 if dtype == torch.float32 else 1e-10)


AMBIGUOUS = [torch.ones(3, 5, dtype=torch.bool), torch.zeros(3, 5), torch.ones(3, 1, dtype=torch.bool)]


@pytest.mark.refused
@pytest.mark.parametrize("mask", AMBIGUOUS)
def test_two_dimensions_that_may_be_batch_or_queries_raise(mask):
    q, kv = torch.randn(3, 3, 2, 8), torch.randn(3, 5, 2, 8)
    here, there = (FlatFrames.of(torch.zeros(1, n, 1, 4)) for n in (3, 5))
    calls = [
        *(
            lambda b=b: journey_attention(q, kv, kv, here, key_frames=there, mask=mask, backend=b)
            for b in ("auto", "sdpa", "flex", "reference")
        ),
        lambda: journey_attention(q, kv, kv, here, key_frames=there, mask=mask, window=2, causal=True),
        lambda: window_attention(q, kv, kv, window=2, causal=True, scale=1.0, mask=mask),
        lambda: JourneyAttention(16, 2, context_dim=16)(
            torch.randn(3, 3, 16), here, context=torch.randn(3, 5, 16), key_frames=there, mask=mask
        ),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"mask\[None, None\].*mask\[:, None, None\]") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_two_dimensions_are_queries_and_keys_where_nothing_else_is_possible(dtype):
    see = torch.rand(4, 4) > 0.3
    frames = FixedFrames(8)(positions.sequence(4))
    for batch in (1, 3):
        q, k, v = torch.randn(3, batch, 4, 2, 8, dtype=dtype)
        for mask in (see, torch.zeros(4, 4).masked_fill(~see, -math.inf)):
            for options in ({}, {"window": 4}, {"backend": "reference"}):
                got = journey_attention(q, k, v, frames, mask=mask, **options)
                assert_close(got, journey_attention(q, k, v, frames, mask=see[None, None]), tolerance=TOLERANCE[dtype])
    q, k, v = torch.randn(3, 4, 4, 2, 8, dtype=dtype)  # one row of a mask means the same either way
    assert_close(
        journey_attention(q, k, v, frames, mask=see[:1]), journey_attention(q, k, v, frames, mask=see[None, None, :1])
    )


@pytest.mark.parametrize("far", [1.0, 1e3, 1e5, 1e7])
def test_the_reference_takes_float32_angles_as_they_are(far, dtype):
    """Angles as large as these have few digits, but those they have count."""
    q, k, v = torch.randn(3, 1, 6, 2, 8, dtype=dtype)
    angles = far * torch.randn(1, 6, 1, 4)
    assert angles.dtype == torch.float32
    exact = FlatFrames.of(angles.double())
    want = by_hand(q, k, v, exact, torch.ones(1, 2, 6, 6, dtype=torch.bool), torch.zeros(1, 2, 6, 6))
    got = journey_attention(q, k, v, FlatFrames.of(angles), backend="reference")
    assert_close(got.double(), want, tolerance=2e-6 if dtype == torch.float32 else 1e-12)
