"""The oracle: journey attention straight from its definition, one matrix P_{j→i} for every pair of tokens.

    s_ij = scale · q_iᵀ P_{j→i} k_j        c_i = Σ_j w_ij P_{j→i} v_j        P_{j→i} = A_i⁻¹ A_j

It goes through `algebra` and explicit group matrices and shares no line with the fast path, so that the two can be
held against each other. Memory grows with queries · keys · head_dim²: for tests and small examples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from joformer._precision import widest
from joformer.algebra import Orthogonal, Torus, scores_path, value_path
from joformer.frames import FlatFrames, Frames, is_flat


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_frames: tuple[Frames, Frames] | None,
    value_frames: tuple[Frames, Frames] | None,
    *,
    causal: bool,
    mask: Tensor | None,
    segments: Tensor | None,
    window: int | None,
    scale: float,
    dropout: float,
    weighting: str,
) -> Tensor:
    """Shapes as in `journey_attention`; frames are (queries', keys') or None where that side stands still."""
    (batch, queries, heads, _), keys, group = q.shape, k.shape[1], q.shape[2] // k.shape[2]
    given = q.dtype
    q, k, v = (t.to(torch.promote_types(given, torch.float32)) for t in (q, k, v))
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    q_h, k_h, v_h = (t.transpose(1, 2) for t in (q, k, v))

    if score_frames is None:
        scores = torch.einsum("bhid,bhjd->bhij", q_h, k_h)
    else:
        order = _order(score_frames[0], q.shape[-1]).to(q.device)
        kind, dst, src = _operators(*score_frames, heads, q.shape[-1], q.dtype)
        scores = scores_path(q_h[..., order], k_h[..., order], group=kind, src=src, dst=dst)
    scores = scores * scale

    see = torch.ones(batch, heads, queries, keys, dtype=torch.bool, device=q.device)
    for i in range(queries):
        at = i + keys - queries
        for j in range(keys):
            if (causal and j > at) or (window is not None and abs(at - j) >= window):
                see[:, :, i, j] = False
            if segments is not None:
                rows = segments.expand(batch, keys)
                see[:, :, i, j] &= (rows[:, at] == rows[:, j])[:, None]
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
    order = _order(value_frames[0], v.shape[-1]).to(v.device)
    kind, dst, src = _operators(*value_frames, heads, v.shape[-1], v.dtype)
    out = value_path(weights, v_h[..., order], group=kind, src=src, dst=dst)
    return out[..., order.argsort()].transpose(1, 2).to(given)


def _order(frames: Frames, width: int) -> Tensor:
    """Where each entry of the interleaved layout is found in a head."""
    order = list(range(width))
    if is_flat(frames) and frames.layout == "half":
        for plane in range(frames.planes):
            order[2 * plane], order[2 * plane + 1] = plane, frames.planes + plane
    return torch.tensor(order)


def _operators(
    query_frames: Frames, key_frames: Frames, heads: int, width: int, dtype: torch.dtype
) -> tuple[Torus | Orthogonal, Tensor, Tensor]:
    """The group, and absolute operators of queries and keys, (batch, heads, tokens, element)."""
    if is_flat(query_frames) and is_flat(key_frames) and width % 2 == 0:
        planes = width // 2
        return Torus(planes), _angles(query_frames, heads, planes, dtype), _angles(key_frames, heads, planes, dtype)
    return Orthogonal(width), _matrices(query_frames, heads, width, dtype), _matrices(key_frames, heads, width, dtype)


def _angles(frames: FlatFrames, heads: int, planes: int, dtype: torch.dtype) -> Tensor:
    # Reduced before they are rounded, and in float64: a million radians, or 2π, have few digits in float32.
    wide = frames.angles.to(widest(frames.angles.device, frames.angles.dtype))
    angles = torch.atan2(wide.sin(), wide.cos()).to(dtype)
    angles = angles.repeat_interleave(heads // frames.heads, dim=2).transpose(1, 2)
    return torch.cat((angles, angles.new_zeros(*angles.shape[:-1], planes - frames.planes)), -1)


def _matrices(frames: Frames, heads: int, width: int, dtype: torch.dtype) -> Tensor:
    """Every operator as a width × width matrix, the identity beyond what the frames act on."""
    if not is_flat(frames):
        blocks = frames.matrices.to(dtype).repeat_interleave(heads // frames.heads, dim=2).transpose(1, 2)
    elif frames.is_identity:
        return torch.eye(width, dtype=dtype, device=frames.angles.device).expand(1, heads, frames.tokens, -1, -1)
    else:
        blocks = Torus(frames.planes).matrix(_angles(frames, heads, frames.planes, dtype)).unsqueeze(3)
    whole = torch.eye(width, dtype=dtype, device=blocks.device).repeat(*blocks.shape[:3], 1, 1)
    size = blocks.shape[-1]
    for n in range(blocks.shape[3]):
        whole[..., n * size : (n + 1) * size, n * size : (n + 1) * size] = blocks[..., n, :, :]
    return whole
