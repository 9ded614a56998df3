"""docs/claims.md rows 1–12, 21–22 and 36, one test a row; where the print is wrong it must fail here by a margin."""

import itertools

import pytest
import torch

from joformer.algebra import (
    Element,
    Generators,
    Orthogonal,
    Pair,
    Torus,
    absolute,
    compose,
    compose_grid,
    concatenate,
    grid_from_potential,
    interchange_defect,
    is_flat,
    journey,
    path_spread,
    path_transport,
    plaquette_defect,
    scan,
    split,
    ssm_kernel,
    unroll,
    value_path,
)

MARGIN = 0.1
D = 4
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
EXACT = {torch.float32: 3e-5, torch.float64: 1e-11}


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def rotations(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.linalg.qr(noise(*shape, D, D, seed=seed, dtype=dtype))[0]


def curved(axes: int = 2, dtype: torch.dtype = torch.float64) -> Generators:
    return Generators.orthogonal(rotations(axes, dtype=dtype))


def flat(axes: int = 2, dtype: torch.dtype = torch.float64) -> Generators:
    return Generators.torus(noise(axes, D // 2, dtype=dtype))


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max())


@both
def test_row_1_pairs_form_a_non_commutative_group(dtype):
    x, y, z = (Pair(noise(D, seed=s, dtype=dtype), rotations(seed=s, dtype=dtype), Orthogonal(D)) for s in range(3))
    left, right = x.compose(y).compose(z), x.compose(y.compose(z))
    assert max(gap(left.content, right.content), gap(left.operator, right.operator)) < EXACT[dtype]
    e = Pair.identity(Orthogonal(D))
    for same in (x.compose(e), e.compose(x)):
        assert max(gap(same.content, x.content), gap(same.operator, x.operator)) < EXACT[dtype]
    for nothing in (x.compose(x.inverse()), x.inverse().compose(x)):
        assert max(gap(nothing.content, e.content), gap(nothing.operator, e.operator)) < EXACT[dtype]
    back = torch.linalg.inv(x.operator)
    assert max(gap(x.inverse().content, -back @ x.content), gap(x.inverse().operator, back)) < EXACT[dtype]
    assert gap(x.compose(y).content, y.compose(x).content) > MARGIN


@both
def test_row_2_unrolling_is_the_ordered_left_to_right_product(dtype):
    v, r = noise(5, D, dtype=dtype), rotations(5, dtype=dtype)
    ordered = sum(torch.linalg.multi_dot([torch.eye(D, dtype=dtype), *r[:i], v[i, :, None]])[:, 0] for i in range(5))
    descending = sum(
        torch.linalg.multi_dot([torch.eye(D, dtype=dtype), *r[:i].flip(0), v[i, :, None]])[:, 0] for i in range(5)
    )
    assert gap(unroll(v, r, Orthogonal(D)), ordered) < EXACT[dtype]
    assert gap(unroll(v, r, Orthogonal(D)), descending) > MARGIN


@both
def test_row_3_the_journey_is_the_path_back_and_telescopes(dtype):
    group, r = Orthogonal(D), rotations(7, dtype=dtype)
    at = scan(group, r)
    i, j, k = 6, 5, 2
    assert gap(journey(group, src=at[j], dst=at[k]), r[2] @ r[3] @ r[4]) < EXACT[dtype]
    assert gap(journey(group, src=at[k], dst=at[j]), r[2] @ r[3] @ r[4]) > MARGIN
    via = journey(group, src=at[j], dst=at[k]) @ journey(group, src=at[i], dst=at[j])
    assert gap(via, journey(group, src=at[i], dst=at[k])) < EXACT[dtype]


def test_row_4_exponents_are_extents_and_the_identity_is_a_family():
    generators, v = flat(1), noise(4, D)
    cells = [Element.cell(v[t], t, generators) for t in range(4)]
    whole, act = concatenate(cells), generators.group.act
    truth = sum(act(generators.power(0, t), v[t]) for t in range(4))
    assert gap(whole.content, truth) < 1e-12
    printed, reach = v[0], 0  # the print: position t as the exponent of the cell at t, then their sum
    for t in range(1, 4):
        printed, reach = printed + act(generators.power(0, reach), v[t]), reach + t
    assert gap(printed, truth) > MARGIN
    grid = curved()
    x = Element(noise(D), (2, 3), (4, 2), grid)
    for axis, place in itertools.product((0, 1), ("before", "after")):
        origin = list(x.origin) if place == "before" else [x.end[k] if k == axis else x.origin[k] for k in (0, 1)]
        e = Element.identity(origin, x.extent, grid, axis=axis)
        same = compose(e, x, axis=axis) if place == "before" else compose(x, e, axis=axis)
        assert gap(same.content, x.content) < 1e-12
        assert (same.origin, same.extent) == (x.origin, x.extent)


def test_row_5_cells_of_different_rows_do_not_compose_along_the_columns():
    generators = flat()
    x, y = Element.cell(noise(D), (0, 0), generators), Element.cell(noise(D), (1, 1), generators)
    assert x.extent == y.extent == (1, 1)  # the printed guard looks at these alone and passes
    with pytest.raises(ValueError, match="along axis 1, origin and extent must agree on axis 0"):
        compose(x, y, axis=1)


def test_row_6_grid_composition_is_the_sum_in_any_order_only_when_flat():
    v = noise(3, 4, D)
    for generators, orders_agree in ((flat(), True), (curved(), False)):
        at = absolute(generators, torch.cartesian_prod(torch.arange(3), torch.arange(4)))
        truth = generators.group.act(at, v.flatten(0, 1)).sum(0)
        columns_first = compose_grid(v, generators, order=(1, 0)).content
        rows_first = compose_grid(v, generators, order=(0, 1)).content
        assert gap(columns_first, truth) < 1e-12  # axis 0 composed last: leftmost, as in A_n
        assert (gap(rows_first, truth) < 1e-12) == orders_agree
        assert orders_agree or gap(rows_first, truth) > MARGIN
    positions = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    one_based = flat().group.act(absolute(flat(), positions + 1), v.flatten(0, 1)).sum(0)
    assert gap(one_based, compose_grid(v, flat()).content) > MARGIN  # positions count from 0


def test_row_7_commuting_generators_per_datum_are_not_enough():
    group = Torus(2)
    down, across = noise(3, 5, 2), noise(4, 4, 2, seed=1)
    assert group.commutes(down[:, :4], across[:3]).all()
    assert plaquette_defect(down, across, group=group).min() > MARGIN
    assert plaquette_defect(*grid_from_potential(noise(4, 5, 2)), group=group).max() < 1e-12


def test_row_8_the_interchange_law_needs_only_those_powers_to_commute():
    swap, flip = torch.tensor([[0.0, 1], [1, 0]]).double(), torch.tensor([[1.0, 0], [0, -1]]).double()
    generators = Generators.orthogonal(torch.stack([swap, flip]))
    assert not is_flat(generators)
    assert interchange_defect(generators, (1, 1)) > MARGIN
    assert interchange_defect(generators, (3, 1)) > MARGIN
    for extents in ((2, 1), (1, 2), (0, 1)):
        assert interchange_defect(generators, extents) < 1e-12
    assert interchange_defect(flat(), (3, 2)) < 1e-12


def test_row_9_path_independence_squares_and_commuting_come_together():
    for generators, agree in ((flat(3), True), (curved(3), False)):
        squares = [
            generators.group.distance(path_transport(generators, [i, j]), path_transport(generators, [j, i]))
            for i, j in itertools.combinations(range(3), 2)
        ]
        assert is_flat(generators) == agree
        assert (max(squares) < 1e-12) == agree
        assert (path_spread(generators, [2, 1, 1]) < 1e-12) == agree


@both
def test_row_10_path_transport_is_left_to_right(dtype):
    generators = curved(dtype=dtype)
    group, word = generators.group, [0, 0, 1, 1, 1]
    start, end = absolute(generators, [[0, 0], [2, 3]])
    assert gap(path_transport(generators, word), journey(group, src=end, dst=start)) < EXACT[dtype]
    printed = path_transport(generators, word[::-1])
    assert gap(printed, journey(group, src=end, dst=start)) > MARGIN
    assert gap(printed, journey(group, src=start, dst=end)) > MARGIN


def test_row_11_curved_journeys_telescope_but_depend_on_absolute_position():
    generators = curved()
    group = generators.group
    m, n, p, shift = (torch.tensor(x) for x in ([3, 1], [1, 2], [0, 4], [2, 5]))
    at = lambda x: absolute(generators, x)  # noqa: E731
    direct = journey(group, src=at(m), dst=at(n))
    via = journey(group, src=at(p), dst=at(n)) @ journey(group, src=at(m), dst=at(p))
    assert gap(direct, via) < 1e-12
    assert gap(direct, journey(group, src=at(m + shift), dst=at(n + shift))) > MARGIN


@both
def test_row_12_the_flat_value_path_depends_on_displacement(dtype):
    generators = flat(dtype=dtype)
    group = generators.group
    positions = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    at, v = absolute(generators, positions), noise(6, D, dtype=dtype)
    w = noise(6, 6, seed=1, dtype=dtype)
    out = value_path(w, v, group=group, src=at, dst=at)
    for i, j in itertools.product(range(6), range(6)):
        dy, dx = (positions[j] - positions[i]).tolist()
        displaced = group.multiply(generators.power(0, dy), generators.power(1, dx))
        assert group.distance(journey(group, src=at[j], dst=at[i]), displaced) < EXACT[dtype]
    shifted = absolute(generators, positions + torch.tensor([11, -4]))
    assert gap(value_path(w, v, group=group, src=shifted, dst=shifted), out) < EXACT[dtype]
    bent = curved(dtype=dtype)
    here, there = absolute(bent, positions), absolute(bent, positions + torch.tensor([11, -4]))
    outs = [value_path(w, v, group=bent.group, src=a, dst=a) for a in (here, there)]
    assert gap(*outs) > MARGIN


def test_row_21_the_ssm_unrolls_with_a_descending_product():
    a, v = rotations(6), noise(6, D)
    h = torch.zeros(D, dtype=torch.float64)
    for step, value in zip(a, v):
        h = step @ h + value
    assert gap(torch.einsum("tij,tj->i", ssm_kernel(a), v), h) < 1e-12
    ascending = sum(torch.linalg.multi_dot([torch.eye(D).double(), *a[t + 1 :], v[t, :, None]])[:, 0] for t in range(6))
    assert gap(ascending, h) > MARGIN
    carried = h + torch.linalg.multi_dot(list(a.flip(0))) @ v[0]  # a state h_0 ≠ 0 adds a term of its own
    assert gap(carried, h) > MARGIN


def test_row_22_the_forward_kernel_is_a_journey_of_inverse_operators():
    group, a = Orthogonal(D), rotations(6)
    c = torch.stack(
        [torch.linalg.inv(torch.linalg.multi_dot([*a[: t + 1].flip(0), torch.eye(D).double()])) for t in range(6)]
    )
    assert gap(journey(group, src=c, dst=c[-1]), ssm_kernel(a)) < 1e-12
    constant = a[:1].expand(6, D, D)
    for sign, holds in ((-1, True), (1, False)):
        at = group.power(a[0], sign * torch.arange(1, 7))
        distance = gap(journey(group, src=at, dst=at[-1]), ssm_kernel(constant))
        assert (distance < 1e-12) == holds
        assert holds or distance > MARGIN


@both
def test_row_36_either_part_of_a_concatenation_comes_back(dtype):
    generators = curved(dtype=dtype)
    x = Element(noise(D, dtype=dtype), (0, 0), (2, 3), generators)
    y = Element(noise(D, seed=1, dtype=dtype), (2, 0), (5, 3), generators)
    whole = concatenate([x, y], axis=0)
    assert gap(split(whole, axis=0, left=x).content, y.content) < EXACT[dtype]
    assert gap(split(whole, axis=0, right=y).content, x.content) < EXACT[dtype]
    forward = torch.linalg.matrix_power(generators.steps[0], 2) @ (whole.content - x.content)
    assert gap(forward, y.content) > MARGIN
