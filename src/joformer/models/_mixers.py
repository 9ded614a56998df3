"""Layers that mix tokens without journey attention: the paper's hierarchy, and positions other than frames.

    A   ALiBi                       c_i = Σ_j softmax_j(qᵢ·kⱼ/√d − m_h (i − j)) vⱼ
    C   Shaw's clipped distances    c_i = Σ_j softmax_j(qᵢ·(kⱼ + aᴷ_δ)/√d) (vⱼ + aⱽ_δ)          δ = min(i − j, clip)
    L   linear attention            c_i = A_i⁻¹ Σ_j (A_i φ(qᵢ))·(A_j φ(kⱼ)) A_j vⱼ / Σ_j φ(qᵢ)·φ(kⱼ)    φ = elu + 1
    R   a linear recurrence         h_t = λ R(ω) h_{t−1} + v_t                               `JourneySSM(content=False)`
    S   a selective recurrence      h_t = λ_t R(φ_t) h_{t−1} + v_t                           `JourneySSM`

All are causal (j ≤ i) and have the same call as attention; each caches what it needs of earlier tokens: keys and
values, or a state. Rotating φ(q) and φ(k) only in the numerator follows RoFormer (Su et al. 2021, eq. 19). ALiBi: Press
et al. 2022; clipped distances: Shaw et al. 2018, an older way to make values depend on where they come from.
Paper: "Value-Path Hierarchy and SSM Bridge".
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._precision import without_autocast
from joformer.attention import ContextParallel, JourneyAttention, JourneyCache
from joformer.attention._options import Transport, sides
from joformer.frames import Frames
from joformer.models._ssm import JourneySSM
from joformer.rotation import rotate, unrotate_linear

CLIP = 16
"""Distances beyond this are treated as equal; the value of Shaw et al."""
CHUNK = 64


def alibi_slopes(heads: int) -> Float[Tensor, " heads"]:
    """ALiBi's m_h = 2^(−8 h / H), h = 1 … H; if H is not a power of two, those of the next lower one and some between.

    >>> alibi_slopes(4).tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    >>> [round(m, 4) for m in alibi_slopes(3).tolist()]
    [0.0625, 0.0039, 0.25]
    """
    power = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return torch.tensor(slopes + [2 ** (-4 * h / power) for h in range(1, 2 * (heads - power), 2)])


class Mixer(nn.Module):
    """A causal layer with the same call as attention; a subclass defines `mix`.

    Attributes:
        called: Its name in error messages.
        packs: Whether it can keep packed sequences apart.
    """

    called = ""
    packs = False

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        frames: Frames,
        *,
        cache: JourneyCache | None = None,
        segments: Int[Tensor, "*batch _keys"] | None = None,
        inner: None = None,
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Mixes x, or the cached earlier tokens and x.

        Args:
            x: ``(batch, tokens, dim)``; with a cache the new tokens only.
            frames: The frames of these tokens, for layers that use frames.
            cache: The state of earlier tokens, updated in place.
            segments: Which packed sequence each token belongs to.
            inner: Not supported.
            parallel: Not supported.

        Returns:
            ``(batch, tokens, dim)``.

        Raises:
            ValueError: If `parallel` is given, or segments to a layer that keeps one sum of all tokens.
        """
        _alone(self.called, parallel, None if self.packs else segments)
        return self.mix(x, frames, cache, segments)

    def mix(self, x: Tensor, frames: Frames, cache: JourneyCache | None, segments: Tensor | None) -> Tensor:
        """The outputs of the tokens, from those before them."""
        raise NotImplementedError


class BiasedAttention(JourneyAttention):
    """Causal attention with scores that decrease with distance (ALiBi): ``qᵢ·kⱼ/√d − m_h (i − j)``; ignores frames.

    Args:
        dim: Width of the tokens.
        heads: Number of heads.
        dropout: Dropout probability of the attention weights.

    Example:
        >>> from joformer import NoFrames, positions
        >>> layer, x = BiasedAttention(32, 4), torch.rand(2, 5, 32)
        >>> layer(x, NoFrames()(positions.sequence(5), x)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(self, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__(dim, heads, transport="none", causal=True, dropout=dropout)
        self.slopes: Tensor
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)
        # What is loaded into a model made on "meta" does not hold them.
        self.register_load_state_dict_pre_hook(_fill_in)

    def reset_parameters(self) -> None:
        """Fills in the slopes."""
        self.slopes.copy_(alibi_slopes(self.heads))

    def forward(  # type: ignore[override]
        self,
        x: Float[Tensor, "batch tokens dim"],
        frames: Frames,
        *,
        cache: JourneyCache | None = None,
        segments: Int[Tensor, "*batch _keys"] | None = None,
        inner: None = None,
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Attends to x, or to the tokens of a cache followed by x; see `JourneyAttention`."""
        _alone("ALiBi", parallel)
        far = _distances(x.shape[1], 0 if cache is None else cache.tokens, x.device)
        bias = (-self.slopes[:, None, None] * far).to(x.dtype)
        return super().forward(x, frames, cache=cache, segments=segments, mask=bias[None])


def _fill_in(layer: BiasedAttention, *_: object) -> None:
    layer.reset_parameters()


class ClippedAttention(Mixer):
    """Causal attention with a learned vector per distance, added to keys and to values (Shaw); ignores frames.

    Args:
        dim: Width of the tokens.
        heads: Number of heads, which share the vectors.
        clip: The distance from which on all distances are treated as equal.
        dropout: Dropout probability of the attention weights.

    Example:
        >>> from joformer import NoFrames, positions
        >>> layer, x = ClippedAttention(32, 4), torch.rand(2, 5, 32)
        >>> layer(x, NoFrames()(positions.sequence(5), x)).shape
        torch.Size([2, 5, 32])
    """

    called, packs = "clipped distances", True

    def __init__(self, dim: int, heads: int, *, clip: int = CLIP, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} does not divide into {heads} heads: choose another number")
        self.dim, self.heads, self.clip, self.dropout = dim, heads, clip, dropout
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.key_at = nn.Parameter(torch.empty(clip + 1, dim // heads))
        self.value_at = nn.Parameter(torch.empty(clip + 1, dim // heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the vectors of the distances."""
        for at in (self.key_at, self.value_at):
            nn.init.normal_(at, std=0.02)

    def mix(self, x: Tensor, frames: Frames, cache: JourneyCache | None, segments: Tensor | None) -> Tensor:
        """The outputs of the tokens, from those before them."""
        before = 0 if cache is None else cache.tokens
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if cache is not None:
            cache.belongs_to(self)
            k, v = cache.update(k, v)
        far = _distances(x.shape[1], before, x.device)
        near = far.clamp(0, self.clip)
        scores = torch.einsum("bihd,bjhd->bhij", q, k)
        by_distance = torch.einsum("bihd,cd->bhic", q, self.key_at.to(q.dtype))
        scores = scores + by_distance.gather(-1, near.expand(*scores.shape))
        forbidden = far < 0
        if segments is not None:
            own = segments if segments.dim() == 2 else segments[None]
            forbidden = forbidden | (own[:, -x.shape[1] :, None] != own[:, None, :])[:, None]
        scores = scores.to(torch.promote_types(q.dtype, torch.float32)) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(forbidden, -torch.inf)
        weights = F.dropout(scores.softmax(-1).to(v.dtype), self.dropout, self.training)
        # The weight at each distance is on the diagonals; the rest is beyond them.
        rows = torch.arange(x.shape[1], device=x.device)[:, None] + before
        columns = rows - torch.arange(self.clip, device=x.device)
        at = weights.gather(-1, columns.clamp(min=0).expand(*weights.shape[:-1], -1)).where(columns >= 0, 0)
        at = torch.cat((at, weights.sum(-1, keepdim=True) - at.sum(-1, keepdim=True)), -1)
        mixed = torch.einsum("bhij,bjhd->bihd", weights, v)
        mixed = mixed + torch.einsum("bhic,cd->bihd", at, self.value_at.to(v.dtype))
        return self.out(mixed.flatten(2))


class LinearAttention(Mixer):
    """Causal linear attention in O(tokens), with frames on scores and values.

    Args:
        dim: Width of the tokens.
        heads: Number of heads.
        transport: On which sides the frames act.

    Example:
        >>> from joformer import FixedFrames, positions
        >>> layer = LinearAttention(32, 4)
        >>> layer(torch.rand(2, 5, 32), FixedFrames(8)(positions.sequence(5))).shape
        torch.Size([2, 5, 32])
    """

    called = "linear attention"

    def __init__(self, dim: int, heads: int, *, transport: Transport = "both") -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"dim={dim} does not divide into {heads} heads: choose another number")
        sides(transport)
        self.dim, self.heads, self.transport = dim, heads, transport
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)

    def mix(self, x: Tensor, frames: Frames, cache: JourneyCache | None, segments: Tensor | None) -> Tensor:
        """The outputs of the tokens, from those before them."""
        scores, values = sides(self.transport)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        with without_autocast(x.device):
            q, k, v = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (q, k, v))
            q, k = F.elu(q) + 1, F.elu(k) + 1
            total = k.new_zeros(k.shape[0], self.heads, k.shape[-1])
            memory = k.new_zeros(*total.shape, k.shape[-1])
            if cache is not None and cache.state is not None:
                memory, total = cache.state
            # The denominator uses the positive features without rotation.
            weight, total = _causal_sums(q, k, v.new_ones(*v.shape[:-1], 1), total.unsqueeze(-1))
            if scores:
                q, k = rotate(q, frames), rotate(k, frames)
            mixed, memory = _causal_sums(q, k, rotate(v, frames) if values else v, memory)
            mixed = (mixed / weight).to(x.dtype)
        if cache is not None:
            _keep(cache, self, x.shape[1], (memory, total.squeeze(-1)), frames)
        return unrotate_linear(mixed, frames, self.out) if values else self.out(mixed.flatten(2))


class Recurrence(Mixer):
    """A state that each token rotates, decays and adds to: `JourneySSM` as a layer of a model; ignores frames.

    Args:
        dim: Width of the tokens.
        heads: Number of heads.
        content: Whether angles and decay depend on the tokens (selective), or are the same for all.
        base: Base of the initial frequencies.

    Example:
        >>> from joformer import NoFrames, positions
        >>> layer, x = Recurrence(32, 4), torch.rand(2, 5, 32)
        >>> layer(x, NoFrames()(positions.sequence(5), x)).shape
        torch.Size([2, 5, 32])
    """

    called = "a recurrence"

    def __init__(self, dim: int, heads: int, *, content: bool = True, base: float = 10000.0) -> None:
        super().__init__()
        self.dim = dim
        self.ssm = JourneySSM(dim, heads=heads, content=content, base=base)

    def mix(self, x: Tensor, frames: Frames, cache: JourneyCache | None, segments: Tensor | None) -> Tensor:
        """The outputs of the tokens, from those before them."""
        y, state = self.ssm(x, None if cache is None or cache.state is None else cache.state[0])
        if cache is not None:
            _keep(cache, self, x.shape[1], (state,), frames)
        return y


def _causal_sums(q: Tensor, k: Tensor, v: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{j≤i} (qᵢ·kⱼ) vⱼ for all i, including earlier tokens in `memory` = Σ k vᵀ; and the updated memory.

    >>> one = torch.ones(1, 3, 1, 1)
    >>> sums, memory = _causal_sums(one, one, one, torch.zeros(1, 1, 1, 1))
    >>> sums.flatten().tolist(), memory.item()
    ([1.0, 2.0, 3.0], 3.0)
    """
    tokens = q.shape[1]
    beyond = -tokens % CHUNK
    q, k, v = (F.pad(t, (0, 0, 0, 0, 0, beyond)).unflatten(1, (-1, CHUNK)).transpose(2, 3) for t in (q, k, v))
    within = (q @ k.transpose(-1, -2)).tril() @ v
    of_chunk = k.transpose(-1, -2) @ v  # (batch, chunks, heads, d, d)
    upto = memory.unsqueeze(1) + of_chunk.cumsum(1)
    before = torch.cat((memory.unsqueeze(1), upto[:, :-1]), 1)
    sums = (within + q @ before).transpose(2, 3).flatten(1, 2)[:, :tokens]
    return sums, upto[:, -1]


def _distances(tokens: int, before: int, device: torch.device) -> Int[Tensor, "tokens keys"]:
    """i − j for the new tokens i and all tokens j."""
    keys = torch.arange(before + tokens, device=device)
    return keys[before:, None] - keys


def _keep(cache: JourneyCache, layer: nn.Module, tokens: int, state: tuple[Tensor, ...], frames: Frames) -> None:
    cache.belongs_to(layer)
    cache.state = state
    cache.tokens += tokens
    cache.angles = cache.angles if frames.end is None else frames.end


def _alone(name: str, parallel: ContextParallel | None, segments: Tensor | None = None) -> None:
    if parallel is not None:
        raise ValueError(
            f"{name} does not support context parallelism: leave out --context-parallel, or use F, W and N layers"
        )
    if segments is not None:
        raise ValueError(f"{name} cannot keep packed sequences apart: give one per row, or use F, W, N, A, C")
