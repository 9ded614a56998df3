"""CLAIMS.md, "Algebra": elements, journeys, paths. Paper: "Algebraic Framework and Theoretical Analysis"."""

from __future__ import annotations

from itertools import combinations

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
    unroll,
    value_path,
)
from joformer.verify.claims import Draw, Measured, Section, gap, worst

claim = Section("algebra")


@claim(
    1,
    "eq:composition",
    "H",
    "(a, A) ∘ (b, B) = (a + A b, A B) is associative with identity (0, I) and not commutative",
    "as printed; it is even a group, with inverse (−A⁻¹a, A⁻¹)",
    gap="x ∘ y and y ∘ x differ by",
)
def composition(draw: Draw) -> Measured:
    group = Orthogonal(4)
    x, y, z = (Pair(draw.noise(4), draw.rotations(), group) for _ in range(3))
    e = Pair(torch.zeros(4, dtype=torch.float64), group.identity(dtype=torch.float64), group)

    def apart(p: Pair, q: Pair) -> float:
        return worst(gap(p.content, q.content), gap(p.operator, q.operator))

    holds = worst(
        apart(x.compose(y).compose(z), x.compose(y.compose(z))),
        apart(x.compose(e), x),
        apart(e.compose(x), x),
        apart(x.compose(x.inverse()), e),
        apart(x.inverse().compose(x), e),
    )
    return Measured(holds, gap=apart(x.compose(y), y.compose(x)))


@claim(
    2,
    "eq:unrolling",
    "H",
    "e_1 ∘ ⋯ ∘ e_T = (Σ_i (∏_{j<i} R_j) v_i, ∏ R_j)",
    "as printed, the product taken from left to right",
    gap="the descending product is off by",
)
def unrolling(draw: Draw) -> Measured:
    group, v, r = Orthogonal(4), draw.noise(6, 4), draw.rotations(6)
    whole = Pair(v[0], r[0], group)
    for t in range(1, 6):
        whole = whole.compose(Pair(v[t], r[t], group))
    operators = scan(group, r, exclusive=False)
    descending = sum(torch.linalg.multi_dot([torch.eye(4).double(), *r[:i].flip(0), v[i, :, None]]) for i in range(6))
    assert isinstance(descending, torch.Tensor)
    return Measured(
        worst(gap(unroll(v, r, group), whole.content), gap(operators[-1], whole.operator)),
        gap=gap(descending[:, 0], whole.content),
    )


@claim(
    3,
    "ssec:composition",
    "H",
    "the journey from j to k, j > k, is R_k ⋯ R_{j−1} = A_k⁻¹ A_j",
    "as printed; and journeys telescope, P_{j→k} P_{i→j} = P_{i→k}",
    gap="the journey from k to j is off by",
)
def the_journey(draw: Draw) -> Measured:
    group, r = Orthogonal(4), draw.rotations(8)
    at = scan(group, r)
    k = int(draw.whole(low=0, high=3))
    j, i = k + 3, k + 5
    path = torch.linalg.multi_dot(list(r[k:j]))
    via = group.multiply(journey(group, src=at[j], dst=at[k]), journey(group, src=at[i], dst=at[j]))
    torus, steps = Torus(2), draw.noise(8, 2)
    angles = scan(torus, steps)
    return Measured(
        worst(
            torus.distance(journey(torus, src=angles[j], dst=angles[k]), steps[k:j].sum(0)),
            gap(journey(group, src=at[j], dst=at[k]), path),
            gap(via, journey(group, src=at[i], dst=at[k])),
        ),
        gap=gap(journey(group, src=at[k], dst=at[j]), path),
    )


@claim(
    4,
    "ssec:composition",
    "W",
    "∘_k raises the generators to the *positions* n_k and m_k of its operands",
    "the exponents are *extents* (a single cell has extent 1); the identity is a family: content 0, extent 0 along k",
)
def exponents(draw: Draw) -> Measured:
    line, v = draw.flat(1), draw.noise(4, 4)
    truth = line.group.act(absolute(line, torch.arange(4)[:, None]), v).sum(0)
    whole = concatenate([Element.cell(v[t], t, line) for t in range(4)])
    printed, reach = v[0], 0
    for t in range(1, 4):
        printed, reach = printed + line.group.act(line.power(0, reach), v[t]), reach + t
    grid = draw.curved(2)
    x = Element(draw.noise(4), (2, 3), (4, 2), grid)
    same = [
        gap(compose(Element.identity(x.origin, x.extent, grid, axis=k), x, axis=k).content, x.content) for k in (0, 1)
    ]
    return Measured(worst(gap(whole.content, truth), *same), gap=gap(printed, truth))


@claim(
    5,
    "ssec:composition",
    "W",
    "requiring equal exponents off axis k stops cells of different rows from composing along the columns",
    "unit cells of different rows carry the same exponents (1, 1), so that guard passes; an origin is needed too",
    gap="operands the printed guard lets through",
    margin=1.0,
)
def the_guard(draw: Draw) -> Measured:
    grid = draw.flat(2)
    x, below = Element.cell(draw.noise(4), (0, 0), grid), Element.cell(draw.noise(4), (1, 1), grid)
    beside = Element.cell(draw.noise(4), (0, 1), grid)
    printed_guard_passes = x.extent[0] == below.extent[0]
    try:
        compose(x, below, axis=1)
        refused = False
    except ValueError:
        refused = True
    content = x.content + grid.group.act(grid.power(1, 1), beside.content)
    right = gap(compose(x, beside, axis=1).content, content)
    return Measured(worst(right, 0.0 if refused else 1.0), gap=float(printed_guard_passes))


@claim(
    6,
    "ssec:composition",
    "C",
    "composing a grid axis by axis gives Σ_n A_n v_n for any order of the axes",
    "if generators commute and positions count from 0; otherwise the axis composed last ends leftmost",
)
def grid_composition(draw: Draw) -> Measured:
    v = draw.noise(3, 4, 4)
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    residuals: list[float] = []
    gaps: list[float] = []
    for generators in (draw.flat(2), draw.curved(2)):
        truth = generators.group.act(absolute(generators, cells), v.flatten(0, 1)).sum(0)
        residuals.append(gap(compose_grid(v, generators, order=(1, 0)).content, truth))
        other_order = gap(compose_grid(v, generators, order=(0, 1)).content, truth)
        (residuals if is_flat(generators) else gaps).append(other_order)
    return Measured(worst(*residuals), gap=min(gaps))


@claim(
    7,
    "thm:interchange",
    "C",
    "composition is path-independent precisely when the generators commute",
    "for generators shared by all points; per datum it takes R_x(i,j) R_y(i,j+1) = R_y(i,j) R_x(i+1,j), "
    "which angles that are a potential satisfy by construction",
    gap="commuting generators per datum disagree round a square by",
)
def path_independence(draw: Draw) -> Measured:
    group = Torus(2)
    shared = float(path_spread(draw.flat(2), [3, 2]))
    potential = plaquette_defect(*grid_from_potential(draw.noise(4, 5, 2)), group=group)
    commuting_per_datum = plaquette_defect(draw.noise(3, 5, 2), draw.noise(4, 4, 2), group=group)
    return Measured(worst(shared, potential.max()), gap=float(commuting_per_datum.max()))


@claim(
    8,
    "Remark (interchange laws)",
    "C",
    "the interchange law holds iff the generators commute",
    "for given extents it holds iff those *powers* commute",
)
def interchange(draw: Draw) -> Measured:
    basis = draw.rotations(dim=2)
    quarter_and_mirror = torch.tensor([[[0.0, -1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, -1.0]]], dtype=torch.float64)
    bent = Generators.orthogonal(basis @ quarter_and_mirror @ basis.mT)
    holds = worst(
        interchange_defect(bent, (2, 1)), interchange_defect(bent, (1, 2)), interchange_defect(draw.flat(2), (3, 2))
    )
    return Measured(holds, gap=float(interchange_defect(bent, (1, 1))))


@claim(
    9,
    "app:interchange-proof",
    "H",
    "path independence ⇔ every square commutes ⇔ generators commute; then P depends on displacement only",
    "as printed; the converse takes i < j without loss of generality",
    gap="with curved generators each of the three fails by at least",
)
def equivalence(draw: Draw) -> Measured:
    seen: dict[bool, list[float]] = {True: [], False: []}
    for generators in (draw.flat(3), draw.curved(3)):
        group, flat = generators.group, is_flat(generators)
        pairs = list(combinations(range(3), 2))
        squares = [
            group.distance(path_transport(generators, [i, j]), path_transport(generators, [j, i])) for i, j in pairs
        ]
        here, there = absolute(generators, [[1, 0, 2], [2, 1, 0]]), absolute(generators, [[2, 2, 3], [3, 3, 1]])
        moved = group.distance(journey(group, src=here[0], dst=here[1]), journey(group, src=there[0], dst=there[1]))
        seen[flat] += [
            worst(*squares) if flat else float(min(squares)),
            float(path_spread(generators, [2, 1, 1])),
            float(moved),
        ]
    return Measured(worst(*seen[True]), gap=min(seen[False]))


@claim(
    10,
    "eq:path-transport",
    "W",
    "T(k_1 ⋯ k_m) = R_{k_m} ⋯ R_{k_1}, which is A_n⁻¹ A_m along the canonical path",
    "from left to right, T = R_{k_1} ⋯ R_{k_m} = P_{end→start}",
)
def transport_order(draw: Draw) -> Measured:
    generators = draw.curved(2)
    group, word = generators.group, [0, 0, 1, 1, 1]
    start, end = absolute(generators, [[1, 0], [3, 3]])
    back, there = journey(group, src=end, dst=start), journey(group, src=start, dst=end)
    printed = path_transport(generators, word[::-1])
    return Measured(gap(path_transport(generators, word), back), gap=min(gap(printed, back), gap(printed, there)))


@claim(
    11,
    "thm:v-rotation",
    "W",
    "with generators that do not commute, value transport is path-dependent",
    "A_n⁻¹ A_m always telescopes, whatever lies between; what it depends on is the *absolute* position",
    gap="the same displacement elsewhere differs by",
)
def telescoping(draw: Draw) -> Measured:
    generators = draw.curved(2)
    group = generators.group
    m, n, via = (absolute(generators, at) for at in ([3, 1], [1, 2], [0, 4]))
    direct = journey(group, src=m, dst=n)
    legs = group.multiply(journey(group, src=via, dst=n), journey(group, src=m, dst=via))
    moved = journey(group, src=absolute(generators, [5, 6]), dst=absolute(generators, [3, 7]))
    return Measured(gap(legs, direct), gap=gap(moved, direct))


@claim(
    12,
    "eq:unified-2d",
    "C",
    "c_(i,j) = Σ α R_y^{i'−i} R_x^{j'−j} v_(i',j')",
    "if the generators commute; positions count from 0",
)
def value_path_on_a_grid(draw: Draw) -> Measured:
    cells = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    w, v = draw.noise(6, 6), draw.noise(6, 4)

    def apart(generators: Generators) -> float:
        group, at = generators.group, absolute(generators, cells)
        delta = cells[None, :, :] - cells[:, None, :]
        displaced = group.matrix(group.multiply(generators.power(0, delta[..., 0]), generators.power(1, delta[..., 1])))
        by_displacement = torch.einsum("ij,ijde,je->id", w, displaced, v)
        return gap(value_path(w, v, group=group, src=at, dst=at), by_displacement)

    return Measured(apart(draw.flat(2)), gap=apart(draw.curved(2)))
