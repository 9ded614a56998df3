"""JoFormer-projected: θ_t = ω·t + W₂ GELU(W₁ LN(x_t)), angles computed from the residual stream.

The paper's formula has no ω·t, and initialising the whole projector to zero kills its gradient: here only W₂ starts at
zero, and only if there is an ω·t to start from (docs/claims.md rows 23 and 24). W₂ has no bias: it would be gauge.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import without_autocast
from joformer.frames._base import FlatModule, Inputs, Split, coordinates, wrap
from joformer.frames._fixed import FixedFrames
from joformer.frames._learned import LearnedFrames
from joformer.frames._types import At, FlatFrames, Layout
from joformer.positions import located

On = Literal["none", "fixed", "learned"]
Steps = Literal["projected", "selective", "carope"]


class Projector(nn.Module):
    """``W₂ GELU(W₁ LN(x))``: (batch, tokens, dim) → (batch, tokens, out), in float32 or wider.

    Args:
        dim: Width of x.
        out: Width of the result.
        zero: Whether W₂ starts at zero.

    Example:
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
        """Draws new weights."""
        self.norm.reset_parameters()
        self.w1.reset_parameters()
        if self.zero:
            nn.init.zeros_(self.w2.weight)
        else:
            self.w2.reset_parameters()

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens out"]:
        """The projection of each token."""
        (dim,) = self.norm.normalized_shape  # from the norm, since serving engines replace linear layers
        if x.shape[-1] != dim:
            raise ValueError(f"x must be (batch, tokens, dim={dim}), got {tuple(x.shape)}")
        with without_autocast(x.device):
            return self.w2(F.gelu(self.w1(self.norm(x.to(self.norm.weight.dtype)))))


class ContentFrames(FlatModule):
    """Base class of projected and cumulative frames: angles from content, added to fixed or learned ones."""

    content = True

    def __init__(
        self,
        dim: int,
        head_dim: int,
        *,
        heads: int,
        axes: int = 1,
        on: On | None = None,
        steps: Steps = "projected",
        split: Split = "axial",
        base: float = 10000.0,
        planes: int | None = None,
        at: At = "front",
        layout: Layout = "interleaved",
        frequency_base: float | None = None,
    ) -> None:
        if isinstance(base, str):
            warnings.warn(f"base must be a number: write on={base!r}", DeprecationWarning, stacklevel=2)
            on, base = base, 10000.0
        if frequency_base is not None:
            warnings.warn(f"frequency_base is now base={frequency_base}", DeprecationWarning, stacklevel=2)
            base = frequency_base
        if steps not in get_args(Steps):
            raise ValueError(f"steps must be 'projected', 'selective' or 'carope', got {steps!r}")
        if on is None:
            on = "fixed" if steps == "projected" else "none"
        if steps != "projected" and (on != "none" or axes > 1 or not self.stateful):
            raise ValueError(
                f"steps={steps!r} are summed along a sequence and have their own frequencies: use them in "
                f"CumulativeFrames with one axis and on='none'"
            )
        super().__init__(head_dim, axes=axes, heads=heads, split=split, planes=planes, at=at, layout=layout)
        self.dim, self.on, self.steps, planes = dim, on, steps, self.planes
        # The name must match saved files, whose keys are base.frequencies.
        self.base: FixedFrames | LearnedFrames | None = None
        if on == "fixed":
            self.base = FixedFrames(head_dim, axes=axes, split=split, base=base, planes=planes)
        elif on == "learned":
            self.base = LearnedFrames(head_dim, axes=axes, heads=heads, split=split, base=base, planes=planes)
        elif on != "none":
            raise ValueError(f"on must be 'none', 'fixed' or 'learned', got {on!r}")
        self.projector: Any = self.make_projector(base)

    def make_projector(self, base: float) -> nn.Module:
        """Maps content to angles; zero at the start if there are other angles to start from."""
        return Projector(self.dim, self.heads * self.planes, zero=self.base is not None)

    def reset_parameters(self) -> None:
        """Draws new weights."""
        self.projector.reset_parameters()
        if isinstance(self.base, LearnedFrames):
            self.base.reset_parameters()

    @property
    def ground(self) -> FixedFrames | LearnedFrames | None:
        """The frames of ω·t that content is added to; None if it is added to nothing."""
        return self.base

    def spectra(self) -> tuple[Tensor, Tensor] | None:
        """The spectra of ω·t; None without it."""
        return None if self.base is None else self.base.spectra()

    def checked(self, given: Inputs) -> tuple[Tensor, Bool[Tensor, "batch tokens"]]:
        """The content, and which tokens have coordinates; raises ValueError for a missing x."""
        if given.x is None:
            raise ValueError(f"{type(self).__name__} needs the content of the tokens: call it as module(positions, x)")
        coordinates(given.positions, self.axes, given.x)  # for its checks
        known = located(given.positions).to(given.x.device)
        return given.x, known if known.dim() == 2 else known.unsqueeze(0)


class ProjectedFrames(ContentFrames):
    """``θ_t = ω·t + W₂ GELU(W₁ LN(x_t))``: (batch, tokens, heads, planes) from positions and x (batch, tokens, dim).

    About 1.5·dim² parameters.

    Selective RoPE and CARoPE sum their angles: see `CumulativeFrames`.

    Args:
        dim: Width of the tokens x.
        head_dim: Width of a head; must be even.
        heads: Number of heads that have their own angles; with grouped queries, the number of key/value heads.
        axes: Number of coordinates per token.
        on: Which angles ω·t the content is added to: "fixed" (the default), "learned" or "none". With "none" the frames
            encode content but no order, and a causal mask hardly makes up for that (docs/results.md): prefer "fixed".
        steps: "projected"; the others are for `CumulativeFrames`.
        split: How several axes share the planes; see `joformer.frequencies.per_axis`.
        base: Base of the spectrum ω.
        planes: Number of planes; fewer than head_dim / 2 rotate only 2·planes entries of each head.
        at: Which entries of a head are rotated: the first ("front") or the last ("end").
        layout: Which entries of a head form a plane; see `joformer.rotation`.
        frequency_base: Deprecated name of `base`.

    Raises:
        ValueError: If widths, axes, planes or heads are incompatible.

    Example:
        >>> from joformer import positions
        >>> module = ProjectedFrames(128, 32, heads=4)
        >>> module(positions.sequence(16), torch.rand(2, 16, 128)).angles.shape
        torch.Size([2, 16, 4, 16])
    """

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        x, known = self.checked(given)
        angles = self.projector(x).unflatten(-1, (self.heads, self.planes)) * known[..., None, None]
        if self.base is not None:
            angles = angles + wrap(self.base.angles(given.positions, x)).to(angles.dtype)
        return self.flat(angles, content=True)
