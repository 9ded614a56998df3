"""The loss of a linear head in chunks is the loss of all logits at once: its value, its gradients, its precision."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from joformer.bench._measure import peak_bytes
from joformer.models import JoFormerLM, LMConfig, linear_cross_entropy
from joformer.models import _losses as losses

SMALL = LMConfig(vocab=17, dim=32, layers=2, heads=2)
EXACT = {torch.float32: 2e-6, torch.float64: 1e-14}


def given_problem(tokens, dim=6, vocab=11, dtype=torch.float32, seed=0, ignored=0.0):
    dice = torch.Generator().manual_seed(seed)
    shape = tokens if isinstance(tokens, tuple) else (tokens,)
    hidden = torch.randn(*shape, dim, generator=dice, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, dim, generator=dice, dtype=dtype).requires_grad_()
    targets = torch.randint(vocab, shape, generator=dice)
    targets[torch.rand(shape, generator=dice) < ignored] = -100
    return hidden, weight, targets


def plain(hidden, weight, targets):
    logits = (hidden @ weight.T).flatten(0, -2)
    return F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten().long())


def with_gradients(loss, hidden, weight, targets, scale=1.0):
    value = loss(hidden, weight, targets)
    return value.detach(), *torch.autograd.grad(value * scale, (hidden, weight))


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple),
    dim=st.integers(1, 9),
    vocab=st.integers(1, 13),
    rows=st.integers(1, 7),
    ignored=st.sampled_from([0.0, 0.4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_it_is_the_cross_entropy_of_the_logits(shape, dim, vocab, rows, ignored, dtype, seed):
    hidden, weight, targets = given_problem(shape, dim, vocab, dtype, seed, ignored)
    targets.view(-1)[0] = 0  # a mean over nothing is no number, there as here
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "ROWS", rows)
        ours = with_gradients(linear_cross_entropy, hidden, weight, targets, scale=-3.0)
    theirs = with_gradients(plain, hidden, weight, targets, scale=-3.0)
    for a, b in zip(ours, theirs):
        assert a.dtype == b.dtype
        assert (a - b).abs().max() <= 10 * EXACT[dtype] * max(1, b.abs().max())


def test_chunks_of_its_own_size(dtype):
    hidden, weight, targets = given_problem((3, losses.ROWS), 8, 50, dtype, ignored=0.1)
    ours, theirs = (
        with_gradients(loss, hidden[:, 5:], weight, targets[:, 5:]) for loss in (linear_cross_entropy, plain)
    )
    for a, b in zip(ours, theirs):
        assert (a - b).abs().max() <= EXACT[dtype]
    assert len(targets.flatten()) > 2 * losses.ROWS


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(losses, "ROWS", 2)
    hidden, weight, targets = given_problem(5, 3, 4, torch.float64)
    targets[1] = -100
    assert torch.autograd.gradcheck(lambda h, w: linear_cross_entropy(h, w, targets), (hidden, weight))


def test_large_logits_neither_overflow_nor_vanish():
    hidden, weight, targets = given_problem(9)
    for scale in (1e3, 1e30):
        big = (hidden.detach() * scale).requires_grad_()
        for a, b in zip(
            with_gradients(linear_cross_entropy, big, weight, targets), with_gradients(plain, big, weight, targets)
        ):
            assert a.isfinite().all()
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_only_what_is_asked_for_is_differentiated():
    hidden, weight, targets = given_problem(9)
    whole = with_gradients(linear_cross_entropy, hidden, weight, targets)
    assert torch.equal(torch.autograd.grad(linear_cross_entropy(hidden, weight.detach(), targets), hidden)[0], whole[1])
    assert torch.equal(torch.autograd.grad(linear_cross_entropy(hidden.detach(), weight, targets), weight)[0], whole[2])
    with torch.no_grad():
        assert torch.equal(linear_cross_entropy(hidden, weight, targets), whole[0])


def test_bit_for_bit_the_same_twice_and_backward_twice():
    hidden, weight, targets = given_problem((4, 300), 16, 70)
    first, second = (with_gradients(linear_cross_entropy, hidden, weight, targets) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    loss = linear_cross_entropy(hidden, weight, targets)
    for _ in range(2):
        assert torch.equal(torch.autograd.grad(loss, weight, retain_graph=True)[0], first[2])


def test_a_second_derivative_is_refused_rather_than_wrong():
    hidden, weight, targets = given_problem(4)
    with pytest.raises(ValueError, match="no second derivative"):
        torch.autograd.grad(linear_cross_entropy(hidden, weight, targets), hidden, create_graph=True)


def test_function_transforms_see_through_it():
    hidden, weight, targets = given_problem((3, 4))
    slope = torch.func.grad(linear_cross_entropy)(hidden, weight, targets)
    assert (slope - with_gradients(plain, hidden, weight, targets)[1]).abs().max() < 1e-6
    rows = torch.func.vmap(linear_cross_entropy, (0, None, 0))(hidden, weight, targets)
    for row, h, t in zip(rows, hidden, targets):
        assert (row - plain(h, weight, t)).abs() < 1e-6


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_autocast_rounds_the_products_and_nothing_else(narrow):
    hidden, weight, targets = given_problem((4, 300), 16, 70, ignored=0.1)
    exact = with_gradients(plain, hidden, weight, targets)
    with torch.autocast("cpu", narrow):
        loss = linear_cross_entropy(hidden, weight, targets)
    rounded = loss.detach(), *torch.autograd.grad(loss, (hidden, weight))
    step = torch.finfo(narrow).eps
    assert not torch.equal(rounded[0], exact[0])
    for a, b in zip(rounded, exact):
        assert a.dtype == torch.float32
        assert (a - b).norm() < 4 * step * b.norm()
    # What autocast itself does to the plain formula is no closer.
    with torch.autocast("cpu", narrow):
        theirs = F.cross_entropy((hidden @ weight.T).flatten(0, 1).float(), targets.flatten())
    assert (rounded[0] - exact[0]).abs() <= 2 * (theirs - exact[0]).abs() + step


def test_a_scaled_loss_keeps_gradients_that_half_precision_alone_would_lose():
    hidden, weight, targets = given_problem((64, 64), 8, 40)
    half = hidden.detach().half().requires_grad_(), weight.detach().half().requires_grad_()
    scale = 65536.0
    to_hidden, to_weight = torch.autograd.grad(linear_cross_entropy(*half, targets) * scale, half)
    exact = with_gradients(plain, hidden, weight, targets, scale)
    assert to_hidden.dtype == to_weight.dtype == torch.float16
    for a, b in zip((to_hidden, to_weight), exact[1:]):
        assert (a.float() - b).norm() < 0.01 * b.norm()


def test_a_vocabulary_larger_than_half_precision_counts():
    """s = Σ e^{z − m} passes 65,504 there."""
    hidden, weight, targets = given_problem(2, 2, 70_000)
    small = (hidden.detach() * 1e-3).half().requires_grad_()
    half = weight.detach().half().requires_grad_()
    value, to_hidden, to_weight = with_gradients(linear_cross_entropy, small, half, targets)
    assert (value - plain(small.float(), half.float(), targets)).abs() < 1e-3
    assert to_hidden.isfinite().all()
    assert to_weight.isfinite().all()


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by dynamo itself
def test_one_graph_when_compiled():
    hidden, weight, targets = given_problem((3, 400), 8, 50, ignored=0.1)
    torch._dynamo.reset()
    compiled = torch.compile(linear_cross_entropy, backend="aot_eager", fullgraph=True)
    for a, b in zip(with_gradients(compiled, hidden, weight, targets), with_gradients(plain, hidden, weight, targets)):
        assert (a - b).abs().max() < 1e-6


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_language_model_gives_the_same_loss():
    torch.manual_seed(0)
    model, tokens = JoFormerLM(SMALL), torch.randint(17, (2, 9))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    results = []
    for run in (model, compiled):
        model.zero_grad()
        loss = run(tokens, targets=tokens)
        loss.backward()
        results.append((loss.detach(), *(p.grad.clone() for p in model.parameters())))
    for a, b in zip(*results):
        assert (a - b).abs().max() < 1e-5


def test_memory_is_far_below_the_logits():
    hidden, weight, targets = given_problem(8192, 16, 2000)
    logits = hidden.shape[0] * weight.shape[0] * 4
    assert peak_bytes(lambda: with_gradients(plain, hidden, weight, targets)) > 2 * logits
    assert peak_bytes(lambda: with_gradients(linear_cross_entropy, hidden, weight, targets)) < logits / 8


@pytest.mark.parametrize("tied", [True, False])
def test_the_language_model_gives_its_loss_with_targets(tied):
    torch.manual_seed(0)
    model = JoFormerLM(LMConfig(vocab=17, dim=32, layers=2, heads=2, tied=tied)).double()
    tokens = torch.randint(17, (3, 9))
    targets = tokens.roll(-1, 1).clone()
    targets[:, -1] = -100
    results = []
    for loss in (
        lambda: model(tokens, targets=targets),
        lambda: F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()),
    ):
        model.zero_grad()
        value = loss()
        value.backward()
        results.append((value.detach(), *(p.grad.clone() for p in model.parameters())))
    assert results[0][0].shape == ()
    for a, b in zip(*results):
        assert (a - b).abs().max() < 1e-13


@pytest.fixture
def alone():
    """A process group of one, for what only asks that the wrappers' hooks run."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("wrap", ["ddp", "fsdp2"])
def test_wrapped_models_give_the_same_loss_and_gradients(wrap, alone):
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model, tokens = JoFormerLM(SMALL), torch.randint(17, (3, 9))
    model(tokens[:, :-1], targets=tokens[:, 1:]).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    if wrap == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        for block in model.blocks:
            fully_shard(block)
        wrapped = fully_shard(model)
    wrapped(tokens[:, :-1], targets=tokens[:, 1:]).backward()
    for name, p in model.named_parameters():
        grad = p.grad.full_tensor() if wrap == "fsdp2" else p.grad
        torch.testing.assert_close(grad, expected[name])


@pytest.mark.refused
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h, w, t: (h, w, t + 11), "within 0 … 10"),
        (lambda h, w, t: (h, w, t * 0 - 1), "targets go from -1"),
        (lambda h, w, t: (h, w, t.float()), "whole numbers"),
        (lambda h, w, t: (h, w, t[:-1]), "one per token"),
        (lambda h, w, t: (h, w.T, t), r"weight \(vocab, dim\)"),
        (lambda h, w, t: (h[0], w, t[0]), r"hidden must be \(…, dim\)"),
        (lambda h, w, t: (h.double(), w, t), "float64 and weight torch.float32"),
    ],
)
def test_refusals_are_one_line(change, says):
    with pytest.raises(ValueError, match=says) as error:
        linear_cross_entropy(*change(*given_problem(5)))
    assert "\n" not in str(error.value)


def test_targets_of_any_whole_type():
    hidden, weight, targets = given_problem(5)
    value = linear_cross_entropy(hidden, weight, targets)
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(linear_cross_entropy(hidden, weight, targets.to(kind)), value)
