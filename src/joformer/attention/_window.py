r"""Local attention in O(N·w): each query sees only nearby keys.

    o_i = Σ_j a_ij v_j,   a_i = softmax_j(scale · q_i·k_j)   over   0 ≤ i − j < w   (causal)
                                                             or      |i − j| < w   (not causal)

Queries are divided into blocks. A block sees one contiguous range of keys, so that all blocks together are one
batched call to SDPA. Ranges of keys overlap, blocks of queries do not:

    queries         |  size  |  size  |  size  |
    keys of   |lead|  size  |trail|
    blocks 1, 2, …      |lead|  size  |trail|

Nothing here depends on frames: the caller passes rotated q, k and v and applies the inverse to o (docs/decisions.md).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from joformer.attention._options import Options, Weighting, check_options, check_qkv, checked_mask, exporting, in_dtype

__all__ = ["window_attention"]


def window_attention(
    q: Float[Tensor, "batch queries heads dim"],
    k: Float[Tensor, "batch keys kv_heads dim"],
    v: Float[Tensor, "batch keys kv_heads value_dim"],
    *,
    window: int,
    causal: bool,
    scale: float,
    mask: Shaped[Tensor, "..."] | None = None,
    segments: Int[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    weighting: Weighting = "softmax",
) -> Float[Tensor, "batch queries heads value_dim"]:
    """``o_i = Σ_j a_ij v_j`` over the `window` nearest keys: O(tokens · window) time and memory, backward included.

    A query that may not attend to anything gives zeros and zero gradients, never NaN.

    Args:
        q: Queries, ``(batch, queries, heads, dim)``. The last query is aligned with the last key, so that fewer queries
            than keys are a chunk that follows a cache.
        k: Keys, ``(batch, keys, kv_heads, dim)``. Query head h reads key/value head ``h // (heads // kv_heads)``.
        v: Values, ``(batch, keys, kv_heads, value_dim)``.
        window: Key j is visible to query i iff ``0 ≤ i − j < window`` (causal) or ``|i − j| < window``.
        causal: Whether keys after the query are hidden.
        scale: Factor of the scores.
        mask: Boolean (True: may attend) or additive, broadcastable to ``(batch, heads, queries, keys)``, or ``(queries,
            keys)`` unless that could also be ``(batch, keys)``; see `journey_attention`. A key-padding mask
            ``(batch, 1, 1, keys)`` is never expanded to queries × keys.
        segments: ``(batch, keys)`` or ``(keys,)``: tokens of packed sequences see only tokens with the same number.
        dropout: Dropout probability of the weights (the others are scaled up), at least 0 and less than 1.
        weighting: "softmax", or "softplus" for the unnormalised weights log(1 + exp(score)).

    Returns:
        ``(batch, queries, heads, value_dim)``.

    Raises:
        ValueError: If shapes, mask, segments or options are incompatible.

    Example:
        >>> q = k = v = torch.eye(4).view(1, 4, 1, 4)
        >>> window_attention(q, k, v, window=2, causal=True, scale=0.0)[0, :, 0]
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.5000, 0.5000]])
    """
    check_qkv(q, k, v)
    check_options(window, dropout, weighting, "auto")
    mask, segments = checked_mask(mask, segments, window, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    return attend_in_blocks(q, k, v, Options(causal, mask, segments, window, scale, dropout, weighting))


def attend_in_blocks(
    q: Float[Tensor, "batch queries heads dim"],
    k: Float[Tensor, "batch keys kv_heads dim"],
    v: Float[Tensor, "batch keys kv_heads value_dim"],
    options: Options,
) -> Float[Tensor, "batch queries heads value_dim"]:
    """`window_attention` with options that have been checked."""
    causal, mask, segments, window, scale, dropout, weighting, _ = options
    assert window is not None
    queries, keys = q.shape[1], k.shape[1]
    if mask is not None:
        mask = (mask[None, None] if mask.ndim == 2 else mask).expand(-1, -1, -1, keys)
    start = max(keys - queries - (window - 1), 0)
    if start > 0:  # a cache longer than the window: its oldest keys are never used
        k, v, keys = k[:, start:], v[:, start:], keys - start
        mask = None if mask is None else mask[..., start:]
        segments = None if segments is None else segments[:, start:]

    # Multiples of 8 keep the rows of the block mask aligned; otherwise fused kernels copy it.
    lead = -(-(window - 1) // 8) * 8
    trail = 0 if causal else lead
    # Measured: below 64 the gathered keys grow faster than the scores shrink; above, half a window is about as
    # fast as a quarter, and gathers 3 keys per token instead of 5.
    size = max(64, -(-window // 16) * 8)
    offset = keys - queries
    # An exported graph has to serve all lengths, so it must not branch on a length.
    whole = queries == 1 or (not exporting() and queries <= lead + trail + size)
    plain = causal and weighting == "softmax" and mask is segments is None
    if whole and plain and (queries == 1 or queries == keys <= window):
        # All remaining keys are visible, or the lower triangle, and SDPA is fastest with a flag in place of a mask.
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        few = q.shape[1] != k.shape[1]
        o = F.scaled_dot_product_attention(q, k, v, None, dropout, queries > 1, scale=scale, enable_gqa=few)
        return o.transpose(1, 2)
    if whole:
        count, size, lead, trail = 1, queries, offset, 0
    else:
        # Nor may a graph depend on whether there is only one block, or a full one: hence a spare block when tracing.
        spare = size if torch.compiler.is_compiling() else 0
        count = (queries + spare + size - 1) // size
    begin = torch.arange(count, device=q.device)[:, None] * size + offset
    row = begin + torch.arange(size, device=q.device)
    column = begin + torch.arange(-lead, size + trail, device=q.device)
    distance = row[:1, :, None] - column[:1, None]
    visible = (distance < window) & (distance >= 0 if causal else distance > -window)
    if whole:
        q, k, v = q[:, None], k[:, None], v[:, None]
    else:
        visible = visible & (column[:, None] >= 0)
        if not causal:  # padding queries do see padding, so that no row is empty because of it
            visible = visible & ((column[:, None] < keys) | (row[:, :, None] >= keys))
        row, column = row.clamp(max=keys - 1), column.clamp(0, keys - 1)
        q = _pad(q, 0, count * size).unflatten(1, (count, size))
        k, v = (_gather(x, lead - offset, count, size, lead + size + trail) for x in (k, v))
    if segments is not None:
        visible = visible & (segments[:, row][..., None] == segments[:, column][:, :, None])[:, None]
    if mask is not None and mask.shape[2] == 1:
        mask = mask[:, :, 0, column][:, :, :, None]
    elif mask is not None:
        mask = mask[:, :, (row - offset)[:, :, None], column[:, None]]
    o = _attend(q, k, v, visible, mask, options)
    if exporting() and not whole:  # the tracer cannot prove that a slice lies inside
        return o.index_select(1, torch.arange(queries, device=q.device))
    return o if whole or (not torch.compiler.is_compiling() and o.shape[1] == queries) else o[:, :queries]


def _pad(x: Tensor, front: int, length: int) -> Tensor:
    # `pad` copies even with nothing to add; a symbolic length must not be compared.
    if not torch.compiler.is_compiling() and x.shape[1] == length:
        return x
    return F.pad(x, (0, 0, 0, 0, front, length - front - x.shape[1]))


def _gather(x: Tensor, front: int, count: int, size: int, span: int) -> Tensor:
    """The overlapping blocks (batch, count, span, heads, dim) of x after `front` rows of padding."""
    if not torch.compiler.is_compiling():
        return _Gather.apply(x, front, count, size, span)
    steps = -(-span // size)
    x = _pad(x, front, (count + steps - 1) * size)
    shifted = (x.narrow(1, i * size, count * size).unflatten(1, (count, size)) for i in range(steps))
    return torch.cat([part[:, :, : span - i * size] for i, part in enumerate(shifted)], dim=2)


class _Gather(torch.autograd.Function):
    """`_gather` for eager mode, as a view.

    Autograd's own backward of `unfold` and of slices makes several passes over full-length tensors of zeros, half of a
    training step. Here each gradient is written once and only the overlaps are added.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, front: int, count: int, size: int, span: int) -> Tensor:
        steps = -(-span // size)
        return _pad(x, front, (count + steps - 1) * size).unfold(1, span, size).movedim(-1, 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, *ctx.cut = inputs
        ctx.length = x.shape[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        front, count, size, span = ctx.cut
        steps = -(-span // size)
        total = grad.new_empty(grad.shape[0], count + steps - 1, size, *grad.shape[3:])
        total[:, :count].copy_(grad[:, :, :size])
        total[:, count:].zero_()
        for i in range(1, steps):
            part = grad[:, :, i * size : (i + 1) * size]
            total[:, i : i + count, : part.shape[2]].add_(part)
        return total.flatten(1, 2)[:, front : front + ctx.length], None, None, None, None


def _attend(
    q: Float[Tensor, "batch count size heads dim"],
    k: Float[Tensor, "batch count span kv_heads dim"],
    v: Float[Tensor, "batch count span kv_heads value_dim"],
    visible: Bool[Tensor, "..."],
    given: Shaped[Tensor, "..."] | None,
    options: Options,
) -> Float[Tensor, "batch tokens heads value_dim"]:
    """Attention within each block; masks broadcast to (batch, heads, count, size, span)."""
    batch, count, size, heads, _ = q.shape
    span, kv_heads = k.shape[2:4]
    group = heads // kv_heads
    mask, live = visible, None
    if given is not None:
        additive = given.dtype != torch.bool
        mask = torch.where(visible, in_dtype(given, q.dtype), -torch.inf) if additive else given & visible
        live = (mask > -torch.inf if additive else mask).any(-1, keepdim=True)
        # The result of a row without keys differs between devices: give it some keys, and drop the result.
        mask = mask.masked_fill(~live, 0.0 if additive else True)

    # The queries of a group become rows of one head, so that keys and values need not be repeated.
    q = q.unflatten(3, (kv_heads, group)).permute(0, 1, 3, 4, 2, 5).flatten(3, 4).flatten(0, 1)
    k, v = k.transpose(2, 3).flatten(0, 1), v.transpose(2, 3).flatten(0, 1)
    mask = mask.expand(*(1,) * (5 - mask.ndim), *mask.shape).movedim(1, 2)
    mask = mask.unflatten(2, (kv_heads, group) if mask.shape[2] > 1 else (1, 1))
    mask = mask.expand(batch, count, -1, group, size, span).flatten(3, 4).flatten(0, 1)

    dropout, scale = options.dropout, options.scale
    if options.weighting == "softmax":
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    else:
        scores = q @ k.transpose(-2, -1) * scale
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        o = F.dropout(F.softplus(scores), dropout) @ v
    o = o.unflatten(2, (group, size)).unflatten(0, (batch, count)).permute(0, 1, 4, 2, 3, 5)
    o = o.flatten(3, 4).flatten(1, 2)
    if live is None:
        return o
    return o.masked_fill(~live.expand(-1, -1, -1, size, 1).movedim(1, 3).flatten(1, 2), 0.0)
