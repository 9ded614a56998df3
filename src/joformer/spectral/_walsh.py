"""The Hadamard transform and, in order of sequency, the Walsh transform, by a few small matrix products.

    H_n = H_2 ⊗ ⋯ ⊗ H_2 = H_{n_1} ⊗ ⋯ ⊗ H_{n_d},       n = n_1 ⋯ n_d = 2^m
    W_n = P H_n,                                         P = bit reversal ∘ Gray code

Paper: "Hadamard Transform", "Walsh Transform"; the paper has one axis, and the Gray code alone. The butterfly makes m
passes over memory. Grouped into digits of four or five bits it makes a quarter as many, each a product with a matrix of
16 × 16 or 32 × 32 that costs hardly more than the pass itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.spectral._checks import along_axes, power_of_two, transform_axes
from joformer.spectral._fast import reorder
from joformer.spectral._tables import remember


def hadamard(
    x: Tensor, dim: int | Sequence[int] = -1, *, order: str = "natural", norm: str | None = None
) -> Float[Tensor, "..."]:
    """H x along `dim`: the Hadamard transform, or the Walsh transform W x = P H x.

    H is its own inverse up to 1/n, in either order: with norm="ortho" (1/√n) it is exactly its own inverse, and
    with norm="forward" (1/n) it is the inverse of the default.

    Args:
        x: Real numbers, ``(...)``.
        dim: The axis to transform, or several; lengths must be powers of two.
        order: "natural", that of ``scipy.linalg.hadamard``, or "sequency", by the number of sign changes (Walsh).
        norm: None or "backward" (no factor), "ortho" (1/√n) or "forward" (1/n).

    Returns:
        Real numbers of the shape and dtype of `x`; integers give the default dtype.

    Raises:
        ValueError: If `x` is complex, a length is not a power of two, or `dim`, `order` or `norm` is unknown.

    Example:
        >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        tensor([10., -2., -4.,  0.])
        >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]), order="sequency")
        tensor([10., -4.,  0., -2.])
    """
    axes = transform_axes(x, dim, norm)
    if order not in ("natural", "sequency"):
        raise ValueError(f"order {order!r} is unknown: use 'natural' or 'sequency'")
    return along_axes(x, axes, "Hadamard transform", power_of_two, lambda y: _along_last(y, order, norm))


def sequency_rows(n: int, device: torch.device | None = None) -> Tensor:
    """P of W = P H as the rows of H in order of sequency: the bit reversal of the Gray code of 0 … n − 1.

    Args:
        n: Number of rows, a power of two.
        device: Device of the result.

    Returns:
        Row numbers, ``(n,)``, int64.

    Example:
        >>> sequency_rows(8).tolist()
        [0, 4, 6, 2, 3, 7, 5, 1]
    """
    bits = power_of_two(n)
    k = torch.arange(n, device=device)
    gray, rows = k.bitwise_xor(k.bitwise_right_shift(1)), torch.zeros_like(k)
    for b in range(bits):
        rows += gray.bitwise_right_shift(b).bitwise_and(1).bitwise_left_shift(bits - 1 - b)
    return rows


def _along_last(x: Tensor, order: str, norm: str | None) -> Tensor:
    n, bits, batch = x.shape[-1], power_of_two(x.shape[-1]), x.shape[:-1].numel()
    # Small inputs are bound by the number of calls, many short rows by that of products: use fewer, larger digits.
    digit = 7 if bits <= 7 else 6 if batch * n <= 1 << 14 else 5
    y = x.reshape(batch, n)
    for h in remember(_factors, x, n, bits, digit, norm):
        if len(h) == n:
            y = y @ h
        else:
            # The leading digit is transformed and becomes the last: after all digits the original order is restored.
            y = torch.bmm(y.view(batch, len(h), n // len(h)).mT, h.expand(batch, -1, -1)).view(batch, n)
    y = y.view(x.shape)
    return y if order == "natural" else reorder(y, *remember(_sequency, x, n))


def _factors(n: int, bits: int, digit: int, norm: str | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    digits = max(1, -(-bits // digit))
    scale = n ** -{"ortho": 0.5, "forward": 1.0}.get(str(norm), 0.0)
    factors = []
    for d in range(digits):
        h = torch.full((1, 1), scale if d == 0 else 1.0, dtype=dtype)
        for _ in range(bits // digits + (d < bits % digits)):
            h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)))
        factors.append(h)
    return tuple(factors)


def _sequency(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (sequency_rows(n),)
