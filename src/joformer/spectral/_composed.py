"""Every transform computed as a composition of elements: slow and simple, the reference for the fast ones.

    1-D   Σ_n R^n v_n,   v_n = R^s w_n x_n,   R = diag(R(θ_1), …, R(θ_K))            `algebra.unroll`
    n-D   the same on the product grid of frequencies, planes = ∏ K_a                 `algebra.compose_grid`
    y_k   = plane k of it, or one part of it; real transforms take the part *between* the axes

Paper: "Discrete Fourier Transform" to "Walsh Transform". The paper uses the same R on both axes, which gives only the
diagonal of the 2-D spectrum, and lets cosines commute without taking the part, which does not give a 2-D DCT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Inexact
from torch import Tensor

from joformer._precision import arithmetic_dtype
from joformer.algebra import Generators, absolute, compose_grid, unroll
from joformer.spectral._checks import along_axes, given_dtype, power_of_two, real_input, transform_axes
from joformer.spectral._fast import as_complex
from joformer.spectral._spectrum import Spectrum, spectrum
from joformer.spectral._walsh import sequency_rows


def composed(
    x: Tensor,
    kind: str | Spectrum | Sequence[Spectrum],
    *,
    dim: int | Sequence[int] = -1,
    norm: str | None = None,
) -> Inexact[Tensor, "..."]:
    """y_k = plane k of Σ_n R^n v_n along `dim`, composed element by element through `joformer.algebra`.

    The reference for the fast transforms, for small sizes. Complex spectra on several axes are one composition on the
    product grid of their frequencies.

    Args:
        x: Numbers, ``(...)``.
        kind: "dft", "idft", "dct1" … "dst4", "hadamard" or "walsh"; or a `Spectrum` for all axes, or one per axis.
        dim: The axis to transform, or several.
        norm: None, "backward", "ortho" or "forward", for a kind given by name.

    Returns:
        Complex numbers if the spectra are complex, otherwise real numbers in the dtype of `x`.

    Raises:
        ValueError: If `x` is empty, or `kind`, `dim` or `norm` do not fit it.

    Example:
        >>> x = torch.arange(3.0)
        >>> torch.allclose(composed(x, "dft"), torch.fft.fft(x))
        True
        >>> composed(x, Spectrum(torch.zeros(1), part="real"))                 # one plane at angle 0: the sum
        tensor([3.])
    """
    axes = transform_axes(x, dim, norm)
    if not x.numel():
        raise ValueError(f"input of shape {tuple(x.shape)} is empty: a composition needs at least one element")
    if isinstance(kind, str) and kind in ("hadamard", "walsh"):
        return along_axes(x, axes, kind, power_of_two, lambda y: _binary(y, kind, norm))
    if isinstance(kind, str):
        spectra = [spectrum(kind, x.shape[axis], norm=norm, device=x.device) for axis in axes]
    else:
        if norm is not None:
            raise ValueError(f"norm {norm!r} is for a kind given by name: a Spectrum has its own weights and scale")
        listed = list(kind) if isinstance(kind, Sequence) else [kind] * len(axes)
        spectra = [one for one in listed if isinstance(one, Spectrum)]
        if len(spectra) < len(listed):
            raise ValueError(f"kind {kind!r} is unknown: give one name for all axes, a Spectrum, or one for each axis")
    if len(spectra) != len(axes) or len({s.part == "complex" for s in spectra}) > 1:
        parts = [s.part for s in spectra]
        raise ValueError(f"spectra {parts} do not fit {len(axes)} axes: one for each, all complex or none of them")
    if spectra[0].part == "complex":
        last = tuple(range(-len(axes), 0))
        return (
            _grid(x.movedim(axes, last), spectra)
            .movedim(last, axes)
            .to(arithmetic_dtype(x.dtype.to_real()).to_complex())
        )
    y = real_input(x, "real or imaginary part")
    for axis, one in zip(axes, spectra, strict=True):
        y = _line(y.movedim(axis, -1), one).movedim(-1, axis)
    return given_dtype(y, x)


def _line(x: Tensor, one: Spectrum) -> Tensor:
    generators = Generators.torus(one.angles.double()[None])
    contents = _content(x * one.weights_of(x.shape[-1]), len(one.angles))
    planes = as_complex(_advance(unroll(contents, generators), generators, [one.shift]))
    y = planes.real if one.part == "real" else planes.imag
    return (y if one.scale is None else y * one.scale).to(x.dtype)


def _grid(x: Tensor, spectra: Sequence[Spectrum]) -> Tensor:
    shape = tuple(len(one.angles) for one in spectra)
    angles = torch.cartesian_prod(*(one.angles.double() for one in spectra)).reshape(-1, len(spectra)).T
    generators = Generators.torus(angles.contiguous())
    for axis, one in zip(range(-len(spectra), 0), spectra, strict=True):
        x = x.movedim(axis, -1).mul(one.weights_of(x.shape[axis]).to(x.device)).movedim(-1, axis)
    whole = compose_grid(_content(x, angles.shape[1]), generators).content
    y = as_complex(_advance(whole, generators, [one.shift for one in spectra])).unflatten(-1, shape)
    for axis, one in zip(range(-len(spectra), 0), spectra, strict=True):
        y = y if one.scale is None else y.movedim(axis, -1).mul(one.scale).movedim(-1, axis)
    return y


def _binary(x: Tensor, kind: str, norm: str | None) -> Tensor:
    """log₂ n binary axes; plane k rotates by π along axis b where k has bit b (the first axis is the highest bit)."""
    n, bits = x.shape[-1], power_of_two(x.shape[-1])
    if not bits:
        return x.clone()
    planes = sequency_rows(n, x.device) if kind == "walsh" else torch.arange(n, device=x.device)
    bit = torch.arange(bits - 1, -1, -1, device=x.device)[:, None]
    one = spectrum("hadamard", 2, norm=norm, device=x.device)
    generators = Generators.torus(one.angles[planes.bitwise_right_shift(bit).bitwise_and(1)])
    contents = _content(x.double() * one.weights_of(2)[0], n)
    whole = compose_grid(contents.unflatten(-2, (2,) * bits), generators).content
    factor = 1.0 if one.scale is None else one.scale[0] ** bits
    return (as_complex(whole).real * factor).to(x.dtype)


def _content(x: Tensor, planes: int) -> Tensor:
    """Contents (..., n, 2 · planes) of x (..., n), float64: in each plane the vector (Re x, Im x)."""
    return torch.view_as_real(x.to(torch.complex128)).repeat((1,) * x.ndim + (planes,))


def _advance(content: Tensor, generators: Generators, shift: Sequence[int | float]) -> Tensor:
    """R_1^{s_1} ⋯ R_D^{s_D} applied: the sample phase, the same for every content."""
    return generators.group.act(absolute(generators, list(shift)), content)
