"""Dense frames, which are curved: A_n = expm(Σ_k n_k S_k) with trained skew-symmetric S_k (LieRE).

The operator is fixed by the token's coordinates but a journey A_m⁻¹A_n is not a function of n − m alone unless
the S_k commute (docs/claims.md row 20). The axial split gives each axis a block of its own, which does commute.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from joformer._precision import widest, without_autocast
from joformer.frames._base import FramesModule, Inputs, check_heads, coordinates
from joformer.frames._curved import CurvedFrames


class DenseFrames(FramesModule):
    """``A_n = expm(Σ_k n_k S_k)``: matrices (batch or 1, tokens, heads, blocks, block, block).

    ``S = M − Mᵀ`` with M the parameter `generators`, (axes, heads, block, block).

    Args:
        head_dim: Width of a head.
        axes: How many coordinates a token has.
        heads: 1, shared by all heads, or the number of key/value heads.
        split: "combined" is LieRE: one block of head_dim, all axes in it. "axial" is axial-dense: a block of
            head_dim // axes for each axis.

    Raises:
        ValueError: If the head is too narrow for its axes.

    Example:
        >>> from joformer import positions
        >>> DenseFrames(16, axes=2)(positions.grid(3, 3)).matrices.shape
        torch.Size([1, 9, 1, 1, 16, 16])
    """

    shift_invariant = False

    def __init__(
        self, head_dim: int, *, axes: int = 2, heads: int = 1, split: Literal["combined", "axial"] = "combined"
    ) -> None:
        super().__init__()
        check_heads(heads)
        if split not in ("combined", "axial"):
            raise ValueError(f"split must be 'combined' (LieRE) or 'axial' (axial-dense), got {split!r}")
        block = head_dim if split == "combined" else head_dim // max(axes, 1)
        if axes < 1 or block < 2:
            raise ValueError(f"each block needs 2 entries or more: head_dim={head_dim} is too narrow for axes={axes}")
        self.head_dim, self.axes, self.heads, self.split = head_dim, axes, heads, split
        self.generators = nn.Parameter(torch.empty(axes, heads, block, block, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new generators."""
        # Eigenvalues of M − Mᵀ then lie within about ± 1.4 radians per step, as RoPE's fastest planes do.
        nn.init.normal_(self.generators, std=0.5 / self.generators.shape[-1] ** 0.5)

    def make(self, given: Inputs) -> CurvedFrames:
        """The frames of one call."""
        known = coordinates(given.positions, self.axes, given.x)
        device = self.generators.device if given.x is None else given.x.device
        # In float32 the exponential of a thousand steps is no longer orthogonal.
        wide = widest(device, self.generators.dtype)
        known = known.to(device=device, dtype=wide)
        skew = (self.generators - self.generators.mT).to(wide)
        with without_autocast(known.device):
            if self.split == "combined":
                matrices = torch.matrix_exp(torch.einsum("btk,khij->bthij", known, skew)).unsqueeze(3)
            else:
                # A product keeps the order of its factors' memory, and matrix_exp wants its own.
                matrices = torch.matrix_exp((known[:, :, None, :, None, None] * skew.movedim(0, 1)).contiguous())
        return CurvedFrames(matrices.to(self.generators.dtype))
