"""The constants of the fast transforms, cached, because computing them costs more than the transform itself.

Keyed on everything they depend on, few and small. Only plain tensors are kept, so that nothing created inside
torch.compile, torch.func, or a fake or inference mode leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from joformer._precision import is_traced

MOST_TABLES = 64
LONGEST = 1 << 16  # beyond it the cost of the table does not matter next to that of the transform
_tables: dict[Hashable, tuple[Tensor, ...]] = {}


def remember(make: Callable[..., tuple[Tensor, ...]], x: Tensor, n: int, *key: Hashable) -> tuple[Tensor, ...]:
    """make(n, *key, dtype) for the dtype of x (...), on its device; cached while tables are few and short.

    >>> remember(lambda n, dtype: (torch.arange(n, dtype=dtype),), torch.ones(1), 3)
    (tensor([0., 1., 2.]),)
    """
    if is_traced() or type(x) is not Tensor:
        return _made(make, x, n, *key)
    entry = (make, n, *key, x.dtype, x.device)
    table = _tables.get(entry)
    if table is None:
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            table = _made(make, x, n, *key)
        if n <= LONGEST and all(type(part) is Tensor for part in table):
            while len(_tables) >= MOST_TABLES:
                _tables.pop(next(iter(_tables)))
            _tables[entry] = table
    return table


def _made(make: Callable[..., tuple[Tensor, ...]], x: Tensor, n: int, *key: Hashable) -> tuple[Tensor, ...]:
    # On the CPU first: some devices have no float64, in which the angles are computed.
    tables = make(n, *key, x.dtype)
    if x.dtype == torch.float32:  # index_select also takes int32 indices, which are 5 % faster
        tables = tuple(table.int() if table.dtype == torch.int64 else table for table in tables)
    return tuple(table.to(x.device) for table in tables)
