"""JoFormer-projected: θ_t = base(t) + W₂ GELU(W₁ LN(x_t)), angles read from the residual stream.

The paper's formula has no base, and zeroing all of the projector kills its gradient: here only W₂ starts at zero,
and only where there is a base to start from (docs/claims.md rows 23 and 24). W₂ has no bias: it would be gauge.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import without_autocast
from joformer.frames._base import FramesModule, Split, check_layout_and_heads, coordinates, planes_of, wrap
from joformer.frames._fixed import FixedFrames
from joformer.frames._learned import LearnedFrames
from joformer.frames._types import FlatFrames, Layout
from joformer.positions import located as positions_located

Base = Literal["none", "fixed", "learned"]


class Projector(nn.Module):
    """W₂ GELU(W₁ LN(x)): (batch, tokens, dim) → (batch, tokens, out), never in less than float32.

    >>> Projector(8, 6, zero=True)(torch.rand(2, 3, 8)).abs().max().item()
    0.0
    """

    def __init__(self, dim: int, out: int, *, zero: bool) -> None:
        super().__init__()
        self.zero = zero
        self.norm = nn.LayerNorm(dim, dtype=torch.float32)
        self.w1 = nn.Linear(dim, dim, dtype=torch.float32)
        self.w2 = nn.Linear(dim, out, bias=False, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.norm.reset_parameters()
        self.w1.reset_parameters()
        if self.zero:
            nn.init.zeros_(self.w2.weight)
        else:
            self.w2.reset_parameters()

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens out"]:
        (dim,) = self.norm.normalized_shape  # of the norm, since servers replace linear layers by ones of their own
        if x.shape[-1] != dim:
            raise ValueError(f"x must be (batch, tokens, dim={dim}), got {tuple(x.shape)}")
        with without_autocast(x.device):
            return self.w2(F.gelu(self.w1(self.norm(x.to(self.norm.weight.dtype)))))


class ContentFrames(FramesModule):
    """Angles from content on top of a base: what projected and cumulative frames have in common."""

    content = True

    def __init__(
        self,
        dim: int,
        head_dim: int,
        *,
        heads: int,
        axes: int = 1,
        base: Base = "fixed",
        split: Split = "axial",
        frequency_base: float = 10000.0,
        planes: int | None = None,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout_and_heads(layout, heads)
        self.dim, self.head_dim, self.heads, self.axes, self.layout = dim, head_dim, heads, axes, layout
        self.planes = planes = planes_of(head_dim, planes, axes, split)
        self.base: FixedFrames | LearnedFrames | None = None
        if base == "fixed":
            self.base = FixedFrames(head_dim, axes=axes, split=split, base=frequency_base, planes=planes)
        elif base == "learned":
            self.base = LearnedFrames(head_dim, axes=axes, heads=heads, split=split, base=frequency_base, planes=planes)
        elif base != "none":
            raise ValueError(f"base must be 'none', 'fixed' or 'learned', got {base!r}")
        self.projector = self.make_projector()

    def make_projector(self) -> Projector:
        """Content to angles; started at zero where there is a base to start from."""
        return Projector(self.dim, self.heads * self.planes, zero=self.base is not None)

    def reset_parameters(self) -> None:
        self.projector.reset_parameters()
        if isinstance(self.base, LearnedFrames):
            self.base.reset_parameters()

    def located(self, positions: Tensor, x: Tensor | None) -> Bool[Tensor, "batch tokens"]:
        """Which tokens have coordinates; refuses a missing x."""
        if x is None:
            raise ValueError(f"{type(self).__name__} needs the tokens' content: call it as module(positions, x)")
        coordinates(positions, self.axes, x)  # for its checks
        has = positions_located(positions)
        return (has if has.dim() == 2 else has.unsqueeze(0)).to(x.device)


class ProjectedFrames(ContentFrames):
    """θ_t = ω·t + W₂ GELU(W₁ LN(x_t)): (batch, tokens, heads, planes) from positions and x (batch, tokens, dim).

    `base` is "fixed", "learned" or "none". Without a base the frames know content but no order: use it with a
    causal mask only. With grouped queries `heads` is the number of key/value heads. About 1.5·dim² parameters.

    >>> from joformer import positions
    >>> module = ProjectedFrames(128, 32, heads=4)
    >>> module(positions.sequence(16), torch.rand(2, 16, 128)).angles.shape
    torch.Size([2, 16, 4, 16])
    """

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
    ) -> FlatFrames:
        located = self.located(positions, x)
        assert x is not None
        angles = self.projector(x).unflatten(-1, (self.heads, self.planes)) * located[..., None, None]
        if self.base is not None:
            angles = angles + wrap(self.base.angles(positions, x)).to(angles.dtype)
        return FlatFrames.of(angles, layout=self.layout, content=True)
