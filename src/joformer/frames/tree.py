"""Tree frames: the angle of a node is the sum of its branches' angles on the path from the root.

    θ_node = Σ_d ω[branch taken at depth d]        or, with a generator per depth,   Σ_d ω[d, branch]

A journey between two nodes goes up to their common ancestor and down again: what they share cancels. Commuting
generators do not see the order of branches unless each depth has its own (Shiv and Quirk's encoding is the
depth-indexed case).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from joformer.frames.base import FramesModule, check_layout_and_heads, coordinates, place, planes_of, wrap
from joformer.frequencies import per_axis
from joformer.kernels import Layout
from joformer.values import FlatFrames


class TreeFrames(FramesModule):
    """One trained generator per branch (and per depth when `depth` is given): (batch or 1, nodes, heads, planes).

    Positions are paths, (nodes, depth) or (batch, nodes, depth), as `positions.tree` makes them: the branch
    taken at each depth, NaN below the node. The parameter has shape (depth or 1, heads, branches, planes).

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
        planes: int | None = None,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout_and_heads(layout, heads)
        if branches < 1 or (depth is not None and depth < 1):
            raise ValueError(f"branches and depth must be 1 or more, got branches={branches}, depth={depth}")
        self.head_dim, self.heads, self.branches, self.depth = head_dim, heads, branches, depth
        self.axes, self.base, self.layout = branches, base, layout
        self.planes = planes_of(head_dim, planes, 1, "combined")
        self.generators = nn.Parameter(torch.empty(depth or 1, heads, branches, self.planes, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        device = self.generators.device
        # One axis per branch and depth, so that no two of them start with the same angles.
        count = self.generators.shape[0] * self.branches
        start = per_axis(self.planes, count, "combined", self.base, device=device)
        self.generators.copy_(start.view(-1, 1, self.branches, self.planes).expand_as(self.generators))

    def forward(self, positions: Tensor, x: Tensor | None = None) -> FlatFrames:
        known = coordinates(positions, positions.shape[-1], x)
        below = positions.to(known.device).isnan().view(known.shape)
        self._check(known, below)
        taken = known.unsqueeze(-1) == torch.arange(self.branches, device=known.device)
        taken = (taken & ~below.unsqueeze(-1)).to(known.dtype)
        generators = self.generators.to(device=known.device, dtype=known.dtype)
        if self.depth is None:
            angles = torch.einsum("btc,hcp->bthp", taken.sum(2), generators[0])
        else:
            angles = torch.einsum("btdc,dhcp->bthp", taken, generators[: taken.shape[2]])
        return FlatFrames.of(place(wrap(angles), x), layout=self.layout)

    def _check(self, known: Tensor, below: Tensor) -> None:
        if self.depth is not None and known.shape[-1] > self.depth:
            raise ValueError(f"paths are {known.shape[-1]} deep but the frames have depth={self.depth}")
        # Reading values would stall a GPU and break a graph, so only where it is free.
        if known.device.type == "cpu" and not torch.compiler.is_compiling() and not below.all():
            branch = known[~below]
            if branch.min() < 0 or branch.max() >= self.branches or (branch != branch.round()).any():
                raise ValueError(
                    f"branches on a path must be whole numbers 0 … {self.branches - 1}, "
                    f"got {branch.min().item():g} to {branch.max().item():g}"
                )
