"""What is measured: a small transformer that differs from variant to variant in its transport alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.attention import JourneyAttention
from joformer.attention._options import Transport
from joformer.bench._place import CPU, Place, Shape
from joformer.frames import FixedFrames, FramesModule, NoFrames
from joformer.models._blocks import Block

Peer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Another library's rotation of q and k, each (batch, heads, tokens, head_dim)."""


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


def training_step(model: nn.Module, shape: Shape, compiled: bool = False, at: Place = CPU) -> Callable[[], None]:
    """Forward and backward, gradients dropped first; no optimiser, which would only dilute the difference."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape.batch, shape.tokens, shape.dim, generator=generator).to(at.device, at.dtype)
    where = shape.positions().to(at.device)
    model.to(at.device, at.dtype)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(x, where).backward()

    return step


def peers(shape: Shape, offset: int = 0, at: Place = CPU) -> dict[str, Peer]:
    """The rotary embeddings installed here, ready to rotate q and k of this shape at positions from `offset` on."""
    found: dict[str, Peer] = {}
    where = torch.arange(shape.tokens, device=at.device) + offset
    with suppress(ImportError):
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

        config = LlamaConfig(hidden_size=shape.dim, num_attention_heads=shape.heads)
        like = torch.zeros(1, dtype=at.dtype, device=at.device)
        cos, sin = LlamaRotaryEmbedding(config).to(at.device)(like, where[None])
        found["Hugging Face"] = lambda q, k: apply_rotary_pos_emb(q, k, cos, sin)
    with suppress(ImportError):
        from rotary_embedding_torch import RotaryEmbedding

        apply = partial(RotaryEmbedding(dim=shape.head_dim).to(at.device).rotate_queries_or_keys, offset=offset)
        found["rotary-embedding-torch"] = lambda q, k: (apply(q), apply(k))
    with suppress(ImportError):
        from x_transformers.x_transformers import RotaryEmbedding as XRotary
        from x_transformers.x_transformers import apply_rotary_pos_emb as x_apply

        freqs, scale = XRotary(shape.head_dim).to(at.device)(where)
        found["x-transformers"] = lambda q, k: (x_apply(q, freqs, scale), x_apply(k, freqs, scale))
    return found | (_triton_peers(shape, where, at) if at.device.type != "cpu" else {})


def _triton_peers(shape: Shape, where: Tensor, at: Place) -> dict[str, Peer]:
    """Peers that are Triton kernels: Liger's rotates q and k in place, flash-attention's one tensor after the other."""
    found: dict[str, Peer] = {}
    planes = torch.arange(0, shape.head_dim, 2, device=at.device)
    angles = where[:, None] * 10000.0 ** (-planes / shape.head_dim)
    cos, sin = (half.to(at.dtype) for half in (angles.cos(), angles.sin()))
    with suppress(ImportError):
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        wide = [torch.cat((half, half), -1)[None] for half in (cos, sin)]
        found["Liger"] = lambda q, k: liger_rotary_pos_emb(q, k, *wide)
    with suppress(ImportError):
        from flash_attn.layers.rotary import apply_rotary_emb

        def apply(x: Tensor) -> Tensor:
            return apply_rotary_emb(x.transpose(1, 2), cos, sin).transpose(1, 2)

        found["flash-attention"] = lambda q, k: (apply(q), apply(k))
    return found
