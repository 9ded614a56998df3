"""JourneyAttention: the layer as a whole."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from joformer import (
    CumulativeFrames,
    DenseFrames,
    FixedFrames,
    FlatFrames,
    JourneyAttention,
    JourneyCache,
    LearnedFrames,
    ProjectedFrames,
    convert_layout,
    journey_attention,
    positions,
)
from joformer.testing import assert_close

DIM, HEADS, HEAD = 24, 3, 8


def oracle_of(attention):
    """The same layer on the reference backend."""
    other = JourneyAttention(
        attention.dim, attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim,
        value_dim=attention.value_dim, context_dim=attention.context_dim, transport=attention.transport,
        causal=attention.causal, window=attention.window, weighting=attention.weighting,
        bias=attention.out.bias is not None, backend="reference",
    )  # fmt: skip
    other.load_state_dict(attention.state_dict())
    return other.to(next(attention.parameters()).dtype)


@pytest.mark.parametrize("transport", ["none", "scores", "values", "both"])
@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
@pytest.mark.parametrize("per_head", [True, False])
def test_layer_and_all_its_gradients_are_the_reference(transport, kv_heads, per_head, dtype):
    attention = JourneyAttention(DIM, 6, kv_heads=kv_heads, value_dim=6, transport=transport, causal=True, bias=True)
    attention, frames = attention.to(dtype), LearnedFrames(4, heads=kv_heads if per_head else 1).to(dtype)
    oracle = oracle_of(attention)
    x = torch.randn(2, 7, DIM, dtype=dtype)
    results = []
    for layer in (attention, oracle):
        inputs = x.clone().requires_grad_()
        out = layer(inputs, frames(positions.sequence(7)))
        wanted = [inputs, *layer.parameters(), *frames.parameters()]
        gradients = torch.autograd.grad(out.square().sum(), wanted, allow_unused=True)
        results.append([out, *(torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted))])
    for fast, slow in zip(*results):
        assert_close(fast, slow, tolerance=2e-5 if dtype == torch.float32 else 1e-12)


def test_cross_attention_with_other_frames(dtype):
    attention = JourneyAttention(DIM, HEADS, context_dim=10).to(dtype)
    x, context = torch.randn(2, 7, DIM, dtype=dtype), torch.randn(2, 4, 10, dtype=dtype)
    here = FixedFrames(HEAD)(positions.sequence(7))
    there = FixedFrames(HEAD)(positions.sequence(4, offset=100))
    got = attention(x, here, context=context, key_frames=there)
    assert_close(got, oracle_of(attention)(x, here, context=context, key_frames=there))


def test_double_backward_where_sdpa_allows():
    attention = JourneyAttention(DIM, HEADS).double()
    x = torch.randn(1, 5, DIM, dtype=torch.float64, requires_grad=True)
    frames = FixedFrames(HEAD)(positions.sequence(5))
    with sdpa_kernel(SDPBackend.MATH):
        assert torch.autograd.gradgradcheck(lambda x: attention(x, frames), (x,), fast_mode=True)


def test_input_and_frames_are_left_untouched():
    attention = JourneyAttention(DIM, HEADS)
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)(positions.sequence(5))
    before = x.clone(), frames.angles.clone(), frames.cos_sin.clone()
    first = attention(x, frames)
    assert torch.equal(attention(x, frames), first)
    for now, then in zip((x, frames.angles, frames.cos_sin), before):
        assert torch.equal(now, then)


@pytest.mark.parametrize(
    "frames",
    [FixedFrames(HEAD), LearnedFrames(HEAD, heads=HEADS), ProjectedFrames(DIM, HEAD, heads=HEADS)],
    ids=["fixed", "learned", "base+projected"],
)
def test_the_whole_layer_is_invariant_under_a_joint_shift(frames, dtype):
    """docs/claims.md row 18: F(x, pos + u) = F(x, pos) for the whole softmax layer, even a million tokens away."""
    if isinstance(frames, ProjectedFrames):
        torch.nn.init.normal_(frames.projector.w2.weight)
    attention, frames = JourneyAttention(DIM, HEADS).to(dtype), frames.to(dtype)
    x = torch.randn(2, 9, DIM, dtype=dtype)
    here = attention(x, frames(positions.sequence(9), x))
    there = attention(x, frames(positions.sequence(9, offset=1_048_576), x))
    assert_close(there, here, tolerance=2e-6 if dtype == torch.float32 else 1e-9)
    frames.float()


def frames_of(kind, dtype):
    module = {
        "fixed": lambda: FixedFrames(HEAD),
        "learned": lambda: LearnedFrames(HEAD, heads=HEADS),
        "projected": lambda: ProjectedFrames(DIM, HEAD, heads=HEADS),
        "cumulative": lambda: CumulativeFrames(DIM, HEAD, heads=HEADS),
    }[kind]()
    if hasattr(module, "projector"):
        torch.nn.init.normal_(module.projector.w2.weight)
    return module.to(dtype)


KINDS = ["fixed", "learned", "projected", "cumulative"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 3])
def test_packed_is_separate(kind, window, dtype):
    lengths = [4, 1, 6]
    module, attention = frames_of(kind, dtype), JourneyAttention(DIM, HEADS, causal=True, window=window).to(dtype)
    x = torch.randn(2, sum(lengths), DIM, dtype=dtype)
    together = attention(x, module(positions.packed(lengths), x), segments=positions.segments(lengths))
    for part, at in zip(x.split(lengths, 1), together.split(lengths, 1)):
        alone = attention(part, module(positions.sequence(part.shape[1]), part))
        assert_close(at, alone, tolerance=1e-5 if dtype == torch.float32 else 1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("window", [None, 3])
def test_padded_is_unpadded(kind, left, window, dtype):
    module, attention = frames_of(kind, dtype), JourneyAttention(DIM, HEADS, causal=True, window=window).to(dtype)
    real = torch.tensor([[True] * 7, [False] * 3 + [True] * 4 if left else [True] * 4 + [False] * 3])
    x = torch.randn(2, 7, DIM, dtype=dtype)
    together = attention(x, module(positions.padded(real), x), mask=real[:, None, None, :])
    for row in (0, 1):
        alone = x[row : row + 1, real[row]]
        expected = attention(alone, module(positions.sequence(alone.shape[1]), alone))
        assert_close(together[row : row + 1, real[row]], expected, tolerance=1e-5 if dtype == torch.float32 else 1e-11)


CACHES = {
    "dynamic": JourneyCache,
    "preallocated": lambda: JourneyCache(length=20),
    "sliding": lambda: JourneyCache(window=4),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("transport", ["scores", "both"])
def test_prefill_is_chunks_is_steps(kind, cache, transport, dtype):
    window = 4 if cache == "sliding" else None
    module = frames_of(kind, dtype)
    attention = JourneyAttention(DIM, HEADS, causal=True, window=window, transport=transport).to(dtype)
    x = torch.randn(2, 12, DIM, dtype=dtype)
    with torch.no_grad():
        whole = attention(x, module(positions.sequence(12), x))
        for cuts in ([12], [1] * 12, [6, 1, 1, 4]):
            memory, outs = CACHES[cache](), []
            for part in x.split(cuts, 1):
                where = positions.sequence(part.shape[1], offset=memory.tokens)
                state = {"state": memory.angles} if kind == "cumulative" else {}
                outs.append(attention(part, module(where, part, **state), cache=memory))
            assert memory.tokens == 12
            assert_close(torch.cat(outs, 1), whole, tolerance=1e-5 if dtype == torch.float32 else 1e-11)


def test_left_padding_with_a_cache(dtype):
    module, attention = FixedFrames(HEAD), JourneyAttention(DIM, HEADS, causal=True).to(dtype)
    real = torch.tensor([[False, False, True, True, True], [True] * 5])
    x = torch.randn(2, 5, DIM, dtype=dtype)
    where, cache = positions.padded(real), JourneyCache()
    with torch.no_grad():
        outs = []
        for t in range(5):
            mask = real[:, None, None, : t + 1]
            outs.append(attention(x[:, t : t + 1], module(where[:, t : t + 1]), mask=mask, cache=cache))
        alone = attention(x[:1, 2:], module(positions.sequence(3)))
    assert_close(torch.cat(outs, 1)[:1, 2:], alone)


def test_gradients_through_a_growing_cache():
    attention, module = JourneyAttention(DIM, HEADS, causal=True).double(), FixedFrames(HEAD)
    x = torch.randn(1, 6, DIM, dtype=torch.float64, requires_grad=True)
    cache = JourneyCache()
    parts = [
        attention(part, module(positions.sequence(part.shape[1], offset=cache.tokens)), cache=cache)
        for part in x.split([4, 2], 1)
    ]
    (through_cache,) = torch.autograd.grad(torch.cat(parts, 1).square().sum(), x)
    (at_once,) = torch.autograd.grad(attention(x, module(positions.sequence(6))).square().sum(), x)
    assert_close(through_cache, at_once)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [None, 4])
def test_chunks_have_the_gradients_of_the_whole(kind, window):
    """Keys, values and the angle of cumulative frames all come from earlier chunks, with their gradients."""
    module = frames_of(kind, torch.float64)
    attention = JourneyAttention(DIM, HEADS, causal=True, window=window).double()
    x = torch.randn(2, 7, DIM, dtype=torch.float64, requires_grad=True)
    wanted, weights = [x, *attention.parameters(), *module.parameters()], torch.randn(2, 7, DIM, dtype=torch.float64)
    gradients = []
    for cuts in ([7], [3, 1, 3]):
        cache, outs = JourneyCache(window=window), []
        for part in x.split(cuts, 1):
            state = {"state": cache.angles} if kind == "cumulative" else {}
            frames = module(positions.sequence(part.shape[1], offset=cache.tokens), part, **state)
            outs.append(attention(part, frames, cache=cache))
        gradients.append(torch.autograd.grad((torch.cat(outs, 1) * weights).sum(), wanted))
    for whole, chunks in zip(*gradients, strict=True):
        assert whole.abs().max() > 1e-3
        assert_close(chunks, whole, tolerance=1e-12)


def test_the_angle_kept_without_gradients_carries_none():
    """And what inference mode left behind serves training as a constant."""
    module, attention = frames_of("cumulative", torch.float32), JourneyAttention(DIM, HEADS, causal=True)
    x = torch.randn(1, 5, DIM)
    for mode in (torch.no_grad, torch.inference_mode):
        cache = JourneyCache()
        with mode():
            attention(x[:, :3], module(positions.sequence(3), x[:, :3]), cache=cache)
        assert not cache.angles.requires_grad
        frames = module(positions.sequence(2, offset=3), x[:, 3:], state=cache.angles)
        attention(x[:, 3:], frames, cache=cache).sum().backward()
        assert module.projector.w2.weight.grad.isfinite().all()


def test_converted_weights_compute_the_same_in_the_other_layout(dtype):
    """W_q, W_k, W_v rows and W_o columns reordered: same function on the half layout's frames."""
    attention, other = (JourneyAttention(DIM, HEADS).to(dtype) for _ in range(2))
    with torch.no_grad():
        other.qkv.weight.copy_(convert_layout(attention.qkv.weight, head_dim=HEAD, to="half", dim=0))
        other.out.weight.copy_(convert_layout(attention.out.weight, head_dim=HEAD, to="half", dim=1))
    x = torch.randn(2, 5, DIM, dtype=dtype)
    a = attention(x, FixedFrames(HEAD)(positions.sequence(5)))
    b = other(x, FixedFrames(HEAD, layout="half")(positions.sequence(5)))
    assert_close(a, b)


def test_dropout_only_in_training():
    attention = JourneyAttention(DIM, HEADS, dropout=0.5)
    x, frames = torch.randn(1, 9, DIM), FixedFrames(HEAD)(positions.sequence(9))
    assert not torch.equal(attention(x, frames), attention(x, frames))
    attention.eval()
    assert torch.equal(attention(x, frames), attention(x, frames))


def test_scale_is_used():
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)(positions.sequence(5))
    attention = JourneyAttention(DIM, HEADS, scale=0.01)
    q, k, v = (t.unflatten(-1, (HEADS, HEAD)) for t in attention.qkv(x).chunk(3, -1))
    expected = attention.out(journey_attention(q, k, v, frames, scale=0.01).flatten(2))
    assert_close(attention(x, frames), expected)


def test_ensembles_by_vmap():
    """The module under torch.func: the in-place path steps aside."""
    layers = [JourneyAttention(DIM, HEADS) for _ in range(3)]
    frames, x = FixedFrames(HEAD)(positions.sequence(5)), torch.randn(2, 5, DIM)
    stacked, _ = torch.func.stack_module_state(layers)
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        outs = torch.vmap(lambda p: torch.func.functional_call(layers[0], p, (x, frames)))(stacked)
        for out, layer in zip(outs, layers):
            assert_close(out, layer(x, frames))


def test_far_out_the_oracle_is_right_too():
    """Reference and fast path agree a million tokens from the origin, in fp32 and for curved frames."""
    q, k, v = torch.randn(3, 1, 4, 2, 8)
    for module in (FixedFrames(8), DenseFrames(8, axes=1)):
        here, there = (module(positions.sequence(4, offset=n)) for n in (0, 1_000_003))
        fast = journey_attention(q, k, v, there)
        assert_close(journey_attention(q, k, v, there, backend="reference"), fast, tolerance=1e-5)
        assert_close(fast, journey_attention(q, k, v, here), tolerance=1e-4)


def test_a_refused_call_leaves_the_cache_as_it_was():
    attention, cache = JourneyAttention(DIM, HEADS, causal=True), JourneyCache()
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)
    with torch.no_grad():
        attention(x[:, :4], frames(positions.sequence(4)), cache=cache)
        with pytest.raises(ValueError, match="mask must be"):
            attention(x[:, 4:], frames(positions.sequence(1, 4)), cache=cache, mask=torch.ones(3, 3, dtype=torch.bool))
        assert cache.tokens == 4
        last = attention(x[:, 4:], frames(positions.sequence(1, 4)), cache=cache)
        assert_close(last, attention(x, frames(positions.sequence(5)))[:, 4:])
        with pytest.raises(ValueError, match="another layer"):
            JourneyAttention(DIM, HEADS, causal=True)(x[:, 4:], frames(positions.sequence(1, 5)), cache=cache)


def contents(cache):
    """All that a cache is, with copies of what it holds."""
    held = None if cache._store is None else [t[:, : cache._held].clone() for t in cache._store]
    return cache.tokens, cache._held, cache._owner, cache.angles, held


def same_contents(before, after):
    held, now = before[-1], after[-1]
    stored = (held is None) == (now is None) and all(torch.equal(a, b) for a, b in zip(held or (), now or ()))
    return before[:3] == after[:3] and before[3] is after[3] and stored


FAULTS = {
    "mask": {"mask": torch.ones(3, 3, dtype=torch.bool)},
    "mask dtype": {"mask": torch.ones(1, 1, 1, 9, dtype=torch.long)},
    "segments": {"segments": torch.zeros(2, dtype=torch.long)},
    "frames": {"frames": FlatFrames.of(torch.zeros(1, 9, 1, 4))},
    "frames' heads": {"frames": FlatFrames.of(torch.zeros(1, 1, 2, 4))},
    "batch": {"x": torch.zeros(3, 1, DIM)},
    "dtype": {"x": torch.zeros(1, 1, DIM, dtype=torch.bfloat16)},
    "the attention itself": {"fail": "attend"},
    "the last projection": {"fail": "unrotate_linear"},
}


@pytest.mark.refused
@pytest.mark.parametrize("filled", [0, 4])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("cache", CACHES)
def test_a_call_that_raises_leaves_cache_and_owner_as_they_were(fault, filled, cache, monkeypatch):
    window = 4 if cache == "sliding" else None
    attention, memory = JourneyAttention(DIM, HEADS, causal=True, window=window), CACHES[cache]()
    x, module, wrong = torch.randn(1, 9, DIM), FixedFrames(HEAD), dict(FAULTS[fault])
    filled = 4 if fault in ("batch", "dtype") else filled  # an empty cache takes any
    with torch.no_grad():
        if filled:
            attention(x[:, :filled], module(positions.sequence(filled)), cache=memory)
        before = contents(memory)
        here = positions.sequence(1, filled)
        with monkeypatch.context() as patch:
            if "fail" in wrong:
                patch.setattr(f"joformer.attention._module.{wrong.pop('fail')}", interrupted)
            given = {"x": x[:, filled : filled + 1], "frames": module(here), "cache": memory, **wrong}
            with pytest.raises((ValueError, RuntimeError, KeyboardInterrupt)):
                attention(**given)
        assert same_contents(before, contents(memory))
        if filled == 0:
            attention = JourneyAttention(DIM, HEADS, causal=True, window=window)  # it belongs to nobody yet
        last = attention(x[:, filled : filled + 1], module(here), cache=memory)
        assert_close(last, attention(x[:, : filled + 1], module(positions.sequence(filled + 1)))[:, filled:])


def interrupted(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.refused
def test_a_reordering_that_raises_leaves_the_cache_as_it_was():
    cache = JourneyCache()
    cache.update(torch.randn(2, 3, 1, 4), torch.randn(2, 3, 1, 4))
    cache.angles = torch.randn(3, 1, 1, 2)  # one row more, so that only the keys cannot follow
    before = contents(cache)
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        cache.reorder([2, 1])
    assert same_contents(before, contents(cache))


def test_a_cache_filled_in_inference_mode_goes_on_without():
    attention, cache = JourneyAttention(DIM, HEADS, causal=True), JourneyCache()
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)
    with torch.inference_mode():
        attention(x[:, :4], frames(positions.sequence(4)), cache=cache)
    with torch.no_grad():
        last = attention(x[:, 4:], frames(positions.sequence(1, 4)), cache=cache)
        assert_close(last, attention(x, frames(positions.sequence(5)))[:, 4:])


def test_who_listens_to_the_projection_hears_it_unrotated():
    attention, kept = JourneyAttention(DIM, HEADS), []
    x, frames = torch.randn(1, 5, DIM), FixedFrames(HEAD)(positions.sequence(5))
    plain = attention.qkv(x)
    want = attention(x, frames)
    for register in (attention.qkv.register_forward_hook, torch.nn.modules.module.register_module_forward_hook):
        handle = register(lambda module, args, out: kept.append(out) if module is attention.qkv else None)
        assert_close(attention(x, frames), want)
        handle.remove()
        assert torch.equal(kept.pop(), plain)


def test_nothing_in_nothing_out():
    frames = FixedFrames(HEAD)(positions.sequence(0))
    assert JourneyAttention(DIM, HEADS)(torch.zeros(2, 0, DIM), frames).shape == (2, 0, DIM)


X, F = torch.zeros(1, 5, DIM), FlatFrames.of(torch.zeros(1, 5, 1, 4))


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: JourneyAttention(25, 3), "does not divide"),
        (lambda: JourneyAttention(24, 3, kv_heads=2), "multiple"),
        (lambda: JourneyAttention(24, 0), "positive"),
        (lambda: JourneyAttention(24, 3, transport="all"), "transport"),
        (lambda: JourneyAttention(24, 3, window=0), "window"),
        (lambda: JourneyAttention(24, 3, dropout=2.0), "dropout"),
        (lambda: JourneyAttention(24, 3, context_dim=5, causal=True), "cross-attention"),
        (lambda: JourneyAttention(24, 3)(X[0], F), "batch, tokens, dim=24"),
        (lambda: JourneyAttention(24, 3)(X, F, context=X), "context_dim="),
        (lambda: JourneyAttention(24, 3, context_dim=24)(X, F), "context="),
        (lambda: JourneyAttention(24, 3, context_dim=24)(X, F, context=X), "key_frames="),
        (lambda: JourneyAttention(24, 3)(X, F, key_frames=F), "share frames"),
        (lambda: JourneyAttention(24, 3)(X, F, cache=JourneyCache()), "causal=True"),
        (lambda: JourneyAttention(24, 3, causal=True)(X, F, cache=JourneyCache(window=3)), "too short"),
        (lambda: JourneyAttention(24, 3, causal=True, window=9)(X, F, cache=JourneyCache(window=3)), "too short"),
        (lambda: JourneyAttention(24, 3)(X, FixedFrames(8)), "call the module first"),
        (lambda: JourneyAttention(24, 3)(X, F, mask=torch.ones(1, 1, 1, 5, dtype=torch.long)), "boolean or floating"),
        (lambda: JourneyAttention(24, 3)(X, F, mask=torch.ones(3, 5, 5, dtype=torch.bool)), "mask must be"),
        (lambda: JourneyAttention(24, 3)(X, F, segments=torch.zeros(3, 5, dtype=torch.long)), "segments"),
        (lambda: JourneyAttention(24, 3, head_dim=0), "widths"),
        (lambda: JourneyAttention(24, 3, window=2.5), "window"),
        (lambda: JourneyAttention(24, 3, context_dim=24)(X, F, context=X[..., :5], key_frames=F), "context_dim=24"),
        (lambda: JourneyAttention(24, 6, kv_heads=3)(X, FlatFrames.of(torch.zeros(1, 5, 6, 2))), "key/value"),
        (lambda: JourneyAttention(24, 3)(X, FlatFrames.of(torch.zeros(1, 5, 2, 4))), "divisor"),
    ],
)
def test_bad_input_says_what_would_be_right(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)
