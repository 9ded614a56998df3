"""Axis-step generators: one operator per axis, shared by all points of the grid.

    A_n = R_1^{n_1} ⋯ R_D^{n_D},        flat  ⇔  R_i R_j = R_j R_i for all i, j

Paper: "Path Transport and Commutativity", "Flat/Curved Dichotomy".
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from torch import Tensor

from joformer.algebra._checks import require_tensor
from joformer.algebra._groups import Group, Orthogonal, Torus


@dataclass(frozen=True, eq=False)
class Generators:
    """A group and its axis-step generators R_1 … R_D; build them with `Generators.torus` or `Generators.orthogonal`.

    Args:
        group: `Torus` or `Orthogonal`.
        steps: One element per axis, (axes, *element).

    Example:
        >>> import torch
        >>> rows_and_columns = Generators.torus(torch.tensor([[0.1, 0.0], [0.0, 0.2]]))
        >>> rows_and_columns.axes, rows_and_columns.dim
        (2, 4)
        >>> rows_and_columns.power(1, 3)
        tensor([0.0000, 0.6000])
    """

    group: Group
    steps: Tensor

    def __post_init__(self) -> None:
        if self.steps.ndim != 1 + self.group.rank or not self.steps.shape[0]:
            wanted = ", ".join(map(str, self.group.shape))
            raise ValueError(f"generators have shape {tuple(self.steps.shape)}: give one per axis, (axes, {wanted})")
        for axis, step in enumerate(self.steps):
            self.group.check(step, f"the generator of axis {axis}")

    @classmethod
    def torus(cls, angles: Tensor) -> Generators:
        """R_k = diag(R(φ_k1), …, R(φ_k,planes)): generators from angles, always flat.

        Args:
            angles: Radians per step, (axes, planes).

        Example:
            >>> import torch
            >>> Generators.torus(torch.zeros(3, 5)).group
            Torus(planes=5)
        """
        require_tensor(angles, "angles", "(axes, planes)")
        if angles.ndim != 2 or not angles.numel():
            raise ValueError(f"angles have shape {tuple(angles.shape)}: give (axes, planes), both 1 or more")
        return cls(Torus(angles.shape[-1]), angles)

    @classmethod
    def orthogonal(cls, matrices: Tensor, *, flat: bool = False) -> Generators:
        """R_k as orthogonal matrices, flat or curved.

        Args:
            matrices: One per axis, (axes, dim, dim).
            flat: Require that they commute; raises ValueError if a pair does not.

        Example:
            >>> import torch
            >>> Generators.orthogonal(torch.eye(3).expand(2, 3, 3)).group
            Orthogonal(dim=3)
        """
        require_tensor(matrices, "matrices", "(axes, dim, dim)")
        if matrices.ndim != 3 or not matrices.numel() or matrices.shape[1] != matrices.shape[2]:
            raise ValueError(f"matrices have shape {tuple(matrices.shape)}: give (axes, dim, dim), all 1 or more")
        generators = cls(Orthogonal(matrices.shape[-1]), matrices)
        if flat:
            generators.require_flat()
        return generators

    @property
    def axes(self) -> int:
        """The number of axes D."""
        return self.steps.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d of the content that operators act on."""
        return self.group.dim

    def axis(self, axis: int | None) -> int:
        """Checks that `axis` exists and returns it; None stands for the only axis.

        Args:
            axis: An axis number, counted from 0, or None if there is only one axis.

        Example:
            >>> import torch
            >>> Generators.torus(torch.zeros(2, 1)).axis(2)
            Traceback (most recent call last):
            ValueError: unknown axis 2: the generators have axes 0 to 1
        """
        if axis is None and self.axes == 1:
            return 0
        if axis is None:
            raise ValueError(f"no axis given: the generators have {self.axes} axes, pass axis=0 to {self.axes - 1}")
        if not 0 <= axis < self.axes:
            raise ValueError(f"unknown axis {axis}: the generators have axes 0 to {self.axes - 1}")
        return axis

    def power(self, axis: int, n: int | float | Tensor) -> Tensor:
        """R_axisⁿ, (..., *element) for n (...)."""
        return self.group.power(self.steps[self.axis(axis)], n)

    def same_as(self, other: Generators) -> bool:
        """Whether another set of generators has the same group and the same values.

        Args:
            other: The other generators.

        Example:
            >>> import torch
            >>> Generators.torus(torch.zeros(1, 2)).same_as(Generators.torus(torch.ones(1, 2)))
            False
        """
        if self.steps is other.steps:
            return True
        same_kind = self.group == other.group and self.steps.shape == other.steps.shape
        return same_kind and bool((self.steps.detach() == other.steps.detach()).all())

    def curved_pair(self, tol: float | None = None) -> tuple[int, int] | None:
        """The first pair of axes whose generators do not commute, or None if all commute.

        Args:
            tol: Tolerance for the distance of the two products; √ε of the dtype by default.

        Example:
            >>> import torch
            >>> swap, flip = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, -1.0]])
            >>> Generators.orthogonal(torch.stack([swap, flip])).curved_pair()
            (0, 1)
        """
        pairs = combinations(range(self.axes), 2)
        return next(((i, j) for i, j in pairs if not self.group.commutes(self.steps[i], self.steps[j], tol)), None)

    def require_flat(self, tol: float | None = None) -> Generators:
        """Checks that the generators commute and returns them.

        Args:
            tol: Tolerance for the distance of two products; √ε of the dtype by default.

        Raises:
            ValueError: If a pair does not commute; the message names the pair.

        Example:
            >>> import torch
            >>> Generators.orthogonal(torch.eye(2).expand(2, 2, 2)).require_flat().axes
            2
        """
        pair = self.curved_pair(tol)
        if pair is not None:
            i, j = pair
            raise ValueError(f"the generators of axes {i} and {j} do not commute: flat ones must, as on a torus")
        return self
