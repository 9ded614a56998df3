"""Journey attention as a pure function.

    s_ij = q_iᵀ P_{j→i} k_j / √d  = (A_i q_i)ᵀ (A_j k_j) / √d          score side  (RoPE)
    c_i  = Σ_j α_ij P_{j→i} v_j   = A_i⁻¹ Σ_j α_ij (A_j v_j)           value side  (journey transport)

with P_{j→i} = A_i⁻¹ A_j and α the softmax of s over the keys. So: rotate q, k and v by their own frames, call any
attention, rotate the result back by the queries' frames. Paper: "Journey Operator and Score/Value Attention".
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from joformer.attention._masks import check_dimensions, in_dtype
from joformer.attention._reference import reference_attention
from joformer.attention._window import window_attention
from joformer.frames import Frames
from joformer.frames._types import check_is_frames, check_precise
from joformer.rotation import rotate
from joformer.rotation._rotate import Format, check_format

Transport = Literal["none", "scores", "values", "both"]
Weighting = Literal["softmax", "softplus"]
Backend = Literal["auto", "reference", "sdpa", "flex"]


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
) -> Float[Tensor, "batch queries heads value_dim"]:
    """c_i = Σ_j α_ij P_{j→i} v_j with α_i = softmax_j(scale · q_iᵀ P_{j→i} k_j).

    q (batch, queries, heads, head_dim), k (batch, keys, kv_heads, head_dim), v (batch, keys, kv_heads, value_dim),
    the layout of flash-attention; the result is (batch, queries, heads, value_dim).

    frames: of the queries, and of the keys too unless `key_frames` gives theirs (cross-attention, decoding).
    value_frames, value_key_frames: other frames for the value side; default: those of the score side.
    transport: "scores" moves q and k (RoPE), "values" moves v and the result, "both", or "none".
    causal, window: query i sees key j where 0 ≤ i − j (< window), or |i − j| < window when not causal. With fewer
      queries than keys the last query stands at the last key. A window costs O(keys · window).
    mask: boolean (True: may attend) or added to the scores, where −inf forbids, and so does the most negative number
      of its dtype or of q's, or less. It is broadcastable to (batch, heads, queries, keys), or (queries, keys), which
      raises where it may as well be (batch, keys). A query that may attend to nothing gets zeros.
    segments: (keys,) or (batch, keys) integers; tokens see only their own segment (packed sequences).
    scale: 1/√head_dim by default. dropout: on the weights; the caller says 0 in evaluation.
    weighting: "softplus" takes log(1 + e^s), not normalised; refused with content-dependent frames.
    backend: "auto", "sdpa", "flex", or "reference", which is slow, obvious and the oracle of the tests.
    format: "bthd", or "bhtd" where q, k, v and the result are (batch, heads, tokens, head_dim).

    >>> from joformer import FixedFrames, positions
    >>> q, k, v = torch.rand(3, 2, 16, 4, 64).unbind()
    >>> frames = FixedFrames(64)(positions.sequence(16))
    >>> journey_attention(q, k, v, frames, causal=True).shape
    torch.Size([2, 16, 4, 64])
    """
    heads_first = check_format(format)
    if heads_first:
        q, k, v = (t.transpose(1, 2) if t.dim() == 4 else t for t in (q, k, v))
    _check_shapes(q, k, v)
    scores, values = sides(transport)
    check_frames(weighting, k.shape[2], frames, key_frames, value_frames, value_key_frames)
    key_frames, value_frames, value_key_frames = all_frames(frames, key_frames, value_frames, value_key_frames)
    check_options(window, dropout, weighting, backend)
    if frames is key_frames and k.shape[1] != q.shape[1] and transport != "none":
        raise ValueError(f"{q.shape[1]} queries but {k.shape[1]} keys: give the keys' frames as key_frames=")
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    options: dict[str, Any] = {
        "causal": causal, "mask": mask, "segments": segments, "window": window,
        "scale": scale, "dropout": dropout, "weighting": weighting,
    }  # fmt: skip
    if backend == "reference":
        check_mask(mask, segments, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
        for its in (frames, key_frames, value_frames, value_key_frames):
            check_precise(its)
        score_side = (frames, key_frames) if scores else None
        value_side = (value_frames, value_key_frames) if values else None
        out = reference_attention(q, k, v, score_side, value_side, **options)
    else:
        if scores:
            q, k = rotate(q, frames), rotate(k, key_frames)
        if values:
            v = rotate(v, value_key_frames)
        out = attend(q, k, v, backend=backend, **options)
        if values:
            out = rotate(out, value_frames, inverse=True)
    return out.transpose(1, 2) if heads_first else out


def attend(
    q: Float[Tensor, "batch queries heads head_dim"],
    k: Float[Tensor, "batch keys kv_heads head_dim"],
    v: Float[Tensor, "batch keys kv_heads value_dim"],
    *,
    causal: bool,
    mask: Tensor | None,
    segments: Tensor | None,
    window: int | None,
    scale: float,
    dropout: float,
    weighting: Weighting = "softmax",
    backend: Backend = "auto",
) -> Float[Tensor, "batch queries heads value_dim"]:
    """Attention on tensors that are already transported: the middle of `journey_attention`."""
    check_mask(mask, segments, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    plain = weighting == "softmax" and dropout == 0.0
    if backend == "flex" or (backend == "auto" and plain and mask is None and _flex_pays(q, window, segments)):
        if not plain:
            raise ValueError("the flex backend has softmax weights and no dropout: use backend='sdpa' or 'auto'")
        mask = None if mask is None else in_dtype(mask, q.dtype)
        return _flex(q, k, v, causal=causal, mask=mask, segments=segments, window=window, scale=scale)
    if window is not None:
        return window_attention(
            q, k, v, window=window, causal=causal, scale=scale, mask=mask, segments=segments, dropout=dropout,
            weighting=weighting,
        )  # fmt: skip
    queries, keys, mask = q.shape[1], k.shape[1], None if mask is None else in_dtype(mask, q.dtype)
    # A single query at the last key sees everything; SDPA's own flag aligns the first query with the first key.
    flag = causal and queries == keys and mask is None and segments is None and weighting == "softmax"
    if not flag:
        mask = _with_structure(mask, _structure(queries, keys, causal and queries > 1, segments, q.device))
    if weighting == "softplus":
        return _softplus(q, k, v, mask, scale, dropout)
    grouped = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
        attn_mask=mask, dropout_p=dropout, is_causal=flag, scale=scale, enable_gqa=grouped,
    )  # fmt: skip
    return out.transpose(1, 2)


def sides(transport: str) -> tuple[bool, bool]:
    """Whether the score side and the value side are transported."""
    if transport not in ("none", "scores", "values", "both"):
        raise ValueError(f"transport must be 'none', 'scores', 'values' or 'both', got {transport!r}")
    return transport in ("scores", "both"), transport in ("values", "both")


def all_frames(
    frames: Frames, key_frames: Frames | None, value_frames: Frames | None, value_key_frames: Frames | None
) -> tuple[Frames, Frames, Frames]:
    """Frames of keys, of values at the queries and of values at the keys, where not given taken from the others."""
    key_frames = frames if key_frames is None else key_frames
    _check_pair(frames, key_frames)
    if value_frames is None:
        if value_key_frames is not None:
            raise ValueError("value_key_frames are given without value_frames: give both, or value_frames alone")
        return key_frames, frames, key_frames
    if value_key_frames is None:
        if key_frames is not frames:
            raise ValueError("value_frames are given without value_key_frames: cross-attention needs both")
        value_key_frames = value_frames
    _check_pair(value_frames, value_key_frames)
    return key_frames, value_frames, value_key_frames


def _check_pair(at_queries: Frames, at_keys: Frames) -> None:
    """Both ends of a journey must turn the same planes; no frames at all (zero planes) go with any."""
    if at_queries is at_keys:
        return
    kinds = {f.kind for f in (at_queries, at_keys) if not f.is_identity}
    if len(kinds) > 1:
        raise ValueError(
            f"frames of queries and keys must be of one kind, layout and number of planes, got {kinds}: "
            "build both with the same arguments"
        )


def check_options(window: int | None, dropout: float, weighting: str, backend: str) -> None:
    """One-line errors for options that cannot be."""
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be 1 or more tokens, or None for all, got {window}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {dropout}")
    if weighting not in ("softmax", "softplus"):
        raise ValueError(f"weighting must be 'softmax' or 'softplus', got {weighting!r}")
    if backend not in ("auto", "reference", "sdpa", "flex"):
        raise ValueError(f"backend must be 'auto', 'reference', 'sdpa' or 'flex', got {backend!r}")


def check_frames(weighting: str, kv_heads: int, *frames: Frames | None) -> None:
    """One-line errors for what is no frames value, has too many heads, or makes the weights unstable."""
    for its in frames[:1] + tuple(f for f in frames[1:] if f is not None):
        check_is_frames(its)
        assert its is not None
        if kv_heads % its.heads:
            raise ValueError(
                f"frames have {its.heads} heads but there are {kv_heads} key/value heads: angles are per key/value "
                "head and shared by its query group; frames need 1 head, or a divisor"
            )
        if its.content and weighting == "softplus":
            raise ValueError(
                "softplus weights are unstable with content-dependent frames: use weighting='softmax', "
                "or fixed or learned frames"
            )


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise ValueError(
            "q, k and v must be (batch, tokens, heads, head_dim), got "
            f"{tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(
            "q and k must agree in batch and head_dim, k and v in batch, tokens and heads; got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads cannot share {k.shape[2]} key heads: need a multiple")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have one dtype, got {q.dtype}, {k.dtype}, {v.dtype}")


def check_mask(mask: Tensor | None, segments: Tensor | None, full: tuple[int, int, int, int]) -> None:
    """One-line errors for masks and segments that do not fit (batch, heads, queries, keys)."""
    if mask is not None:
        fits = mask.dim() in (2, 4) and all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False))
        if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(
                f"mask must be boolean or floating point, (queries, keys) or broadcastable to {full}; "
                f"got {mask.dtype} {tuple(mask.shape)}; a padding mask (batch, keys) goes in as mask[:, None, None, :]"
            )
        check_dimensions(mask, full[0], full[2])
    if segments is not None:
        batch, _, queries, keys = full
        rows = check_segments(segments, keys).shape[0]
        if rows not in (1, batch) or queries > keys:
            raise ValueError(
                f"segments are (keys,) or (batch, keys) of all tokens, the queries last: got {tuple(segments.shape)} "
                f"for batch {batch}, {queries} queries and {keys} keys"
            )


def _structure(
    queries: int, keys: int, causal: bool, segments: Tensor | None, device: torch.device
) -> Bool[Tensor, "..."] | None:
    """Who may see whom by order and by segment: (queries, keys) or (batch, 1, queries, keys), None for all."""
    visible = None
    if causal:
        visible = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    if segments is not None:
        segments = check_segments(segments, keys)
        same = segments[:, None, keys - queries :, None] == segments[:, None, None, :]
        visible = same if visible is None else visible & same
    return visible


def check_segments(segments: Tensor, keys: int) -> Int[Tensor, "batch keys"]:
    """Segments as (batch or 1, keys)."""
    if segments.dim() not in (1, 2) or segments.shape[-1] != keys or segments.is_floating_point():
        raise ValueError(
            f"segments must be integers (keys,) or (batch, keys) with {keys} keys, got {segments.dtype} "
            f"{tuple(segments.shape)}; see positions.segments"
        )
    return segments if segments.dim() == 2 else segments.unsqueeze(0)


def _with_structure(mask: Tensor | None, visible: Tensor | None) -> Tensor | None:
    if mask is None or visible is None:
        return visible if mask is None else mask
    if mask.dtype == torch.bool:
        return mask & visible
    return torch.where(visible, mask, -torch.inf)


def _softplus(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """Σ_j log(1 + e^s_ij) v_j, head groups kept apart instead of repeating keys."""
    grouped = q.unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("bqhgd,bkhd->bhgqk", grouped, k).flatten(1, 2) * scale
    if mask is not None and mask.dtype != torch.bool:
        scores = scores + mask
    weights = F.softplus(scores)
    if mask is not None and mask.dtype == torch.bool:
        weights = weights * mask
    weights = F.dropout(weights, dropout).unflatten(1, (k.shape[2], -1))
    return torch.einsum("bhgqk,bkhd->bqhgd", weights.to(v.dtype), v).flatten(2, 3)


def _flex_pays(q: Tensor, window: int | None, segments: Tensor | None) -> bool:
    """Block-sparse kernels pay on a GPU, compiled along with the model, where there are blocks to skip."""
    return q.device.type == "cuda" and torch.compiler.is_compiling() and (window is not None or segments is not None)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    mask: Tensor | None,
    segments: Tensor | None,
    window: int | None,
    scale: float,
) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if q.device.type == "cpu" and torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        raise ValueError("FlexAttention has no backward on CPU: use backend='sdpa' or 'auto', or torch.no_grad()")
    (batch, queries, heads), keys = q.shape[:3], k.shape[1]
    offset = keys - queries
    by_row = None if segments is None else check_segments(segments, keys).expand(batch, keys)
    allowed = None if mask is None else mask.expand(batch, heads, queries, keys)

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
        block_mask=block_mask, scale=scale, enable_gqa=heads != k.shape[2],
    )  # fmt: skip
    return out.transpose(1, 2)
