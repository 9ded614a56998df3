"""The pre-norm transformer block that every model here stacks.

x ← x + Attention(LN(x), frames)        x ← x + W_down GELU(W_up LN(x))
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.attention import JourneyAttention, JourneyCache
from joformer.attention.module import Inner
from joformer.values import Frames


def require_counts(config: object, *names: str) -> None:
    """Refuse a configuration in which one of these is not 1 or more; None, where it stands for a default, is fine.

    >>> from types import SimpleNamespace
    >>> require_counts(SimpleNamespace(heads=0), "heads")
    Traceback (most recent call last):
    ValueError: heads must be 1 or more, got 0
    """
    for name in names:
        value = getattr(config, name)
        if any(one is not None and one < 1 for one in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{name} must be 1 or more, got {value}")


class Block(nn.Module):
    """Journey attention and a GELU feed-forward of width `hidden`, each after a LayerNorm: (batch, tokens, dim).

    `dropout` is on what each adds; with probability `drop_path` a sample leaves the addition out altogether while
    training (stochastic depth), and the others are scaled up for it.

    >>> from joformer import FixedFrames, positions
    >>> block = Block(JourneyAttention(32, 4), hidden=64)
    >>> block(torch.rand(2, 5, 32), FixedFrames(8)(positions.sequence(5))).shape
    torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        attention: JourneyAttention,
        hidden: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= drop_path < 1:
            raise ValueError(f"drop_path is a probability below 1, got {drop_path}")
        dim = attention.dim
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention
        self.up, self.down = nn.Linear(dim, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)
        self.dropout, self.drop_path = nn.Dropout(dropout), drop_path

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        frames: Frames,
        *,
        cache: JourneyCache | None = None,
        inner: Inner | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        x = x + self._kept(self.attention(self.norm1(x), frames, cache=cache, inner=inner))
        return x + self._kept(self.down(F.gelu(self.up(self.norm2(x)))))

    def _kept(self, added: Tensor) -> Tensor:
        if not self.training:
            return added
        added = self.dropout(added)
        if not self.drop_path:
            return added
        kept = torch.rand(added.shape[0], 1, 1, device=added.device) >= self.drop_path
        return added * kept / (1 - self.drop_path)
