"""The two groups against dense matrices: the slow, obvious reference is torch's own matrix algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import Group, Invertible, Orthogonal, Torus

DTYPES = [torch.float32, torch.float64]
ATOL = {torch.float32: 2e-5, torch.float64: 1e-12}
quick = settings(deadline=None, derandomize=True, max_examples=40)


def draw(group: Group, *batch: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    if isinstance(group, Torus):
        return torch.randn(*batch, group.planes, generator=rng, dtype=dtype) * 2
    noise = torch.randn(*batch, group.dim, group.dim, generator=rng, dtype=dtype)
    return torch.linalg.qr(noise)[0] if isinstance(group, Orthogonal) else torch.matrix_exp(noise / 4)


def close(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype = torch.float64) -> None:
    torch.testing.assert_close(a, b, atol=ATOL[dtype], rtol=0, check_dtype=False)


def dense_rotation(angles: list[float]) -> torch.Tensor:
    out = torch.zeros(2 * len(angles), 2 * len(angles), dtype=torch.float64)
    for b, phi in enumerate(angles):
        c, s = math.cos(phi), math.sin(phi)
        out[2 * b : 2 * b + 2, 2 * b : 2 * b + 2] = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return out


groups = st.one_of(st.builds(Torus, st.integers(1, 4)), st.builds(Orthogonal, st.integers(1, 5)))
batches = st.lists(st.integers(1, 3), max_size=2)


def test_torus_matrix_is_the_convention_written_by_hand():
    angles = [0.3, -1.1, 2.0]
    torus = Torus(3)
    close(torus.matrix(torch.tensor(angles, dtype=torch.float64)), dense_rotation(angles))
    quarter = torch.tensor([math.pi / 2, 0.0], dtype=torch.float64)
    close(Torus(2).act(quarter, torch.tensor([1.0, 0, 5, 7])), torch.tensor([0.0, 1, 5, 7]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [Torus(3), Orthogonal(5), Invertible(3)], ids=str)
def test_every_operation_is_the_matrix_operation(group, dtype):
    a, b = draw(group, 4, 2, dtype=dtype), draw(group, 2, dtype=dtype, seed=1)
    v = torch.randn(4, 2, group.dim, dtype=dtype)
    m = group.matrix
    close(m(group.multiply(a, b)), m(a) @ m(b), dtype)
    close(m(group.inverse(a)), torch.linalg.inv(m(a)), dtype)
    close(group.act(a, v), (m(a) @ v[..., None])[..., 0], dtype)
    close(m(group.journey(a, b)), torch.linalg.inv(m(b)) @ m(a), dtype)
    close(m(group.identity(2, dtype=dtype)), torch.eye(group.dim, dtype=dtype).expand(2, -1, -1), dtype)
    close(group.distance(a, b), torch.linalg.matrix_norm(m(a) - m(b)), dtype)
    for result in (group.multiply(a, b), group.power(a, 3), group.act(a, v), group.distance(a, b)):
        assert result.dtype == dtype


@quick
@given(groups, batches, st.integers(-7, 9))
def test_integer_powers_are_repeated_products(group, batch, n):
    a = draw(group, *batch)
    step = a if n >= 0 else group.inverse(a)
    expected = group.identity(*batch, dtype=a.dtype)
    for _ in range(abs(n)):
        expected = group.multiply(expected, step)
    assert group.distance(group.power(a, n), expected).max() < 1e-11


@quick
@given(groups, batches, st.lists(st.integers(-40, 40), min_size=1, max_size=5))
def test_tensor_powers_equal_powers_one_by_one(group, batch, exponents):
    a = draw(group, *batch, 1)
    together = group.power(a, torch.tensor(exponents))
    for i, n in enumerate(exponents):
        assert group.distance(together.select(len(batch), i), group.power(a, n).select(len(batch), 0)).max() < 1e-10


@quick
@given(st.integers(1, 4), st.floats(-50, 50), st.floats(-50, 50))
def test_real_powers_of_the_torus_add_up(planes, s, t):
    torus = Torus(planes)
    a = draw(torus)
    assert torus.distance(torus.multiply(torus.power(a, s), torus.power(a, t)), torus.power(a, s + t)) < 1e-11


@quick
@given(groups, batches)
def test_group_axioms(group, batch):
    a, b, c = (draw(group, *batch, seed=s) for s in range(3))
    mul, dist, e = group.multiply, group.distance, group.identity(*batch, dtype=torch.float64)
    assert dist(mul(mul(a, b), c), mul(a, mul(b, c))).max() < 1e-12
    assert dist(mul(a, group.inverse(a)), e).max() < 1e-12
    assert dist(mul(group.inverse(a), a), e).max() < 1e-12
    assert dist(mul(a, e), a).max() < 1e-12
    assert dist(mul(c, a), mul(c, b)).sub(dist(a, b)).abs().max() < 1e-12  # the distance is invariant


@quick
@given(groups, batches)
def test_acting_keeps_norms_and_composes(group, batch):
    a, b = draw(group, *batch), draw(group, *batch, seed=1)
    v = torch.randn(*batch, group.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    close(group.act(a, v).norm(dim=-1), v.norm(dim=-1))
    close(group.act(group.multiply(a, b), v), group.act(a, group.act(b, v)))


def test_distance_is_blind_to_whole_turns_and_sees_the_rest():
    torus, a = Torus(2), torch.tensor([0.4, 1.0], dtype=torch.float64)
    assert torus.distance(a, a + torch.tensor([2 * math.pi, -6 * math.pi])) < 1e-6
    assert torus.distance(a, a + torch.tensor([math.pi, 0.0])) > 2.8


def test_commutes_sees_the_difference_and_torus_elements_always_do():
    group = Orthogonal(3)
    a, b = draw(group), draw(group, seed=1)
    assert not group.commutes(a, b)
    assert group.commutes(a, group.power(a, 5))
    assert Torus(3).commutes(draw(Torus(3), 4), draw(Torus(3), 4, seed=1)).all()


def test_shears_belong_to_the_invertible_matrices_alone():
    shear = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    Invertible(2).check(shear)
    assert torch.equal(Invertible(2).power(shear, -1) @ shear, torch.eye(2))
    with pytest.raises(ValueError, match="not orthogonal"):
        Orthogonal(2).check(shear)
    with pytest.raises(ValueError, match="singular"):
        Invertible(2).check(torch.ones(2, 2))


def test_reflections_belong_to_the_orthogonal_group():
    group, flip = Orthogonal(2), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
    group.check(flip)
    assert group.distance(group.power(flip, -3), flip) == 0


def test_fp32_angles_stay_accurate_at_a_million_steps():
    step = torch.tensor([1.0, 0.1234567])
    far = Torus(2).power(step, 1_048_576)
    exact = step.double() * 1_048_576
    assert Torus(2).distance(far.double(), exact) < 2e-6


def test_gradients_reach_angles_and_matrices():
    torus, group = Torus(2), Orthogonal(3)
    angles = draw(torus, 3).requires_grad_()
    v = torch.randn(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda a: torus.act(torus.power(torus.multiply(a, a[:1]), -2.5), v), angles)
    assert torch.autograd.gradcheck(lambda a: torus.matrix(torus.journey(a, a.flip(0))), angles)
    matrices = draw(group, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: group.power(a, torch.tensor([3, -2])), matrices)


def test_identical_angles_have_a_finite_distance_gradient():
    a = torch.ones(2, requires_grad=True)
    Torus(2).distance(a, a.detach()).backward()
    assert a.grad.isfinite().all()


def test_content_keeps_its_dtype():
    angles, matrix = torch.tensor([0.5], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        assert Torus(1).act(angles, torch.ones(2, dtype=dtype)).dtype == dtype
        assert Orthogonal(2).act(matrix, torch.ones(2, dtype=dtype)).dtype == dtype


@pytest.mark.refused
def test_whole_numbers_are_not_cut():
    angles = torch.tensor([0.5], dtype=torch.float64)
    turned = Torus(1).act(angles, torch.tensor([1, 0]))
    torch.testing.assert_close(turned, torch.stack([angles.cos(), angles.sin()], -1)[0])
