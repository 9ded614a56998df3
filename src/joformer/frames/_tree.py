"""Tree frames: the frame of a node is the product of the generators of the branches on its path from the root.

    A_node = R_{b_1} R_{b_2} ⋯ R_{b_L}          or, with a generator per depth,   R_{1,b_1} R_{2,b_2} ⋯ R_{L,b_L}
    θ_node = Σ_d ω[b_d]                         or   Σ_d ω[d, b_d]                if they commute: angles add

A journey A_dst⁻¹ A_src goes up from src to the common ancestor and down to dst: the shared part of the two paths
cancels, whether generators commute or not. Commuting generators distinguish the order of branches only if each depth
has its own; dense ones always do. The encoding of Shiv and Quirk (2019) is depth-indexed, commuting, with right angles:
`one_hot`. Paper: "Toral Classification", which mentions tree encodings as a special case without deriving them
(docs/claims.md row 14).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from joformer._precision import readable, widest, without_autocast
from joformer.frames._base import FlatModule, FramesModule, Inputs, check_heads, coordinates, place, wrap
from joformer.frames._curved import CurvedFrames
from joformer.frames._types import At, FlatFrames, Layout
from joformer.frequencies import per_axis


def check_paths(paths: Tensor, below: Tensor, branches: int, depth: int | None) -> None:
    """Raises ValueError for paths (…, depth), of which those entries are below the node, that cannot be.

    >>> check_paths(torch.tensor([[0.0, 2.0]]), torch.tensor([[False, False]]), branches=2, depth=4)
    Traceback (most recent call last):
    ValueError: branches on a path must be whole numbers 0 … 1, got 0 to 2
    """
    if depth is not None and paths.shape[-1] > depth:
        raise ValueError(f"paths are {paths.shape[-1]} deep but the frames have depth={depth}")
    # Reading values would stall a GPU and break a graph: only where it is free.
    if paths.device.type == "cpu" and not torch.compiler.is_compiling() and not below.all():
        if (below[..., :-1] & ~below[..., 1:]).any():
            raise ValueError("a path has a branch below its end (NaN in the middle): see positions.tree")
        branch = paths[~below]
        if branch.min() < 0 or branch.max() >= branches or (branch != branch.round()).any():
            raise ValueError(
                f"branches on a path must be whole numbers 0 … {branches - 1}, "
                f"got {branch.min().item():g} to {branch.max().item():g}"
            )


class OnTrees(FramesModule):
    """Base class of frames whose positions are paths, commuting or dense."""

    shift_invariant = False  # paths cannot be displaced

    def set_tree(self, branches: int, depth: int | None) -> None:
        """Sets the size of the tree."""
        if branches < 1 or (depth is not None and depth < 1):
            raise ValueError(f"branches and depth must be 1 or more, got branches={branches}, depth={depth}")
        self.axes, self.branches, self.depth = branches, branches, depth

    def paths(self, positions: Tensor, x: Tensor | None) -> Int[Tensor, "batch nodes depth"]:
        """The branch taken at each depth; below the node `branches`, which is not a branch."""
        if not isinstance(positions, Tensor) or positions.dim() not in (2, 3) or not positions.shape[-1]:
            given = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
            raise ValueError(
                f"positions must be paths, (nodes, depth) or (batch, nodes, depth), got {given}: see positions.tree"
            )
        known = coordinates(positions, positions.shape[-1], x)
        below = positions.to(known.device).isnan().view(known.shape)
        check_paths(known, below, self.branches, self.depth)
        return known.masked_fill(below, self.branches).long()

    def extra_repr(self) -> str:
        """The arguments that determine the parameters."""
        return f"{self.head_dim}, branches={self.branches}, depth={self.depth}, heads={self.heads}"


class TreeFrames(OnTrees, FlatModule):
    """``θ_node = Σ_d ω[d, b_d]``, one trained generator per branch and depth: (batch or 1, nodes, heads, planes).

    Positions are paths, (nodes, depth) or (batch, nodes, depth), as returned by `positions.tree`: the branch taken at
    each depth, NaN below the node. The parameter `generators` is (depth or 1, heads, branches, planes). These frames
    commute; `DenseTreeFrames` do not.

    Args:
        head_dim: Width of a head; must be even.
        branches: Maximum number of branches of a node.
        depth: Maximum depth of a node, for separate generators at each depth; None shares them.
        heads: 1 (shared by all heads) or the number of key/value heads.
        base: Base of the spectrum that the generators start from.
        angles: A table to start from instead, ``(depth or 1, branches, planes)``.
        planes: Number of planes; fewer than head_dim / 2 rotate only 2·planes entries of each head.
        at: Which entries of a head are rotated: the first ("front") or the last ("end").
        layout: Which entries of a head form a plane; see `joformer.rotation`.

    Raises:
        ValueError: If widths, planes, heads, the tree or the table are incompatible.

    Example:
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
        base: float = 10000.0,
        angles: Sequence[Any] | Tensor | None = None,
        planes: int | None = None,
        at: At = "front",
        layout: Layout = "interleaved",
    ) -> None:
        if not isinstance(base, (int, float)):
            warnings.warn("base must be a number: write angles= for a table", DeprecationWarning, stacklevel=2)
            base, angles = 10000.0, base
        super().__init__(head_dim, axes=1, heads=heads, split="combined", planes=planes, at=at, layout=layout)
        self.set_tree(branches, depth)
        shape = (depth or 1, branches, self.planes)
        self.base = base
        self.start = None if angles is None else torch.as_tensor(angles, dtype=torch.float64, device="cpu")
        if self.start is not None and self.start.shape != shape:
            raise ValueError(
                f"a table of angles must be (depth or 1, branches, planes), {shape}: got {tuple(self.start.shape)}"
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
        """Shiv and Quirk's encoding as frames: branch b at depth d rotates its own plane (d, b) by π/2.

        Their code x of a node has one slot per depth, which holds the one-hot vector of the branch scaled by
        decay^depth. With depth·branches planes and the angles arccos(1 − decay^{2 depth}), which is π/2 without decay,
        the journey between two nodes determines the distance of their codes exactly,

            Σ_planes cos(θ_src − θ_dst) = planes − ‖x_src − x_dst‖²,

        hence also their inner product, because the code of the root is 0. Here depth is counted from the root, so that
        the shared part of two paths cancels. Theirs is a stack with the newest branch first: pass reversed paths for
        that. The angles are initial values and are trained, unless ``requires_grad_(False)`` freezes them.

        Args:
            head_dim: Width of a head; default 2·depth·branches.
            branches: Maximum number of branches of a node.
            depth: Maximum depth of a node.
            decay: Factor from one depth to the next, in (0, 1].
            heads: 1 (shared by all heads) or the number of key/value heads.
            layout: Which entries of a head form a plane.

        Returns:
            Frames with these angles.

        Raises:
            ValueError: If the head has fewer than depth·branches planes, or `decay` is outside (0, 1].

        Example:
            >>> from joformer import positions
            >>> module = TreeFrames.one_hot(branches=2, depth=2)
            >>> angles = module(positions.tree([-1, 0, 0, 1])).angles                # root, left, right, left-left
            >>> (angles[0, :, 0] * 2 / torch.pi).round().int().tolist()
            [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0]]
        """
        if not 0 < decay <= 1:
            raise ValueError(f"decay is the factor from one depth to the next and must be in (0, 1], got {decay}")
        planes = depth * branches
        head_dim = 2 * planes if head_dim is None else head_dim
        each = [math.acos(1 - decay ** (2 * d)) for d in range(depth) for _ in range(branches)]
        table = torch.tensor(each, dtype=torch.float64, device="cpu").diag().view(depth, branches, planes)
        return cls(head_dim, branches=branches, depth=depth, heads=heads, angles=table, planes=planes, layout=layout)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets the generators to their initial values."""
        # One axis per branch and depth, so that no two of them start with the same angles.
        start, count = self.start, self.generators.shape[0] * self.branches
        if start is None:
            start = per_axis(self.planes, count, "combined", self.base, device=self.generators.device)
        self.generators.copy_(start.view(-1, 1, self.branches, self.planes).expand_as(self.generators))

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        paths = self.paths(given.positions, given.x)
        generators = self.generators.to(device=paths.device, dtype=torch.float64)
        taken = (paths.unsqueeze(-1) == torch.arange(self.branches, device=paths.device)).to(generators.dtype)
        if self.depth is None:
            angles = torch.einsum("btc,hcp->bthp", taken.sum(2), generators[0])
        else:
            angles = torch.einsum("btdc,dhcp->bthp", taken, generators[: taken.shape[2]])
        return self.flat(place(wrap(angles), given.x))


class DenseTreeFrames(OnTrees):
    """``R_b = expm(M_b − M_bᵀ)`` over the whole head: matrices (batch or 1, nodes, heads, 1, head_dim, head_dim).

    Positions are paths as for `TreeFrames`. M is the parameter `generators`, (depth or 1, heads, branches, head_dim,
    head_dim). Curved: left-right and right-left are different nodes even if all depths share their generators.

    Args:
        head_dim: Width of a head, 2 or more.
        branches: Maximum number of branches of a node.
        depth: Maximum depth of a node, for separate generators at each depth; None shares them.
        heads: 1 (shared by all heads) or the number of key/value heads.

    Raises:
        ValueError: If width, heads or the tree are too small.

    Example:
        >>> from joformer import positions
        >>> module = DenseTreeFrames(4, branches=2)
        >>> module(positions.tree([-1, 0, 0, 1, 1])).matrices.shape
        torch.Size([1, 5, 1, 1, 4, 4])
    """

    def __init__(self, head_dim: int, *, branches: int, depth: int | None = None, heads: int = 1) -> None:
        super().__init__()
        check_heads(heads)
        self.set_tree(branches, depth)
        if head_dim < 2:
            raise ValueError(f"head_dim {head_dim} is too small for a rotation: it must be 2 or more")
        self.head_dim, self.heads = head_dim, heads
        shape = (depth or 1, heads, branches, head_dim, head_dim)
        self.generators = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new generators."""
        # The eigenvalues of M − Mᵀ are then within about ± 1.4 radians per branch, as in `DenseFrames`.
        nn.init.normal_(self.generators, std=0.5 / self.head_dim**0.5)

    def make(self, given: Inputs) -> CurvedFrames:
        """The frames for one call."""
        device = self.generators.device if given.x is None else given.x.device
        paths = self.paths(given.positions, given.x).to(device)
        # In float32 the product of a hundred branches is no longer orthogonal.
        wide = widest(device, self.generators.dtype)
        with without_autocast(device):
            steps = torch.matrix_exp((self.generators - self.generators.mT).to(device, wide)).movedim(2, 1)
            stay = torch.eye(self.head_dim, dtype=wide, device=device).expand(steps.shape[0], 1, *steps.shape[2:])
            steps = torch.cat((steps, stay), 1)
            each = [steps[0 if self.depth is None else d] for d in range(paths.shape[-1])]
            if readable(paths):
                matrices = _shared_products(each, paths.flatten(0, 1)).unflatten(0, paths.shape[:2])
            else:  # finding shared paths would wait for the device or break a graph
                matrices = reduce(torch.matmul, (step[paths[..., d]] for d, step in enumerate(each)))
        return CurvedFrames(matrices.unsqueeze(3).to(self.generators.dtype))


def _shared_products(
    steps: Sequence[Float[Tensor, "branches heads n n"]], paths: Int[Tensor, "nodes depth"]
) -> Float[Tensor, "nodes heads n n"]:
    """∏_d steps[d][b_d] of each path; the last branch is the identity, and shared parts are multiplied once.

    >>> twice = 2 * torch.eye(2).view(1, 1, 2, 2)
    >>> steps = [torch.cat((twice, twice / 2))] * 2
    >>> _shared_products(steps, torch.tensor([[0, 0], [0, 1], [1, 1]]))[:, 0, 0, 0].tolist()
    [4.0, 2.0, 1.0]
    """
    count = len(steps[0])
    made, row = steps[0][count - 1 :], torch.zeros(len(paths), dtype=torch.int64)
    for d, step in enumerate(steps):
        keys, row = (row * count + paths[:, d]).unique(return_inverse=True)
        above, branch = keys // count, keys % count
        on = branch < count - 1
        made = made[above].index_put((on,), made[above[on]] @ step[branch[on]])
    return made[row]
