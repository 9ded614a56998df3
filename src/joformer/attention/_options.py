"""The arguments of attention other than q, k and v: checked here once, at the public entry points, then trusted.

boolean mask     True: may attend
additive mask    added to the scores; −inf forbids, and so does the most negative number of the mask's dtype or of q's
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from joformer._parallel import ContextParallel
from joformer.frames import Frames
from joformer.frames._types import check_is_frames, is_flat

Transport = Literal["none", "scores", "values", "both"]
Weighting = Literal["softmax", "softplus"]
Backend = Literal["auto", "reference", "sdpa", "flex"]


class Options(NamedTuple):
    """Which keys a query sees, and how scores become weights; see `journey_attention` for each.

    Segments are (batch or 1, keys).
    """

    causal: bool
    mask: Tensor | None
    segments: Tensor | None
    window: int | None
    scale: float
    dropout: float
    weighting: Weighting
    parallel: ContextParallel | None = None


def sides(transport: str) -> tuple[bool, bool]:
    """Whether the score side and the value side are transported."""
    if transport not in ("none", "scores", "values", "both"):
        raise ValueError(f"transport must be 'none', 'scores', 'values' or 'both', got {transport!r}")
    return transport in ("scores", "both"), transport in ("values", "both")


def check_options(window: int | None, dropout: float, weighting: str, backend: str) -> None:
    """Raises ValueError for invalid options."""
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ValueError(f"window must be 1 or more tokens, or None for all, got {window}")
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {dropout}")
    if weighting not in ("softmax", "softplus"):
        raise ValueError(f"weighting must be 'softmax' or 'softplus', got {weighting!r}")
    if backend not in ("auto", "reference", "sdpa", "flex"):
        raise ValueError(f"backend must be 'auto', 'reference', 'sdpa' or 'flex', got {backend!r}")


def check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ValueError if q, k and v are incompatible."""
    wrong = None
    if not q.dim() == k.dim() == v.dim() == 4:
        wrong = "q, k and v must be (batch, tokens, heads, head_dim)"
    elif k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        wrong = "q and k must agree in batch and head_dim, k and v in batch, tokens and heads"
    if wrong:
        raise ValueError(f"{wrong}; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"{q.shape[2]} query heads cannot share {k.shape[2]} key heads: use a multiple")
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype}, {v.dtype}")


def check_parallel(
    parallel: ContextParallel | None, frames: Frames, causal: bool, backend: str, *, alone: bool, local: bool
) -> None:
    """Raises ValueError for misuse of `parallel`: `alone` is self-attention, `local` means a window or segments."""
    if parallel is None:
        return
    if not alone or backend == "reference":
        raise ValueError(
            "parallel= is for self-attention over a whole sequence with a fast backend: leave it out with a cache, "
            "an inner attention, a context, key_frames or backend='reference'"
        )
    if local and not causal:
        raise ValueError("with parallel=, a window or segments need causal=True: leave out parallel=, or use a mask")
    if frames.end is not None:
        raise ValueError("these frames accumulate this process's tokens only: pass parallel= to their module too")
    parallel.check(frames.tokens * parallel.count)


def checked_mask(
    mask: Tensor | None, segments: Tensor | None, window: int | None, full: tuple[int, int, int, int]
) -> tuple[Tensor | None, Tensor | None]:
    """Mask and segments, the latter as (batch or 1, keys), checked against `full` = (batch, heads, queries, keys)."""
    batch, _, queries, keys = full
    if window is not None and queries > keys:
        raise ValueError(f"a window needs a key for every query, got {queries} queries and {keys} keys")
    if mask is not None:
        fits = mask.dim() in (2, 4) and all(m in (1, n) for m, n in zip(mask.shape[::-1], full[::-1], strict=False))
        if not fits or not (mask.dtype == torch.bool or mask.is_floating_point()):
            raise ValueError(
                f"mask must be boolean or floating point, (queries, keys) or broadcastable to {full}; "
                f"got {mask.dtype} {tuple(mask.shape)}; pass a padding mask (batch, keys) as mask[:, None, None, :]"
            )
        # One exported graph for all lengths cannot depend on whether two of them are equal.
        if mask.dim() == 2 and not exporting() and 1 < mask.shape[0] == batch == queries:
            raise ValueError(
                f"mask {tuple(mask.shape)} could be (queries, keys) or (batch, keys), both have {batch} rows: "
                "pass mask[None, None] for the first, mask[:, None, None] for the second"
            )
    if segments is not None:
        given = segments
        segments = given.unsqueeze(0) if given.dim() == 1 else given
        fits = segments.dim() == 2 and segments.shape[1] == keys >= queries and segments.shape[0] in (1, batch)
        if not fits or segments.is_floating_point():
            raise ValueError(
                f"segments must be integers for all tokens, the queries last, ({keys},) or ({batch}, {keys}) for "
                f"{queries} queries, got {given.dtype} {tuple(given.shape)}; see positions.segments"
            )
    return mask, segments


def checked_frames(
    weighting: str,
    kv_heads: int,
    frames: Frames,
    key_frames: Frames | None,
    value_frames: Frames | None,
    value_key_frames: Frames | None,
    widths: tuple[int, int],
) -> tuple[Frames, Frames, Frames]:
    """Frames of the keys, of the values at the queries and of the values at the keys, with defaults filled in.

    `widths` are those of a query head and of a value head: frames made for neither are an error, since a wider head
    would silently be rotated only in part.
    """
    for its in (frames, key_frames, value_frames, value_key_frames):
        if its is not None or its is frames:
            check_is_frames(its)
            assert its is not None
            if kv_heads % its.heads:
                raise ValueError(
                    f"frames have {its.heads} heads but there are {kv_heads} key/value heads: angles are per key/value "
                    "head and shared by its query group; frames need 1 head, or a divisor"
                )
            if is_flat(its) and its.head_dim not in (None, *widths) and its.width <= min(widths):
                raise ValueError(
                    f"frames were made for head_dim={its.head_dim} but head_dim is {widths[0]}: build them with "
                    f"head_dim={widths[0]}, and with planes={its.planes} to rotate only that many planes"
                )
            if its.content and weighting == "softplus":
                raise ValueError(
                    "softplus weights are unstable with content-dependent frames: use weighting='softmax', "
                    "or fixed or learned frames"
                )
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
    """Both ends of a journey must rotate the same planes; empty frames (zero planes) go with any."""
    if at_queries is at_keys:
        return
    kinds = {f.kind for f in (at_queries, at_keys) if not f.is_identity}
    if len(kinds) > 1:
        raise ValueError(
            f"frames of queries and keys must be of one kind, layout and number of planes, got {kinds}: "
            "build both with the same arguments"
        )


def in_dtype(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as it is added to scores of `dtype`, −inf wherever it forbids; boolean masks are returned unchanged.

    Most programs use the most negative number for "forbidden". Added to any score it gives itself, so that a query
    without a single key would attend to all of them equally.

    >>> in_dtype(torch.tensor([0.5, torch.finfo(torch.float32).min]), torch.bfloat16)
    tensor([0.5000,   -inf], dtype=torch.bfloat16)
    """
    if mask.dtype == torch.bool:
        return mask
    lowest = max(torch.finfo(mask.dtype).min, torch.finfo(dtype).min)
    return mask.masked_fill(mask <= lowest, -torch.inf).to(dtype)


def exporting() -> bool:
    """Whether `torch.export` is recording a graph, which has to serve all lengths."""
    return getattr(torch.compiler, "is_exporting", bool)()  # torch 2.6 has none
