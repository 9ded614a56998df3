"""The discrete Fourier transform and its inverse at the regular spectrum.

    X_k = Σ_n e^{−2πikn/N} x_n,        x_n = (1/N) Σ_k e^{2πikn/N} X_k

Paper: "Discrete Fourier Transform"; the sign is numpy's, opposite to the paper's. In several dimensions the
frequencies are the product grid. `composed` shows that these are compositions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Complex
from torch import Tensor

from joformer.spectral._checks import transform_axes


def dft(x: Tensor, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Complex[Tensor, "..."]:
    """X_k = Σ_n e^{−2πikn/N} x_n along `dim`: ``numpy.fft.fftn``.

    Args:
        x: Numbers, ``(...)``, real or complex.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Complex numbers of the shape of `x`, complex64 or complex128.

    Raises:
        ValueError: If `dim` is not an axis of `x`, the axis is empty, or `norm` is unknown.

    Example:
        >>> dft(torch.tensor([1.0, 0.0, 0.0, 1.0]))
        tensor([2.+0.j, 1.+1.j, 0.+0.j, 1.-1.j])
    """
    axes, numbers = _checked(x, dim, norm)
    if not x.numel():
        return _empty(numbers)
    # The first axis separately: fftn converts real numbers to complex first, fft uses that half is redundant.
    first = torch.fft.fft(numbers, dim=axes[0], norm=norm)
    return torch.fft.fftn(first, dim=axes[1:], norm=norm) if axes[1:] else first


def idft(x: Tensor, dim: int | Sequence[int] = -1, *, norm: str | None = None) -> Complex[Tensor, "..."]:
    """x_n = (1/N) Σ_k e^{2πikn/N} X_k along `dim`: ``numpy.fft.ifftn``, the inverse of `dft` under the same norm.

    Args:
        x: Numbers, ``(...)``, real or complex.
        dim: The axis to transform, or several.
        norm: Where the factors are: None or "backward" (all in the inverse), "ortho" or "forward".

    Returns:
        Complex numbers of the shape of `x`, complex64 or complex128.

    Raises:
        ValueError: If `dim` is not an axis of `x`, the axis is empty, or `norm` is unknown.

    Example:
        >>> idft(dft(torch.tensor([1.0, 0.0, 0.0, 1.0]))).real
        tensor([1., 0., 0., 1.])
    """
    axes, numbers = _checked(x, dim, norm)
    if not x.numel():
        return _empty(numbers)
    if axes[1:]:
        return torch.fft.ifftn(numbers, dim=axes, norm=norm)
    # For real numbers torch returns a lazy conjugate, which numpy cannot read.
    return torch.fft.ifft(numbers, dim=axes[0], norm=norm).resolve_conj()


def _empty(x: Tensor) -> Tensor:
    """The transform of an empty batch, which the FFT itself may not accept."""
    real = x.dtype if x.is_floating_point() or x.is_complex() else torch.get_default_dtype()
    return torch.empty(x.shape, dtype=torch.promote_types(real, torch.complex64), device=x.device)


def _checked(x: Tensor, dim: int | Sequence[int], norm: str | None) -> tuple[tuple[int, ...], Tensor]:
    axes = transform_axes(x, dim, norm)
    low = x.is_floating_point() and x.dtype.itemsize < 4
    return axes, x.float() if low else x
