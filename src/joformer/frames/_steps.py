"""Steps φ(x_s) of other methods, used instead of W₂ GELU(W₁ LN(x)); both sums include the token itself, s ≤ t.

    selective   φ_b = ω_b σ(w·x̂ + c) (W₂ W₁ x̂)_b      x̂ = x, each head's part of it at length 1       (Selective RoPE)
    carope      φ_b = f^b,  f = 1 / (1 + softplus(w·x + c))                                             (CARoPE)

docs/conventions.md, "Readings".
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import without_autocast

RANK = 16  # of W₂ W₁, the authors' default


class SelectiveSteps(nn.Module):
    """``ω_b σ(w·x̂ + c) (W₂ W₁ x̂)_b``: (batch, tokens, dim) → (batch, tokens, heads · planes), one gate per head.

    This is the authors' module (github.com/timurcarstensen/selective-rope) with its gate and a convolution of width 1,
    whose single weight per plane is absorbed in W₂. Wider convolutions mix the steps of neighbours: a sequence could
    then not be continued from an angle, and in a packed row they would reach into the previous sequence.

    Example:
        >>> SelectiveSteps(8, heads=2, planes=3, base=10000.0)(torch.rand(2, 5, 8)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(self, dim: int, heads: int, planes: int, base: float) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"selective steps need dim to be a multiple of heads, got dim={dim} and heads={heads}")
        self.dim, self.heads, self.planes, self.base = dim, heads, planes, base
        self.w1 = nn.Linear(dim, RANK, bias=False, dtype=torch.float32)
        self.w2 = nn.Linear(RANK, heads * planes, bias=False, dtype=torch.float32)
        self.gate = nn.Linear(dim, heads, dtype=torch.float32)

    def reset_parameters(self) -> None:
        """Draws new weights."""
        for part in (self.w1, self.w2, self.gate):
            part.reset_parameters()

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens out"]:
        """The step of each token."""
        _require_width(x, self.dim)
        with without_autocast(x.device):
            parts = x.to(self.w1.weight.dtype).unflatten(-1, (self.heads, -1))
            x = (parts * torch.rsqrt(parts.square().sum(-1, keepdim=True) + 1e-6)).flatten(-2)
            frequencies = self.base ** (-torch.arange(self.planes, dtype=x.dtype, device=x.device) / self.planes)
            steps = self.w2(self.w1(x)).unflatten(-1, (self.heads, self.planes)) * frequencies
            return (steps * self.gate(x).sigmoid().unsqueeze(-1)).flatten(-2)


class BoundedSteps(nn.Module):
    """``f^b``, b = 0 … planes − 1, ``f = 1 / (1 + softplus(w·x + c))`` in (0, 1): (batch, tokens, heads · planes).

    The paper has no c. It is added so that f starts at base^(−1 / planes) with w = 0: RoPE, as the paper intends.

    Example:
        >>> from joformer.frequencies import geometric
        >>> steps = BoundedSteps(8, heads=1, planes=4, base=16.0)(torch.rand(1, 1, 8))
        >>> torch.allclose(steps, geometric(4, 16.0).float())
        True
    """

    def __init__(self, dim: int, heads: int, planes: int, base: float) -> None:
        super().__init__()
        if base <= 1:
            raise ValueError(f"bounded steps need a base above 1, got {base}")
        self.dim, self.planes = dim, planes
        self.above = base ** (1 / planes) - 1  # softplus(c) at the start
        self.w2 = nn.Linear(dim, heads, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the spectrum of every token to RoPE's."""
        nn.init.zeros_(self.w2.weight)
        nn.init.constant_(self.w2.bias, self.above + math.log(-math.expm1(-self.above)))

    def forward(self, x: Float[Tensor, "batch tokens dim"]) -> Float[Tensor, "batch tokens out"]:
        """The step of each token."""
        _require_width(x, self.dim)
        with without_autocast(x.device):
            slower = F.softplus(self.w2(x.to(self.w2.weight.dtype))).log1p().unsqueeze(-1)
            return torch.exp(-slower * torch.arange(self.planes, dtype=slower.dtype, device=x.device)).flatten(-2)


def _require_width(x: Tensor, dim: int) -> None:
    if x.shape[-1] != dim:
        raise ValueError(f"x must be (batch, tokens, dim={dim}), got {tuple(x.shape)}")
