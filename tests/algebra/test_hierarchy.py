"""One formula for four kernels: each against the plainest form of itself."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from joformer import CurvedFrames, FlatFrames, journey_attention
from joformer.algebra import Orthogonal, Torus, hierarchy, journey, ssm_kernel
from joformer.algebra._hierarchy import KERNELS
from joformer.testing import assert_close

GROUPS = {"torus": Torus(3), "orthogonal": Orthogonal(5)}
every_group = pytest.mark.parametrize("name", GROUPS)


def random_elements(group, *batch, dtype=torch.float64):
    if isinstance(group, Torus):
        return torch.randn(*batch, group.planes, dtype=dtype)
    return torch.linalg.qr(torch.randn(*batch, group.dim, group.dim, dtype=torch.float64))[0].to(dtype)


def recurrence(group, transitions, values):
    """h_t = A_t h_{t−1} + v_t from h_0 = 0, at every t; transitions is a list."""
    states, h = [], torch.zeros_like(values[..., 0, :])
    for t, a in enumerate(transitions):
        h = group.act(a, h) + values[..., t, :]
        states.append(h)
    return torch.stack(states, -2)


@every_group
def test_linear_ssm_is_its_recurrence(name, dtype):
    group, values = GROUPS[name], torch.randn(2, 9, GROUPS[name].dim, dtype=dtype)
    step = random_elements(group, dtype=dtype)
    expected = recurrence(group, [step] * 9, values)
    assert_close(hierarchy("linear_ssm", values, group=group, steps=step), expected)
    assert (hierarchy("linear_ssm", values, group=group, steps=group.inverse(step)) - expected).abs().max() > 0.1


@every_group
def test_selective_ssm_is_its_recurrence(name, dtype):
    group, values = GROUPS[name], torch.randn(9, GROUPS[name].dim, dtype=dtype)
    steps = random_elements(group, 9, dtype=dtype)
    assert_close(hierarchy("selective_ssm", values, steps=steps, group=group), recurrence(group, steps, values))


@every_group
def test_the_last_state_is_what_the_ssm_kernel_gives(name):
    group, values = GROUPS[name], torch.randn(7, GROUPS[name].dim, dtype=torch.float64)
    steps = random_elements(group, 7)
    kernel = ssm_kernel(steps, group=group)
    assert_close(
        hierarchy("selective_ssm", values, steps=steps, group=group)[-1],
        group.act(kernel, values).sum(0),
        tolerance=1e-12,
    )


@every_group
def test_each_is_a_case_of_the_next(name):
    """Attention is the recurrence that stands still, a linear SSM a selective one, all of them JoFormer's."""
    group, values = GROUPS[name], torch.randn(6, GROUPS[name].dim, dtype=torch.float64)
    weights, step = torch.rand(6, 6, dtype=torch.float64), random_elements(group)
    same = {"group": group, "weights": weights}
    still = group.identity(dtype=torch.float64)
    assert_close(hierarchy("attention", values, **same), hierarchy("linear_ssm", values, steps=still, **same))
    repeated = step.expand(6, *step.shape)
    assert_close(
        hierarchy("linear_ssm", values, steps=step, **same), hierarchy("selective_ssm", values, steps=repeated, **same)
    )
    back = group.power(group.inverse(step)[None], torch.arange(6))  # A_t = R^{−t}: row 22
    assert_close(
        hierarchy("linear_ssm", values, steps=step, **same), hierarchy("joformer", values, operators=back, **same)
    )


@every_group
def test_attention_mixes_and_moves_nothing(name, dtype):
    group = GROUPS[name]
    weights, values = torch.rand(2, 5, 5, dtype=dtype).softmax(-1), torch.randn(2, 5, group.dim, dtype=dtype)
    assert_close(hierarchy("attention", values, group=group, weights=weights), weights @ values)


@every_group
def test_joformer_is_journey_attention_and_its_journeys(name):
    group = GROUPS[name]
    at, values = random_elements(group, 6), torch.randn(6, group.dim, dtype=torch.float64)
    q, k = torch.randn(2, 6, group.dim, dtype=torch.float64).unbind()
    weights = torch.softmax(q @ k.mT / group.dim**0.5, -1)
    got = hierarchy("joformer", values, operators=at, group=group, weights=weights)
    expected = torch.stack(
        [
            sum(weights[i, j] * group.act(journey(group, src=at[j], dst=at[i]), values[j]) for j in range(6))
            for i in range(6)
        ]
    )
    assert_close(got, expected)
    frames = FlatFrames.of(at[None, :, None]) if name == "torus" else CurvedFrames(at[None, :, None, None])
    q, k, v = (t[None, :, None] for t in (q, k, values))
    for backend in ("reference", "sdpa"):
        attended = journey_attention(q, k, v, frames, transport="values", backend=backend)
        assert_close(got, attended[0, :, 0])


@every_group
def test_decay_is_a_weight(name):
    group, values = GROUPS[name], torch.randn(6, GROUPS[name].dim, dtype=torch.float64)
    steps, decay = random_elements(group, 6), torch.rand(6, dtype=torch.float64)
    weights = torch.zeros(6, 6, dtype=torch.float64)
    for k in range(6):
        for j in range(k + 1):
            weights[k, j] = decay[j + 1 : k + 1].prod()
    h, expected = torch.zeros(group.dim, dtype=torch.float64), []
    for t in range(6):
        h = decay[t] * group.act(steps[t], h) + values[t]
        expected.append(h)
    assert_close(hierarchy("selective_ssm", values, steps=steps, group=group, weights=weights), torch.stack(expected))


@every_group
@given(
    batch=st.lists(st.integers(1, 3), max_size=2),
    steps=st.integers(1, 9),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=15)
def test_any_batch_and_length(name, batch, steps, dtype):
    group = GROUPS[name]
    values, each = (
        torch.randn(*batch, steps, group.dim, dtype=dtype),
        random_elements(group, *batch, steps, dtype=dtype),
    )
    for kernel, operators in (
        ("linear_ssm", each[..., 0, :, :] if group.rank == 2 else each[..., 0, :]),
        ("selective_ssm", each),
    ):
        got = hierarchy(kernel, values, steps=operators, group=group)
        time = -1 - group.rank
        listed = [operators] * steps if kernel == "linear_ssm" else list(operators.unbind(time))
        assert got.dtype == dtype
        assert_close(got, recurrence(group, listed, values))


def test_gradients_reach_values_operators_and_weights():
    values, steps = torch.randn(4, 6, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    weights = torch.rand(4, 4, dtype=torch.float64)
    inputs = tuple(t.requires_grad_() for t in (values, steps, weights))
    for kernel, name in (("selective_ssm", "steps"), ("joformer", "operators")):

        def mixed(v, a, w, kernel=kernel, name=name):
            return hierarchy(kernel, v, group=Torus(3), weights=w, **{name: a})

        assert gradcheck(mixed, inputs)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("kernel", "values", "given", "says"),
    [
        ("mamba", (3, 6), {}, ", ".join(KERNELS)),
        ("attention", (3, 6), {}, "give weights"),
        ("attention", (3, 6), {"steps": (3,)}, "takes neither"),
        ("attention", (3, 6), {"operators": (3, 3)}, "takes neither"),
        ("joformer", (3, 6), {"operators": (3, 3)}, "give weights"),
        ("joformer", (3, 6), {"steps": (3, 3)}, "joformer takes operators"),
        ("joformer", (3, 6), {"operators": (2, 3)}, "one per token for 3 tokens"),
        ("linear_ssm", (3, 6), {}, "are missing"),
        ("linear_ssm", (3, 6), {"steps": (2,)}, "steps has shape"),
        ("linear_ssm", (3, 5), {"steps": (3,)}, "odd"),
        ("linear_ssm", (3, 6), {"steps": (3,), "operators": (3, 3)}, "are not used here"),
        ("linear_ssm", (3, 6), {"steps": (3,), "weights": (2, 2)}, "weights have shape"),
        ("selective_ssm", (4, 6), {"steps": (3, 3)}, "one per token for 4 tokens"),
        ("selective_ssm", (3, 6), {"steps": (3,)}, "one per token for 3 tokens"),
        ("selective_ssm", (6,), {"steps": (3, 3)}, "time dimension"),
    ],
)
def test_bad_input_is_refused_in_one_line(kernel, values, given, says):
    with pytest.raises(ValueError, match=says) as caught:
        hierarchy(kernel, torch.ones(values), group=Torus(3), **{name: torch.ones(s) for name, s in given.items()})
    assert "\n" not in str(caught.value)
