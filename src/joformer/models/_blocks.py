"""The pre-norm transformer block that all models here stack, and the loop over the layers.

x ← x + Attention(LN(x), frames)        x ← x + W_down GELU(W_up LN(x))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer.attention import ContextParallel, JourneyAttention, JourneyCache
from joformer.attention._module import Inner
from joformer.frames import Frames, FramesModule


def require_counts(config: object, *names: str) -> None:
    """Raises ValueError if one of these fields is less than 1; None, which stands for a default, is allowed.

    >>> from types import SimpleNamespace
    >>> require_counts(SimpleNamespace(heads=0), "heads")
    Traceback (most recent call last):
    ValueError: heads must be 1 or more, got 0
    """
    for name in names:
        value = getattr(config, name)
        if any(one is not None and one < 1 for one in (value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{name} must be 1 or more, got {value}")


def require_probabilities(**values: float) -> None:
    """Raises ValueError unless all values are probabilities, 0 ≤ p < 1.

    >>> require_probabilities(dropout=1.0)
    Traceback (most recent call last):
    ValueError: dropout is a probability below 1, got 1.0
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} is a probability below 1, got {value}")


class Block(nn.Module):
    """x ← x + Attention(LN(x), frames), then x ← x + W_down GELU(W_up LN(x)).

    Args:
        attention: Journey attention of width dim, or another layer with the same call (_mixers.py).
        hidden: Width of the feed-forward network.
        bias: Whether the feed-forward network has biases.
        dropout: Dropout probability, 0 ≤ p < 1, on both residual branches.
        drop_path: Probability, 0 ≤ p < 1, that a sample skips a residual branch in training (stochastic depth); the
            other samples are scaled up by 1 / (1 − p).

    Example:
        >>> from joformer import FixedFrames, JourneyAttention, positions
        >>> block = Block(JourneyAttention(32, 4), hidden=64)
        >>> block(torch.rand(2, 5, 32), FixedFrames(8)(positions.sequence(5))).shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        attention: Any,
        hidden: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        require_probabilities(dropout=dropout, drop_path=drop_path)
        dim = attention.dim
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = attention
        self.up, self.down = nn.Linear(dim, hidden, bias=bias), nn.Linear(hidden, dim, bias=bias)
        self.dropout, self.drop_path = nn.Dropout(dropout), drop_path

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        frames: Frames,
        *,
        cache: JourneyCache | None = None,
        segments: Int[Tensor, "*batch _keys"] | None = None,
        mask: Tensor | None = None,
        inner: Inner | None = None,
        parallel: ContextParallel | None = None,
    ) -> Float[Tensor, "batch tokens dim"]:
        """Applies the block.

        Args:
            x: Tokens, ``(batch, tokens, dim)``.
            frames: Their frames.
            cache: The keys and values of earlier tokens, extended in place.
            segments: Integers: tokens attend only to tokens of the same segment (packed sequences).
            mask: As in `journey_attention`; only for layers that are journey attention.
            inner: Replaces the attention backend; see `JourneyAttention`.
            parallel: The processes that share each sequence.

        Returns:
            ``(batch, tokens, dim)``.
        """
        masked = {} if mask is None else {"mask": mask}
        attended = self.attention(
            self.norm1(x), frames, cache=cache, segments=segments, inner=inner, parallel=parallel, **masked
        )
        x = x + self._kept(attended)
        return x + self._kept(self.down(F.gelu(self.up(self.norm2(x)))))

    def _kept(self, added: Tensor) -> Tensor:
        if not self.training:
            return added
        added = self.dropout(added)
        if not self.drop_path:
            return added
        kept = torch.rand(added.shape[0], 1, 1, device=added.device) >= self.drop_path
        return added * kept / (1 - self.drop_path)


def encoder(config: Any, *, bias: bool = True, drop_path: float = 0.0, **attention: Any) -> nn.ModuleList:
    """The layers of an encoder, from the fields that all configurations have: dim, layers, heads, hidden, …

    Deeper layers are skipped more often: the first never, the last with probability `drop_path`. `attention` are
    additional arguments of `JourneyAttention`.

    >>> from joformer.models import PointsConfig
    >>> len(encoder(PointsConfig(dim=32, layers=3)))
    3
    """
    dim, dropout = config.dim, config.dropout
    given = {"transport": config.transport or "none", "dropout": dropout, "bias": bias, **attention}
    return nn.ModuleList(
        Block(
            JourneyAttention(dim, config.heads, **given),
            hidden=4 * dim if config.hidden is None else config.hidden,
            bias=bias,
            dropout=dropout,
            drop_path=drop_path * layer / max(config.layers - 1, 1),
        )
        for layer in range(config.layers)
    )


class LayerFrames:
    """The frames of each layer in one forward pass: ``frames = layer_frames(layer, x)``.

    Frames that do not depend on content are computed in advance, once for all layers that share them; the others are
    computed from the input of each layer.

    Args:
        modules: One frames module per layer; several layers may share one.
        positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``.
        x: The input of the first layer, ``(batch, tokens, dim)``.
        grid: The shape of the grid that the last tokens form.
        caches: One cache per layer; cumulative frames continue from their `angles`.
        parallel: The processes that share each sequence.

    Example:
        >>> from joformer import FixedFrames, positions
        >>> shared = FixedFrames(8)
        >>> frames = LayerFrames([shared, shared], positions.sequence(5), torch.rand(1, 5, 16))
        >>> frames(0, torch.rand(1, 5, 16)) is frames(1, torch.rand(1, 5, 16))
        True
    """

    def __init__(
        self,
        modules: Iterable[nn.Module],
        positions: Tensor,
        x: Tensor,
        *,
        grid: tuple[int, ...] | None = None,
        caches: Sequence[JourneyCache] | None = None,
        parallel: ContextParallel | None = None,
    ) -> None:
        self.modules: list[Any] = list(modules)
        self.positions, self.grid, self.caches = positions, grid, caches
        self._across = {} if parallel is None else {"parallel": parallel}
        self._made: dict[tuple[FramesModule, int], Frames] = {}
        for layer, module in enumerate(self.modules):
            if not module.content and (key := self._key(layer)) not in self._made:
                self._made[key] = module(positions, x, layer=key[1], grid=grid)

    def __call__(self, layer: int, x: Tensor) -> Frames:
        made = self._made.get(self._key(layer))
        return self.by_content(layer, x) if made is None else made

    def by_content(self, layer: int, x: Float[Tensor, "batch tokens dim"]) -> Frames:
        """The frames of a layer whose module reads the content."""
        state = None if self.caches is None else self.caches[layer].angles
        return self.modules[layer](self.positions, x, layer=layer, grid=self.grid, state=state, **self._across)

    def _key(self, layer: int) -> tuple[FramesModule, int]:
        module = self.modules[layer]
        return module, layer if module.layers > 1 else 0


def run_blocks(
    blocks: Iterable[nn.Module],
    frames: LayerFrames,
    x: Float[Tensor, "batch tokens dim"],
    *,
    caches: Sequence[JourneyCache] | None = None,
    call: Callable[[int, nn.Module, Tensor], Tensor] | None = None,
) -> Iterator[Float[Tensor, "batch tokens dim"]]:
    """The output of each block: ``x ← block_l(x, frames_l)``, layer after layer.

    Args:
        blocks: The blocks, called as ``block(x, frames, cache=cache)``.
        frames: The frames of each layer.
        x: The input of the first block, ``(batch, tokens, dim)``.
        caches: One cache per layer.
        call: Runs each block instead, as ``call(layer, block, x)``, e.g. with other arguments or checkpointing.

    Yields:
        The tokens after each block.

    Example:
        >>> from joformer import FixedFrames, JourneyAttention, positions
        >>> blocks, x = [Block(JourneyAttention(32, 4), hidden=64) for _ in range(3)], torch.rand(2, 5, 32)
        >>> frames = LayerFrames([FixedFrames(8)] * 3, positions.sequence(5), x)
        >>> [state.shape for state in run_blocks(blocks, frames, x)][-1]
        torch.Size([2, 5, 32])
    """
    for layer, block in enumerate(blocks):
        if call is None:
            x = block(x, frames(layer, x), cache=None if caches is None else caches[layer])
        else:
            x = call(layer, block, x)
        yield x


def last(states: Iterable[Tensor]) -> Tensor:
    """The output of the last block.

    >>> last(iter([torch.zeros(1), torch.ones(1)]))
    tensor([1.])
    """
    for state in states:
        final = state
    return final
