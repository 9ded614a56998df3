"""Bytes that rotations read and write, and kernels they start: counted on tensors without data, so no GPU is needed.

    bytes per element = (bytes read + bytes written) / entries of what is rotated

A rotation on a GPU waits for memory, so that bytes are its time. Eager PyTorch starts one kernel per operation, reads
and writes every tensor of it once; our kernel reads and writes each entry once. Matrix products are left out: they are
there without positions too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from joformer.bench._measure import Effort, Row
from joformer.frames import FlatFrames
from joformer.rotation import _kernels, rotate_packed_, unrotate_linear

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 256, 8, 64
"""Few enough to count in a moment; bytes per element hardly depend on them."""
_PRODUCTS = {"mm", "addmm", "bmm", "t"}
_UNREAD = {"copy_", "empty", "new_empty", "empty_like", "zeros", "ones", "fill_", "zero_"}


@dataclass
class Count:
    """What was counted: bytes read and written, those of cos and sin apart, kernels started."""

    bytes: int = 0
    tables: int = 0
    launches: int = 0


def _size(t: Any) -> int:
    """Bytes of a tensor that are read from memory: what is expanded is read once."""
    if not isinstance(t, Tensor):
        return 0
    entries = 1
    for length, stride in zip(t.shape, t.stride(), strict=True):
        entries *= length if stride or length == 1 else 1
    return entries * t.element_size()


class Counting(TorchDispatchMode):
    """Counts every operation while it is entered.

    Example:
        >>> with Counting() as counted:
        ...     _ = torch.ones(8, device="meta") * 2
        >>> counted.count.bytes, counted.count.launches
        (96, 2)
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = Count()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and adds what it reads and writes."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if name == "rotate_parts":
            self._count_kernel(*args, **kwargs)
        elif (
            not func.is_view
            and name not in _PRODUCTS
            and not name.startswith(("empty", "new_empty", "detach", "_unsafe"))
        ):
            given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
            for argument in func._schema.arguments:
                value = given.get(argument.name)
                written = argument.alias_info is not None and argument.alias_info.is_write
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    reads = not written or (name.endswith("_") and name not in _UNREAD)
                    self.count.bytes += _size(tensor) * (reads + written)
            if not any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
                self.count.bytes += sum(map(_size, out if isinstance(out, list | tuple) else (out,)))
            self.count.launches += 1
        return out

    def _count_kernel(self, parts: Any, out: Any, unit: Any, rotated: Any, *rest: Any) -> None:
        """The loads and stores of our kernel: each entry once, cos and sin once per row of the batch."""
        results, angles, home = rest[-3:]
        touched = [p for p, o, its in zip(parts, out, rotated, strict=True) if its or p is not o]
        self.count.bytes += 2 * sum(map(_size, touched)) + sum(map(_size, results)) + _size(angles) + _size(home)
        self.count.tables += _size(unit) * (1 if unit.shape[0] > 1 else parts[0].shape[0])
        self.count.launches += 1


@contextmanager
def _with_kernels() -> Iterator[None]:
    with patch.object(_kernels, "_WANTED", "triton"), patch.object(_kernels, "_triton_is_here", lambda: True):
        yield


def count(learned: bool, *, kernels: bool) -> tuple[Count, Count, int]:
    """What rotating q, k, v and rotating o back costs a layer in bf16, forward and backward.

    Args:
        learned: Whether the angles get a gradient.
        kernels: Whether our kernel is used, as on a GPU, or PyTorch's operations.

    Returns:
        Of the forward, of the backward, and the number of entries of q, k, v and o.

    Example:
        >>> forward, backward, entries = count(learned=False, kernels=True)
        >>> forward.bytes / entries, forward.launches
        (4.0, 2)
    """
    device, dtype = torch.device("meta"), torch.bfloat16
    dim = HEADS * HEAD_DIM
    angles = torch.zeros(1, TOKENS, 1, HEAD_DIM // 2, device=device, requires_grad=learned)
    frames = FlatFrames.of(angles, layout="half")
    packed = torch.zeros(BATCH, TOKENS, 3 * dim, device=device, dtype=dtype, requires_grad=True)
    o = torch.zeros(BATCH, TOKENS, HEADS, HEAD_DIM, device=device, dtype=dtype, requires_grad=True)
    linear = nn.Linear(dim, dim, bias=False, device=device, dtype=dtype)
    widths = [(HEADS, HEAD_DIM)] * 3
    with _with_kernels() if kernels else patch.object(_kernels, "_WANTED", "eager"):
        for counting in (nullcontext(), Counting()):  # the first layer prepares what all share
            fresh = packed * 1
            with counting as forward:
                parts = rotate_packed_(fresh, widths, [frames] * 3)
                out = unrotate_linear(o, frames, linear)
        grads = [*(torch.zeros_like(part) for part in parts), torch.zeros_like(out)]
        with Counting() as backward:
            torch.autograd.grad([*parts, out], [fresh, o, linear.weight, *[angles] * learned], grads)
    assert forward is not None
    return forward.count, backward.count, 4 * BATCH * TOKENS * dim


def traffic(effort: Effort) -> Iterator[Row]:
    """Bytes and launches per layer, with our kernel, with PyTorch's operations, and Hugging Face's on q and k."""
    for kernels, how in ((True, "kernel"), (False, "eager")):
        for learned, what in ((False, "fixed angles"), (True, "learned angles")):
            forward, backward, entries = count(learned, kernels=kernels)
            for found, way in ((forward, "forward"), (backward, "backward")):
                bars = {"forward": 4.0} if kernels else {}
                name = f"{how}, {what}, {way}"
                yield Row(f"bytes per element of q, k, v and o in bf16, {name}", found.bytes / entries, bars.get(way))
                yield Row(f"launches per layer, {name}", found.launches, 2.0 if way in bars else None)
    try:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    except ImportError:
        return
    shape, device = (BATCH, HEADS, TOKENS, HEAD_DIM), torch.device("meta")
    q, k = (torch.zeros(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
    cos = torch.zeros(BATCH, TOKENS, HEAD_DIM, device=device, dtype=torch.bfloat16)
    with Counting() as forth:
        rotated = apply_rotary_pos_emb(q, k, cos, cos)
    with Counting() as back:
        torch.autograd.grad(rotated, (q, k), [torch.zeros_like(part) for part in rotated])
    for found, way in ((forth.count, "forward"), (back.count, "backward")):
        name = f"Hugging Face, {way}"
        yield Row(f"bytes per element of q and k in bf16, {name}", found.bytes / (2 * q.numel()))
        yield Row(f"launches per layer, {name}", found.launches)
