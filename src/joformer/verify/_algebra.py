"""docs/claims.md, "Algebra": elements, journeys, paths. Paper: "Algebraic Framework and Theoretical Analysis"."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from itertools import combinations

import torch
from torch import Tensor

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
    holonomy,
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
from joformer.verify._claims import Draw, Measured, Section, gap, worst

claim = Section("algebra")


@claim(1, "eq:composition", "H")
def composition(draw: Draw) -> Measured:
    """Printed: (a, A) ∘ (b, B) = (a + A b, A B) is associative with identity (0, I) and not commutative

    True: as printed; it is even a group, with inverse (−A⁻¹a, A⁻¹)
    Gap: x ∘ y and y ∘ x differ by
    """
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


@claim(2, "eq:unrolling", "H")
def unrolling(draw: Draw) -> Measured:
    """Printed: e_1 ∘ ⋯ ∘ e_T = (Σ_i (∏_{j<i} R_j) v_i, ∏ R_j)

    True: as printed, the product taken from left to right
    Gap: the descending product is off by
    """
    group, v, r = Orthogonal(4), draw.noise(6, 4), draw.rotations(6)
    whole = reduce(Pair.compose, (Pair(v[t], r[t], group) for t in range(6)))
    product = scan(group, r, exclusive=False)[-1]
    descending = [torch.linalg.multi_dot([torch.eye(4).double(), *r[:i].flip(0), v[i, :, None]]) for i in range(6)]
    return Measured(
        worst(gap(unroll(v, r, group), whole.content), gap(product, whole.operator)),
        gap=gap(torch.stack(descending).sum(0)[:, 0], whole.content),
    )


@claim(3, "ssec:composition", "H")
def the_journey(draw: Draw) -> Measured:
    """Printed: the journey from j to k, j > k, is R_k ⋯ R_{j−1} = A_k⁻¹ A_j

    True: as printed; and journeys telescope, P_{j→k} P_{i→j} = P_{i→k}
    Gap: the journey from k to j is off by
    """
    group, r = Orthogonal(8), draw.rotations(8, dim=8)
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


@claim(4, "ssec:composition", "W")
def exponents(draw: Draw) -> Measured:
    """Printed: ∘_k raises the generators to the *positions* n_k and m_k of its operands

    True: the exponents are *extents* (a single cell has extent 1); the identity is a family: content 0, extent 0 along
    k, other extents matching
    """
    line, v = draw.flat(1), draw.noise(4, 4)
    truth = line.group.act(absolute(line, torch.arange(4)[:, None]), v).sum(0)
    whole = concatenate([Element.cell(v[t], t, line) for t in range(4)])
    printed, reach = v[0], 0
    for t in range(1, 4):
        printed, reach = printed + line.group.act(line.power(0, reach), v[t]), reach + t
    grid = draw.curved(2)
    x = Element(draw.noise(4), (2, 3), (4, 2), grid)
    off = []
    for k in (0, 1):
        after = tuple(x.end[i] if i == k else x.origin[i] for i in (0, 1))
        left, right = (Element.identity(at, x.extent, grid, axis=k) for at in (x.origin, after))
        for same in (compose(left, x, axis=k), compose(x, right, axis=k)):
            elsewhere = (same.origin, same.extent) != (x.origin, x.extent)
            off.append(worst(gap(same.content, x.content), elsewhere))
    return Measured(worst(gap(whole.content, truth), *off), gap=gap(printed, truth))


@claim(5, "ssec:composition", "W", margin=1.0)
def the_guard(draw: Draw) -> Measured:
    """Printed: requiring equal exponents off axis k stops cells of different rows from composing along the columns

    True: unit cells of different rows carry the same exponents (1, 1), so that guard passes; an origin is needed too
    Gap: operands the printed guard lets through
    """
    grid = draw.flat(2)
    x, below = Element.cell(draw.noise(4), (0, 0), grid), Element.cell(draw.noise(4), (1, 1), grid)
    beside = Element.cell(draw.noise(4), (0, 1), grid)
    printed_guard_passes = x.extent[0] == below.extent[0]
    raises = 0
    try:
        compose(x, below, axis=1)
    except ValueError:
        raises = 1
    content = x.content + grid.group.act(grid.power(1, 1), beside.content)
    right = gap(compose(x, beside, axis=1).content, content)
    return Measured(worst(right, 1 - raises), gap=float(printed_guard_passes))


@claim(6, "ssec:composition", "C")
def grid_composition(draw: Draw) -> Measured:
    """Printed: composing a grid axis by axis gives Σ_n A_n v_n for any order of the axes

    True: if generators commute and positions count from 0; otherwise the axis composed last ends leftmost
    Gap: curved and in the other order, or counted from 1, it is off by
    """
    v = draw.noise(3, 4, 4)
    cells = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    flat, bent = draw.flat(2), draw.curved(2)

    def summed(generators: Generators, order: tuple[int, int], first: int = 0) -> Tensor:
        """Σ_n of v_n under the powers of the two axes, the first of `order` leftmost."""
        left, right = (generators.power(k, cells[:, k] + first) for k in order)
        return generators.group.act(generators.group.multiply(left, right), v.flatten(0, 1)).sum(0)

    def composed(generators: Generators, last: int) -> Tensor:
        return compose_grid(v, generators, order=(1 - last, last)).content

    return Measured(
        worst(
            gap(summed(flat, (0, 1)), composed(flat, 0), composed(flat, 1)),
            gap(composed(bent, 0), summed(bent, (0, 1))),
            gap(composed(bent, 1), summed(bent, (1, 0))),
        ),
        gap=min(gap(composed(bent, 1), summed(bent, (0, 1))), gap(composed(flat, 0), summed(flat, (0, 1), first=1))),
    )


@claim(7, "thm:interchange", "C")
def path_independence(draw: Draw) -> Measured:
    """Printed: composition is path-independent precisely when the generators commute

    True: for generators shared by all points; per datum it takes R_x(i,j) R_y(i,j+1) = R_y(i,j) R_x(i+1,j), which
    angles that are a potential satisfy by construction
    Gap: commuting generators per datum, round a square and round a loop, disagree by
    """
    group, loop = Torus(2), [0, 0, 1, 1, 1, ~0, ~0, ~1, ~1, ~1]
    identity = group.identity(dtype=torch.float64)
    potential = grid_from_potential(draw.noise(4, 5, 2))
    per_datum = (draw.noise(3, 5, 2), draw.noise(4, 4, 2))
    # Round a loop, the squares it encloses add up: down and across, minus across and down.
    down, across = per_datum
    enclosed = (down[:2, :3] + across[1:3, :3] - across[:2, :3] - down[:2, 1:4]).sum((0, 1))
    around = holonomy(per_datum, loop, group=group)
    return Measured(
        worst(
            path_spread(draw.flat(2), [3, 2]),
            plaquette_defect(*potential, group=group).max(),
            group.distance(holonomy(potential, loop, group=group), identity),
            group.distance(holonomy(draw.flat(2), loop), identity),
            group.distance(around, enclosed),
        ),
        gap=min(
            float(plaquette_defect(*per_datum, group=group).max()),
            float(group.distance(around, identity)),
            float(Orthogonal(4).distance(holonomy(draw.curved(2), loop), torch.eye(4, dtype=torch.float64))),
        ),
    )


@claim(8, "Remark (Connection to interchange laws)", "C")
def interchange(draw: Draw) -> Measured:
    """Printed: the interchange law holds iff the generators commute

    True: for given extents it holds iff those *powers* commute
    Gap: where those powers do not commute the two sides differ by
    """
    basis = draw.rotations(dim=2)
    quarter_and_mirror = torch.tensor([[[0.0, -1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, -1.0]]], dtype=torch.float64)
    bent, flat = Generators.orthogonal(basis @ quarter_and_mirror @ basis.mT), draw.flat(2)

    def law(generators: Generators, reach: tuple[int, int]) -> float:
        """(x ∘_0 y) ∘_1 (z ∘_0 w) against (x ∘_1 z) ∘_0 (y ∘_1 w), x of this extent and w a unit vector."""
        (a, b), (c, d) = reach, (1, 3)
        unit = torch.eye(generators.dim, dtype=torch.float64)[0]
        tiles = (((0, 0), (a, b)), ((a, 0), (c, b)), ((0, b), (a, d)), ((a, b), (c, d)))
        contents = (*draw.noise(3, generators.dim), unit)
        x, y, z, w = (Element(v, *tile, generators) for v, tile in zip(contents, tiles, strict=True))
        one = compose(compose(x, y, axis=0), compose(z, w, axis=0), axis=1)
        other = compose(compose(x, z, axis=1), compose(y, w, axis=1), axis=0)
        return gap(one.content, other.content)

    commuting = ((bent, (2, 1)), (bent, (1, 2)), (flat, (3, 2)))
    holds = [worst(law(*case), interchange_defect(*case)) for case in commuting]
    return Measured(worst(*holds), gap=min(law(bent, (1, 1)), float(interchange_defect(bent, (1, 1)))))


@claim(9, "app:interchange-proof", "H")
def equivalence(draw: Draw) -> Measured:
    """Printed: path independence ⇔ every square commutes ⇔ generators commute; then P depends on displacement only

    True: as printed; the converse takes i < j without loss of generality (for i > j its equality says nothing)
    Gap: with curved generators each of these fails by at least
    """

    def apart(generators: Generators, *ends: Sequence[Sequence[int]]) -> float:
        """How far apart two journeys are, given as (src, dst) each."""
        group, at = generators.group, [absolute(generators, pair) for pair in ends]
        return float(group.distance(*(journey(group, src=src, dst=dst) for src, dst in at)))

    found: dict[bool, list[float]] = {}
    for generators in (draw.flat(3), draw.curved(3)):
        walk, flat = partial(path_transport, generators), is_flat(generators)
        pairs = combinations(range(3), 2)
        squares = [float(generators.group.distance(walk([i, j]), walk([j, i]))) for i, j in pairs]
        elsewhere = apart(generators, [[1, 0, 2], [2, 1, 0]], [[2, 2, 3], [3, 3, 1]])
        found[flat] = [worst(*squares) if flat else min(squares), float(path_spread(generators, [2, 1, 1])), elsewhere]
    # The proof's converse equates P from e_j to e_i + e_j with P from 0 to e_i: here (i, j) = (1, 0) and (0, 1).
    says_nothing = apart(generators, [[1, 0, 0], [1, 1, 0]], [[0, 0, 0], [0, 1, 0]])
    converse = apart(generators, [[0, 1, 0], [1, 1, 0]], [[0, 0, 0], [1, 0, 0]])
    return Measured(worst(*found[True], says_nothing), gap=min(*found[False], converse))


@claim(10, "eq:path-transport", "W")
def transport_order(draw: Draw) -> Measured:
    """Printed: T(k_1 ⋯ k_m) = R_{k_m} ⋯ R_{k_1}, which is A_n⁻¹ A_m along the canonical path

    True: from left to right, T = R_{k_1} ⋯ R_{k_m} = P_{end→start} along the canonical path from the origin
    """
    generators = draw.curved(2, dim=8)
    group, word = generators.group, [0, 0, 1, 1, 1]
    start, end = absolute(generators, [[1, 0], [3, 3]])
    back, there = journey(group, src=end, dst=start), journey(group, src=start, dst=end)
    printed = path_transport(generators, word[::-1])
    return Measured(gap(path_transport(generators, word), back), gap=min(gap(printed, back), gap(printed, there)))


@claim(11, "thm:v-rotation", "W")
def telescoping(draw: Draw) -> Measured:
    """Printed: with generators that do not commute value transport is path-dependent: it depends on absolute positions

    True: the wording: A_n⁻¹ A_m always telescopes, whatever lies between, so it does not depend on the path; it does
    depend on absolute positions
    Gap: the same displacement elsewhere differs by
    """
    generators = draw.curved(2)
    group = generators.group
    m, n, via, m2, n2 = absolute(generators, [[3, 1], [1, 2], [0, 4], [5, 6], [3, 7]])
    direct = journey(group, src=m, dst=n)
    legs = group.multiply(journey(group, src=via, dst=n), journey(group, src=m, dst=via))
    return Measured(gap(legs, direct), gap=gap(journey(group, src=m2, dst=n2), direct))


@claim(12, "eq:unified-2d", "C")
def value_path_on_a_grid(draw: Draw) -> Measured:
    """Printed: c_(i,j) = Σ α R_y^{i'−i} R_x^{j'−j} v_(i',j')

    True: if the generators commute; A_(i,j) = R_y^i R_x^j with positions counted from 0
    Gap: with curved generators it is off by
    """
    cells = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    w, v = draw.noise(6, 6), draw.noise(6, 4)

    def apart(generators: Generators) -> float:
        group, at = generators.group, absolute(generators, cells)
        delta = cells[None, :, :] - cells[:, None, :]
        displaced = group.matrix(group.multiply(generators.power(0, delta[..., 0]), generators.power(1, delta[..., 1])))
        by_displacement = torch.einsum("ij,ijde,je->id", w, displaced, v)
        return gap(value_path(w, v, group=group, src=at, dst=at), by_displacement)

    flat = draw.flat(2)
    first = flat.group.distance(absolute(flat, cells)[0], flat.group.identity(dtype=torch.float64))
    return Measured(worst(apart(flat), first), gap=apart(draw.curved(2)))
