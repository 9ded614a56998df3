"""The constants of the fast transforms, cached: they cost more than the transform itself.

Keyed on everything they depend on, few and small; only plain tensors are kept, so nothing made inside torch.compile,
torch.func, a fake or an inference mode ever leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from joformer._precision import is_traced

MOST_TABLES = 64
LONGEST = 1 << 16  # beyond it the transform itself costs enough that making its table does not matter
_tables: dict[Hashable, tuple[Tensor, ...]] = {}


def remember(make: Callable[..., tuple[Tensor, ...]], x: Tensor, n: int, *key: Hashable) -> tuple[Tensor, ...]:
    """make(n, *key, dtype) for the dtype of x (...), on its device; made once while few and short.

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
    # On the CPU first: some devices have no float64 to form the angles in.
    tables = make(n, *key, x.dtype)
    if x.dtype == torch.float32:  # reordered by index_select, which takes short indices too: 5 % faster with them
        tables = tuple(table.int() if table.dtype == torch.int64 else table for table in tables)
    return tuple(table.to(x.device) for table in tables)
