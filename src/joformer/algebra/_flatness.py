"""Flat or curved: does the transport depend on the path?

    R_i R_j = R_j R_i for all i, j     ⇔  every ordering of the same steps gives the same transport
                                       ⇔  the transport around every loop is the identity

for generators shared by all points. With one generator per datum, commuting is not enough: the condition is

    R_x(i,j) R_y(i,j+1) = R_y(i,j) R_x(i+1,j)        (x steps to the next column j, y to the next row i)

which steps between the values of a potential satisfy by construction. Paper: "Path Transport and Commutativity",
"Proof of Path Independence", "Flat/Curved Dichotomy".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from math import factorial, prod

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.algebra._checks import whole_numbers
from joformer.algebra._generators import Generators
from joformer.algebra._groups import Group, Torus
from joformer.algebra._journeys import path_transport, unpack_letter

MOST_ORDERINGS = 1000  # compared pairwise: a million distances


def commutator(a: Tensor, b: Tensor, *, group: Group) -> Float[Tensor, "..."]:
    """The commutator a b a⁻¹ b⁻¹: the identity exactly if a and b commute.

    Args:
        a: Elements (..., *element).
        b: Elements (..., *element), batches broadcast.
        group: Their group.

    Returns:
        The commutator, (..., *element).

    Example:
        >>> from joformer.algebra import Orthogonal
        >>> swap, flip = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
        >>> commutator(swap, flip, group=Orthogonal(2)) + 0
        tensor([[-1.,  0.],
                [ 0., -1.]])
    """
    return group.multiply(group.multiply(a, b), group.multiply(group.inverse(a), group.inverse(b)))


def is_flat(generators: Generators, tol: float | None = None) -> bool:
    """Whether all axis-step generators commute, ‖R_i R_j − R_j R_i‖ ≤ tol.

    Args:
        generators: One per axis.
        tol: Tolerance for the distance of the two products; √ε of the dtype by default.

    Example:
        >>> is_flat(Generators.torus(torch.randn(3, 2)))
        True
    """
    return generators.curved_pair(tol) is None


def path_spread(
    generators: Generators, counts: Sequence[int], *, samples: int | None = None, seed: int = 0
) -> Float[Tensor, ""]:
    """The largest ‖T(π) − T(π′)‖ over orderings π, π′ of the same steps: 0 if flat.

    Compares all orderings if there are at most 1,000. Otherwise, or with `samples`, it draws that many at random and
    adds the two that take one whole axis after the other: a lower bound of the true spread.

    Args:
        generators: One per axis.
        counts: Number of steps along each axis, 0 or more.
        samples: Number of orderings to draw; None uses all of them if possible.
        seed: Seed of the drawn orderings.

    Returns:
        The spread, a scalar.

    Example:
        >>> float(path_spread(Generators.torus(torch.ones(2, 1)), [2, 2])) < 1e-6
        True
    """
    taken = whole_numbers(counts, generators.axes, "counts")
    if min(taken) < 0:
        raise ValueError(f"counts {taken} are negative: count 0 or more steps along each axis")
    if samples is not None and samples < 1:
        raise ValueError(f"samples must be 1 or more orderings, or None for all of them, got {samples}")
    canonical = [k for k, n in enumerate(taken) for _ in range(n)]
    if not canonical:
        return generators.steps.new_zeros(())
    if samples is None and factorial(sum(taken)) // prod(map(factorial, taken)) <= MOST_ORDERINGS:
        words = list(_orderings(taken))
    else:
        rng, drawn = torch.Generator().manual_seed(seed), range(samples or MOST_ORDERINGS)
        shuffles = ([canonical[i] for i in torch.randperm(len(canonical), generator=rng).tolist()] for _ in drawn)
        words = [canonical, canonical[::-1], *shuffles]
    group, steps = generators.group, generators.steps[torch.tensor(words, device=generators.steps.device)]
    ends = group.matrix(group.prefixes(steps.movedim(1, 0), exclusive=False)[-1]).flatten(-2)
    return torch.cdist(ends, ends, compute_mode="donot_use_mm_for_euclid_dist").max()


def holonomy(
    steps: Generators | Sequence[Tensor],
    loop: Sequence[int],
    *,
    group: Group | None = None,
    start: Sequence[int] | None = None,
) -> Float[Tensor, "..."]:
    """H = T(loop), the transport around a closed path: I if flat.

    Args:
        steps: One set of generators for all points, or one generator per datum as (down, across) of
            `grid_from_potential`.
        loop: The path as letters: k is a step forward along axis k, ~k a step back.
        group: The group, with one generator per datum.
        start: The (row, column) where the loop starts, with one generator per datum; (0, 0) by default.

    Returns:
        The transport, (*element).

    Raises:
        ValueError: If the loop is not closed, leaves the grid, or uses an axis that does not exist.

    Example:
        >>> float(holonomy(Generators.torus(torch.randn(2, 1)), [0, 1, ~0, ~1]).abs().max()) < 1e-6
        True
    """
    axes = steps.axes if isinstance(steps, Generators) else len(steps)
    ends: Counter[int] = Counter()
    for letter in loop:
        axis, n = unpack_letter(letter)
        if axis >= axes:
            raise ValueError(f"unknown axis {axis}: the generators have axes 0 to {axes - 1}")
        ends[axis] += n
    for axis, n in ends.items():
        if n:
            raise ValueError(f"the loop is not closed, it ends {n:+d} along axis {axis}: every step k needs its ~k")
    if isinstance(steps, Generators):
        return path_transport(steps, loop)
    if group is None:
        raise ValueError("holonomy got steps per datum but no group: say Torus(planes) or Orthogonal(dim)")
    if axes != 2:
        raise ValueError(f"steps per datum were given for {axes} axes: give two, (down, across)")
    fields = _fields(steps[0], steps[1], group)
    at = list(whole_numbers((0, 0) if start is None else start, 2, "start"))
    transport = group.identity().to(fields[0])
    for letter in loop:
        axis, n = unpack_letter(letter)
        edge = [p - (n < 0 and k == axis) for k, p in enumerate(at)]
        if any(not 0 <= p < size for p, size in zip(edge, fields[axis].shape, strict=False)):
            raise ValueError(f"the loop leaves the grid at {tuple(at)} along axis {axis}: it must stay inside")
        step = fields[axis][tuple(edge)]
        transport = group.multiply(transport, step if n > 0 else group.inverse(step))
        at[axis] += n
    return transport


def interchange_defect(generators: Generators, extents: Sequence[int]) -> Float[Tensor, ""]:
    """The largest ‖R_i^{n_i} R_j^{n_j} − R_j^{n_j} R_i^{n_i}‖ over pairs of axes.

    This is the distance of (x ∘_i y) ∘_j (z ∘_i w) from (x ∘_j z) ∘_i (y ∘_j w) if x has extents n. The law can hold
    for some extents even with curved generators, namely if those powers commute.

    Args:
        generators: One per axis.
        extents: n, one integer per axis, 0 or more.

    Returns:
        The defect, a scalar.

    Example:
        >>> swap, flip = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
        >>> g = Generators.orthogonal(torch.stack([swap, flip]))
        >>> [round(float(interchange_defect(g, n)), 3) for n in ((1, 1), (2, 1))]
        [2.828, 0.0]
    """
    reach = whole_numbers(extents, generators.axes, "extents")
    if min(reach) < 0:
        raise ValueError(f"extents {reach} are negative: an element spans 0 or more cells along each axis")
    group = generators.group
    powers = [generators.power(k, n) for k, n in enumerate(reach)]
    defects = [group.distance(group.multiply(a, b), group.multiply(b, a)) for a, b in combinations(powers, 2)]
    return torch.stack([generators.steps.new_zeros(()), *defects]).max()


def plaquette_defect(down: Tensor, across: Tensor, *, group: Group) -> Float[Tensor, "_rows _columns"]:
    """‖R_x(i,j) R_y(i,j+1) − R_y(i,j) R_x(i+1,j)‖ around every unit square, with one generator per datum.

    Axes are in array order.

    Args:
        down: R_y, (rows − 1, columns, *element): down[i, j] leads from (i, j) to (i+1, j).
        across: R_x, (rows, columns − 1, *element): across[i, j] leads from (i, j) to (i, j+1).
        group: Their group.

    Returns:
        (rows − 1, columns − 1), zero exactly if all paths on the grid agree.

    Example:
        >>> down, across = torch.zeros(2, 3, 1), torch.zeros(3, 2, 1)
        >>> across[1, 0] = torch.pi
        >>> plaquette_defect(down, across, group=Torus(1)).round(decimals=3)
        tensor([[2.8280, 0.0000],
                [2.8280, 0.0000]])
    """
    down, across = _fields(down, across, group)
    across_then_down = group.multiply(across[:-1], down[:, 1:])
    down_then_across = group.multiply(down[:, :-1], across[1:])
    return group.distance(across_then_down, down_then_across)


def grid_from_potential(theta: Tensor, *, group: Group | None = None) -> tuple[Tensor, Tensor]:
    """A(p)⁻¹ A(p + e_k): the steps between neighbouring values of a potential; on the torus θ(p + e_k) − θ(p).

    With matrices the grid is path-independent although the matrices need not commute.

    Args:
        theta: The potential, (rows, columns, *element).
        group: Its group; the torus by default.

    Returns:
        (down, across), as `plaquette_defect` takes them.

    Example:
        >>> down, across = grid_from_potential(torch.randn(3, 4, 2))
        >>> tuple(down.shape), tuple(across.shape)
        ((2, 4, 2), (3, 3, 2))
    """
    group = Torus(theta.shape[-1]) if group is None else group
    group.check(theta, "the potential")
    if theta.ndim != 2 + group.rank or min(theta.shape[:2]) < 1:
        raise ValueError(f"the potential has shape {tuple(theta.shape)}: give (rows, columns, ...), none empty")
    return group.journey(theta[1:], theta[:-1]), group.journey(theta[:, 1:], theta[:, :-1])


def _fields(down: Tensor, across: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    group.check(down, "down")
    group.check(across, "across")
    rows, columns = across.shape[0], down.shape[1] if down.ndim > 1 else 0
    if down.ndim != 2 + group.rank or down.ndim != across.ndim or not rows or not columns:
        raise ValueError(f"steps have shapes {tuple(down.shape)}, {tuple(across.shape)}: both are (rows, columns, ...)")
    if down.shape[0] != rows - 1 or across.shape[1] != columns - 1:
        raise ValueError(
            f"the grid is ragged, down {tuple(down.shape[:2])} and across {tuple(across.shape[:2])}: "
            "they must be (rows − 1, columns) and (rows, columns − 1), in this order"
        )
    return down, across


def _orderings(counts: Sequence[int]) -> Iterator[list[int]]:
    if not any(counts):
        yield []
    for k, n in enumerate(counts):
        if n:
            rest = [m - (i == k) for i, m in enumerate(counts)]
            yield from ([k, *tail] for tail in _orderings(rest))
