"""What is measured: a small transformer that differs from variant to variant in its transport alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer import positions
from joformer.attention import JourneyAttention
from joformer.attention._options import Transport
from joformer.frames import FixedFrames, FramesModule, NoFrames
from joformer.models._blocks import Block

Peer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Another library's rotation of q and k, each (batch, heads, tokens, head_dim)."""


@dataclass(frozen=True)
class Shape:
    """A training shape of the paper's models; `depth` blocks share one frames value, as in a real model."""

    name: str
    batch: int
    tokens: int
    dim: int
    heads: int
    axes: int
    depth: int = 2

    @property
    def head_dim(self) -> int:
        """The dimension of one head."""
        return self.dim // self.heads

    @property
    def causal(self) -> bool:
        """Whether tokens attend to the past alone: on sequences."""
        return self.axes == 1

    def positions(self) -> Tensor:
        """Positions of the tokens, (tokens, axes): a sequence, or a square grid after one class token."""
        if self.axes == 1:
            return positions.sequence(self.tokens)
        side = int((self.tokens - 1) ** 0.5)
        return positions.grid(side, side, prefix=1)


SHAPES = (
    Shape("ViT-S", batch=8, tokens=197, dim=384, heads=6, axes=2),
    Shape("small ViT", batch=128, tokens=65, dim=128, heads=4, axes=2),
    Shape("LM", batch=8, tokens=512, dim=256, heads=4, axes=1),
)


def block_of(attention: JourneyAttention) -> Block:
    """The block every variant is measured in.

    >>> block_of(JourneyAttention(8, 2)).up.out_features
    32
    """
    return Block(attention, hidden=4 * attention.dim, bias=True)


class Transformer(nn.Module):
    """Blocks of journey attention; frames are computed in every step, once for all blocks.

    With a `peer` its rotation stands in the place of ours; its cos and sin are given, not computed.
    """

    def __init__(self, shape: Shape, transport: Transport, peer: Peer | None = None) -> None:
        super().__init__()
        none = transport == "none"
        self.frames: FramesModule = NoFrames(shape.axes) if none else FixedFrames(shape.head_dim, axes=shape.axes)
        self.blocks = nn.ModuleList(block_of(_attention(shape, transport, peer)) for _ in range(shape.depth))

    def forward(self, x: Tensor, where: Tensor) -> Tensor:
        """The mean square of the output for x (batch, tokens, dim) at positions `where` (tokens, axes)."""
        frames = self.frames(where)
        for block in self.blocks:
            x = block(x, frames)
        return x.square().mean()


class PeerAttention(JourneyAttention):
    """The usual attention with another library's rotary embedding on q and k, in the place of ours."""

    def __init__(self, shape: Shape, rotate: Peer) -> None:
        super().__init__(shape.dim, shape.heads, transport="none", causal=shape.causal)
        self.rotate = rotate

    def forward(self, x: Tensor, *_: object, **__: object) -> Tensor:
        """Attention over x (batch, tokens, dim); frames are ignored."""
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.rotate(q, k)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


def _attention(shape: Shape, transport: Transport, peer: Peer | None) -> JourneyAttention:
    if peer is not None:
        return PeerAttention(shape, peer)
    return JourneyAttention(shape.dim, shape.heads, transport=transport, causal=shape.causal)


def training_step(model: nn.Module, shape: Shape, compiled: bool = False) -> Callable[[], None]:
    """Forward and backward, gradients dropped first; no optimiser, which would only dilute the difference."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.batch, shape.tokens, shape.dim, generator=generator)
    where = shape.positions()
    run = torch.compile(model) if compiled else model

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(x, where).backward()

    return step


def peers(shape: Shape, offset: int = 0) -> dict[str, Peer]:
    """The rotary embeddings installed here, ready to rotate q and k of this shape at positions from `offset` on."""
    found: dict[str, Peer] = {}
    where = torch.arange(shape.tokens) + offset
    with suppress(ImportError):
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

        config = LlamaConfig(hidden_size=shape.dim, num_attention_heads=shape.heads)
        cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), where[None])
        found["Hugging Face"] = lambda q, k: apply_rotary_pos_emb(q, k, cos, sin)
    with suppress(ImportError):
        from rotary_embedding_torch import RotaryEmbedding

        apply = partial(RotaryEmbedding(dim=shape.head_dim).rotate_queries_or_keys, offset=offset)
        found["rotary-embedding-torch"] = lambda q, k: (apply(q), apply(k))
    with suppress(ImportError):
        from x_transformers.x_transformers import RotaryEmbedding as XRotary
        from x_transformers.x_transformers import apply_rotary_pos_emb as x_apply

        freqs, scale = XRotary(shape.head_dim)(where)
        found["x-transformers"] = lambda q, k: (x_apply(q, freqs, scale), x_apply(k, freqs, scale))
    return found
