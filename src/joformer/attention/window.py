r"""Local attention in O(N·w): every query sees only the keys that are near it.

    o_i = Σ_j a_ij v_j,   a_i = softmax_j(scale · q_i·k_j)   over   0 ≤ i − j < w   (causal)
                                                             or      |i − j| < w   (not causal)

Queries are cut into blocks of b; a block sees one contiguous stretch of keys, so all of them are one batched
call to SDPA with one small band mask. The ends, whose stretch would run off the sequence, are pieces of their own:

    keys     |-- head --|.....|.....|.....|- tail -|
    queries  |-- head --|  b  |  b  |  b  |- tail -|
                    |lead|  b  |trail|                 the keys of the first block

Nothing here knows of frames: q, k and v come rotated (paper, value transport = rotate, attend, rotate back).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

__all__ = ["window_attention"]


class _Piece(NamedTuple):
    """A number of query blocks of `size`, each before its own `span` keys; consecutive ones are `size` apart."""

    query: int  # where the first block's queries begin
    blocks: int
    size: int
    key: int  # where the first block's keys begin
    span: int
    lead: int  # keys at the begin of a span that belong to an earlier block's queries
    trail: int  # and at its end, to a later one's


def window_attention(
    q: Float[Tensor, "batch queries heads dim"],
    k: Float[Tensor, "_batch _keys _kv_heads _dim"],
    v: Float[Tensor, "_batch _keys _kv_heads _value_dim"],
    *,
    window: int,
    causal: bool,
    scale: float,
    mask: Shaped[Tensor, "..."] | None = None,
    segments: Int[Tensor, "..."] | None = None,
    dropout: float = 0.0,
    weighting: str = "softmax",
) -> Float[Tensor, "batch queries heads value_dim"]:
    """Attention over the `window` nearest keys: time and memory grow as tokens × window, backward too.

    The last query sits at the last key, so with fewer queries than keys this is a chunk after a cache. Query
    head h reads key/value head h // (heads // kv_heads).

    Args:
        window: key j is visible to query i iff 0 ≤ i − j < window (causal) or |i − j| < window (not causal).
        mask: boolean (True: may attend) or additive, broadcastable to (batch, heads, queries, keys), or
            (queries, keys). A key-padding mask (batch, 1, 1, keys) is never expanded to queries × keys.
        segments: (batch, keys) or (keys,): tokens of packed sequences see only those of equal number.
        dropout: probability with which a weight is dropped (the rest is scaled up).
        weighting: "softmax", or "softplus" for the unnormalised weights log(1 + exp(score)).

    A query that may attend to nothing gives zeros, and zero gradients, never NaN.

    >>> q = k = v = torch.eye(4).view(1, 4, 1, 4)
    >>> window_attention(q, k, v, window=2, causal=True, scale=0.0)[0, :, 0]
    tensor([[1.0000, 0.0000, 0.0000, 0.0000],
            [0.5000, 0.5000, 0.0000, 0.0000],
            [0.0000, 0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.5000, 0.5000]])
    """
    _check(q, k, v, window, dropout, weighting)
    queries, keys = q.shape[1], k.shape[1]
    mask = _as_rank_4(mask, q, keys)
    segments = _as_rank_2(segments, k)

    start = max(keys - queries - (window - 1), 0)
    if start > 0:  # a cache longer than the window: its oldest keys are never looked at
        k, v, keys = k[:, start:], v[:, start:], keys - start
        mask = None if mask is None else mask[..., start:]
        segments = None if segments is None else segments[:, start:]
    if causal and queries == keys <= window and mask is None and segments is None and weighting == "softmax":
        # SDPA skips the upper triangle, and materialises no mask, only when told this way.
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        grouped = q.shape[1] != k.shape[1]
        o = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, scale=scale, enable_gqa=grouped)
        return o.transpose(1, 2)

    pieces = _plan(queries, keys, window, causal)
    if len(pieces) == 1:
        k_parts, v_parts = (k[:, None],), (v[:, None],)
    else:
        k_parts, v_parts = _Gather.apply(k, pieces), _Gather.apply(v, pieces)
    q_parts = q.split([piece.blocks * piece.size for piece in pieces], dim=1)
    outputs = []
    for piece, q_part, k_part, v_part in zip(pieces, q_parts, k_parts, v_parts, strict=True):
        visible = _visible(piece, keys - queries, window, causal, q.device)
        if segments is not None:
            same = _same_segment(piece, segments, keys - queries)
            visible = same if visible is None else visible & same
        given = None if mask is None else _mask_blocks(piece, mask)
        q_blocks = q_part.unflatten(1, (piece.blocks, piece.size))
        outputs.append(_attend(q_blocks, k_part, v_part, visible, given, scale, dropout, weighting))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


def _plan(queries: int, keys: int, window: int, causal: bool) -> list[_Piece]:
    """The fewest pieces that cover all queries: one when blocks would not pay, else head, body and tail."""
    # A multiple of 8 keeps the rows of the block mask aligned, without which fused kernels copy it.
    lead = -(-(window - 1) // 8) * 8
    trail = 0 if causal else lead
    # Measured: below 64 the keys gathered grow faster than the scores shrink; above, half a window is as fast as
    # a quarter and gathers 3 keys per token, not 5.
    size = max(64, -(-window // 16) * 8)
    offset = keys - queries
    if queries <= lead + trail + size:
        return [_Piece(0, 1, queries, 0, keys, 0, 0)]
    # The remainder goes to the head, which is never empty: no length then needs a graph of its own.
    least = max(lead - offset, 1)
    count = (queries - trail - least) // size
    head = queries - trail - count * size
    pieces = [
        _Piece(0, 1, head, 0, head + offset + trail, 0, trail),
        _Piece(head, count, size, head + offset - lead, lead + size + trail, lead, trail),
    ]
    if trail:
        pieces.append(_Piece(queries - trail, 1, trail, keys - trail - lead, lead + trail, lead, 0))
    return pieces


def _cut(x: Tensor, dim: int, start: int, count: int, size: int, step: int) -> Tensor:
    """A view: `dim` becomes `count`, and `size` is appended at the end."""
    if count == 1:  # `unfold` would fix a symbolic size, and the head's depends on the length
        return x.narrow(dim, start, size).unsqueeze(dim).movedim(dim + 1, -1)
    return x.narrow(dim, start, (count - 1) * step + size).unfold(dim, size, step)


class _Gather(torch.autograd.Function):
    """The overlapping key blocks of all pieces, (batch, count, span, heads, dim) each, as views.

    Autograd's own backward of such views fills a full-length tensor with zeros per piece and scatters; here
    each gradient is written once, and only the overlaps are added.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, pieces: list[_Piece]) -> tuple[Tensor, ...]:
        return tuple(_cut(x, 1, piece.key, piece.blocks, piece.span, piece.size).movedim(-1, 2) for piece in pieces)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.length, ctx.pieces = inputs[0].shape[1], inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        first = grads[0]
        total = first.new_empty((first.shape[0], ctx.length, *first.shape[3:]))
        parts = list(zip(ctx.pieces, grads, strict=True))
        for piece, grad in parts:
            owned = piece.span - piece.lead - piece.trail
            _writable(total, piece, piece.lead, owned).copy_(grad.narrow(2, piece.lead, owned))
        for piece, grad in parts:
            for begin, length in ((0, piece.lead), (piece.span - piece.trail, piece.trail)):
                # Blocks must not overlap one another in an in-place addition, so no more than a step at a time.
                most = length if piece.blocks == 1 else piece.size
                for done in range(0, length, most or 1):
                    width = min(most, length - done)
                    _writable(total, piece, begin + done, width).add_(grad.narrow(2, begin + done, width))
        return total, None


def _writable(total: Tensor, piece: _Piece, begin: int, width: int) -> Tensor:
    """Keys begin … begin + width of every block, as a view (batch, count, width, heads, dim).

    Not by `unfold`: compiled, writing to such a view puts zeros in its gaps (pytorch/pytorch#198102).
    """
    step = width if piece.blocks == 1 else piece.size
    gap = 0 if begin <= piece.lead else step - width  # before or behind the keys, whichever stays inside
    steps = total.narrow(1, piece.key + begin - gap, piece.blocks * step).unflatten(1, (piece.blocks, step))
    return steps.narrow(2, gap, width)


def _visible(piece: _Piece, offset: int, window: int, causal: bool, device: torch.device) -> Tensor | None:
    """(size, span): which keys the window shows to each query of a block, the same for all blocks."""
    if piece.span <= window and (not causal or piece.size == 1):
        return None
    query = torch.arange(piece.size, device=device)[:, None] + (piece.query + offset - piece.key)
    distance = query - torch.arange(piece.span, device=device)
    return (distance < window) & (distance >= 0 if causal else distance > -window)


def _same_segment(piece: _Piece, segments: Tensor, offset: int) -> Tensor:
    own = _cut(segments, 1, piece.query + offset, piece.blocks, piece.size, piece.size)
    seen = _cut(segments, 1, piece.key, piece.blocks, piece.span, piece.size)
    return own[:, None, :, :, None] == seen[:, None, :, None, :]


def _mask_blocks(piece: _Piece, mask: Tensor) -> Tensor:
    """A view (batch or 1, heads or 1, count, size or 1, span) of the mask along its diagonal."""
    if mask.shape[2] == 1:
        return _cut(mask, 3, piece.key, piece.blocks, piece.span, piece.size).movedim(2, 3)
    rows = _cut(mask, 2, piece.query, piece.blocks, piece.size, piece.size)
    both = _cut(rows, 3, piece.key, piece.blocks, piece.span, piece.size)
    return both.diagonal(dim1=2, dim2=3).movedim(-1, 2)


def _attend(
    q: Float[Tensor, "batch count size heads dim"],
    k: Float[Tensor, "batch count span kv_heads dim"],
    v: Float[Tensor, "batch count span kv_heads value_dim"],
    visible: Bool[Tensor, "..."] | None,
    given: Shaped[Tensor, "..."] | None,
    scale: float,
    dropout: float,
    weighting: str,
) -> Float[Tensor, "batch tokens heads value_dim"]:
    batch, count, size, heads, _ = q.shape
    kv_heads, span = k.shape[3], k.shape[2]
    group = heads // kv_heads
    mask, live = visible, None
    if given is not None:
        if given.dtype == torch.bool:
            mask = given if visible is None else given & visible
            live = mask.any(-1, keepdim=True)
        else:
            mask = given.to(q.dtype) if visible is None else given.to(q.dtype).where(visible, -torch.inf)
            live = (mask > -torch.inf).any(-1, keepdim=True)
        # What a kernel makes of a row without keys differs between devices: give it some, and drop the result.
        mask = mask.masked_fill(~live, True if mask.dtype == torch.bool else 0.0)

    # The queries of a group become rows of one head: keys and values are never repeated, only views of them.
    q = q.unflatten(3, (kv_heads, group)).permute(0, 1, 3, 4, 2, 5).reshape(batch * count, kv_heads, group * size, -1)
    k, v = k.transpose(2, 3).flatten(0, 1), v.transpose(2, 3).flatten(0, 1)
    if mask is not None:
        mask = mask.expand(1, 1, 1, size, span) if mask.ndim == 2 else mask.movedim(1, 2)
        own_batch = mask.shape[0] > 1 or mask.shape[1] > 1
        mask = mask.unflatten(2, (kv_heads, group) if mask.shape[2] > 1 else (1, 1))
        mask = mask.expand(*((batch, count) if own_batch else (1, 1)), -1, group, size, span)
        mask = mask.flatten(3, 4).flatten(0, 1)

    if weighting == "softmax":
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    else:
        scores = q @ k.transpose(-2, -1) * scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        o = F.dropout(F.softplus(scores), dropout) @ v
    o = o.unflatten(2, (group, size)).unflatten(0, (batch, count)).permute(0, 1, 4, 2, 3, 5)
    o = o.flatten(3, 4).flatten(1, 2)
    if live is not None:
        o = o.masked_fill(~live.expand(-1, -1, -1, size, 1).movedim(1, 3).flatten(1, 2), 0.0)
    return o


def _check(q: Tensor, k: Tensor, v: Tensor, window: int, dropout: float, weighting: str) -> None:
    shapes = f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k, v must be (batch, tokens, heads, dim), not {shapes}")
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(f"q, k must share batch and dim, k and v batch, keys and heads, not {shapes}")
    if q.shape[2] % k.shape[2]:
        raise ValueError(f"heads must be a multiple of kv_heads, not {q.shape[2]} and {k.shape[2]}")
    if q.shape[1] > k.shape[1]:
        raise ValueError(f"a window needs a key for every query, not {q.shape[1]} queries and {k.shape[1]} keys")
    if window < 1:
        raise ValueError(f"window must be at least 1 (the token itself), not {window}")
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"dropout must be between 0 and 1, not {dropout}")
    if weighting not in ("softmax", "softplus"):
        raise ValueError(f"weighting must be 'softmax' or 'softplus', not {weighting!r}")


def _as_rank_4(mask: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    if mask is None:
        return None
    full = (q.shape[0], q.shape[2], q.shape[1], keys)
    wide = mask[None, None] if mask.ndim == 2 else mask
    if wide.ndim != 4 or any(n not in (1, most) for n, most in zip(wide.shape, full, strict=True)):
        raise ValueError(f"mask must broadcast to (batch, heads, queries, keys) = {full}, not {tuple(mask.shape)}")
    if not (mask.dtype == torch.bool or mask.dtype.is_floating_point):
        raise ValueError(f"mask must be boolean (True: may attend) or floating (added to scores), not {mask.dtype}")
    return wide.expand(-1, -1, -1, keys)


def _as_rank_2(segments: Tensor | None, k: Tensor) -> Tensor | None:
    if segments is None:
        return None
    wide = segments[None] if segments.ndim == 1 else segments
    if wide.ndim != 2 or wide.shape[1] != k.shape[1] or wide.shape[0] not in (1, k.shape[0]):
        raise ValueError(f"segments must be (batch, keys) = {tuple(k.shape[:2])}, not {tuple(segments.shape)}")
    return wide
