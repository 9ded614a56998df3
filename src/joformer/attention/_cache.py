"""What attention remembers between calls: keys and values already carried to the common frame.

    stored   A_j k_j,  A_j v_j          a new query needs only its own frame:  A_i⁻¹ Σ_j α_ij (A_j v_j)

Rotated once when they come in, never again. Cumulative frames also leave the angle they have reached. In gradient mode
all of it carries gradients: chunk after chunk gives those of one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class JourneyCache:
    """Keys and values of one attention layer, (batch, tokens, kv_heads, head_dim), stored rotated.

    `JourneyCache()` grows as needed; `JourneyCache(length=n)` allocates room for n tokens once and refuses more;
    `JourneyCache(window=w)` keeps only the w − 1 tokens that the next query of a windowed layer can still see.

    `tokens` counts all tokens seen, so the next position is `positions.sequence(n, offset=cache.tokens)`.
    `angles` is the angle state of cumulative frames: `frames = module(positions, x, state=cache.angles)`.

    >>> cache = JourneyCache()
    >>> k, v = cache.update(torch.rand(1, 3, 2, 8), torch.rand(1, 3, 2, 8))
    >>> k, v = cache.update(torch.rand(1, 1, 2, 8), torch.rand(1, 1, 2, 8))
    >>> k.shape, cache.tokens
    (torch.Size([1, 4, 2, 8]), 4)
    """

    def __init__(self, *, length: int | None = None, window: int | None = None) -> None:
        if length is not None and window is not None:
            raise ValueError("a cache is preallocated (length=) or sliding (window=), not both")
        for name, size in (("length", length), ("window", window)):
            if size is not None and size < 1:
                raise ValueError(f"{name} must be 1 or more tokens, got {size}")
        self.length, self.window = length, window
        self._store: tuple[Tensor, Tensor] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything; preallocated room is kept."""
        self.tokens = self._held = 0
        self._owner: int | None = None
        self.angles: Tensor | None = None
        if self.length is None:
            self._store = None

    def update(
        self, keys: Float[Tensor, "batch new kv_heads head_dim"], values: Float[Tensor, "batch new kv_heads value_dim"]
    ) -> tuple[Tensor, Tensor]:
        """Take in rotated keys and values; returns all that the new tokens may attend to, the new ones last."""
        self._check(keys, values)
        if self._store is not None and self._store[0].is_inference() and not torch.is_inference_mode_enabled():
            self._store = (self._store[0].clone(), self._store[1].clone())
        if self.window is not None:
            seen = self._joined(keys, values)
            start = max(seen[0].shape[1] - (self.window - 1), 0)
            # A mere slice would keep the whole prefill alive behind it.
            self._store = (seen[0][:, start:].clone(), seen[1][:, start:].clone()) if start else seen
            self._held = self._store[0].shape[1]
        elif torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
            seen = self._store = self._joined(keys, values)
            self._held = self._store[0].shape[1]
        else:
            start, stop = self._held, self._held + keys.shape[1]
            for room, new in zip(self._room(keys, values, start), (keys, values), strict=True):
                room[:, start:stop] = new
            self._held = stop
            seen = self._seen()
        self.tokens += keys.shape[1]
        return seen

    def belongs_to(self, layer: object) -> None:
        """Every layer has keys of its own: refuse a cache that another layer has begun to fill."""
        if self._owner is None:
            self._owner = id(layer)
        elif self._owner != id(layer):
            raise ValueError("this cache holds the keys of another layer: make one JourneyCache for each layer")

    def reorder(self, rows: Int[Tensor, "batch"] | Sequence[int]) -> None:
        """Make row i continue what row rows[i] began: what beam search does after each step."""
        rows = torch.as_tensor(rows, device=None if self._store is None else self._store[0].device)
        with Unchanged(self):
            if self.angles is not None and self.angles.shape[0] > 1:
                self.angles = self.angles.index_select(0, rows)
            if self._store is not None:
                self._store = (self._store[0].index_select(0, rows), self._store[1].index_select(0, rows))

    def _seen(self) -> tuple[Tensor, Tensor]:
        assert self._store is not None
        return self._store[0][:, : self._held], self._store[1][:, : self._held]

    def _joined(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self._store is None:
            return keys, values
        held = self._seen()
        return torch.cat((held[0], keys), 1), torch.cat((held[1], values), 1)

    def _room(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Storage with room for the new tokens, what is held copied over where it had to grow."""
        need = start + keys.shape[1]
        if self._store is None or need > self._store[0].shape[1]:
            # Doubling keeps the copying O(1) per token however long the sequence gets.
            room = self.length or max(need, 2 * start, 64)
            bigger = tuple(t.new_empty(t.shape[0], room, *t.shape[2:]) for t in (keys, values))
            if self._store is not None:
                for new, old in zip(bigger, self._store, strict=True):
                    new[:, :start] = old[:, :start]
            self._store = (bigger[0], bigger[1])
        return self._store

    def _check(self, keys: Tensor, values: Tensor) -> None:
        if self.length is not None:
            if self._held + keys.shape[1] > self.length:
                raise ValueError(
                    f"the cache has room for {self.length} tokens but {self._held + keys.shape[1]} are needed: "
                    "build it with a greater length"
                )
            if torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad):
                raise ValueError("a preallocated cache cannot carry gradients: use torch.no_grad(), or JourneyCache()")
        if self._store is None:
            return
        for name, new, held in zip(("keys", "values"), (keys, values), self._store, strict=True):
            if (new.shape[0], *new.shape[2:]) != (held.shape[0], *held.shape[2:]) or new.dtype != held.dtype:
                raise ValueError(
                    f"{name} {tuple(new.shape)} {new.dtype} do not continue the cached {tuple(held.shape)} "
                    f"{held.dtype}: batch, heads, width and dtype must stay; cache.reset() starts anew"
                )


class Unchanged:
    """A context that puts caches back as they were, their owner included, if anything in it raises.

    What is stored is never overwritten, only written after or replaced, so that putting back copies nothing.

    >>> cache = JourneyCache()
    >>> try:
    ...     with Unchanged(cache):
    ...         k, v = cache.update(torch.rand(1, 3, 2, 8), torch.rand(1, 3, 2, 8))
    ...         raise KeyboardInterrupt
    ... except KeyboardInterrupt:
    ...     print(cache.tokens)
    0
    """

    def __init__(self, *caches: JourneyCache) -> None:
        self._before = [(c, c.tokens, c._held, c._owner, c.angles, c._store) for c in caches]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            for cache, tokens, held, owner, angles, store in self._before:
                cache.tokens, cache._held, cache._owner = tokens, held, owner
                cache.angles, cache._store = angles, store
