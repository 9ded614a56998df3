"""What all frames values share: selecting tokens, moving to a device, registration as a pytree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from joformer._precision import Device, has_float64


def moved(t: Tensor, device: Device) -> Tensor:
    """A tensor on another device, float32 where that has no float64."""
    return (t.float() if t.dtype == torch.float64 and not has_float64(device) else t).to(device)


def select(t: Tensor, tokens: slice | Sequence[int] | Tensor) -> Tensor:
    """The tokens (dimension 1) of a slice, of indices (kept,), or of indices per row (batch, kept)."""
    if isinstance(tokens, slice):
        return t[:, tokens]
    index = torch.as_tensor(tokens, device=t.device)
    if index.dtype == torch.bool:
        raise ValueError("tokens must be selected by their indices, not by a mask: use mask.nonzero().flatten()")
    if index.dim() == 1:
        return t.index_select(1, index)
    if index.dim() != 2:
        raise ValueError(f"tokens must be a slice, (kept,) or (batch, kept) indices, got {tuple(index.shape)}")
    if t.shape[0] == 1:
        return t[0][index]
    return t[torch.arange(t.shape[0], device=t.device)[:, None], index]


def register(cls: type, tensors: tuple[str, ...], rest: tuple[str, ...]) -> None:
    """Registers a class of frames as a pytree, so that vmap, export and checkpointing see the tensors inside."""

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, name) for name in tensors], tuple(getattr(value, name) for name in rest)

    def unflatten(leaves: Any, context: Any) -> Any:
        return cls(**dict(zip(tensors, leaves, strict=True)), **dict(zip(rest, context, strict=True)))

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"joformer.{cls.__name__}")
