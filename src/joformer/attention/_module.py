"""JourneyAttention: journey attention with its projections.

q, k, v = W x  →  rotated while packed, in place  →  attention  →  A_i⁻¹ per head  →  W_o
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._parallel import ContextParallel
from joformer.attention._cache import JourneyCache, Unchanged
from joformer.attention._functional import attend, journey_attention
from joformer.attention._options import (
    Backend,
    Options,
    Transport,
    Weighting,
    check_options,
    check_parallel,
    checked_frames,
    checked_mask,
    sides,
)
from joformer.frames import FlatFrames, Frames, is_flat
from joformer.rotation import is_plain, own_projection, rotate, rotate_packed_, unrotate_linear

# Attention in the common frame: q, k, v (batch, tokens, heads, head_dim) → (batch, queries, heads, value_dim).
Inner = Callable[[Tensor, Tensor, Tensor], Tensor]


class JourneyAttention(nn.Module):
    """``c_i = W_o A_i⁻¹ Σ_j α_ij A_j v_j`` with ``α_i = softmax_j(q_iᵀ A_i⁻¹ A_j k_j / √head_dim)``, q, k, v = W x.

    Multi-head attention with journeys on scores and values: x (batch, tokens, dim) → the same shape.

    Args:
        dim: Width of x and of the result.
        heads: Number of query heads.
        kv_heads: Number of key/value heads; fewer than `heads` gives grouped-query attention. Frames must have 1 head
            or a divisor of `kv_heads`.
        head_dim: Width of a query or key head; default dim // heads.
        value_dim: Width of a value head; default head_dim.
        context_dim: Makes it cross-attention: keys and values come from `context` (batch, keys, context_dim) in the
            call, with their own frames as `key_frames`.
        transport: "scores" rotates q and k (RoPE), "values" rotates v and the result, "both" all, "none" nothing.
        causal: Hide the tokens after a query.
        window: Let a query see only keys less than `window` tokens away.
        dropout: Dropout probability of the weights in training, at least 0 and less than 1.
        scale: Factor of the scores; default 1/√head_dim.
        weighting: "softmax" or "softplus".
        bias: Whether the projections have a bias.
        backend: "auto", "sdpa", "flex" or "reference".

    Raises:
        ValueError: If widths, heads or options are incompatible.

    Example:
        >>> import torch
        >>> from joformer import FixedFrames, positions
        >>> attention = JourneyAttention(256, 4, causal=True)
        >>> frames = FixedFrames(64)(positions.sequence(16))
        >>> attention(torch.rand(2, 16, 256), frames).shape
        torch.Size([2, 16, 256])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        context_dim: int | None = None,
        transport: Transport = "both",
        causal: bool = False,
        window: int | None = None,
        dropout: float = 0.0,
        scale: float | None = None,
        weighting: Weighting = "softmax",
        bias: bool = False,
        backend: Backend = "auto",
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if heads < 1 or kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"heads={heads} must be a positive multiple of kv_heads={kv_heads}")
        if head_dim is None and dim % heads:
            raise ValueError(f"dim={dim} does not divide into {heads} heads: choose another number, or pass head_dim=")
        head_dim = dim // heads if head_dim is None else head_dim
        value_dim = head_dim if value_dim is None else value_dim
        if min(dim, head_dim, value_dim) < 1:
            raise ValueError(f"widths must be 1 or more, got dim={dim}, head_dim={head_dim}, value_dim={value_dim}")
        if causal and context_dim is not None:
            raise ValueError("cross-attention has no causal order between its sequences: use causal=False and a mask")
        sides(transport)
        check_options(window, dropout, weighting, backend)
        self.dim, self.heads, self.kv_heads, self.context_dim = dim, heads, kv_heads, context_dim
        self.head_dim, self.value_dim = head_dim, value_dim
        self.transport, self.causal, self.window = transport, causal, window
        self.scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
        self.dropout, self.weighting, self.backend = dropout, weighting, backend
        keys_and_values = kv_heads * (head_dim + value_dim)
        if context_dim is None:
            self.qkv = nn.Linear(dim, heads * head_dim + keys_and_values, bias=bias)
        else:
            self.q = nn.Linear(dim, heads * head_dim, bias=bias)
            self.kv = nn.Linear(context_dim, keys_and_values, bias=bias)
        self.out = nn.Linear(heads * value_dim, dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        frames: Frames,
        *,
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        key_frames: Frames | None = None,
        value_frames: Frames | None = None,
        value_key_frames: Frames | None = None,
        mask: Tensor | None = None,
        segments: Int[Tensor, "*batch keys"] | None = None,
        cache: JourneyCache | None = None,
        inner: Inner | None = None,
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attends to x, to `context`, or to the tokens of a cache followed by x.

        Args:
            x: ``(batch, tokens, dim)``; with a cache, the new tokens only.
            frames: The frames of these tokens.
            context: The source of keys and values in cross-attention, ``(batch, keys, context_dim)``.
            key_frames: The frames of the context.
            value_frames: Separate frames at the queries for the value side.
            value_key_frames: Separate frames at the keys for the value side.
            mask: As in `journey_attention`; with a cache, its keys are all tokens so far, the new ones last.
            segments: As in `journey_attention`; with a cache, those of all tokens so far.
            cache: The keys and values so far; each layer needs its own cache. It grows in place, and a call that raises
                leaves it unchanged. In cross-attention it holds the keys and values of the context: pass `context` and
                `key_frames` in the first call, and omit both in later calls.
            inner: Replaces the backend: gets q, k and v rotated into the common frame and returns a tensor that may be
                overwritten. It then has to handle masks, caches and dropout itself.
            parallel: The processes that share each sequence, as in `journey_attention`: x and frames are those of this
                process's tokens.

        Returns:
            ``(batch, tokens, dim)``.

        Raises:
            ValueError: If shapes, frames, mask, segments or the cache do not match this layer.
        """
        self._check_call(x, context, key_frames, cache)
        if inner is not None and (self.backend == "reference" or any(t is not None for t in (mask, segments, cache))):
            raise ValueError("inner handles masks and caches itself: pass it without them, and use a fast backend")
        alone = cache is None and inner is None and context is None
        local = self.window is not None or segments is not None
        check_parallel(parallel, frames, self.causal, self.backend, alone=alone, local=local)
        dropout = self.dropout if self.training else 0.0
        if self.backend == "reference":
            q, k, v = self._project(x, context, [None, None, None])
            out = journey_attention(
                q, k, v, frames, key_frames=key_frames, value_frames=value_frames, value_key_frames=value_key_frames,
                transport=self.transport, causal=self.causal, mask=mask, segments=segments, window=self.window,
                scale=self.scale, dropout=dropout, weighting=self.weighting, backend="reference",
            )  # fmt: skip
            return self.out(out.flatten(2))
        key_frames, value_frames, value_key_frames = checked_frames(
            self.weighting, self.kv_heads, frames, key_frames, value_frames, value_key_frames,
            (self.head_dim, self.value_dim),
        )  # fmt: skip
        crossing = self.context_dim is not None
        new = 0 if crossing and context is None else (x if context is None else context).shape[1]
        keys = new * (1 if parallel is None else parallel.count) + (0 if cache is None else cache.tokens)
        mask, segments = checked_mask(mask, segments, self.window, (x.shape[0], self.heads, x.shape[1], keys))
        options = Options(self.causal, mask, segments, self.window, self.scale, dropout, self.weighting, parallel)
        scores, values = sides(self.transport)
        alone = alone and frames is value_frames is value_key_frames
        if is_flat(frames) and alone and self._halves_pay(frames):
            return self._forward_in_halves(x, frames, options)
        side = (frames.dual if scores else None, key_frames if scores else None, value_key_frames if values else None)
        if cache is not None and crossing and context is None:
            cache.belongs_to(self)
            q, (k, v) = self._project_queries(x, side[0]), cache.held()
            out = attend(q, k, v, options, self.backend)
            return unrotate_linear(out, value_frames, self.out) if values else self.out(out.flatten(2))
        q, k, v = self._project(x, context, side)
        if cache is None:
            out = attend(q, k, v, options, self.backend) if inner is None else inner(q, k, v)
            return unrotate_linear(out, value_frames, self.out) if values else self.out(out.flatten(2))
        with Unchanged(cache):
            cache.belongs_to(self)
            k, v = cache.update(k, v)
            cache.angles = cache.angles if frames.end is None or crossing else frames.end
            if mask is not None and mask.shape[-1] > 1:
                options = options._replace(mask=mask[..., -k.shape[1] :])
            if segments is not None:
                options = options._replace(segments=segments[..., -k.shape[1] :])
            out = attend(q, k, v, options, self.backend)
            return unrotate_linear(out, value_frames, self.out) if values else self.out(out.flatten(2))

    def _project(
        self, x: Tensor, context: Tensor | None, frames: Sequence[Frames | None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as (batch, tokens, heads, head_dim), each rotated by its frames."""
        widths = ((self.heads, self.head_dim), (self.kv_heads, self.head_dim), (self.kv_heads, self.value_dim))
        if context is None:
            q, k, v = rotate_packed_(own_projection(self.qkv, x), widths, frames)
        else:
            q = self._project_queries(x, frames[0])
            k, v = rotate_packed_(own_projection(self.kv, context), widths[1:], frames[1:])
        return q, k, v

    def _project_queries(self, x: Tensor, frames: Frames | None) -> Tensor:
        """The rotated queries of cross-attention."""
        return rotate_packed_(own_projection(self.q, x), ((self.heads, self.head_dim),), [frames])[0]

    def _halves_pay(self, frames: FlatFrames) -> bool:
        """Whether a compiler is tracing (which vectorises halves but not pairs) and the weights may be reordered.

        Not with a cache: its contents must be the same whether a call is compiled or not.
        """
        return (
            torch.compiler.is_compiling()
            and frames.layout == "interleaved"
            and 2 * frames.planes == self.head_dim == self.value_dim
            and is_plain(self.qkv)
            and is_plain(self.out)
        )

    def _forward_in_halves(self, x: Tensor, frames: FlatFrames, options: Options) -> Tensor:
        """The same function with the rows of W_q, W_k, W_v and the columns of W_o in the half layout.

        A common reordering of q and k does not change the scores, and W_o inverts that of v. Reordering weights costs
        little compared with rotating activations, and inductor's C++ vectorises contiguous halves.
        """
        scores, values = sides(self.transport)
        widths = [(heads, self.head_dim) for heads in (self.heads, self.kv_heads, self.kv_heads)]
        rotated = (scores, scores, values)

        def reordered(rows: Tensor) -> Tensor:
            parts = zip(rows.split([heads * dim for heads, dim in widths]), rotated, strict=True)
            return torch.cat([_in_halves(part, self.head_dim) if its else part for part, its in parts])

        weight, bias = self.qkv.weight, self.qkv.bias
        packed = F.linear(x, reordered(weight), None if bias is None else reordered(bias))
        halves = replace(frames, layout="half")
        q, k, v = rotate_packed_(packed, widths, [halves if its else None for its in rotated])
        out = attend(q, k, v, options, self.backend)
        if not values:
            return self.out(out.flatten(2))
        back = rotate(out, halves, inverse=True).flatten(2)
        return F.linear(back, _in_halves(self.out.weight.T, self.head_dim).T, self.out.bias)

    def _check_call(
        self, x: Tensor, context: Tensor | None, key_frames: Frames | None, cache: JourneyCache | None
    ) -> None:
        if x.dim() != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"x must be (batch, tokens, dim={self.dim}), got {tuple(x.shape)}")
        if self.context_dim is None:
            if context is not None:
                raise ValueError("this is self-attention: build it with context_dim= to attend to a context")
            if key_frames is not None:
                raise ValueError("key_frames are for cross-attention: in self-attention queries and keys share frames")
        elif cache is not None and cache.tokens:
            if context is not None or key_frames is not None:
                raise ValueError(
                    "the cache holds the context's keys: leave out context= and key_frames=, or call cache.reset()"
                )
        elif context is None or context.shape[0] != x.shape[0] or context.shape[-1] != self.context_dim:
            shape = "none" if context is None else tuple(context.shape)
            raise ValueError(
                f"cross-attention needs context= ({x.shape[0]}, keys, context_dim={self.context_dim}), got {shape}"
            )
        elif key_frames is None:
            raise ValueError("cross-attention needs the frames of the context: pass key_frames=")
        crossing = self.context_dim is not None
        if cache is not None and (not (self.causal or crossing) or self.backend == "reference"):
            raise ValueError("a cache continues a causal sequence: build with causal=True and a fast backend")
        if cache is not None and cache.window is not None and crossing:
            raise ValueError("a cache of a context's keys keeps all of them: use JourneyCache()")
        if cache is not None and cache.window is not None and (self.window is None or cache.window < self.window):
            raise ValueError(
                f"a cache that keeps {cache.window} tokens is too short for attention with window={self.window}: "
                "use JourneyCache(window=attention.window)"
            )

    def extra_repr(self) -> str:
        """The main arguments, for `repr`."""
        names = ("kv_heads", "transport", "causal", "window")
        return f"{self.dim}, {self.heads}, " + ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


def _in_halves(rows: Tensor, head_dim: int) -> Tensor:
    """`convert_layout(rows, head_dim=head_dim, to="half", dim=0)` as one transposition, cheap in both directions."""
    return rows.unflatten(0, (-1, head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)
