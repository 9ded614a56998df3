"""What a mask says, the same for every backend.

boolean     True: may attend
additive    added to the scores; −inf forbids, and so does the most negative number of the mask's dtype or of q's
"""

from __future__ import annotations

import torch
from torch import Tensor


def check_dimensions(mask: Tensor, batch: int, queries: int) -> None:
    """Raises for a mask of two dimensions that may be (queries, keys) as well as (batch, keys).

    >>> check_dimensions(torch.ones(5, 7), batch=2, queries=5)
    """
    if mask.dim() != 2 or exporting():  # one graph for all lengths may not ask whether two of them are equal
        return
    if mask.shape[0] > 1 and mask.shape[0] == batch == queries:
        raise ValueError(
            f"mask {tuple(mask.shape)} may be (queries, keys) or (batch, keys), both have {batch} rows: "
            "say mask[None, None] for the one, mask[:, None, None] for the other"
        )


def in_dtype(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as it is added to scores of `dtype`, −inf wherever it forbids; boolean ones stay as they are.

    The most negative number is what most programs write for "forbidden". Added to any score it leaves itself, so that
    a query without a single key would attend to all of them alike.

    >>> in_dtype(torch.tensor([0.5, torch.finfo(torch.float32).min]), torch.bfloat16)
    tensor([0.5000,   -inf], dtype=torch.bfloat16)
    """
    if mask.dtype == torch.bool:
        return mask
    lowest = max(torch.finfo(mask.dtype).min, torch.finfo(dtype).min)
    return mask.masked_fill(mask <= lowest, -torch.inf).to(dtype)


def exporting() -> bool:
    """Whether `torch.export` is watching, whose graph has to serve all lengths."""
    return getattr(torch.compiler, "is_exporting", bool)()  # torch 2.6 has none
