"""Dense frames: A_n = expm(Σ_k n_k S_k) with trained skew-symmetric S_k, block by block.

    combined                S_k of every axis in every block                     curved (LieRE)
    combined, commuting     S_k = θ_k (M − Mᵀ), one M per block                  flat (ComRoPE-LD)
    axial                   S_k in its own blocks, zero in the others            flat (axial-dense, ComRoPE-AP)

The operator depends only on the token's coordinates, but a journey A_m⁻¹A_n is not a function of n − m alone unless
the S_k commute (docs/claims.md row 20). Commuting S_k are rotations of planes in a common basis, S_k = Q Ω_k Qᵀ
(STRING), and W_q, W_k, W_v and W_o can absorb Q: `LearnedFrames(split="combined")` contains them, and is cheaper.
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

    ``S = M − Mᵀ`` where M is the parameter `generators`, (axes, heads, block, block), or with `block` (axes, heads,
    blocks, block, block). If commuting and combined, ``S_k = θ_k (M − Mᵀ)`` with M (heads, blocks, block, block) and
    the parameter `rates` for θ, (axes, heads, blocks).

    Args:
        head_dim: Width of a head.
        axes: Number of coordinates per token.
        heads: 1 (shared by all heads) or the number of key/value heads.
        split: "combined" is LieRE: one block of width head_dim with all axes in it. "axial" is axial-dense: one block
            of width head_dim // axes per axis.
        block: Width of smaller blocks, as many as fit: 8 gives LieRE₈, or ComRoPE's blocks.
        commuting: Use generators that commute by construction, so that journeys depend on displacements alone: one per
            block, times a number per axis (ComRoPE-LD). An axial split (ComRoPE-AP) commutes either way.

    Raises:
        ValueError: If the head is too narrow for its axes, or its width is not a multiple of `block`.

    Example:
        >>> from joformer import positions
        >>> DenseFrames(16, axes=2)(positions.grid(3, 3)).matrices.shape
        torch.Size([1, 9, 1, 1, 16, 16])
        >>> DenseFrames(16, axes=2, block=4, commuting=True)(positions.grid(3, 3)).matrices.shape
        torch.Size([1, 9, 1, 4, 4, 4])
    """

    rates: nn.Parameter | None

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 2,
        heads: int = 1,
        split: Literal["combined", "axial"] = "combined",
        block: int | None = None,
        commuting: bool = False,
    ) -> None:
        super().__init__()
        check_heads(heads)
        if split not in ("combined", "axial"):
            raise ValueError(f"split must be 'combined' (LieRE) or 'axial' (axial-dense), got {split!r}")
        width = head_dim if split == "combined" else head_dim // max(axes, 1)
        size = width if block is None else block
        if axes < 1 or size < 2:
            raise ValueError(f"each block needs at least 2 entries: head_dim={head_dim} is too narrow for axes={axes}")
        if width % size:
            raise ValueError(
                f"blocks of {size} do not fill the {width} entries of {split} axes: block must divide them"
            )
        self.head_dim, self.axes, self.heads, self.split = head_dim, axes, heads, split
        self.shift_invariant = commuting or split == "axial"
        shared = commuting and split == "combined"
        blocks = () if block is None and not shared else (width // size,)
        self.generators = nn.Parameter(
            torch.empty(*(() if shared else (axes,)), heads, *blocks, size, size, dtype=torch.float32)
        )
        self.rates = nn.Parameter(torch.empty(axes, heads, *blocks, dtype=torch.float32)) if shared else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new generators."""
        # The eigenvalues of M − Mᵀ are then within about ± 1.4 radians per step, like RoPE's fastest planes.
        nn.init.normal_(self.generators, std=0.5 / self.generators.shape[-1] ** 0.5)
        if self.rates is not None:
            nn.init.normal_(self.rates)

    def make(self, given: Inputs) -> CurvedFrames:
        """The frames for one call."""
        known = coordinates(given.positions, self.axes, given.x)
        device = self.generators.device if given.x is None else given.x.device
        # In float32 the exponential of a thousand steps is no longer orthogonal.
        wide = widest(device, self.generators.dtype)
        known = known.to(device=device, dtype=wide)
        skew = (self.generators - self.generators.mT).to(wide)
        with without_autocast(known.device):
            if self.rates is not None:
                skew = self.rates.to(wide)[..., None, None] * skew
            elif skew.dim() == 4:
                skew = skew.unsqueeze(2)
            if self.split == "combined":
                matrices = torch.matrix_exp(torch.einsum("btk,khnij->bthnij", known, skew))
            else:
                # A product keeps the memory order of its factors; matrix_exp needs contiguous matrices.
                steps = known[:, :, None, :, None, None, None] * skew.movedim(0, 1)
                matrices = torch.matrix_exp(steps.flatten(3, 4).contiguous())
        return CurvedFrames(matrices.to(self.generators.dtype))
