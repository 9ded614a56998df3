"""The reference: journey attention straight from its definition, one matrix P_{j→i} for every pair of tokens.

    s_ij = scale · q_iᵀ P_{j→i} k_j        c_i = Σ_j w_ij P_{j→i} v_j        P_{j→i} = A_i⁻¹ A_j

It uses `algebra` and explicit group matrices and shares no line with the fast path, so that the two can be compared.
Memory grows with queries · keys · head_dim²: for tests and small examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joformer._precision import widest
from joformer.algebra import Invertible, Orthogonal, Torus, scores_path, value_path
from joformer.attention._options import Options
from joformer.frames import FlatFrames, Frames, is_flat
from joformer.frames._types import is_joint

# Frames of queries and keys.
Pair = tuple[Frames, Frames]


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, score_frames: Pair | None, value_frames: Pair | None, options: Options
) -> Tensor:
    """Shapes as in `journey_attention`; a side without frames is not rotated."""
    causal, mask, segments, window, scale, dropout, weighting, _ = options
    queries, heads, keys, group = q.shape[1], q.shape[2], k.shape[1], q.shape[2] // k.shape[2]
    given = q.dtype
    q, k, v = (t.to(torch.promote_types(given, torch.float32)) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    q_h, k_h, v_h = (t.transpose(1, 2) for t in (q, k, v))

    if score_frames is None:
        scores = torch.einsum("bhid,bhjd->bhij", q_h, k_h)
    else:
        order, kind, dst, src = _operators(*score_frames, heads, q.shape[-1], q.dtype)
        scores = scores_path(q_h[..., order], k_h[..., order], group=kind, src=src, dst=dst)
    scores = scores * scale

    # The last query is aligned with the last key.
    at, key = torch.arange(keys - queries, keys, device=q.device)[:, None], torch.arange(keys, device=q.device)
    see = (key <= at) | (not causal)
    if window is not None:
        see = see & ((at - key).abs() < window)
    if segments is not None:
        see = see & (segments[:, at] == segments[:, key][:, None])[:, None]
    if mask is not None and mask.dtype == torch.bool:
        see = see & mask
    elif mask is not None:
        see = see & (mask > max(torch.finfo(mask.dtype).min, torch.finfo(given).min))
        scores = scores + mask.to(scores.dtype)

    if weighting == "softplus":
        weights = torch.logaddexp(scores, torch.zeros_like(scores)) * see
    else:
        scores = scores.masked_fill(~see, -torch.inf)
        nothing = (scores == -torch.inf).all(-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(nothing, 0.0), -1).masked_fill(nothing, 0.0)
    weights = torch.dropout(weights, dropout, dropout > 0)

    if value_frames is None:
        return torch.einsum("bhij,bhjd->bihd", weights, v_h).to(given)
    order, kind, dst, src = _operators(*value_frames, heads, v.shape[-1], v.dtype)
    out = value_path(weights, v_h[..., order], group=kind, src=src, dst=dst)
    return out[..., order.argsort()].transpose(1, 2).to(given)


def entry_order(frames: Frames, width: int) -> Tensor:
    """Where in a head each entry is found: those of plane 0, of plane 1, …, then the entries that are not rotated."""
    order = torch.arange(width)
    if is_joint(frames):
        at = 0
        for part in frames.parts:
            order[at : at + part.width] = at + entry_order(part, part.width)
            at += part.width
    elif is_flat(frames):
        order = order.roll(2 * frames.planes) if frames.at == "end" else order
        if frames.layout == "half":
            order[: 2 * frames.planes] = order[: 2 * frames.planes].view(2, -1).T.flatten()
    return order


def _operators(
    query_frames: Frames, key_frames: Frames, heads: int, width: int, dtype: torch.dtype
) -> tuple[Tensor, Torus | Invertible, Tensor, Tensor]:
    """The order of entries, the group, and operators of queries and keys, (batch, heads, tokens, element)."""
    order = entry_order(key_frames if query_frames.is_identity else query_frames, width)
    if is_flat(query_frames) and is_flat(key_frames) and width % 2 == 0:
        dst, src = (_angles(its, heads, width // 2, dtype) for its in (query_frames, key_frames))
        return order, Torus(width // 2), dst, src
    dst, src = (matrices(its, heads, width, dtype) for its in (query_frames, key_frames))
    orthogonal = all(its.dual is its for its in (query_frames, key_frames))
    return order, Orthogonal(width) if orthogonal else Invertible(width), dst, src


def _angles(frames: FlatFrames, heads: int, planes: int, dtype: torch.dtype) -> Tensor:
    # Reduced before rounding, and in float64: a million radians, or 2π, have few correct digits in float32.
    wide = frames.angles.to(widest(frames.angles.device, frames.angles.dtype))
    angles = torch.atan2(wide.sin(), wide.cos()).to(dtype)
    angles = angles.repeat_interleave(heads // frames.heads, dim=2).transpose(1, 2)
    return torch.cat((angles, angles.new_zeros(*angles.shape[:-1], planes - frames.planes)), -1)


def matrices(frames: Frames, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    """``A_t`` in the order of `entry_order`, (batch, heads, tokens, width, width); the identity beyond the planes."""
    if is_joint(frames):
        parts = [matrices(part, heads, part.width, dtype) for part in frames.parts]
        rows = max(part.shape[0] for part in parts)
        whole = torch.eye(width, dtype=dtype, device=parts[0].device).repeat(rows, heads, frames.tokens, 1, 1)
        at = 0
        for part in parts:
            whole[..., at : at + part.shape[-1], at : at + part.shape[-1]] = part
            at += part.shape[-1]
        return whole
    if not is_flat(frames):
        blocks = frames.matrices.to(dtype).repeat_interleave(heads // frames.heads, dim=2).transpose(1, 2)
        blocks = blocks.repeat(1, 1, 1, frames.repeat, 1, 1)
    elif frames.is_identity:
        return torch.eye(width, dtype=dtype, device=frames.angles.device).expand(1, heads, frames.tokens, -1, -1)
    else:
        blocks = Torus(frames.planes).matrix(_angles(frames, heads, frames.planes, dtype)).unsqueeze(3)
    whole = torch.eye(width, dtype=dtype, device=blocks.device).repeat(*blocks.shape[:3], 1, 1)
    size = blocks.shape[-1]
    for n in range(blocks.shape[3]):
        whole[..., n * size : (n + 1) * size, n * size : (n + 1) * size] = blocks[..., n, :, :]
    return whole
