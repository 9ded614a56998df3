"""Elements and their composition, in one dimension and along the axes of a grid.

    (a, A) ∘ (b, B)     = (a + A b, A B)                                 one dimension
    (a; n) ∘_k (b; m)   = (a + R_k^{n_k} b; …, n_k + m_k, …)             along axis k, n and m *extents*
    e_1 ∘ ⋯ ∘ e_T       = (Σ_i A_i v_i, R_1 ⋯ R_T)                       unrolled

Paper: "Compositional Data Points", "Structured Concatenation". The paper uses *positions* as the exponents of
∘_k. They must be extents (a single cell has extent 1), and an element also needs its origin: without it two cells
in different rows would look composable along the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.algebra._checks import require_finite, whole_numbers
from joformer.algebra._generators import Generators
from joformer.algebra._groups import Group


@dataclass(frozen=True, eq=False)
class Pair:
    """A one-dimensional data point (v, R); pairs form a group under `compose`.

    Args:
        content: The vector v, (..., d).
        operator: The element R of `group`, (..., *element).
        group: `Torus` or `Orthogonal`.

    Example:
        >>> from joformer.algebra import Torus
        >>> x = Pair(torch.tensor([1.0, 2.0]), torch.tensor([0.3]), Torus(1))
        >>> y = x.compose(x.inverse())                                    # (0, I)
        >>> bool(y.content.abs().max() < 1e-6), bool(y.operator.abs().max() < 1e-6)
        (True, True)
    """

    content: Tensor
    operator: Tensor
    group: Group

    def __post_init__(self) -> None:
        self.group.check_vector(self.content, "content")
        require_finite(self.content, "content")
        self.group.check(self.operator, "operator")

    @classmethod
    def identity(cls, group: Group) -> Pair:
        """The identity (0, I)."""
        return cls(torch.zeros(group.dim), group.identity(), group)

    def compose(self, other: Pair) -> Pair:
        """(a, A) ∘ (b, B) = (a + A b, A B): associative, not commutative."""
        if self.group != other.group:
            raise ValueError(f"the operands live in {self.group} and {other.group}: both must be in the same group")
        content = self.content + self.group.act(self.operator, other.content)
        return Pair(content, self.group.multiply(self.operator, other.operator), self.group)

    def inverse(self) -> Pair:
        """(a, A)⁻¹ = (−A⁻¹ a, A⁻¹)."""
        back = self.group.inverse(self.operator)
        return Pair(-self.group.act(back, self.content), back, self.group)


@dataclass(frozen=True, eq=False)
class Element:
    """A tile of the grid as one vector.

    Args:
        content: The vector, (..., d).
        origin: The position of its first cell, one integer per axis.
        extent: Number of cells it spans along each axis, 0 or more.
        generators: The axis-step generators of the grid.

    Example:
        >>> g = Generators.torus(torch.tensor([[0.5], [0.25]]))
        >>> tile = Element(torch.tensor([1.0, 0.0]), origin=(0, 3), extent=(2, 1), generators=g)
        >>> tile.end
        (2, 4)
    """

    content: Tensor
    origin: tuple[int, ...]
    extent: tuple[int, ...]
    generators: Generators

    def __post_init__(self) -> None:
        for name in ("origin", "extent"):
            object.__setattr__(self, name, whole_numbers(getattr(self, name), self.generators.axes, name))
        if min(self.extent) < 0:
            raise ValueError(f"extent {self.extent} is negative: an element spans 0 or more cells along each axis")
        self.generators.group.check_vector(self.content, "content")
        require_finite(self.content, "content")

    @classmethod
    def cell(cls, content: Tensor, position: int | Sequence[int] | Tensor, generators: Generators) -> Element:
        """A single cell: extent 1 along every axis.

        Args:
            content: The vector, (..., d).
            position: One integer per axis; with one axis also a plain integer.
            generators: The axis-step generators of the grid.

        Example:
            >>> Element.cell(torch.ones(2), 7, Generators.torus(torch.ones(1, 1))).origin
            (7,)
        """
        return cls(content, whole_numbers(position, generators.axes, "position"), (1,) * generators.axes, generators)

    @classmethod
    def identity(
        cls,
        origin: int | Sequence[int],
        extent: int | Sequence[int],
        generators: Generators,
        *,
        axis: int | None = None,
    ) -> Element:
        """One of the identities of ∘_k: content 0, extent 0 along axis k.

        Args:
            origin: Its position, one integer per axis.
            extent: Its extents along the other axes, which must match those of the element it is composed with.
            generators: The axis-step generators of the grid.
            axis: The axis k; optional if there is only one.

        Example:
            >>> g = Generators.torus(torch.ones(2, 1))
            >>> Element.identity((0, 2), (4, 1), g, axis=1).extent
            (4, 0)
        """
        start, reach = (whole_numbers(n, generators.axes, name) for n, name in ((origin, "origin"), (extent, "extent")))
        content = torch.zeros(generators.dim, dtype=generators.steps.dtype, device=generators.steps.device)
        return cls(content, start, _replaced(reach, generators.axis(axis), 0), generators)

    @property
    def end(self) -> tuple[int, ...]:
        """The first position past the element, origin + extent."""
        return tuple(o + n for o, n in zip(self.origin, self.extent, strict=True))


def compose(x: Element, y: Element, *, axis: int | None = None) -> Element:
    """The composition x ∘_k y = (a + R_k^{n_k} b; …, n_k + m_k, …).

    Args:
        x: The first element, content a and extents n.
        y: The second, content b and extents m; it starts where `x` ends along axis k and matches it elsewhere.
        axis: The axis k; optional if there is only one.

    Returns:
        The element that covers both.

    Raises:
        ValueError: If the two are not adjacent, are in the wrong order, or have different generators.

    Example:
        >>> g = Generators.torus(torch.tensor([[torch.pi / 2]]))
        >>> x, y = (Element.cell(torch.tensor([1.0, 0.0]), n, g) for n in (0, 1))
        >>> whole = compose(x, y)
        >>> whole.content.round(decimals=4), whole.origin, whole.extent
        (tensor([1., 1.]), (0,), (2,))
    """
    k = _common_axis("compose", x, y, axis)
    if y.origin[k] != x.end[k]:
        if y.end[k] == x.origin[k]:
            raise ValueError(f"operands are out of order along axis {k}: the one at {y.origin[k]} must come first")
        raise ValueError(
            f"operands are not adjacent along axis {k}: the second starts at {y.origin[k]}, it must start at {x.end[k]}"
        )
    content = x.content + x.generators.group.act(x.generators.power(k, x.extent[k]), y.content)
    return Element(content, x.origin, _replaced(x.extent, k, x.extent[k] + y.extent[k]), x.generators)


def concatenate(parts: Sequence[Element], *, axis: int | None = None) -> Element:
    """X_1 ⊕_k X_2 ⊕_k ⋯: the composition of all parts along an axis, from left to right.

    Args:
        parts: One element or more, each starting where the previous one ends.
        axis: The axis k; optional if there is only one.

    Example:
        >>> g = Generators.torus(torch.zeros(1, 1))
        >>> concatenate([Element.cell(torch.ones(2), n, g) for n in range(3)]).content
        tensor([3., 3.])
    """
    if isinstance(parts, Element) or not parts or not all(isinstance(part, Element) for part in parts):
        raise ValueError("nothing to concatenate: give a list of one element or more, see Element.cell")
    parts[0].generators.axis(axis)
    return reduce(lambda x, y: compose(x, y, axis=axis), parts)


def split(
    whole: Element, *, axis: int | None = None, left: Element | None = None, right: Element | None = None
) -> Element:
    """The other part of a composition: b = R_k^{−n_k}(c − a) given the left, a = c − R_k^{n_k} b given the right.

    Args:
        whole: The composition, content c.
        axis: The axis k it was composed along; optional if there is only one.
        left: The first part, content a. Pass either this or `right`.
        right: The second part, content b.

    Returns:
        The part that was not given.

    Raises:
        ValueError: If the part is not at its end of the whole, or none or both are given.

    Example:
        >>> g = Generators.torus(torch.tensor([[0.7]]))
        >>> x, y = (Element.cell(torch.randn(2), n, g) for n in (0, 1))
        >>> torch.allclose(split(compose(x, y), left=x).content, y.content, atol=1e-6)
        True
    """
    part = left if right is None else right
    if part is None or (left is not None and right is not None):
        raise ValueError("split needs one of the two parts: give either left= or right=, not both")
    k = _common_axis("split", whole, part, axis)
    here, there = (part.origin[k], whole.origin[k]) if right is None else (part.end[k], whole.end[k])
    if here != there or part.extent[k] > whole.extent[k]:
        side = "left part must start" if right is None else "right part must end"
        raise ValueError(
            f"the part spans {part.origin[k]} to {part.end[k]} on axis {k}: a {side} at {there} and fit inside"
        )
    generators, rest = whole.generators, whole.extent[k] - part.extent[k]
    if right is None:
        content = generators.group.act(generators.power(k, -part.extent[k]), whole.content - part.content)
        origin = _replaced(whole.origin, k, part.end[k])
    else:
        content = whole.content - generators.group.act(generators.power(k, rest), part.content)
        origin = whole.origin
    return Element(content, origin, _replaced(whole.extent, k, rest), generators)


def scan(group: Group, steps: Tensor, *, dim: int | None = None, exclusive: bool = True) -> Tensor:
    """A_t = R_0 ⋯ R_{t−1}, A_0 = I: all prefix products at once.

    On the torus these are prefix sums in fp64, reduced to one turn; for matrices an associative scan of depth O(log T).

    Args:
        group: The group the steps are in.
        steps: R_0 … R_{T−1}, (..., T, *element).
        dim: The tensor dimension of time; by default the last one before the element's own.
        exclusive: Whether entry t excludes R_t, as above, or includes it.

    Returns:
        A tensor of the shape of `steps`.

    Example:
        >>> from joformer.algebra import Torus
        >>> scan(Torus(1), torch.tensor([[0.1], [0.2], [0.3]])).squeeze(-1)
        tensor([0.0000, 0.1000, 0.3000])
    """
    group.check(steps, "steps")
    batch = steps.ndim - group.rank
    time = batch - 1 if dim is None else dim % steps.ndim if -steps.ndim <= dim < steps.ndim else batch
    if not 0 <= time < batch:
        raise ValueError(
            f"dim {dim} of steps {tuple(steps.shape)} is not a time dimension: use one of the first {batch}"
        )
    return group.prefixes(steps.movedim(time, 0), exclusive=exclusive).movedim(0, time)


def unroll(contents: Tensor, steps: Generators | Tensor, group: Group | None = None) -> Float[Tensor, "... d"]:
    """Σ_i A_i v_i, A_i = R_0 ⋯ R_{i−1}: the content of the whole 1-D composition.

    Args:
        contents: v_0 … v_{T−1}, (..., T, d).
        steps: One generator for all steps (`Generators` with one axis), or one per step (..., T, *element).
        group: The group of the steps, if they are a tensor.

    Returns:
        The content, (..., d).

    Example:
        >>> quarter = Generators.torus(torch.tensor([[torch.pi / 2]]))
        >>> unroll(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), quarter).round(decimals=4)
        tensor([1., 1.])
    """
    group = steps.group if isinstance(steps, Generators) else group
    if group is None:
        raise ValueError("unroll got steps as a tensor but no group: say Torus(planes) or Orthogonal(dim)")
    group.check_vector(contents, "contents")
    require_finite(contents, "contents")
    if isinstance(steps, Generators):
        absolute = steps.power(steps.axis(None), torch.arange(contents.shape[-2], device=contents.device))
    else:
        absolute = scan(group, steps)
        if (given := absolute.shape[-1 - group.rank]) != contents.shape[-2]:
            raise ValueError(f"{given} steps for {contents.shape[-2]} contents: give one step for each content")
    return group.act(absolute, contents).sum(-2)


def compose_grid(
    contents: Tensor | Sequence[Any], generators: Generators, *, order: Sequence[int] | None = None
) -> Element:
    """Σ_n A_n v_n, A_n = R_1^{n_1} ⋯ R_D^{n_D}: a whole grid composed axis by axis.

    Args:
        contents: The cells (..., n_1, …, n_D, d), or nested lists of vectors (d,).
        generators: One per axis of the grid.
        order: The axes in the order of composition; the axis composed *last* is leftmost. The default, last axis first,
            gives the sum above, curved or flat; with flat generators every order does.

    Returns:
        The element that covers the grid, content (..., d).

    Raises:
        ValueError: If the grid is ragged or empty, or `order` does not name every axis once.

    Example:
        >>> g = Generators.torus(torch.tensor([[0.1], [0.2]]))
        >>> compose_grid(torch.ones(4, 3, 2), g).extent
        (4, 3)
    """
    grid = contents if isinstance(contents, Tensor) else _stack_grid(contents)
    axes, group = generators.axes, generators.group
    group.check_vector(grid, "contents")
    if grid.ndim < axes + 1 or not grid.numel():
        raise ValueError(
            f"contents have shape {tuple(grid.shape)}: give (..., {axes} grid axes, {group.dim}), none empty"
        )
    require_finite(grid, "contents")
    sequence = tuple(reversed(range(axes))) if order is None else tuple(order)
    if sorted(sequence) != list(range(axes)):
        raise ValueError(f"order {sequence} is not an order of the axes: name each of 0 to {axes - 1} once")
    extent = tuple(grid.shape[-1 - axes : -1])
    for k in sequence:
        along = grid.movedim(k - axes - 1, -2)
        powers = generators.power(k, torch.arange(extent[k], device=grid.device))
        grid = group.act(powers, along).sum(-2, keepdim=True).movedim(-2, k - axes - 1)
    return Element(grid.flatten(-1 - axes, -2).squeeze(-2), (0,) * axes, extent, generators)


def _stack_grid(rows: Sequence[Any]) -> Tensor:
    if not isinstance(rows, Sequence):
        raise ValueError(f"contents contain a {type(rows).__name__}: give a tensor, or nested lists of vectors (d,)")
    if not rows:
        raise ValueError("the grid has an empty row: every row must hold the same number of contents, one or more")
    parts = [row if isinstance(row, Tensor) else _stack_grid(row) for row in rows]
    shapes = {tuple(part.shape) for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"the grid is ragged, with parts of shapes {sorted(shapes)}: all must have the same shape")
    return torch.stack(parts)


def _common_axis(caller: str, x: Element, y: Element, axis: int | None) -> int:
    """Checks that two elements agree on everything else and returns the axis they are joined along."""
    if not isinstance(x, Element) or not isinstance(y, Element):
        raise ValueError(f"{caller} takes elements, got {type(x).__name__} and {type(y).__name__}: see Element.cell")
    if (here := x.generators.dim) != (there := y.generators.dim):
        raise ValueError(f"different dimensions, {here} and {there}: both elements need the same")
    if not x.generators.same_as(y.generators):
        raise ValueError("different generator sets: build both elements with the same Generators")
    k = x.generators.axis(axis)
    for i in range(x.generators.axes):
        if i != k and (x.origin[i], x.extent[i]) != (y.origin[i], y.extent[i]):
            raise ValueError(
                f"along axis {k}, origin and extent must agree on axis {i}: one spans {x.origin[i]} to {x.end[i]}, "
                f"the other {y.origin[i]} to {y.end[i]}"
            )
    return k


def _replaced(values: tuple[int, ...], k: int, value: int) -> tuple[int, ...]:
    return (*values[:k], value, *values[k + 1 :])
