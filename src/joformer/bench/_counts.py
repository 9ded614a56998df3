"""Counting what operations read and write, on tensors without data: no GPU is needed, and nothing is computed.

    bytes per element = (bytes read + bytes written) / entries of what is rotated

A rotation on a GPU waits for memory, so that bytes are its time. Eager PyTorch starts one kernel per operation, which
reads and writes every tensor of it once; a kernel of our own, or of others, is counted by its loads and stores. Matrix
products are left out: they are there without positions too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

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

    def add_kernel(self, read: Iterable[Tensor | None], written: Iterable[Tensor | None], tables: int) -> None:
        """Adds a kernel that loads and stores each entry once.

        >>> import torch
        >>> count, x = Count(), torch.zeros(8)
        >>> count.add_kernel([x], [x], tables=16)
        >>> count
        Count(bytes=64, tables=16, launches=1)
        """
        self.bytes += sum(map(size, read)) + sum(map(size, written))
        self.tables += tables
        self.launches += 1


def size(t: Any) -> int:
    """Bytes of a tensor in memory: what is expanded is read once.

    >>> import torch
    >>> size(torch.zeros(4, 1).expand(4, 3)), size(None)
    (16, 0)
    """
    if not isinstance(t, Tensor):
        return 0
    entries = 1
    for length, stride in zip(t.shape, t.stride(), strict=True):
        entries *= length if stride or length == 1 else 1
    return entries * t.element_size()


class Counting(TorchDispatchMode):
    """Counts every operation while it is entered.

    Example:
        >>> import torch
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
        given = dict(zip([a.name for a in func._schema.arguments], args, strict=False)) | kwargs
        if name == "rotate_parts":
            self._count_ours(given)
        elif (
            not func.is_view
            and name not in _PRODUCTS
            and not name.startswith(("empty", "new_empty", "detach", "_unsafe"))
        ):
            for argument in func._schema.arguments:
                value = given.get(argument.name)
                written = argument.alias_info is not None and argument.alias_info.is_write
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    reads = not written or (name.endswith("_") and name not in _UNREAD)
                    self.count.bytes += size(tensor) * (reads + written)
            if not any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments):
                self.count.bytes += sum(map(size, out if isinstance(out, list | tuple) else (out,)))
            self.count.launches += 1
        return out

    def _count_ours(self, given: dict[str, Any]) -> None:
        """The loads and stores of our kernel: each entry once, cos and sin once per row of the batch."""
        parts, unit = given["parts"], given["unit"]
        touched = [p for p, o, its in zip(parts, given["out"], given["rotated"], strict=True) if its or p is not o]
        tables = size(unit) * (1 if unit.shape[0] > 1 else parts[0].shape[0])
        self.count.add_kernel([*touched, *given["results"]], [*touched, given["angles"], given.get("home")], tables)
