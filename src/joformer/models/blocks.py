"""The pre-norm transformer block that every model here stacks.

x ← x + Attention(LN(x), frames)        x ← x + W_down GELU(W_up LN(x))
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.attention import JourneyAttention
from joformer.values import Frames


class Block(nn.Module):
    """Journey attention and a GELU feed-forward of width `hidden`, each after a LayerNorm: (batch, tokens, dim).

    >>> import torch
    >>> from joformer import FixedFrames, positions
    >>> block = Block(JourneyAttention(32, 4), hidden=64)
    >>> block(torch.rand(2, 5, 32), FixedFrames(8)(positions.sequence(5))).shape
    torch.Size([2, 5, 32])
    """

    def __init__(self, attention: JourneyAttention, hidden: int, *, bias: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        dim = attention.dim
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention
        self.up, self.down = nn.Linear(dim, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "batch tokens dim"], frames: Frames) -> Float[Tensor, "batch tokens dim"]:
        x = x + self.dropout(self.attention(self.norm1(x), frames))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
