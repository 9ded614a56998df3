"""All prefixes at once equal the loop, wherever time is and however long it gets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import Group, Orthogonal, Torus, scan


def draw(group: Group, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    if isinstance(group, Torus):
        return torch.randn(*batch, group.planes, generator=rng, dtype=dtype) * 2
    return torch.linalg.qr(torch.randn(*batch, group.dim, group.dim, generator=rng, dtype=dtype))[0]


def loop(group: Group, steps: torch.Tensor, exclusive: bool) -> torch.Tensor:
    """Prefixes along the first dimension, one product after the other."""
    product, out = group.identity(*steps.shape[1 : steps.ndim - group.rank], dtype=steps.dtype), []
    for step in steps:
        out.append(product)
        product = group.multiply(product, step)
    return torch.stack([*out, product])[0 if exclusive else 1 :][: len(steps)]


groups = st.one_of(st.builds(Torus, st.integers(1, 3)), st.builds(Orthogonal, st.integers(1, 4)))


@settings(deadline=None, derandomize=True, max_examples=80)
@given(groups, st.integers(1, 300), st.lists(st.integers(1, 3), max_size=2), st.booleans(), st.integers(0, 2))
def test_scan_equals_the_loop_at_any_length_and_dimension(group, length, others, exclusive, place):
    place = min(place, len(others))
    steps = draw(group, *others[:place], length, *others[place:])
    out = scan(group, steps, dim=place, exclusive=exclusive)
    assert out.shape == steps.shape
    assert group.distance(out.movedim(place, 0), loop(group, steps.movedim(place, 0), exclusive)).max() < 1e-11


@pytest.mark.parametrize("group", [Torus(3), Orthogonal(4)], ids=str)
def test_fp32_equals_the_fp64_loop(group):
    steps = draw(group, 1000, dtype=torch.float64).float()
    out = scan(group, steps)
    assert out.dtype == torch.float32
    assert group.distance(out.double(), loop(group, steps.double(), True)).max() < 2e-4
    assert group.distance(out[0], group.identity()) == 0


def test_defaults_are_exclusive_along_the_last_batch_dimension():
    for group in (Torus(2), Orthogonal(3)):
        steps = draw(group, 2, 5)
        assert torch.equal(scan(group, steps), scan(group, steps, dim=1, exclusive=True))
        assert torch.equal(scan(group, steps), scan(group, steps, dim=-1 - group.rank))


def test_long_fp32_sums_stay_as_accurate_as_one_rounding():
    steps = torch.full((65_536, 1), 2.3)
    exact = torch.arange(65_536)[:, None] * steps[:1].double()
    assert Torus(1).distance(scan(Torus(1), steps).double(), exact).max() < 2e-6
    assert Torus(1).distance(steps.cumsum(0)[:-1].double(), exact[1:]).max() > 1e-3  # what plain fp32 gives


def test_matrix_scan_has_logarithmic_depth(monkeypatch):
    calls, product = [], torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: calls.append(1) or product(a, b))
    Orthogonal(2).prefixes(draw(Orthogonal(2), 4096), exclusive=False)
    assert len(calls) <= 2 * 12


@pytest.mark.parametrize("exclusive", [True, False])
def test_scan_is_differentiable_and_leaves_its_input_alone(exclusive):
    for group in (Torus(2), Orthogonal(2)):
        steps = draw(group, 3, 5)
        before = steps.clone()
        scan(group, steps, exclusive=exclusive)
        assert torch.equal(steps, before)
    angles = draw(Torus(2), 2, 130).mul(0.01).requires_grad_()
    weight = torch.randn(2, 130, 2, dtype=torch.float64)
    (grad,) = torch.autograd.grad((scan(Torus(2), angles, exclusive=exclusive) * weight).sum(), angles)
    expected = weight.flip(1).cumsum(1).flip(1) - (weight if exclusive else 0)
    torch.testing.assert_close(grad, expected)
    matrices = draw(Orthogonal(2), 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: Orthogonal(2).prefixes(a, exclusive=exclusive), matrices)


@pytest.mark.parametrize("exclusive", [True, False])
@pytest.mark.parametrize("group", [Torus(2), Orthogonal(3)], ids=str)
def test_no_steps_give_no_prefixes(group, exclusive):
    assert scan(group, torch.zeros(4, 0, *group.shape), exclusive=exclusive).shape == (4, 0, *group.shape)


def test_scan_refuses_what_is_no_time_dimension():
    for dim in (2, -1, 7, -9):
        with pytest.raises(ValueError, match=r"is not a time dimension: use one of the first 2"):
            scan(Torus(3), torch.zeros(2, 4, 3), dim=dim)
    with pytest.raises(ValueError, match="not a time dimension"):
        scan(Torus(3), torch.zeros(3))
    with pytest.raises(ValueError, match="NaN or infinity"):
        scan(Torus(1), torch.tensor([[0.0], [float("inf")]]))
    with pytest.raises(ValueError, match="not orthogonal"):
        scan(Orthogonal(2), 2 * torch.eye(2).expand(3, 2, 2))
