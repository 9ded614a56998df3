"""Flat and curved: residuals against products written out, and the loops that tell them apart."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from joformer.algebra import (
    Element,
    Generators,
    Orthogonal,
    Torus,
    commutator,
    compose,
    grid_from_potential,
    holonomy,
    interchange_defect,
    is_flat,
    path_spread,
    path_transport,
    plaquette_defect,
)

quick = settings(deadline=None, derandomize=True, max_examples=30)


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotations(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.linalg.qr(noise(*shape, seed=seed, dtype=dtype))[0]


def curved(axes: int = 2, d: int = 3) -> Generators:
    return Generators.orthogonal(rotations(axes, d, d))


def commuting_matrices(axes: int = 3, dtype: torch.dtype = torch.float64) -> Generators:
    """Rotations that share their planes but not their basis with the coordinate axes."""
    basis, torus = rotations(4, 4, seed=9, dtype=dtype), Torus(2)
    return Generators.orthogonal(basis @ torus.matrix(noise(axes, 2, dtype=dtype)) @ basis.mT)


def test_commutator_is_the_ordered_product():
    a, b = rotations(5, 3, 3), rotations(5, 3, 3, seed=1)
    expected = a @ b @ torch.linalg.inv(a) @ torch.linalg.inv(b)
    torch.testing.assert_close(commutator(a, b, group=Orthogonal(3)), expected)
    assert commutator(noise(4, 2), noise(4, 2, seed=1), group=Torus(2)).abs().max() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_flat_tells_flat_from_curved(dtype):
    assert is_flat(Generators.torus(noise(3, 2, dtype=dtype)))
    assert is_flat(commuting_matrices(dtype=dtype))
    assert not is_flat(Generators.orthogonal(rotations(2, 3, 3, dtype=dtype)))
    assert is_flat(curved(axes=1))


def test_is_flat_takes_a_tolerance():
    angle = torch.tensor(1e-5, dtype=torch.float64)
    tilt = torch.linalg.matrix_exp(angle * torch.tensor([[0.0, 0, 1], [0, 0, 0], [-1, 0, 0]], dtype=torch.float64))
    turn = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float64)
    almost = Generators.orthogonal(torch.stack([turn, tilt]))
    assert not is_flat(almost)
    assert is_flat(almost, tol=1e-4)


def test_require_flat_names_the_pair():
    good, bad = commuting_matrices(2).steps, rotations(1, 4, 4, seed=5)
    mixed = Generators.orthogonal(torch.cat([good, bad]))
    assert mixed.curved_pair() == (0, 2)
    with pytest.raises(ValueError, match="axes 0 and 2 do not commute: flat ones must"):
        mixed.require_flat()
    assert commuting_matrices().require_flat().axes == 3


@quick
@given(st.lists(st.integers(0, 3), min_size=2, max_size=3).filter(lambda c: sum(c) <= 5))
def test_path_spread_is_the_diameter_over_all_orderings(counts):
    generators = curved(len(counts))
    letters = [k for k, n in enumerate(counts) for _ in range(n)]
    ends = [path_transport(generators, word) for word in sorted(set(itertools.permutations(letters)))]
    expected = max(float((a - b).norm()) for a in ends for b in ends)
    assert float(path_spread(generators, counts)) == pytest.approx(expected, abs=1e-12)


def test_path_spread_vanishes_when_flat_and_a_sample_bounds_it_from_below():
    assert path_spread(commuting_matrices(2), [3, 3]) < 1e-12
    assert path_spread(Generators.torus(noise(2, 2)), [8, 8]) < 1e-12
    everything, sampled = path_spread(curved(), [3, 3]), path_spread(curved(), [3, 3], samples=5)
    assert 0.1 < sampled <= everything + 1e-12
    many = path_spread(curved(), [12, 12], samples=50, seed=1)
    assert many > 0.1
    assert many == path_spread(curved(), [12, 12], samples=50, seed=1)


def test_holonomy_round_a_square_is_the_commutator():
    generators = curved()
    expected = commutator(*generators.steps, group=generators.group)
    torch.testing.assert_close(holonomy(generators, [0, 1, ~0, ~1]), expected)
    assert generators.group.distance(expected, generators.group.identity().double()) > 0.1


@quick
@given(st.lists(st.sampled_from([0, 1, 2]), max_size=6), st.randoms(use_true_random=False))
def test_every_loop_is_the_identity_when_flat(out, random):
    back = [~k for k in out]
    random.shuffle(back)
    generators = commuting_matrices()
    assert generators.group.distance(holonomy(generators, out + back), generators.group.identity().double()) < 1e-12


@pytest.mark.parametrize("group", [Torus(2), Orthogonal(3)], ids=str)
def test_a_potential_is_path_independent_even_when_its_matrices_do_not_commute(group):
    theta = noise(4, 5, 2) if isinstance(group, Torus) else rotations(4, 5, 3, 3)
    down, across = grid_from_potential(theta, group=group)
    assert plaquette_defect(down, across, group=group).shape == (3, 4)
    assert plaquette_defect(down, across, group=group).max() < 1e-12
    loop = [0, 0, 1, 1, ~0, 1, ~0, ~1, ~1, ~1]
    assert group.distance(holonomy((down, across), loop, group=group, start=(1, 1)), group.identity().double()) < 1e-12
    far = group.multiply(group.multiply(down[0, 0], across[1, 0]), across[1, 1])
    assert group.distance(far, group.journey(theta[1, 2], theta[0, 0])) < 1e-12  # T = P_{end→start}


def test_plaquette_defect_is_the_formula_entry_by_entry():
    group, (down, across) = Orthogonal(3), (rotations(2, 4, 3, 3), rotations(3, 3, 3, 3, seed=1))
    defect = plaquette_defect(down, across, group=group)
    for i, j in itertools.product(range(2), range(3)):
        expected = (across[i, j] @ down[i, j + 1] - down[i, j] @ across[i + 1, j]).norm()
        assert defect[i, j] == pytest.approx(float(expected), abs=1e-12)
        square = holonomy((down, across), [1, 0, ~1, ~0], group=group, start=(i, j))
        assert group.distance(square, group.identity().double()) == pytest.approx(float(expected), abs=1e-12)


@quick
@given(st.integers(0, 3), st.integers(0, 3))
def test_interchange_defect_is_what_the_law_misses(n, m):
    generators, content = curved(), noise(4, 3)
    tile = lambda c, origin, extent: Element(content[c], origin, extent, generators)  # noqa: E731
    x, y = tile(0, (0, 0), (n, m)), tile(1, (n, 0), (2, m))
    z, w = tile(2, (0, m), (n, 1)), tile(3, (n, m), (2, 1))
    one = compose(compose(x, y, axis=0), compose(z, w, axis=0), axis=1)
    other = compose(compose(x, z, axis=1), compose(y, w, axis=1), axis=0)
    a, b = (torch.linalg.matrix_power(r, e) for r, e in zip(generators.steps, (n, m)))
    torch.testing.assert_close(one.content - other.content, (b @ a - a @ b) @ content[3], atol=1e-12, rtol=0)
    assert float(interchange_defect(generators, (n, m))) == pytest.approx(float((a @ b - b @ a).norm()), abs=1e-12)


def test_residuals_are_differentiable():
    angles = noise(2, 3).requires_grad_()
    skew = torch.tensor([[[0.0, -1, 0], [1, 0, 0], [0, 0, 0]], [[0, 0, 1], [0, 0, 0], [-1, 0, 0]]]).double()

    def spread(angle):
        return interchange_defect(Generators.orthogonal(torch.linalg.matrix_exp(angle[:, :1, None] * skew)), (1, 2))

    assert torch.autograd.gradcheck(spread, angles)
    theta = noise(3, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(grid_from_potential, theta)


def test_what_is_no_loop_or_no_grid_is_refused():
    generators, group = curved(), Torus(1)
    fields = (torch.zeros(2, 3, 1), torch.zeros(3, 2, 1))
    with pytest.raises(ValueError, match=r"not closed, it ends \+1 along axis 0: every step k needs its ~k"):
        holonomy(generators, [0, 1, ~1])
    with pytest.raises(ValueError, match="unknown axis 2: the generators have axes 0 to 1"):
        holonomy(generators, [2, ~2])
    with pytest.raises(ValueError, match="no group: say Torus"):
        holonomy(fields, [0, ~0])
    for loop in ([~0, 0], [0, 0, 0, ~0, ~0, ~0], [~1, 1]):
        with pytest.raises(ValueError, match="leaves the grid"):
            holonomy(fields, loop, group=group)
    with pytest.raises(ValueError, match=r"ragged.*in this order"):
        plaquette_defect(*reversed(fields), group=group)
    with pytest.raises(ValueError, match="both are"):
        plaquette_defect(torch.zeros(3, 1), torch.zeros(3, 2, 1), group=group)
    with pytest.raises(ValueError, match="give two"):
        holonomy(fields[:1], [0, ~0], group=group)
    with pytest.raises(ValueError, match="none empty"):
        grid_from_potential(torch.zeros(3, 1))
    for call in (path_spread, interchange_defect):
        with pytest.raises(ValueError, match="negative"):
            call(generators, [1, -1])
        with pytest.raises(ValueError, match="the generators have 2 axes"):
            call(generators, [1])
