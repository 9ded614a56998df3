"""DCT-I to IV and DST-I to IV at the regular spectrum, with scipy's normalisation.

    y_k = c_k Σ_n w_n cos θ_k(n+s) x_n        or sin; θ, s, w and c of the eight are listed in `spectrum`

Paper: "Discrete Cosine Transform", "Discrete Sine Transform". II, III and IV cost one FFT of the length of the axis or
half of it (`_fast`); I costs the rfft of the even or odd extension, 2(N ∓ 1) points. II and III are inverses of each
other, I and IV of themselves, with "backward" and "forward" exchanged. Short axes are multiplied by the basis directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.spectral._checks import along_axes, transform_axes
from joformer.spectral._fast import TRANSPOSED, by_fft
from joformer.spectral._spectrum import require_length, spectrum
from joformer.spectral._tables import remember

DENSE = 128  # up to here the product with the basis is faster than the FFT: 7 × faster at 8 points, 2 × at 64


def dct(x: Tensor, type: int = 2, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Float[Tensor, "..."]:
    """y_k = c_k Σ_n w_n cos θ_k(n+s) x_n along `dim`: ``scipy.fft.dctn``.

    Args:
        x: Real numbers, ``(...)``.
        type: 1, 2, 3 or 4.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Real numbers of the shape and dtype of `x`; integers give the default dtype.

    Raises:
        ValueError: If `x` is complex, an axis is too short, or `dim`, `type` or `norm` is unknown.

    Example:
        >>> dct(torch.tensor([1.0, 2.0, 3.0])).round(decimals=3) + 0
        tensor([12.0000, -3.4640,  0.0000])
    """
    return _transform(x, type, dim, norm, sine=False)


def idct(x: Tensor, type: int = 2, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Float[Tensor, "..."]:
    """The inverse of `dct` of the same type and norm: ``scipy.fft.idctn``.

    Args:
        x: Real numbers, ``(...)``.
        type: 1, 2, 3 or 4.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Real numbers of the shape and dtype of `x`; integers give the default dtype.

    Raises:
        ValueError: If `x` is complex, an axis is too short, or `dim`, `type` or `norm` is unknown.

    Example:
        >>> idct(dct(torch.tensor([1.0, 2.0, 3.0]))).round(decimals=3)
        tensor([1., 2., 3.])
    """
    return _transform(x, type, dim, norm, sine=False, inverse=True)


def dst(x: Tensor, type: int = 2, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Float[Tensor, "..."]:
    """y_k = c_k Σ_n w_n sin θ_k(n+s) x_n along `dim`: ``scipy.fft.dstn``.

    Args:
        x: Real numbers, ``(...)``.
        type: 1, 2, 3 or 4.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Real numbers of the shape and dtype of `x`; integers give the default dtype.

    Raises:
        ValueError: If `x` is complex, an axis is too short, or `dim`, `type` or `norm` is unknown.

    Example:
        >>> dst(torch.tensor([1.0, 2.0, 3.0])).round(decimals=3)
        tensor([ 8.0000, -3.4640,  4.0000])
    """
    return _transform(x, type, dim, norm, sine=True)


def idst(x: Tensor, type: int = 2, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Float[Tensor, "..."]:
    """The inverse of `dst` of the same type and norm: ``scipy.fft.idstn``.

    Args:
        x: Real numbers, ``(...)``.
        type: 1, 2, 3 or 4.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Real numbers of the shape and dtype of `x`; integers give the default dtype.

    Raises:
        ValueError: If `x` is complex, an axis is too short, or `dim`, `type` or `norm` is unknown.

    Example:
        >>> idst(dst(torch.tensor([1.0, 2.0, 3.0]))).round(decimals=3)
        tensor([1., 2., 3.])
    """
    return _transform(x, type, dim, norm, sine=True, inverse=True)


def _transform(
    x: Tensor, type: int, dim: int | Sequence[int], norm: str | None, *, sine: bool, inverse: bool = False
) -> Tensor:
    axes = transform_axes(x, dim, norm)
    if not isinstance(type, int) or isinstance(type, bool) or type not in TRANSPOSED:
        raise ValueError(f"type {type!r} is unknown: use 1, 2, 3 or 4")
    if inverse:
        type, norm = TRANSPOSED[type], {"ortho": "ortho", "forward": "backward"}.get(str(norm), "forward")
    kind = f"{'dst' if sine else 'dct'}{type}"

    def last(y: Tensor) -> Tensor:
        n = y.shape[-1]
        if n <= DENSE:
            return y @ remember(_basis, y, n, kind, norm)[0]
        return _first(y, sine, norm) if type == 1 else by_fft(y, type, sine, *_lengths(type, n, norm))

    return along_axes(x, axes, kind[:3].upper(), partial(require_length, kind), last)


def _basis(n: int, kind: str, norm: str | None, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (spectrum(kind, n, norm=norm).basis(n).to(dtype),)


def _lengths(type: int, n: int, norm: str | None) -> tuple[float, float]:
    """The factors of the basis vector that is longer than the others (constant, or ±1 in a DST), and of the others."""
    if norm == "ortho":
        return math.sqrt(1 / n), math.sqrt(2 / n)
    whole = 2 * n if norm == "forward" else 1
    return (1 if type == 3 else 2) / whole, 2 / whole


def _first(x: Tensor, sine: bool, norm: str | None) -> Tensor:
    whole = x.shape[-1] + (1 if sine else -1)
    factor = {"ortho": math.sqrt(0.5 / whole), "forward": 0.5 / whole}.get(str(norm), 1.0)
    if sine:
        zero = x.new_zeros(*x.shape[:-1], 1)
        y = torch.fft.rfft(torch.cat([zero, -x, zero, x.flip(-1)], -1)).imag[..., 1:-1]
        return y * factor
    if norm == "ortho":
        x = _scale_ends(x, math.sqrt(2))
    y = torch.fft.rfft(torch.cat([x, x[..., 1:-1].flip(-1)], -1)).real * factor
    return _scale_ends(y, math.sqrt(0.5)) if norm == "ortho" else y


def _scale_ends(x: Tensor, by: float) -> Tensor:
    return torch.cat([x[..., :1] * by, x[..., 1:-1], x[..., -1:] * by], -1)
