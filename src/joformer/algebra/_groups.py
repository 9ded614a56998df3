"""The groups of journeys: the torus (angles) and matrices, orthogonal or just invertible.

    R(φ) = [[cos φ, −sin φ], [sin φ, cos φ]]          on the interleaved pair (2b, 2b+1)
    P_{src→dst} = A_dst⁻¹ A_src                        the journey, in every group

Paper: "Compositional Data Points", "Journey Operator and Score/Value Attention". Everything else in this
package is written once over `Group`, so it works for both angles and matrices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from joformer.algebra._checks import in_float64, require_finite, require_tensor, tolerance

TURN = 2 * math.pi
SCAN_BLOCK = 128  # rows summed at a time: measured fastest between 16 and 256

Angles = Float[Tensor, "... _planes"]
Matrices = Float[Tensor, "... _dim _dim"]
Vectors = Float[Tensor, "... _dim"]


class Group(ABC):
    """A group of operators on ℝ^dim; an element is a tensor whose last `rank` dimensions belong to the element.

    Methods check shapes and broadcast over the dimensions before the element's own.

    Example:
        >>> [(type(g).__name__, g.dim, g.rank) for g in (Torus(3), Orthogonal(6))]
        [('Torus', 6, 1), ('Orthogonal', 6, 2)]
    """

    rank: ClassVar[int]

    if TYPE_CHECKING:  # a real property would become the default of Orthogonal's field with this name

        @property
        def dim(self) -> int: ...

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one element."""

    @abstractmethod
    def identity(self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """The identity, (*batch, *shape)."""

    @abstractmethod
    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """The product ab: b acts first."""

    @abstractmethod
    def inverse(self, a: Tensor) -> Tensor:
        """The inverse a⁻¹."""

    @abstractmethod
    def power(self, a: Tensor, n: int | float | Tensor) -> Tensor:
        """The power aⁿ; n is a number or a tensor broadcastable to the batch of a."""

    @abstractmethod
    def matrix(self, a: Tensor) -> Tensor:
        """The operator as a matrix (..., dim, dim)."""

    @abstractmethod
    def act(self, a: Tensor, v: Tensor) -> Tensor:
        """The operator applied to vectors v (..., dim), in their dtype if it is floating point."""

    @abstractmethod
    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """The Frobenius norm of the difference of the two matrices, (...)."""

    @abstractmethod
    def prefixes(self, steps: Tensor, *, exclusive: bool) -> Tensor:
        """All left-to-right products along the first dimension; `scan` is the general form with checks."""

    def journey(self, src: Tensor, dst: Tensor) -> Tensor:
        """P_{src→dst} = A_dst⁻¹ A_src of two absolute operators; batches broadcast."""
        return self.multiply(self.inverse(dst), src)

    def commutes(self, a: Tensor, b: Tensor, tol: float | None = None) -> Bool[Tensor, "..."]:
        """Whether ab = ba, up to `tol` (default: √ε of the dtype) in `distance`; (...)."""
        limit = tolerance(torch.promote_types(a.dtype, b.dtype)) if tol is None else tol
        return self.distance(self.multiply(a, b), self.multiply(b, a)) <= limit

    def check_shape(self, a: Tensor, name: str = "element") -> None:
        """Raises ValueError unless the last dimensions of `a` are those of an element."""
        wanted = f"(..., {', '.join(map(str, self.shape))})"
        require_tensor(a, name, wanted)
        if tuple(a.shape[a.ndim - self.rank :]) != self.shape or a.ndim < self.rank:
            raise ValueError(f"{name} has shape {tuple(a.shape)}: {self} needs {wanted}")

    def check_vector(self, v: Tensor, name: str = "vector") -> None:
        """Raises ValueError unless the last dimension of `v` is `dim`."""
        require_tensor(v, name, f"(..., {self.dim})")
        if v.ndim and v.shape[-1] == self.dim:
            return
        torn = self.rank == 1 and v.ndim and v.shape[-1] % 2
        odd = "an odd dimension cannot be split into planes, " if torn else ""
        raise ValueError(f"{name} has shape {tuple(v.shape)}: {odd}{self} needs (..., {self.dim})")

    def check(self, a: Tensor, name: str = "element") -> None:
        """Raises ValueError unless `a` is in this group: right shape, finite, orthogonal or invertible if a matrix."""
        self.check_shape(a, name)
        require_finite(a, name)


@dataclass(frozen=True)
class Torus(Group):
    """SO(2)^planes: an element is its angles (..., planes), in radians, equal modulo 2π.

    Products and powers are computed in fp64 and reduced to one turn, so that an angle in fp32 stays accurate
    however many steps it sums.

    Args:
        planes: Number of planes, 1 or more; operators act on ℝ^(2·planes).

    Example:
        >>> torus = Torus(2)
        >>> quarter = torch.tensor([math.pi / 2, 0.0])
        >>> torus.act(quarter, torch.tensor([1.0, 0.0, 1.0, 0.0])).round(decimals=4) + 0
        tensor([0., 1., 1., 0.])
        >>> bool(torus.distance(torus.power(quarter, 4), torus.identity()) < 1e-6)
        True
    """

    planes: int
    rank: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not isinstance(self.planes, int) or self.planes < 1:
            raise ValueError(f"a torus of {self.planes} planes acts on nothing: planes must be an integer, 1 or more")

    @classmethod
    def from_dim(cls, dim: int) -> Torus:
        """The torus that acts on ℝ^dim, dim even.

        >>> Torus.from_dim(8)
        Torus(planes=4)
        """
        if dim % 2:
            raise ValueError(f"dimension {dim} is odd: a torus needs pairs, so an even dimension such as {dim + 1}")
        return cls(dim // 2)

    @property
    def dim(self) -> int:
        """The dimension acted on, two per plane."""
        return 2 * self.planes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element, (planes,)."""
        return (self.planes,)

    def identity(self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Angles:
        """Angles 0, (*batch, planes)."""
        return torch.zeros(*batch, self.planes, dtype=dtype, device=device)

    def multiply(self, a: Angles, b: Angles) -> Angles:
        """The sum of the angles modulo 2π, (..., planes)."""
        self.check_shape(a)
        self.check_shape(b)
        return _within_a_turn(in_float64(a) + in_float64(b)).to(a.device, torch.promote_types(a.dtype, b.dtype))

    def inverse(self, a: Angles) -> Angles:
        """The angles negated, (..., planes)."""
        self.check_shape(a)
        return -a

    def power(self, a: Angles, n: int | float | Tensor) -> Angles:
        """aⁿ for any real n: n times the angle given, (..., planes)."""
        self.check_shape(a)
        angles = in_float64(a)
        return _within_a_turn(angles * (n.to(angles)[..., None] if isinstance(n, Tensor) else n)).to(a)

    def matrix(self, a: Angles) -> Matrices:
        """diag(R(φ_1), …, R(φ_planes)), (..., dim, dim)."""
        self.check_shape(a)
        cos, sin = a.cos(), a.sin()
        blocks = torch.stack([cos, -sin, sin, cos], -1).unflatten(-1, (2, 2))
        placed = torch.einsum("...prc,pq->...prqc", blocks, torch.eye(self.planes, dtype=a.dtype, device=a.device))
        return placed.flatten(-2).flatten(-3, -2)

    def act(self, a: Angles, v: Vectors) -> Vectors:
        """Each plane of v (..., dim) rotated by its angle."""
        self.check_shape(a)
        self.check_vector(v)
        first, second = v[..., 0::2], v[..., 1::2]
        cos, sin = a.cos(), a.sin()
        # In the dtype of the content, however precise the angles are.
        rotated = torch.stack([cos * first - sin * second, sin * first + cos * second], -1).flatten(-2)
        return rotated.to(v.dtype) if v.is_floating_point() else rotated

    def distance(self, a: Angles, b: Angles) -> Float[Tensor, "..."]:
        """‖R(a) − R(b)‖ = √8 ‖sin((a − b)/2)‖, (...): blind to whole turns, exact near zero."""
        self.check_shape(a)
        self.check_shape(b)
        return math.sqrt(8) * torch.linalg.vector_norm(((a - b) / 2).sin(), dim=-1)

    def prefixes(self, steps: Float[Tensor, "steps ..."], *, exclusive: bool) -> Float[Tensor, "steps ..."]:
        """All prefix sums of angles (steps, ..., planes) modulo 2π."""
        size = steps.shape[0]
        block = min(SCAN_BLOCK, max(size, 1))
        # Summed in turns, in place, in blocks and then over block totals: at 65,536 steps the cost is in
        # touching fresh memory, and a cumsum over one long strided dimension is three times slower.
        zero = in_float64(steps[:1]).new_zeros(1, *steps.shape[1:])
        body = [zero, steps[:-1]] if exclusive else [steps]
        turns = torch.cat([part.to(zero.device) for part in [*body, zero.expand(-size % block, *zero.shape[1:])]])
        turns = turns.to(torch.float64).mul_(1 / TURN).unflatten(0, (-1, block)).cumsum_(1)
        totals = turns[:, -1]
        turns = turns.add_((totals.cumsum(0) - totals).unsqueeze(1)).flatten(0, 1)[:size]
        return turns.frac_().mul_(TURN).to(steps)


@dataclass(frozen=True)
class Invertible(Group):
    """GL(dim): an element is an invertible matrix (..., dim, dim), such as a camera.

    Args:
        dim: The dimension acted on, 1 or more.

    Example:
        >>> group = Invertible(2)
        >>> group.journey(src=torch.tensor([[1.0, 3.0], [0.0, 1.0]]), dst=torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        tensor([[0.5000, 1.5000],
                [0.0000, 1.0000]])
    """

    dim: int
    rank: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not isinstance(self.dim, int) or self.dim < 1:
            raise ValueError(f"dimension {self.dim} is empty: it must be 1 or more")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element, (dim, dim)."""
        return (self.dim, self.dim)

    def identity(self, *batch: int, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Matrices:
        """Identity matrices, (*batch, dim, dim)."""
        return torch.eye(self.dim, dtype=dtype, device=device).repeat(*batch, 1, 1)

    def multiply(self, a: Matrices, b: Matrices) -> Matrices:
        """The matrix product ab, (..., dim, dim)."""
        self.check_shape(a)
        self.check_shape(b)
        common = torch.promote_types(a.dtype, b.dtype)
        return a.to(common) @ b.to(common)

    def inverse(self, a: Matrices) -> Matrices:
        """The inverse matrix, computed in fp64, (..., dim, dim)."""
        self.check_shape(a)
        return torch.linalg.inv(in_float64(a)).to(a)

    def power(self, a: Matrices, n: int | float | Tensor) -> Matrices:
        """aⁿ for whole n, negative too, by repeated squaring: one matrix product per bit of the largest |n|."""
        self.check_shape(a)
        exponent = torch.as_tensor(n)
        if (exponent.long() != exponent).any():
            raise ValueError(f"power {n} of a matrix is not whole: use integers; real powers exist on the torus")
        exponent = exponent.long().to(a.device)[..., None, None]
        base = torch.where(exponent < 0, self.inverse(a), a)
        result, left = self.identity(dtype=a.dtype, device=a.device).expand_as(base), exponent.abs()
        while left.any():
            result = torch.where(left % 2 == 1, result @ base, result)
            base, left = base @ base, left // 2
        return result

    def matrix(self, a: Matrices) -> Matrices:
        """The element itself, (..., dim, dim)."""
        self.check_shape(a)
        return a

    def act(self, a: Matrices, v: Vectors) -> Vectors:
        """The matrices applied to v (..., dim)."""
        self.check_shape(a)
        self.check_vector(v)
        common = torch.promote_types(a.dtype, v.dtype)
        rotated = torch.einsum("...ij,...j->...i", a.to(common), v.to(common))
        return rotated.to(v.dtype) if v.is_floating_point() else rotated

    def distance(self, a: Matrices, b: Matrices) -> Float[Tensor, "..."]:
        """‖a − b‖, the Frobenius norm, (...)."""
        self.check_shape(a)
        self.check_shape(b)
        return torch.linalg.matrix_norm(a - b)

    def check(self, a: Tensor, name: str = "element") -> None:
        """Raises ValueError unless `a` is a finite invertible matrix (..., dim, dim)."""
        super().check(a, name)
        if not (torch.linalg.cond(in_float64(a.detach())) < 1 / torch.finfo(torch.float64).eps).all():
            raise ValueError(f"{name} is singular: the operators of a journey must be invertible")

    def prefixes(self, steps: Float[Tensor, "steps ..."], *, exclusive: bool) -> Float[Tensor, "steps ..."]:
        """All prefix products of matrices (steps, ..., dim, dim), by an associative scan."""
        if exclusive:
            first = self.identity(*steps.shape[1:-2], dtype=steps.dtype, device=steps.device)
            return torch.cat([first[None], self.prefixes(steps[:-1], exclusive=False)]) if len(steps) else steps
        if len(steps) < 2:
            return steps
        # Neighbours first, then the prefixes of pairs, then the positions in between: depth 2 log₂ T, 2T products.
        odd = self.prefixes(steps[0:-1:2] @ steps[1::2], exclusive=False)
        even = torch.cat([steps[:1], odd[: (len(steps) - 1) // 2] @ steps[2::2]])
        woven = torch.stack([even[: len(odd)], odd], 1).flatten(0, 1)
        return torch.cat([woven, even[len(odd) :]])


@dataclass(frozen=True)
class Orthogonal(Invertible):
    """O(dim), reflections included: an element is an orthogonal matrix (..., dim, dim).

    Args:
        dim: The dimension acted on, 1 or more.

    Example:
        >>> group = Orthogonal(2)
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> group.act(group.power(turn, torch.tensor([1, 2, -1])), torch.tensor([1.0, 0.0])) + 0
        tensor([[ 0.,  1.],
                [-1.,  0.],
                [ 0., -1.]])
    """

    def inverse(self, a: Matrices) -> Matrices:
        """The transpose, (..., dim, dim)."""
        self.check_shape(a)
        return a.mT

    def check(self, a: Tensor, name: str = "element") -> None:
        """Raises ValueError unless `a` is a finite orthogonal matrix (..., dim, dim), up to √ε of its dtype."""
        Group.check(self, a, name)
        error = (a.detach().mT @ a.detach() - torch.eye(self.dim, dtype=a.dtype, device=a.device)).abs()
        if (error > (limit := tolerance(a.dtype))).any():
            raise ValueError(f"{name} is not orthogonal: |AᵀA − I| is {error.max():.1e}, it must be below {limit:.1e}")


def _within_a_turn(angles: Tensor) -> Tensor:
    return (angles / TURN).frac() * TURN
