"""The Hadamard transform and, in order of sequency, the Walsh transform, by a few small matrix products.

    H_n = H_2 ⊗ ⋯ ⊗ H_2 = H_{n_1} ⊗ ⋯ ⊗ H_{n_d},       n = n_1 ⋯ n_d = 2^m
    W_n = P H_n,                                         P = bit reversal ∘ Gray code

Paper: "Hadamard Transform", "Walsh Transform"; the print has one axis and the Gray code alone. The butterfly has m
passes over memory; grouped into digits of four or five bits it has a quarter as many, each a product with a matrix of
16 × 16 or 32 × 32 that costs hardly more than the pass itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._precision import without_autocast
from joformer.spectral._checks import given_dtype, power_of_two, real_input, require_norm, transform_axes
from joformer.spectral._fast import reorder
from joformer.spectral._tables import remember


def hadamard(
    x: Tensor, dim: int | Sequence[int] = -1, *, order: str = "natural", norm: str | None = None
) -> Float[Tensor, "..."]:
    """H x along `dim`, of lengths that are powers of two; scipy.linalg.hadamard's order, or by number of sign changes.

    H is its own inverse up to 1/n, in either order: norm="ortho" (1/√n) is its own inverse exactly, and
    norm="forward" (1/n) undoes the default.

    >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([10., -2., -4.,  0.])
    >>> hadamard(torch.tensor([1.0, 2.0, 3.0, 4.0]), order="sequency")
    tensor([10., -4.,  0., -2.])
    """
    axes = transform_axes(x, dim)
    require_norm(norm)
    if order not in ("natural", "sequency"):
        raise ValueError(f"order {order!r} is unknown: use 'natural' or 'sequency'")
    y = real_input(x, "Hadamard transform")
    for axis in axes:
        power_of_two(x.shape[axis])
    if not x.numel():
        return given_dtype(y, x).clone()
    with without_autocast(x.device):
        for axis in axes:
            y = _along_last(y.movedim(axis, -1), order, norm).movedim(-1, axis)
    return given_dtype(y, x)


def sequency_rows(n: int, device: torch.device | None = None) -> Tensor:
    """P of W = P H as the rows of H in order of sequency: the bit reversal of the Gray code of 0 … n − 1, (n,).

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
    # Of little work what costs is the number of calls, of many short rows the number of products: fewer, larger digits.
    digit = 7 if bits <= 7 else 6 if batch * n <= 1 << 14 else 5
    y = x.reshape(batch, n)
    for h in remember(_factors, x, n, bits, digit, norm):
        if len(h) == n:
            y = y @ h
        else:
            # The leading digit is transformed and becomes the last: after all of them the order is as it was.
            y = torch.bmm(y.view(batch, len(h), n // len(h)).mT, h.expand(batch, -1, -1)).view(batch, n)
    y = y.view(x.shape)
    return y if order == "natural" else reorder(y, *remember(_sequency, x, n))


def _factors(n: int, bits: int, digit: int, norm: str | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    digits = max(1, -(-bits // digit))
    scale = n ** -{"ortho": 0.5, "forward": 1.0}.get(str(norm), 0.0)
    factors = []
    for d in range(digits):
        k = torch.arange(1 << (bits // digits + (d < bits % digits)))
        both = k[:, None].bitwise_and(k)
        for shift in (4, 2, 1):  # the parity of up to 8 bits
            both = both.bitwise_xor(both.bitwise_right_shift(shift))
        factors.append((1 - 2 * both.bitwise_and(1)).to(dtype) * (scale if d == 0 else 1.0))
    return tuple(factors)


def _sequency(n: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (sequency_rows(n),)
