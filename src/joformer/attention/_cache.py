"""The cache of attention between calls: keys and values, already rotated into the common frame.

    stored   A_j k_j,  A_j v_j          a new query needs only its own frame:  A_i⁻¹ Σ_j α_ij (A_j v_j)

They are rotated once, when they are added. Cumulative frames also store the angle they have reached. In gradient mode
everything carries gradients: processing chunk after chunk gives the gradients of a single call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class JourneyCache:
    """Keys ``A_j k_j`` and values ``A_j v_j`` of one attention layer, (batch, tokens, kv_heads, head_dim).

    Args:
        length: Preallocate room for this many tokens, and raise for more; by default the cache grows as needed.
        window: Keep only the window − 1 tokens that the next query of a windowed layer can still see.

    Attributes:
        tokens: Number of tokens added so far: the next positions are ``positions.sequence(n, offset=cache.tokens)``.
        angles: The state of cumulative frames: ``frames = module(positions, x, state=cache.angles)``.
        state: What a recurrent layer keeps instead of keys and values: tensors whose first dimension is the batch.

    Raises:
        ValueError: If both `length` and `window` are given, or one is less than 1.

    Example:
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
        self._store: tuple[Tensor, ...] | None = None
        self.reset()

    def reset(self) -> None:
        """Empties the cache; preallocated memory is kept."""
        self.tokens = self._held = 0
        self._owner: int | None = None
        self.angles: Tensor | None = None
        self.state: tuple[Tensor, ...] | None = None
        if self.length is None:
            self._store = None

    def update(
        self, keys: Float[Tensor, "batch new kv_heads head_dim"], values: Float[Tensor, "batch new kv_heads value_dim"]
    ) -> tuple[Tensor, ...]:
        """Adds rotated keys and values.

        Args:
            keys: ``A_j k_j`` of the new tokens, ``(batch, new, kv_heads, head_dim)``.
            values: ``A_j v_j`` of the new tokens, ``(batch, new, kv_heads, value_dim)``.

        Returns:
            Keys and values of all tokens that the new ones may attend to, the new ones last.

        Raises:
            ValueError: If there is no room left, or shape or dtype differ from those of the cached tensors.
        """
        new = (keys, values)
        if not self._held and any(not _fits(its, held) for its, held in zip(new, self._store or (), strict=False)):
            self._store = None  # what it held before the reset was of another batch or dtype
        gradients = torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad)
        self._check(new, gradients)
        if self._store is not None and self._store[0].is_inference() and not torch.is_inference_mode_enabled():
            self._store = tuple(held.clone() for held in self._store)
        if self.window is None and not gradients:
            start, stop = self._held, self._held + keys.shape[1]
            for room, its in zip(self._room(new, stop), new, strict=True):
                room[:, start:stop] = its
            self._held = stop
            seen = self.held()
        else:
            seen = tuple(torch.cat(both, 1) for both in zip(self.held(), new, strict=True)) if self._store else new
            start = 0 if self.window is None else max(seen[0].shape[1] - (self.window - 1), 0)
            # A slice alone would keep the whole prefill alive.
            self._store = tuple(its[:, start:].clone() for its in seen) if start else seen
            self._held = self._store[0].shape[1]
        self.tokens += keys.shape[1]
        return seen

    def held(self) -> tuple[Tensor, ...]:
        """The cached keys and values."""
        assert self._store is not None
        return self._store[0][:, : self._held], self._store[1][:, : self._held]

    def belongs_to(self, layer: object) -> None:
        """Binds the cache to a layer; raises ValueError if another layer has already used it.

        Args:
            layer: The layer that the keys belong to.
        """
        if self._owner is None:
            self._owner = id(layer)
        elif self._owner != id(layer):
            raise ValueError("this cache holds the keys of another layer: make one JourneyCache for each layer")

    def reorder(self, rows: Int[Tensor, "batch"] | Sequence[int]) -> None:
        """Replaces row i by row rows[i], as beam search does after each step.

        Args:
            rows: For each row, the index of the row to continue.
        """
        rows = torch.as_tensor(rows, device=None if self._store is None else self._store[0].device)
        with Unchanged(self):
            if self.angles is not None and self.angles.shape[0] > 1:
                self.angles = self.angles.index_select(0, rows)
            if self.state is not None:
                self.state = tuple(held.index_select(0, rows.to(held.device)) for held in self.state)
            if self._store is not None:
                self._store = tuple(held.index_select(0, rows) for held in self._store)

    def _room(self, new: tuple[Tensor, ...], stop: int) -> tuple[Tensor, ...]:
        """Storage with room up to `stop`; if it has to grow, its contents are copied over."""
        if self._store is None or stop > self._store[0].shape[1]:
            # Doubling keeps the copying O(1) per token however long the sequence gets.
            room = self.length or max(stop, 2 * self._held, 64)
            bigger = tuple(its.new_empty(its.shape[0], room, *its.shape[2:]) for its in new)
            for to, held in zip(bigger, self._store or (), strict=False):
                to[:, : self._held] = held[:, : self._held]
            self._store = bigger
        return self._store

    def _check(self, new: tuple[Tensor, ...], gradients: bool) -> None:
        need = self._held + new[0].shape[1]
        if self.length is not None and need > self.length:
            raise ValueError(
                f"the cache has room for {self.length} tokens but {need} are needed: build it with a larger length"
            )
        if self.length is not None and gradients:
            raise ValueError("a preallocated cache cannot carry gradients: use torch.no_grad(), or JourneyCache()")
        for name, its, held in zip(("keys", "values"), new, self._store or (), strict=False):
            if not _fits(its, held):
                raise ValueError(
                    f"{name} {tuple(its.shape)} {its.dtype} do not continue the cached {tuple(held.shape)} "
                    f"{held.dtype}: batch, heads, width and dtype must be the same, or call cache.reset()"
                )


def _fits(new: Tensor, held: Tensor) -> bool:
    same = (new.shape[0], *new.shape[2:]) == (held.shape[0], *held.shape[2:])
    return same and new.dtype == held.dtype and new.device == held.device


class Unchanged:
    """A context manager that restores caches, including their owner, if anything in it raises.

    Stored tensors are never overwritten, only appended to or replaced, so that restoring copies nothing.

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
        self._before = [(c, c.tokens, c._held, c._owner, c.angles, c.state, c._store) for c in caches]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            for cache, tokens, held, owner, angles, state, store in self._before:
                cache.tokens, cache._held, cache._owner = tokens, held, owner
                cache.angles, cache.state, cache._store = angles, state, store
