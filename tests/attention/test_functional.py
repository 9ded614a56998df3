"""journey_attention against the value-path formula, on every backend and every option."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel

from joformer import CurvedFrames, FixedFrames, FlatFrames, JointFrames, journey_attention, positions, rotate
from joformer.testing import assert_close

TRANSPORTS = ["none", "scores", "values", "both"]


def random_frames(draw, batch, lengths, heads, head_dim, dtype):
    """Frames of one kind for each of the lengths."""
    kind = draw(st.sampled_from(["flat", "flat", "flat", "orthogonal", "invertible", "joint"]))
    planes = draw(st.integers(1, head_dim // 2))
    layout, made = draw(st.sampled_from(["interleaved", "half"])), []
    for tokens in lengths:
        shape = (draw(st.sampled_from([1, batch])), tokens, draw(st.sampled_from([1, heads])))
        flat = FlatFrames.of(3 * torch.randn(*shape, planes, dtype=torch.float64), layout=layout)
        block = head_dim if kind == "orthogonal" else 2
        noise = torch.randn(*shape, 1, block, block, dtype=torch.float64)
        if kind == "orthogonal":
            made.append(CurvedFrames(torch.matrix_exp(noise - noise.mT).to(dtype)))
        elif kind == "flat":
            made.append(flat)
        else:
            blocks = with_inverses(torch.matrix_exp(0.3 * noise).to(dtype), head_dim // 2 - planes or 1)
            made.append((flat, blocks) if planes < head_dim // 2 and kind == "joint" else blocks)
    return made


def with_inverses(matrices, repeat):
    return CurvedFrames(matrices, inverses=torch.linalg.inv(matrices), repeat=repeat)


def joined(call):
    """A drawn call with the parts of its frames joined: not while drawing, since beartype looks at random items."""
    (*tensors, frames), options = call
    join = lambda its: JointFrames(its) if isinstance(its, tuple) else its  # noqa: E731
    return (*tensors, join(frames)), {key: join(value) for key, value in options.items()}


@st.composite
def calls(draw):
    """Arguments of a call, in every combination that makes sense."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    batch, kv_heads, group, keys = (draw(st.integers(1, n)) for n in (2, 2, 2, 6))
    head_dim = 2 * draw(st.integers(1, 3))
    value_dim = head_dim + draw(st.sampled_from([0, 0, 2, 3]))
    cross = draw(st.booleans())
    queries = draw(st.integers(1, keys)) if cross else keys
    q = torch.randn(batch, queries, kv_heads * group, head_dim, dtype=dtype)
    k = torch.randn(batch, keys, kv_heads, head_dim, dtype=dtype)
    v = torch.randn(batch, keys, kv_heads, value_dim, dtype=dtype)
    frames, key_frames = random_frames(draw, batch, (queries, keys), kv_heads, head_dim, dtype)
    options = {
        "transport": draw(st.sampled_from(TRANSPORTS)),
        "causal": draw(st.booleans()),
        "window": draw(st.sampled_from([None, 1, 2, 4])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "weighting": draw(st.sampled_from(["softmax", "softmax", "softplus"])),
    }
    if cross:
        options["key_frames"] = key_frames
    mask = draw(st.sampled_from(["none", "bool", "padding", "additive", "plain"]))
    shape = {"bool": (batch, 1, queries, keys), "padding": (batch, 1, 1, keys), "plain": (queries, keys)}
    if mask in shape:
        options["mask"] = torch.rand(shape[mask]) > 0.3
        if mask == "plain" and batch == queries:  # (batch, keys) would have the same shape, and raises
            options["mask"] = options["mask"][None, None]
    elif mask == "additive":
        options["mask"] = torch.randn(1, kv_heads * group, queries, keys, dtype=dtype)
    if draw(st.integers(0, 3)) == 0:
        options["segments"] = torch.randint(0, 2, (batch, keys)).sort(-1).values
    return (q, k, v, frames), options


def with_gradients(call, options):
    q, k, v, frames = call
    tensors = [t.clone().requires_grad_() for t in (q, k, v)]
    part = frames.parts[-1] if isinstance(frames, JointFrames) else frames
    of = "angles" if isinstance(part, FlatFrames) else "matrices"
    element = getattr(part, of).clone().requires_grad_()
    if of == "angles":
        mine = FlatFrames.of(element, layout=part.layout)
    else:
        mine = CurvedFrames(element) if part.inverses is None else with_inverses(element, part.repeat)
    if isinstance(frames, JointFrames):
        mine = JointFrames((*frames.parts[:-1], mine))
    out = journey_attention(*tensors, mine, **options)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view(out.shape)
    gradients = torch.autograd.grad((out * weights).sum(), (*tensors, element), allow_unused=True)
    zeros = [torch.zeros_like(t) for t in (*tensors, element)]
    return [out, *(z if g is None else g for g, z in zip(gradients, zeros))]


@given(calls())
@settings(max_examples=600)
def test_fast_path_is_the_value_path_formula_with_all_gradients(call):
    call, options = joined(call)
    fast = with_gradients(call, options)
    slow = with_gradients(call, {**options, "backend": "reference"})
    for name, a, b in zip(("out", "∂q", "∂k", "∂v", "∂frames"), fast, slow):
        assert_close(a, b, tolerance=2e-5 if call[0].dtype == torch.float32 else 1e-11, what=name)


@pytest.mark.compiled
@given(calls())
@settings(max_examples=60)
def test_flex_is_the_value_path_formula(call):
    call, options = joined(call)
    if options["weighting"] != "softmax" or call[0].dtype == torch.float64:
        return
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        from torch.nn.attention import flex_attention as flex

        # The kernel itself is compiled and slow to build: its own unfused form has the same meaning.
        patch.setattr("joformer.attention._functional._compiled_flex", lambda: flex.flex_attention)
        patch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        got = journey_attention(*call, **options, backend="flex")
    assert_close(got, journey_attention(*call, **options, backend="reference"), tolerance=1e-4)


def test_the_three_levels_agree(dtype):
    """Rotate, call any attention, rotate back: the middle level is the function."""
    q, k, v = torch.randn(3, 2, 9, 4, 8, dtype=dtype)
    frames = FixedFrames(8)(positions.sequence(9))
    rq, rk, rv = (rotate(t, frames).transpose(1, 2) for t in (q, k, v))
    by_hand = torch.nn.functional.scaled_dot_product_attention(rq, rk, rv, is_causal=True).transpose(1, 2)
    assert_close(rotate(by_hand, frames, inverse=True), journey_attention(q, k, v, frames, causal=True))


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_one_sided_transports_are_what_they_say(transport, dtype):
    q, k, v = torch.randn(3, 2, 7, 2, 8, dtype=dtype)
    frames, still = FixedFrames(8)(positions.sequence(7)), FlatFrames.of(torch.zeros(1, 7, 1, 4))
    score = frames if transport in ("scores", "both") else still
    value = frames if transport in ("values", "both") else still
    explicit = journey_attention(q, k, v, score, value_frames=value)
    assert_close(journey_attention(q, k, v, frames, transport=transport), explicit)


def test_value_frames_may_differ_from_score_frames(dtype):
    """Real powers on the torus: half the value angle is half the journey, as annealing needs."""
    q, k, v = torch.randn(3, 1, 6, 2, 8, dtype=dtype)
    frames = FixedFrames(8)(positions.sequence(6))
    half = FixedFrames(8)(positions.sequence(6) / 2)
    got = journey_attention(q, k, v, frames, value_frames=half)
    assert_close(got, journey_attention(q, k, v, frames, value_frames=half, backend="reference"))
    nothing = FlatFrames.of(frames.angles * 0)
    assert_close(
        journey_attention(q, k, v, frames, value_frames=nothing), journey_attention(q, k, v, frames, transport="scores")
    )


def test_grouped_queries_are_repeated_heads(dtype):
    q, k, v = torch.randn(2, 7, 6, 8, dtype=dtype), *torch.randn(2, 2, 7, 3, 8, dtype=dtype)
    angles = torch.randn(1, 7, 3, 4, dtype=torch.float64)
    grouped = journey_attention(q, k, v, FlatFrames.of(angles), causal=True)
    repeated = FlatFrames.of(angles.repeat_interleave(2, 2))
    expected = journey_attention(q, *(t.repeat_interleave(2, 2) for t in (k, v)), repeated, causal=True)
    assert_close(grouped, expected)


@pytest.mark.parametrize("window", [1, 3, 50])
@pytest.mark.parametrize("causal", [True, False])
def test_window_is_masked_full_attention(window, causal, dtype):
    q, k, v = torch.randn(3, 2, 40, 2, 8, dtype=dtype)
    frames = FixedFrames(8)(positions.sequence(40))
    apart = torch.arange(40)[:, None] - torch.arange(40)
    see = (apart < window) & (apart >= 0 if causal else apart > -window)
    local = journey_attention(q, k, v, frames, causal=causal, window=window)
    assert_close(local, journey_attention(q, k, v, frames, mask=see))


def test_nothing_to_attend_to_gives_zeros_and_no_nan(dtype):
    q, k, v = torch.randn(3, 1, 5, 2, 8, dtype=dtype).requires_grad_().unbind()
    mask = torch.ones(5, 5, dtype=torch.bool)
    mask[2] = False
    for additive in (False, True):
        given_mask = torch.zeros(5, 5, dtype=dtype).masked_fill(~mask, -torch.inf) if additive else mask
        out = journey_attention(q, k, v, FixedFrames(8)(positions.sequence(5)), mask=given_mask)
        assert out[:, 2].abs().max() == 0
        (gradient,) = torch.autograd.grad(out.sum(), q)
        assert gradient.isfinite().all()


def test_dropout_keeps_the_mean():
    q, k, v = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 1, 8), torch.ones(1, 4, 1, 8)
    many = [t.expand(5000, -1, -1, -1) for t in (q, k, v)]
    runs = journey_attention(*many, FixedFrames(8)(positions.sequence(4)), transport="scores", dropout=0.5)
    assert runs.std(0).max() > 0.1
    assert (runs.mean(0) - 1).abs().max() < 0.08


def test_gradients_by_finite_differences():
    q, k, v = (torch.randn(1, 4, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    angles = torch.randn(1, 4, 1, 2, dtype=torch.float64, requires_grad=True)

    def attended(q, k, v, a):
        return journey_attention(q, k, v, FlatFrames.of(a), causal=True)

    assert gradcheck(attended, (q, k, v, angles))
    with sdpa_kernel(SDPBackend.MATH):
        assert gradgradcheck(attended, (q, k, v, angles), fast_mode=True)


def test_vmap_over_the_functional_form():
    q, k, v = torch.randn(3, 5, 2, 6, 2, 8, dtype=torch.float64)
    angles = torch.randn(5, 1, 6, 1, 4, dtype=torch.float64)
    with sdpa_kernel(SDPBackend.MATH):
        together = torch.vmap(lambda q, k, v, a: journey_attention(q, k, v, FlatFrames.of(a), causal=True))(
            q, k, v, angles
        )
    for i in range(5):
        assert_close(together[i], journey_attention(q[i], k[i], v[i], FlatFrames.of(angles[i]), causal=True))


@pytest.mark.parametrize("where", [0, 1_000_000])
def test_bfloat16_is_within_tolerance_of_float32(where):
    q, k, v = torch.randn(3, 2, 24, 2, 16)
    frames = FixedFrames(16)(positions.sequence(24, offset=where))
    low = [t.bfloat16() for t in (q, k, v)]
    got = journey_attention(*low, frames, causal=True)
    assert got.dtype == torch.bfloat16
    assert_close(got, journey_attention(*(t.float() for t in low), frames, causal=True), tolerance=2e-2)


Q = torch.zeros(2, 5, 4, 8)
FRAMES = FlatFrames.of(torch.zeros(1, 5, 1, 4))
FEWER = FlatFrames.of(torch.zeros(1, 5, 1, 3))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: journey_attention(Q[0], Q, Q, FRAMES), "batch, tokens, heads, head_dim"),
        (lambda: journey_attention(Q, Q[:1], Q[:1], FRAMES), "agree in batch"),
        (lambda: journey_attention(Q, Q, Q[:, :3], FRAMES), "agree in batch"),
        (lambda: journey_attention(Q, Q[:, :, :3], Q[:, :, :3], FRAMES), "use a multiple"),
        (lambda: journey_attention(Q, Q[..., :6], Q, FRAMES), "head_dim"),
        (lambda: journey_attention(Q, Q[:, :3], Q[:, :3], FRAMES), "key_frames"),
        (lambda: journey_attention(*[Q.transpose(1, 2)] * 3, FRAMES), r"transpose\(1, 2\)"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, transport="v"), "'none', 'scores', 'values' or 'both'"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, window=0), "1 or more"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, dropout=1.0), "less than 1"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, weighting="relu"), "softmax"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, backend="flash"), "'auto'"),
        (lambda: journey_attention(Q, Q, Q, FixedFrames(8)), "call the module first"),
        (lambda: journey_attention(Q, Q, Q, None), "call the module first"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, mask=torch.ones(2, 5, dtype=torch.bool)), "mask"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, mask=torch.ones(5, 5, dtype=torch.long)), "boolean or floating"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, segments=torch.zeros(4, dtype=torch.long)), "segments"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, segments=torch.zeros(5)), "segments"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, value_key_frames=FRAMES), "value_frames"),
        (lambda: journey_attention(Q, Q, Q[..., :4], FRAMES), "head_dim is 4"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, key_frames=FEWER), "one kind"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, key_frames=FixedFrames(8)), "call the module first"),
        (lambda: journey_attention(Q, Q.double(), Q, FRAMES), "the same dtype"),
        (lambda: journey_attention(Q, Q, Q, FRAMES, backend="flex", dropout=0.1), "flex"),
        (lambda: journey_attention(Q.requires_grad_(), Q, Q, FRAMES, backend="flex"), "no backward on CPU"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
