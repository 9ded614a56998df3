"""JoFormerLM: a pre-norm decoder whose layers follow a pattern of letters.

    F   full causal attention with frames
    W   attention within a window, with frames: 0 ≤ i − j < window
    N   full causal attention without frames ("NoPE"), P = I on values too

Paper: "JoFormer Wikipedia Language Modeling", "Length Generalization"; CLAIMS.md rows 56 and 58.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float, Int
from torch import Tensor, nn

from joformer import positions
from joformer.attention import JourneyAttention
from joformer.attention.functional import Transport
from joformer.frames import CumulativeFrames, FixedFrames, LearnedFrames, NoFrames, ProjectedFrames
from joformer.models.blocks import Block


@dataclass(frozen=True)
class LMConfig:
    """What a `JoFormerLM` is made of; `pattern` is repeated, or cut, to `layers` letters.

    >>> LMConfig(layers=8, pattern="WWN", window=32).letters
    'WWNWWNWW'
    """

    vocab: int = 8000
    dim: int = 256
    layers: int = 4
    heads: int = 4
    frames: Literal["fixed", "learned", "projected", "cumulative"] = "fixed"
    projected_base: Literal["none", "fixed", "learned"] = "fixed"
    transport: Transport = "both"
    pattern: str = "F"
    window: int | None = None
    tied: bool = True
    base: float = 10000.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.pattern or set(self.pattern) - set("FWN"):
            raise ValueError(f"pattern {self.pattern!r} must be made of the letters F (full), W (windowed), N (NoPE)")
        if "W" in self.pattern and self.window is None:
            raise ValueError(f"pattern {self.pattern!r} has windowed layers: say window=32, or use F")
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} does not divide into {self.heads} heads: choose another number")

    @property
    def letters(self) -> str:
        """One letter per layer."""
        return (self.pattern * self.layers)[: self.layers]


class JoFormerLM(nn.Module):
    """tokens (batch, tokens) of integers → logits (batch, tokens, vocab).

    >>> import torch
    >>> model = JoFormerLM(LMConfig(vocab=50, dim=32, layers=2, heads=2))
    >>> model(torch.randint(50, (3, 7))).shape
    torch.Size([3, 7, 50])
    """

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, dim = config, config.dim
        self.embed = nn.Embedding(config.vocab, dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.frames = nn.ModuleList(NoFrames() if letter == "N" else _frames(config) for letter in config.letters)
        self.blocks = nn.ModuleList(
            Block(
                JourneyAttention(
                    dim,
                    config.heads,
                    transport="none" if letter == "N" else config.transport,
                    causal=True,
                    window=config.window if letter == "W" else None,
                    dropout=config.dropout,
                ),
                hidden=4 * dim,
                dropout=config.dropout,
            )
            for letter in config.letters
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight

    def forward(
        self, tokens: Int[Tensor, "batch tokens"], where: Float[Tensor, "*batch tokens 1"] | None = None
    ) -> Float[Tensor, "batch tokens vocab"]:
        """`where` are the positions, 0, 1, … by default."""
        where = positions.sequence(tokens.shape[1], device=tokens.device) if where is None else where
        x = self.embed(tokens)
        for frames, block in zip(self.frames, self.blocks, strict=True):
            x = block(x, frames(where, x))
        return self.head(self.norm(x))


def _frames(config: LMConfig) -> nn.Module:
    head_dim = config.dim // config.heads
    if config.frames == "fixed":
        return FixedFrames(head_dim, base=config.base)
    if config.frames == "learned":
        return LearnedFrames(head_dim, heads=config.heads, base=config.base)
    kind = {"projected": ProjectedFrames, "cumulative": CumulativeFrames}.get(config.frames)
    if kind is None:
        raise ValueError(f"frames must be fixed, learned, projected or cumulative, got {config.frames!r}")
    return kind(config.dim, head_dim, heads=config.heads, base=config.projected_base, frequency_base=config.base)
