"""Window attention is full attention under a band mask, at a cost that grows with the length only."""

import doctest
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import joformer.attention._window as module
from joformer.attention._window import window_attention


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny calls: on a shared machine, waiting for a second thread costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}


def full_attention(q, k, v, *, window, causal, scale, mask=None, segments=None, weighting="softmax"):
    """The formula, one dense matrix of weights; exponentials by hand so that nothing is shared."""
    queries, keys, group = q.shape[1], k.shape[1], q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    distance = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    allowed = (distance >= 0) & (distance < window) if causal else distance.abs() < window
    allowed = allowed.expand(scores.shape)
    if segments is not None:
        segments = segments.expand(q.shape[0], keys)
        allowed = allowed & (segments[:, keys - queries :, None] == segments[:, None])[:, None]
    if mask is not None and mask.dtype == torch.bool:
        allowed = allowed & mask
    elif mask is not None:
        scores = scores + mask
    scores = scores.masked_fill(~allowed, -torch.inf)
    if weighting == "softplus":
        weights = torch.log1p(scores.exp())
    else:
        top = scores.amax(-1, keepdim=True).clamp(min=-1e30)
        weights = (scores - top).exp()
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)
    return torch.einsum("bhij,bjhd->bihd", weights, v)


def random_qkv(queries, keys, *, batch=1, heads=2, kv_heads=2, dim=4, value_dim=4, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, queries, heads, dim), (batch, keys, kv_heads, dim), (batch, keys, kv_heads, value_dim)
    return tuple(torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes)


def assert_same(qkv, tolerance, **options):
    out, expected = window_attention(*qkv, **options), full_attention(*qkv, **options)
    weight = torch.randn(expected.shape, dtype=expected.dtype, generator=torch.Generator().manual_seed(1))
    leaves = [*qkv]
    if (mask := options.get("mask")) is not None and mask.requires_grad:
        leaves.append(mask)
    found = [out, *torch.autograd.grad(out, leaves, weight)]
    wanted = [expected, *torch.autograd.grad(expected, leaves, weight)]
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@st.composite
def cases(draw):
    batch = draw(st.integers(1, 2))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    queries = draw(st.one_of(st.integers(1, 40), st.integers(60, 330)))
    keys = queries + draw(st.sampled_from([0, 0, 1, 13, 150]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    qkv = random_qkv(
        queries,
        keys,
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        value_dim=draw(st.sampled_from([4, 6])),
        dtype=dtype,
        seed=draw(st.integers(0, 99)),
    )
    full = (batch, kv_heads * group, queries, keys)
    shape = tuple(n if draw(st.booleans()) else 1 for n in full)
    shape = draw(st.sampled_from([shape, (queries, keys), (batch, 1, 1, keys)]))
    kind = draw(st.sampled_from([None, "boolean", "additive", "both"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    keep = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.1, 0.8]))
    bias = torch.randn(shape, generator=generator, dtype=dtype)
    mask = {None: None, "boolean": keep, "additive": bias, "both": bias.masked_fill(~keep, -torch.inf)}[kind]
    segments = torch.randint(0, 4, draw(st.sampled_from([(batch, keys), (keys,)])), generator=generator)
    options = {
        "window": draw(st.sampled_from([1, 2, 7, 8, 9, 33, 70, 200, 1000])),
        "causal": draw(st.booleans()),
        "scale": 0.5,
        "mask": mask,
        "segments": draw(st.sampled_from([None, segments, segments.sort().values])),
        "weighting": draw(st.sampled_from(["softmax", "softplus"])),
    }
    return qkv, options


@settings(derandomize=True, deadline=None, max_examples=250)
@given(cases())
def test_window_is_masked_full_attention(case):
    qkv, options = case
    assert_same(qkv, TOLERANCE[qkv[0].dtype], **options)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [71, 72, 73, 79, 80, 81, 135, 136, 137, 200])
def test_lengths_at_which_pieces_appear(length, causal):
    for window in (1, 8, 9):
        assert_same(random_qkv(length, length, dtype=torch.float64), 1e-11, window=window, causal=causal, scale=0.5)


def test_windows_of_several_blocks_overlap_rightly():
    """Blocks are half a window long here, so that four of them share a key."""
    qkv = random_qkv(1100, 1130, heads=1, kv_heads=1, dim=2, value_dim=2, dtype=torch.float64)
    for causal in (True, False):
        assert_same(qkv, 1e-10, window=300, causal=causal, scale=0.5)


def test_additive_mask_gets_its_gradient():
    for shape in ((1, 2, 150, 150), (1, 1, 1, 150)):
        bias = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert_same(random_qkv(150, 150, dtype=torch.float64), 1e-11, window=9, causal=True, scale=0.5, mask=bias)


def test_gradcheck_and_double_backward():
    def attend(q, k, v):
        return window_attention(q, k, v, window=2, causal=True, scale=0.5)[:, 60:]

    qkv = random_qkv(80, 80, heads=1, kv_heads=1, dim=1, value_dim=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(attend, qkv, fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, qkv, fast_mode=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # SDPA's, not ours
def test_vmap_equals_batch():
    q, k, v = (x.detach() for x in random_qkv(150, 150, batch=3))

    def attend(q, k, v):
        return window_attention(q, k, v, window=8, causal=True, scale=0.5)

    one = torch.func.vmap(lambda *x: attend(*(t[None] for t in x))[0])(q, k, v)
    torch.testing.assert_close(one, attend(q, k, v))

    def loss(q, k, v):
        return attend(q[None], k[None], v[None]).square().sum()

    grads = torch.func.vmap(torch.func.grad(loss, argnums=1))(q, k, v)
    torch.testing.assert_close(grads, torch.func.grad(lambda k: attend(q, k, v).square().sum())(k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
@pytest.mark.parametrize("length", [20, 200])
@pytest.mark.parametrize("value_dim", [8, 6])
def test_rows_without_keys_are_zero_forward_and_backward(dtype, kind, length, value_dim):
    q, k, v = random_qkv(length, length, dim=8, value_dim=value_dim, dtype=dtype)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool)
    dead = [0, 3, length // 2, length - 1]
    mask[:, :, dead] = False
    given = mask if kind == "boolean" else torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
    for weighting in ("softmax", "softplus"):
        out = window_attention(q, k, v, window=8, causal=True, scale=0.5, mask=given, weighting=weighting)
        assert out.dtype == dtype
        assert (out[:, dead] == 0).all()
        assert out.abs().sum((0, 2, 3)).gt(0).sum() == length - len(dead)
        grads = torch.autograd.grad(out.float().square().sum(), (q, k, v))
        assert all(grad.isfinite().all() for grad in grads)
        assert (grads[0][:, dead] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_near_single(dtype):
    qkv = [x.detach() for x in random_qkv(300, 310, heads=4, dim=16, value_dim=16)]
    options = {"window": 20, "causal": True, "scale": 0.25}
    half = window_attention(*(x.to(dtype) for x in qkv), **options)
    bound = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(half.float(), full_attention(*qkv, **options), atol=bound, rtol=bound)


def test_chunks_and_steps_after_a_cache_equal_one_prefill():
    q, k, v = (x.detach() for x in random_qkv(400, 400, heads=4))
    options = {"window": 20, "causal": True, "scale": 0.5}
    whole = window_attention(q, k, v, **options)
    cuts = [0, 1, 150, 151, 152, 399, 400]
    parts = [window_attention(q[:, a:b], k[:, :b], v[:, :b], **options) for a, b in pairwise(cuts)]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("weighting", ["softmax", "softplus"])
@pytest.mark.parametrize("length", [30, 200])
def test_dropout_drops_weights_and_keeps_their_mean(weighting, length):
    torch.manual_seed(0)
    q, k, _ = (x.detach() for x in random_qkv(length, length))
    v = torch.ones(1, length, 2, 1)
    options = {"window": 5, "causal": True, "scale": 0.5, "weighting": weighting}
    exact = window_attention(q, k, v, **options)
    runs = torch.stack([window_attention(q, k, v, dropout=0.25, **options) for _ in range(400)])
    assert ((runs.mean(0) - exact) / exact).abs().mean() < 0.03
    # The first query has one key, so that its output is that weight: dropped, or scaled up.
    first = runs[:, 0, 0, 0, 0] / exact[0, 0, 0, 0]
    assert abs((first == 0).float().mean() - 0.25) < 0.07
    torch.testing.assert_close(first[first > 0], torch.full_like(first[first > 0], 1 / 0.75))


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returned with memory of its own."""

    def __init__(self, known=None):
        super().__init__()
        self.numel, self.known = 0, known

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            view = self.known is not None and isinstance(tensor, Tensor)
            view = view and tensor.untyped_storage().data_ptr() == self.known.untyped_storage().data_ptr()
            if isinstance(tensor, Tensor) and not view:
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def no_mask(length):
    return {}


def padding(length):
    return {"mask": (torch.arange(length) < length - 5).view(1, 1, 1, length)}


def packed(length):
    return {"segments": torch.arange(length) // 100}


def dropped(length):
    return {"dropout": 0.1, "weighting": "softplus"}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("extra", [no_mask, padding, packed, dropped])
def test_largest_tensor_grows_with_length_not_its_square(extra, causal):
    sizes = []
    for length in (2048, 4096):
        qkv = random_qkv(length, length, heads=2, kv_heads=1)
        with Largest() as largest:
            window_attention(*qkv, window=16, causal=causal, scale=0.5, **extra(length)).sum().backward()
        sizes.append(largest.numel)
    assert sizes[1] <= 2.05 * sizes[0]
    assert sizes[1] < 4096**2 / 8


def test_dense_mask_is_read_in_blocks():
    mask = torch.rand(4096, 4096) < 0.9
    with Largest(known=mask) as largest:
        window_attention(*(x.detach() for x in random_qkv(4096, 4096)), window=16, causal=True, scale=0.5, mask=mask)
    assert largest.numel < mask.numel() / 8


@pytest.mark.refused
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window must be 1 or more"),
        ({"dropout": 1.0}, "less than 1"),
        ({"weighting": "sigmoid"}, "'softmax' or 'softplus'"),
        ({"q": torch.zeros(1, 9, 2, 4)}, "a key for every query"),
        ({"q": torch.zeros(1, 8, 3, 4)}, "use a multiple"),
        ({"q": torch.zeros(2, 8, 2, 4)}, "agree in batch"),
        ({"q": torch.zeros(1, 8, 2, 5)}, "agree in batch"),
        ({"v": torch.zeros(1, 7, 2, 4)}, "agree in batch"),
        ({"k": torch.zeros(8, 2, 4)}, r"\(batch, tokens, heads, head_dim\)"),
        ({"mask": torch.ones(1, 1, 8, 7, dtype=torch.bool)}, "broadcastable to"),
        ({"mask": torch.ones(8, dtype=torch.bool)}, "broadcastable to"),
        ({"mask": torch.ones(8, 8, dtype=torch.int64)}, "mask must be boolean"),
        ({"segments": torch.zeros(1, 7, dtype=torch.int64)}, "segments must be"),
    ],
)
def test_mistakes_get_one_line(change, message):
    good = {name: torch.zeros(1, 8, 2, 4) for name in "qkv"}
    with pytest.raises(ValueError, match=message) as error:
        window_attention(**{**good, "window": 4, "causal": True, "scale": 0.5, **change})
    assert "\n" not in str(error.value)


def test_docstring_example():
    assert doctest.testmod(module).failed == 0


@pytest.mark.compiled
@pytest.mark.parametrize(("causal", "dynamic"), [(True, None), (False, True)])
def test_one_graph_serves_all_lengths(causal, dynamic):
    torch._dynamo.reset()

    def attend(q, k, v, mask):
        return window_attention(q, k, v, window=8, causal=causal, scale=0.5, mask=mask)

    # Code generation is left out: it takes half a minute and is not ours.
    compiled = torch.compile(attend, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (150, 192, 333):
            qkv = random_qkv(length, length, batch=2, heads=4)
            mask = torch.arange(length).view(1, 1, 1, length) < length - 3
            for x, dim in (*((x, 1) for x in qkv), (mask, 3)):
                torch._dynamo.mark_dynamic(x, dim)
            found = torch.autograd.grad(compiled(*qkv, mask).square().sum(), qkv)
            wanted = torch.autograd.grad(attend(*qkv, mask).square().sum(), qkv)
            for a, b in zip(found, wanted):
                torch.testing.assert_close(a, b)


@pytest.mark.compiled
def test_export_with_a_dynamic_length():
    class Attend(torch.nn.Module):
        def forward(self, q, k, v):
            return window_attention(q, k, v, window=8, causal=True, scale=0.5)

    tokens = torch.export.Dim("tokens", min=2, max=8192)
    example = tuple(x.detach() for x in random_qkv(150, 150))
    program = torch.export.export(Attend(), example, dynamic_shapes=({1: tokens},) * 3).module()
    for length in (5, 64, 333):
        qkv = tuple(x.detach() for x in random_qkv(length, length))
        torch.testing.assert_close(program(*qkv), Attend()(*qkv))
