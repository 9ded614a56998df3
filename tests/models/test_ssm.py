"""The journey SSM: its scan is its recurrence, token by token, in every precision and at every rate of decay."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from joformer.algebra import Torus, hierarchy
from joformer.models import JourneySSM
from joformer.models import _ssm as module_of_ssm
from joformer.models._ssm import CHUNK, Transition, decayed_sums
from joformer.testing import assert_close

DIM, HEADS, HEAD = 6, 2, 4
KINDS = [{"decay": d, "content": c} for d in (True, False) for c in (True, False)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: " ".join(n for n, on in k.items() if on) or "plain")


def build(kind, dtype=torch.float64, *, rho=None):
    """Moved off its start, where content does nothing; `rho` sets how fast every head forgets."""
    torch.manual_seed(1)
    ssm = JourneySSM(DIM, heads=HEADS, head_dim=HEAD, **kind).to(dtype)
    with torch.no_grad():
        if ssm.transition.projector is not None:
            ssm.transition.projector.w2.weight.normal_()
        if ssm.transition.rho is not None and rho is not None:
            ssm.transition.rho.fill_(rho)
    return ssm


def recurrence(ssm, x, state=None):
    """h_t = λ_t R(φ_t) h_{t−1} + v_t and y_t = W_o h_t, one token after the other, through the group, in fp64."""
    group, own = Torus(HEAD // 2), ssm.transition
    x = x.to(torch.float64)
    values = (x @ ssm.values.weight.double().mT).unflatten(-1, (HEADS, HEAD))
    h = torch.zeros_like(values[:, 0]) if state is None else state.double()
    ys = []
    for t in range(x.shape[1]):
        phi = own.frequencies.double().expand(x.shape[0], -1, -1)
        rho = None if own.rho is None else own.rho.double().expand(x.shape[0], -1)
        if own.projector is not None:
            moved = own.projector(x[:, t : t + 1].to(own.frequencies.dtype))[:, 0].double().unflatten(-1, (HEADS, -1))
            phi = group.multiply(phi, moved[..., : HEAD // 2])
            rho = None if rho is None else rho + moved[..., -1]
        decay = 1.0 if rho is None else 1 / (1 + rho.exp())[..., None]  # exp(−softplus(ρ))
        h = decay * group.act(phi, h) + values[:, t]
        ys.append(h.flatten(1) @ ssm.out.weight.double().mT)
    return torch.stack(ys, 1), h


@every_kind
@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_the_scan_is_the_recurrence(kind, tokens, dtype):
    ssm, x = build(kind, dtype, rho=-3.0), torch.randn(2, tokens, DIM, dtype=dtype)
    with torch.no_grad():
        y, state = ssm(x)
        expected, last = recurrence(ssm, x)
    assert y.dtype == state.dtype == dtype
    assert_close(y, expected.to(dtype))
    assert_close(state, last.to(dtype))


@pytest.mark.parametrize("rho", [-40.0, 0.0, 5.0, 200.0])
def test_no_rate_of_decay_overflows_or_is_lost(rho, dtype):
    # From none at all (λ = 1 to the last digit) to one that underflows within a token.
    ssm, x = build({}, dtype, rho=rho), torch.randn(1, 5 * CHUNK, DIM, dtype=dtype)
    y, _ = ssm(x)
    y.square().sum().backward()
    expected, _ = recurrence(ssm, x)
    assert_close(y, expected.to(dtype))
    assert all(p.grad.isfinite().all() for p in ssm.parameters())


def test_one_token_that_forgets_everything_among_ones_that_forget_nothing(dtype):
    u, rates = torch.randn(1, 4 * CHUNK, 1, 3, dtype=dtype), torch.full((1, 4 * CHUNK, 1), 1e-3, dtype=torch.float64)
    rates[:, 70] = 1e4
    g, expected = torch.zeros(1, 1, 3, dtype=torch.float64), []
    for t in range(u.shape[1]):
        g = (-rates[:, t]).exp()[..., None] * g + u[:, t]
        expected.append(g)
    got = decayed_sums(u, -rates, torch.zeros(1, 1, 3, dtype=dtype))
    # The sums of rates carry 1e4, so fp64 keeps twelve digits of what differs by a thousandth.
    assert_close(got, torch.stack(expected, 1).to(dtype), tolerance=5e-6 if dtype == torch.float32 else 2e-11)
    assert_close(got[:, 70], u[:, 70])


@given(
    tokens=st.integers(1, 5 * CHUNK),
    batch=st.integers(1, 3),
    shared=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=25)
def test_decayed_sums_of_any_length(tokens, batch, shared, seed):
    make = torch.Generator().manual_seed(seed)
    u = (
        torch.randn(batch, tokens, 2, 3, generator=make, dtype=torch.float64)
        .transpose(0, 3)
        .contiguous()
        .transpose(0, 3)
    )
    rates = torch.rand(1 if shared else batch, tokens, 2, generator=make, dtype=torch.float64)
    start = torch.randn(batch, 2, 3, generator=make, dtype=torch.float64)
    g, expected = start, []
    for t in range(tokens):
        g = (-rates[:, t]).exp()[..., None] * g + u[:, t]
        expected.append(g)
    assert_close(decayed_sums(u, -rates, start), torch.stack(expected, 1))


@every_kind
@pytest.mark.parametrize("split", [1, CHUNK, CHUNK + 7])
def test_prefill_then_steps_is_the_whole(kind, split, dtype):
    ssm, x = build(kind, dtype, rho=-3.0), torch.randn(2, CHUNK + 12, DIM, dtype=dtype)
    with torch.no_grad():
        whole, end = ssm(x)
        y, state = ssm(x[:, :split])
        assert_close(y, whole[:, :split])
        resumed, again = ssm(x[:, split:], state)
        assert_close(resumed, whole[:, split:])
        assert_close(again, end)
        for t in range(split, x.shape[1]):
            y, state = ssm.step(x[:, t], state)
            assert_close(y, whole[:, t])
        assert_close(state, end)
        assert_close(ssm.step(x[:, 0])[0], whole[:, 0])


@every_kind
def test_the_future_does_not_reach_the_past(kind):
    ssm, x = build(kind), torch.randn(1, 2 * CHUNK, DIM, dtype=torch.float64)
    other = x.clone()
    other[:, CHUNK + 3 :] += 1
    y, changed = ssm(x)[0], ssm(other)[0]
    assert torch.equal(y[:, : CHUNK + 3], changed[:, : CHUNK + 3])
    assert (y - changed)[:, CHUNK + 3 :].abs().amin(-1).max() > 1e-3


def test_it_is_the_selective_kernel_of_the_hierarchy_with_decay_in_the_weights():
    ssm, x = build({}, rho=-1.0), torch.randn(1, 7, DIM, dtype=torch.float64)
    phi, rates = ssm.transition(x)
    v = ssm.values(x).unflatten(-1, (HEADS, HEAD))
    total = rates.cumsum(1).transpose(1, 2)
    weights = (total.unsqueeze(-2) - total.unsqueeze(-1)).exp().tril()
    by_head = (t.transpose(1, 2) for t in (v, phi))
    h = hierarchy("selective_ssm", next(by_head), group=Torus(2), steps=next(by_head), weights=weights)
    assert_close(ssm(x)[0], ssm.out(h.transpose(1, 2).flatten(2)))


def test_content_turns_the_state_and_what_lies_between_matters():
    # Row 33: what a token brings to the end depends on every token after it.
    x = torch.randn(1, 6, DIM, dtype=torch.float64)
    for content in (True, False):
        ssm = build({"content": content, "decay": False})
        group, shown = Torus(2), []
        for between in (x, x.clone().index_fill_(1, torch.tensor([3]), 1.0)):
            angles = ssm.transition(between)[0].expand(1, 6, -1, -1)
            shown.append(group.act(angles[:, 1:].sum(1), torch.ones(HEADS, HEAD, dtype=torch.float64)))
        assert ((shown[0] - shown[1]).abs().max() > 0.1) == content


def test_it_starts_at_fixed_frequencies_with_live_gradients():
    ssm, plain = JourneySSM(DIM, heads=HEADS, head_dim=HEAD), JourneySSM(DIM, heads=HEADS, head_dim=HEAD, content=False)
    plain.load_state_dict(ssm.state_dict(), strict=False)
    x = torch.randn(2, 10, DIM)
    assert_close(ssm(x)[0], plain(x)[0])
    ssm(x)[0].square().sum().backward()
    alive = {name for name, p in ssm.named_parameters() if p.grad is not None and p.grad.abs().max() > 1e-8}
    assert alive >= {"values.weight", "out.weight", "transition.frequencies", "transition.rho"}
    assert "transition.projector.w2.weight" in alive


@every_kind
def test_gradients_by_finite_differences(kind, monkeypatch):
    monkeypatch.setattr(module_of_ssm, "CHUNK", 2)  # so that nine tokens are carried over three levels
    ssm = build(kind, rho=-1.0)
    names = dict(ssm.named_parameters())

    def run(x, state, *parameters):
        return torch.func.functional_call(ssm, dict(zip(names, parameters)), (x, state))

    x, state = torch.randn(2, 9, DIM, dtype=torch.float64), torch.randn(2, HEADS, HEAD, dtype=torch.float64)
    inputs = [t.detach().clone().requires_grad_() for t in (x, state, *names.values())]
    assert gradcheck(run, inputs, fast_mode=True)

    def one(x, state):
        return ssm.step(x, state)

    assert gradcheck(one, (inputs[0][:, 0].detach().requires_grad_(), inputs[1]))


def test_inference_does_what_training_does_and_inputs_may_be_views():
    ssm, x = build({}, torch.float32), torch.randn(DIM, 2, 45).permute(1, 2, 0)
    before = x.clone()
    trained = ssm(x)
    with torch.no_grad():
        inferred = ssm(x)
    for a, b in zip(trained, inferred):
        assert_close(a, b)
    assert torch.equal(x, before)


def test_angles_keep_their_precision_whatever_the_layer_is_cast_to():
    ssm, x = build({}, torch.float32, rho=-3.0), torch.randn(2, 50, DIM)
    expected, _ = ssm(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = ssm(x)
        stepped, _ = ssm.step(x[:, 0])
    assert y.dtype == stepped.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert_close(y.float(), expected, tolerance=3e-2)
    kept = ssm.transition.frequencies.clone()
    ssm.to(torch.bfloat16)
    assert torch.equal(ssm.transition.frequencies, kept)
    assert ssm.values.weight.dtype == torch.bfloat16
    y, state = ssm(x.bfloat16())
    y, state = ssm.step(x[:, 0].bfloat16(), state)
    assert y.dtype == torch.bfloat16
    assert state.dtype == torch.float32


def test_meta_device_then_reset_parameters():
    with torch.device("meta"):
        ssm = JourneySSM(DIM, heads=HEADS, head_dim=HEAD)
    ssm.to_empty(device="cpu").reset_parameters()
    assert ssm(torch.randn(2, 3, DIM))[0].isfinite().all()


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [{}, {"decay": False, "content": False}], ids=["all", "plain"])
def test_one_graph_with_the_numbers_of_eager(kind):
    torch._dynamo.reset()
    ssm, x, results = build(kind, torch.float32, rho=-3.0), torch.randn(2, CHUNK + 3, DIM), []
    for call in (ssm, torch.compile(ssm, fullgraph=True, backend="aot_eager")):
        inputs = x.clone().requires_grad_()
        y, state = call(inputs)
        ssm.zero_grad()
        (y.square().sum() + state.sum()).backward()
        results.append([y, state, inputs.grad, *(p.grad.clone() for p in ssm.parameters())])
    for a, b in zip(*results):
        assert_close(b, a, tolerance=5e-5)
    torch._dynamo.reset()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: JourneySSM(10, heads=3), "does not divide into"),
        (lambda: JourneySSM(10, heads=0), "does not divide into"),
        (lambda: JourneySSM(10, heads=2), "even"),
        (lambda: JourneySSM(8, heads=2)(torch.ones(3, 8)), "tokens"),
        (lambda: JourneySSM(8, heads=2)(torch.ones(1, 3, 9)), "tokens, 8"),
        (lambda: JourneySSM(8, heads=2)(torch.ones(1, 0, 8)), "at least 1 token"),
        (lambda: JourneySSM(8, heads=2)(torch.ones(1, 3, 8), torch.ones(2, 2, 4)), "state has shape"),
        (lambda: JourneySSM(8, heads=2).step(torch.ones(1, 3, 8)), "one token"),
        (lambda: JourneySSM(8, heads=2).step(torch.ones(1, 8), torch.ones(1, 4)), "as the layer returned it"),
    ],
)
def test_bad_input_is_refused_in_one_line(call, says):
    with pytest.raises(ValueError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_rates_start_spread_between_the_slowest_and_the_fastest():
    _, rates = Transition(8, heads=5, planes=2)(torch.randn(1, 3, 8))
    expected = 2.0 ** torch.linspace(-10, -3, 5)
    torch.testing.assert_close(rates[0, 0].detach(), expected, rtol=1e-4, atol=0)


def test_autocast_rounds_neither_angles_nor_sums():
    torch.manual_seed(0)
    ssm, x = JourneySSM(16, heads=2), torch.randn(1, 200, 16)
    torch.nn.init.eye_(ssm.values.weight)
    torch.nn.init.eye_(ssm.out.weight)
    x = x.bfloat16().float()  # what the projections would round anyway
    _, exact = ssm(x)
    with torch.autocast("cpu", torch.bfloat16):
        _, state = ssm(x)
    assert state.dtype == torch.float32
    assert (state - exact).abs().max() < 1e-2 * exact.abs().max()


def test_a_hook_on_the_projection_sees_what_the_projection_made():
    ssm, x, seen = JourneySSM(8, heads=2), torch.randn(1, 5, 8), []
    expected = x @ ssm.values.weight.T
    handle = ssm.values.register_forward_hook(lambda module, inputs, output: seen.append(output))
    ssm(x)
    handle.remove()
    torch.testing.assert_close(seen[0], expected)
