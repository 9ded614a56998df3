"""Journey attention as a pure function.

    s_ij = q_iᵀ P_{j→i} k_j / √d  = (A_i⁻ᵀ q_i)ᵀ (A_j k_j) / √d        score side  (RoPE)
    c_i  = Σ_j α_ij P_{j→i} v_j   = A_i⁻¹ Σ_j α_ij (A_j v_j)           value side  (journey transport)

with P_{j→i} = A_i⁻¹ A_j and α the softmax of s over the keys. In short: rotate q, k and v by their frames, call any
attention, and apply the inverse of the queries' frames to the result. For rotations A⁻ᵀ is A; cameras have a `dual`.
Paper: "Journey Operator and Score/Value Attention".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from joformer._parallel import ContextParallel
from joformer.attention._options import (
    Backend,
    Options,
    Transport,
    Weighting,
    check_options,
    check_parallel,
    check_qkv,
    checked_frames,
    checked_mask,
    in_dtype,
    sides,
)
from joformer.attention._reference import reference_attention
from joformer.attention._window import attend_in_blocks
from joformer.frames import Frames
from joformer.frames._types import check_fits
from joformer.rotation import rotate
from joformer.rotation._rotate import Format, check_format


def journey_attention(
    q: Float[Tensor, "batch queries heads head_dim"],
    k: Float[Tensor, "batch keys kv_heads head_dim"],
    v: Float[Tensor, "batch keys kv_heads value_dim"],
    frames: Frames,
    *,
    key_frames: Frames | None = None,
    value_frames: Frames | None = None,
    value_key_frames: Frames | None = None,
    transport: Transport = "both",
    causal: bool = False,
    mask: Tensor | None = None,
    segments: Int[Tensor, "*batch _keys"] | None = None,
    window: int | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    weighting: Weighting = "softmax",
    backend: Backend = "auto",
    format: Format = "bthd",
    parallel: ContextParallel | None = None,
) -> Float[Tensor, "batch queries heads value_dim"]:
    """``c_i = Σ_j α_ij P_{j→i} v_j`` with ``α_i = softmax_j(scale · q_iᵀ P_{j→i} k_j)`` and ``P_{j→i} = A_i⁻¹ A_j``.

    Args:
        q: Queries, ``(batch, queries, heads, head_dim)``, the layout of flash-attention.
        k: Keys, ``(batch, keys, kv_heads, head_dim)``. With fewer heads than q, groups of query heads share a head.
        v: Values, ``(batch, keys, kv_heads, value_dim)``.
        frames: Frames of the queries, and also of the keys unless `key_frames` is given.
        key_frames: Frames of the keys, if keys and queries are different tokens (cross-attention, decoding).
        value_frames: Separate frames at the queries for the value side; by default those of the score side.
        value_key_frames: Separate frames at the keys for the value side; by default `value_frames`.
        transport: "scores" rotates q and k (RoPE), "values" rotates v and the result, "both" all, "none" nothing.
        causal: Query i sees key j if j ≤ i. With fewer queries than keys, the last query is aligned with the last key.
        mask: Boolean (True: may attend) or added to the scores. In an additive mask −inf forbids, and so does any
            number at or below the most negative one of its dtype or of q's. It must be broadcastable to
            ``(batch, heads, queries, keys)``, or be ``(queries, keys)``, which raises if it could also be read as
            ``(batch, keys)``. A query that may not attend to anything gets zeros.
        segments: Integers, ``(keys,)`` or ``(batch, keys)``; tokens see only their own segment (packed sequences).
        window: Query i sees key j if ``|i − j| < window``, in O(keys · window) time and memory.
        scale: Factor of the scores; default ``1/√head_dim``.
        dropout: Dropout probability of the weights, at least 0 and less than 1; pass 0 in evaluation.
        weighting: "softmax", or "softplus" for unnormalised ``log(1 + e^s)``, which raises with content-dependent
            frames.
        backend: "auto", "sdpa", "flex", or "reference", a slow and simple implementation that the tests compare with.
        format: "bthd", or "bhtd" if q, k, v and the result are ``(batch, heads, tokens, head_dim)``.
        parallel: The processes that share each sequence. q, k, v, frames and the result are those of this process's
            tokens; mask and segments cover the keys of all processes. Each process draws dropout from its own
            generator.

    Returns:
        ``(batch, queries, heads, value_dim)``, in q's dtype.

    Raises:
        ValueError: If shapes, frames, mask, segments or options are incompatible.

    Example:
        >>> from joformer import FixedFrames, positions
        >>> q, k, v = torch.rand(3, 2, 16, 4, 64).unbind()
        >>> frames = FixedFrames(64)(positions.sequence(16))
        >>> journey_attention(q, k, v, frames, causal=True).shape
        torch.Size([2, 16, 4, 64])
    """
    heads_first = check_format(format)
    if heads_first:
        q, k, v = (t.transpose(1, 2) if t.dim() == 4 else t for t in (q, k, v))
    check_qkv(q, k, v)
    scores, values = sides(transport)
    key_frames, value_frames, value_key_frames = checked_frames(
        weighting, k.shape[2], frames, key_frames, value_frames, value_key_frames, (q.shape[3], v.shape[3])
    )
    check_options(window, dropout, weighting, backend)
    if frames is key_frames and k.shape[1] != q.shape[1] and transport != "none":
        raise ValueError(f"{q.shape[1]} queries but {k.shape[1]} keys: pass the keys' frames as key_frames=")
    alone, local = frames is key_frames and k.shape[1] == q.shape[1], window is not None or segments is not None
    check_parallel(parallel, frames, causal, backend, alone=alone, local=local)
    keys = k.shape[1] * (1 if parallel is None else parallel.count)
    mask, segments = checked_mask(mask, segments, window, (q.shape[0], q.shape[2], q.shape[1], keys))
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    options = Options(causal, mask, segments, window, scale, dropout, weighting, parallel)
    if backend == "reference":
        for t, its, used in ((q, frames, scores), (k, key_frames, scores), (v, value_key_frames, values)):
            if used:
                check_fits(t, its)
        score_side = (frames, key_frames) if scores else None
        value_side = (value_frames, value_key_frames) if values else None
        out = reference_attention(q, k, v, score_side, value_side, options)
    else:
        if scores:
            q, k = rotate(q, frames.dual), rotate(k, key_frames)
        if values:
            v = rotate(v, value_key_frames)
        out = attend(q, k, v, options, backend)
        if values:
            out = rotate(out, value_frames, inverse=True)
    return out.transpose(1, 2) if heads_first else out


def attend(
    q: Float[Tensor, "batch queries heads head_dim"],
    k: Float[Tensor, "batch keys kv_heads head_dim"],
    v: Float[Tensor, "batch keys kv_heads value_dim"],
    options: Options,
    backend: Backend,
) -> Float[Tensor, "batch queries heads value_dim"]:
    """Attention on tensors that are already rotated: the middle of `journey_attention`."""
    causal, mask, segments, window, scale, dropout, weighting, parallel = options
    if parallel is not None:
        return _attend_across(q, k, v, options, backend, parallel)
    plain = weighting == "softmax" and dropout == 0.0
    # Block-sparse kernels pay off on a GPU, compiled together with the model, if there are blocks to skip.
    sparse = mask is None and (window is not None or segments is not None) and q.device.type == "cuda"
    if backend == "flex" or (backend == "auto" and plain and sparse and torch.compiler.is_compiling()):
        if not plain:
            raise ValueError("the flex backend needs softmax weights and no dropout: use backend='sdpa' or 'auto'")
        return _flex(q, k, v, options)
    if window is not None:
        return attend_in_blocks(q, k, v, options)
    queries, keys, mask = q.shape[1], k.shape[1], None if mask is None else in_dtype(mask, q.dtype)
    # A single query at the last key sees everything; SDPA's is_causal aligns the first query with the first key.
    flag = causal and queries == keys and mask is None and segments is None and weighting == "softmax"
    if not flag:
        mask = _visible(mask, queries, keys, causal and queries > 1, segments, q.device)
    if weighting == "softplus":
        return _softplus(q, k, v, mask, scale, dropout)
    grouped = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        attn_mask=mask, dropout_p=dropout, is_causal=flag, scale=scale, enable_gqa=grouped,
    )  # fmt: skip
    return out.transpose(1, 2)


def _attend_across(
    q: Tensor, k: Tensor, v: Tensor, options: Options, backend: Backend, parallel: ContextParallel
) -> Tensor:
    """This process's queries and all keys: its head, then its tail, each as the last queries of the keys it sees."""
    k, v = parallel.gather(torch.cat((k, v), -1)).split((k.shape[-1], v.shape[-1]), -1)
    options = options._replace(parallel=None)
    causal, mask, segments, window, scale, dropout, weighting, _ = options
    if not causal:
        return attend(q, k, v, options, backend)
    plain = all(one is None for one in (mask, segments, window)) and weighting == "softmax" and backend != "flex"
    size, out = q.shape[1] // 2, []
    for rows, number in zip((slice(0, size), slice(size, None)), parallel.chunks, strict=True):
        end = (number + 1) * size
        if plain and q.device.type == "cuda":
            from torch.nn.attention.bias import causal_lower_right

            # GPU kernels support this triangle; a queries × keys mask would be kept for the backward of every layer.
            queries, keys, values = (t.transpose(1, 2) for t in (q[:, rows], k[:, :end], v[:, :end]))
            part = F.scaled_dot_product_attention(
                queries, keys, values, causal_lower_right(size, end), dropout,
                scale=scale, enable_gqa=q.shape[2] != k.shape[2],
            )  # fmt: skip
            out.append(part.transpose(1, 2))
            continue
        seen = None if mask is None else mask[..., rows if mask.shape[-2] > 1 else slice(None), :end]
        own = options._replace(mask=seen, segments=None if segments is None else segments[:, :end])
        out.append(attend(q[:, rows], k[:, :end], v[:, :end], own, backend))
    return torch.cat(out, 1)


def _visible(
    mask: Tensor | None, queries: int, keys: int, causal: bool, segments: Tensor | None, device: torch.device
) -> Tensor | None:
    """Combines mask, causal order and segments; None if every query sees every key."""
    visible = None
    if causal:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    if segments is not None:
        same = segments[:, None, keys - queries :, None] == segments[:, None, None, :]
        visible = same if visible is None else visible & same
    if mask is None or visible is None:
        return visible if mask is None else mask
    return mask & visible if mask.dtype == torch.bool else torch.where(visible, mask, -torch.inf)


def _softplus(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Σ_j log(1 + e^s_ij) v_j; the queries of all heads of a group are rows of one product instead of repeated keys."""
    (batch, queries, heads, _), (keys, kv_heads) = q.shape, k.shape[1:3]
    rows = heads // kv_heads * queries
    grouped = q.transpose(1, 2).reshape(batch, kv_heads, rows, q.shape[3])
    scores = (grouped @ k.permute(0, 2, 3, 1)).reshape(batch, heads, queries, keys) * scale
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    weights = F.softplus(scores)
    if mask is not None and mask.dtype == torch.bool:
        weights = weights * mask
    weights = F.dropout(weights, dropout).to(v.dtype).reshape(batch, kv_heads, rows, keys)
    return (weights @ v.transpose(1, 2)).reshape(batch, heads, queries, v.shape[3]).transpose(1, 2)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _flex(q: Tensor, k: Tensor, v: Tensor, options: Options) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if q.device.type == "cpu" and torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise ValueError("FlexAttention has no backward on CPU: use backend='sdpa' or 'auto', or torch.no_grad()")
    (batch, queries, heads), keys = q.shape[:3], k.shape[1]
    offset = keys - queries
    causal, window = options.causal, options.window
    by_row = None if options.segments is None else options.segments.expand(batch, keys)
    allowed = None if options.mask is None else in_dtype(options.mask, q.dtype).expand(batch, heads, queries, keys)

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ahead = i + offset - j
        see = ahead >= (0 if causal else -keys)
        if window is not None:
            see = see & (ahead < window) & (ahead > -window)
        if by_row is not None:
            see = see & (by_row[b, i + offset] == by_row[b, j])
        if allowed is not None and allowed.dtype == torch.bool:
            see = see & allowed[b, h, i, j]
        return see

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + allowed[b, h, i, j] if allowed is not None else score

    per_head = heads if allowed is not None and allowed.dtype == torch.bool else None
    per_row = batch if per_head is not None or by_row is not None else None
    block_mask = create_block_mask(visible, per_row, per_head, queries, keys, device=str(q.device))
    attend_blocks: Any = flex_attention if torch.compiler.is_compiling() else _compiled_flex()
    out = attend_blocks(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        score_mod=biased if allowed is not None and allowed.dtype != torch.bool else None,
        block_mask=block_mask, scale=options.scale, enable_gqa=heads != k.shape[2],
    )  # fmt: skip
    return out.transpose(1, 2)
