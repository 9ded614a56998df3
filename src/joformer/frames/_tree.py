"""Tree frames: a node's frame is composed of its branches' generators, on the path from the root down.

    A_node = R_{b_1} R_{b_2} ⋯ R_{b_L}          or, with a generator per depth,   R_{1,b_1} R_{2,b_2} ⋯ R_{L,b_L}
    θ_node = Σ_d ω[b_d]                         or   Σ_d ω[d, b_d]                where they commute: angles add

A journey A_dst⁻¹ A_src goes up from src to the common ancestor and down to dst: what the two paths share cancels,
commuting or not. Commuting generators see the order of branches only where each depth has its own; dense ones
always do. The encoding of Shiv and Quirk (2019) is depth-indexed, commuting, with quarter turns: `one_hot`.
Paper: "Toral Classification", which names tree encodings as a special case without deriving them (docs/claims.md
row 14).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Int
from torch import Tensor, nn

from joformer._precision import widest, without_autocast
from joformer.frames._base import FramesModule, check_layout_and_heads, coordinates, place, planes_of, wrap
from joformer.frames._types import CurvedFrames, FlatFrames, Layout
from joformer.frequencies import per_axis


class OnTrees(FramesModule):
    """Frames whose positions are paths: what commuting and dense tree frames have in common."""

    shift_invariant = False  # paths have no displacement to move by

    def __init__(self, head_dim: int, *, branches: int, depth: int | None, heads: int) -> None:
        super().__init__()
        if branches < 1 or (depth is not None and depth < 1):
            raise ValueError(f"branches and depth must be 1 or more, got branches={branches}, depth={depth}")
        self.head_dim, self.heads, self.axes, self.branches, self.depth = head_dim, heads, branches, branches, depth

    def paths(self, positions: Tensor, x: Tensor | None) -> Int[Tensor, "batch nodes depth"]:
        """The branch taken at each depth, and `branches`, which is none of them, below the node."""
        if not isinstance(positions, Tensor) or positions.dim() not in (2, 3) or not positions.shape[-1]:
            given = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
            raise ValueError(
                f"positions must be paths, (nodes, depth) or (batch, nodes, depth), got {given}: see positions.tree"
            )
        known = coordinates(positions, positions.shape[-1], x)
        below = positions.to(known.device).isnan().view(known.shape)
        if self.depth is not None and known.shape[-1] > self.depth:
            raise ValueError(f"paths are {known.shape[-1]} deep but the frames have depth={self.depth}")
        # Reading values would stall a GPU and break a graph, so only where it is free.
        if known.device.type == "cpu" and not torch.compiler.is_compiling() and not below.all():
            if (below[..., :-1] & ~below[..., 1:]).any():
                raise ValueError("a path has a branch below its end (NaN in the middle): see positions.tree")
            branch = known[~below]
            if branch.min() < 0 or branch.max() >= self.branches or (branch != branch.round()).any():
                raise ValueError(
                    f"branches on a path must be whole numbers 0 … {self.branches - 1}, "
                    f"got {branch.min().item():g} to {branch.max().item():g}"
                )
        return known.masked_fill(below, self.branches).long()

    def extra_repr(self) -> str:
        return f"{self.head_dim}, branches={self.branches}, depth={self.depth}, heads={self.heads}"


class TreeFrames(OnTrees):
    """One trained generator per branch (and per depth when `depth` is given): (batch or 1, nodes, heads, planes).

    Positions are paths, (nodes, depth) or (batch, nodes, depth), as `positions.tree` makes them: the branch
    taken at each depth, NaN below the node. The parameter has shape (depth or 1, heads, branches, planes); it
    starts from the spectrum of `base`, or from the table given as `base`, (depth or 1, branches, planes).
    These frames commute; `DenseTreeFrames` do not.

    >>> from joformer import positions
    >>> TreeFrames(16, branches=2)(positions.tree([-1, 0, 0, 1, 1])).angles.shape
    torch.Size([1, 5, 1, 8])
    """

    def __init__(
        self,
        head_dim: int,
        *,
        branches: int,
        depth: int | None = None,
        heads: int = 1,
        base: float | Sequence | Tensor = 10000.0,
        planes: int | None = None,
        layout: Layout = "interleaved",
    ) -> None:
        check_layout_and_heads(layout, heads)
        super().__init__(head_dim, branches=branches, depth=depth, heads=heads)
        self.layout, self.planes = layout, planes_of(head_dim, planes, 1, "combined")
        shape = (depth or 1, branches, self.planes)
        self.base = base if isinstance(base, (int, float)) else torch.as_tensor(base, dtype=torch.float64, device="cpu")
        if isinstance(self.base, Tensor) and self.base.shape != shape:
            raise ValueError(
                f"a table of angles must be (depth or 1, branches, planes), {shape}: got {self.base.shape}"
            )
        self.generators = nn.Parameter(torch.empty(shape[0], heads, *shape[1:], dtype=torch.float32))
        self.reset_parameters()

    @classmethod
    def one_hot(
        cls,
        head_dim: int | None = None,
        *,
        branches: int,
        depth: int,
        decay: float = 1.0,
        heads: int = 1,
        layout: Layout = "interleaved",
    ) -> TreeFrames:
        """Shiv and Quirk's encoding as frames: branch b at depth d turns one plane of its own, (d, b), a quarter.

        Their code x of a node is one slot per depth, the slot the one-hot vector of the branch, scaled by
        decay^depth. With depth·branches planes and the angles arccos(1 − decay^{2 depth}), a quarter turn where
        there is no decay, the journey between two nodes knows the distance of their codes exactly,

            Σ_planes cos(θ_src − θ_dst) = planes − ‖x_src − x_dst‖²,

        hence their inner product, as the root's code is 0. Depth is counted from the root here, so that what
        two nodes share cancels. Theirs is a stack with the newest branch first: give paths reversed for that.
        head_dim is 2·depth·branches unless given. The angles are a start, trained like any others unless told
        `requires_grad_(False)`.

        >>> from joformer import positions
        >>> module = TreeFrames.one_hot(branches=2, depth=2)
        >>> angles = module(positions.tree([-1, 0, 0, 1])).angles                # root, left, right, left-left
        >>> (angles[0, :, 0] * 2 / torch.pi).round().int().tolist()
        [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]]
        """
        if not 0 < decay <= 1:
            raise ValueError(f"decay {decay} is not a factor from one depth to the next: it must be in (0, 1]")
        planes = depth * branches
        head_dim = 2 * planes if head_dim is None else head_dim
        turns = [math.acos(1 - decay ** (2 * d)) for d in range(depth) for _ in range(branches)]
        table = torch.tensor(turns, dtype=torch.float64, device="cpu").diag().view(depth, branches, planes)
        return cls(head_dim, branches=branches, depth=depth, heads=heads, base=table, planes=planes, layout=layout)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if isinstance(self.base, Tensor):
            start = self.base
        else:
            # One axis per branch and depth, so that no two of them start with the same angles.
            count = self.generators.shape[0] * self.branches
            start = per_axis(self.planes, count, "combined", self.base, device=self.generators.device)
        self.generators.copy_(start.view(-1, 1, self.branches, self.planes).expand_as(self.generators))

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
    ) -> FlatFrames:
        paths = self.paths(positions, x)
        generators = self.generators.to(device=paths.device, dtype=torch.float64)
        taken = (paths.unsqueeze(-1) == torch.arange(self.branches, device=paths.device)).to(generators.dtype)
        if self.depth is None:
            angles = torch.einsum("btc,hcp->bthp", taken.sum(2), generators[0])
        else:
            angles = torch.einsum("btdc,dhcp->bthp", taken, generators[: taken.shape[2]])
        return FlatFrames.of(place(wrap(angles), x), layout=self.layout)


class DenseTreeFrames(OnTrees):
    """R_b = expm(M_b − M_bᵀ) over the whole head, curved: matrices (batch or 1, nodes, heads, 1, head_dim, head_dim).

    Positions are paths as for `TreeFrames`. M is the parameter (depth or 1, heads, branches, head_dim, head_dim).
    Left-right is another node than right-left even where all depths share their generators.

    >>> from joformer import positions
    >>> module = DenseTreeFrames(4, branches=2)
    >>> module(positions.tree([-1, 0, 0, 1, 1])).matrices.shape
    torch.Size([1, 5, 1, 1, 4, 4])
    """

    def __init__(self, head_dim: int, *, branches: int, depth: int | None = None, heads: int = 1) -> None:
        check_layout_and_heads("interleaved", heads)
        super().__init__(head_dim, branches=branches, depth=depth, heads=heads)
        if head_dim < 2:
            raise ValueError(f"head_dim {head_dim} has no rotations: it must be 2 or more")
        shape = (depth or 1, heads, branches, head_dim, head_dim)
        self.generators = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Eigenvalues of M − Mᵀ then lie within about ± 1.4 radians a branch, as with `DenseFrames`.
        nn.init.normal_(self.generators, std=0.5 / self.head_dim**0.5)

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
    ) -> CurvedFrames:
        device = self.generators.device if x is None else x.device
        paths = self.paths(positions, x).to(device)
        # In float32 the product of a hundred branches is no longer orthogonal.
        wide = widest(device, self.generators.dtype)
        with without_autocast(device):
            steps = torch.matrix_exp((self.generators - self.generators.mT).to(device, wide)).movedim(2, 1)
            stay = torch.eye(self.head_dim, dtype=wide, device=device).expand(steps.shape[0], 1, *steps.shape[2:])
            steps = torch.cat((steps, stay), 1)
            taken = (steps[0 if self.depth is None else d][paths[..., d]] for d in range(paths.shape[-1]))
            matrices = reduce(torch.matmul, taken)
        return CurvedFrames(matrices.unsqueeze(3).to(self.generators.dtype))
