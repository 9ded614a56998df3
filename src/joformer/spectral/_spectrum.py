"""The spectrum of a transform as a composition: angles, sample phase, weights of the contents, and part taken.

    y_k = c_k · part Σ_n w_n e^{iθ_k(n+s)} x_n        part: the complex number, its real or its imaginary part

    scipy's, unnormalised         θ_k              s     w_n
    DFT (numpy's sign)            −2πk/N           0     1                  complex
    inverse DFT                    2πk/N           0     1, c = 1/N         complex
    DCT-I                          πk/(N−1)        0     1, 2, …, 2, 1      real
    DCT-II                         πk/N            ½     2                  real
    DCT-III                        π(k+½)/N        0     1, 2, …, 2         real
    DCT-IV                         π(k+½)/N        ½     2                  real
    DST-I                          π(k+1)/(N+1)    1     2                  imaginary
    DST-II                         π(k+1)/N        ½     2                  imaginary
    DST-III                        π(k+½)/N        1     2, …, 2, 1         imaginary
    DST-IV                         π(k+½)/N        ½     2                  imaginary
    Hadamard, one binary axis      0, π            0     1 + i              real

Paper: "Unifying View", "Discrete Cosine Transform" and the following sections. The paper uses the sign of the inverse
for the DFT, omits the half-sample phase R^½ of DCT-II and DST-II, and gives the Hadamard transform one axis instead of
log₂ N binary ones, each with the content x·**1**: the plane vector (1, 1), that is 1 + i.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Inexact
from torch import Tensor

from joformer.algebra._checks import require_tensor
from joformer.spectral._checks import require_norm

Part = Literal["complex", "real", "imaginary"]
KINDS = ("dft", "idft", *(f"{family}{i}" for family in ("dct", "dst") for i in (1, 2, 3, 4)), "hadamard")


@dataclass(frozen=True, eq=False)
class Spectrum:
    """One axis of a transform: y_k = c_k · part Σ_n w_n e^{iθ_k(n+s)} x_n.

    Build one yourself to see what other angles, phases or parts would give.

    Attributes:
        angles: θ, ``(K,)``.
        weights: w, ``(n,)``, real or complex; None means ones and an axis of any length.
        scale: c, ``(K,)``; None means ones.
        shift: s.
        part: Which part of the sum is taken: the "complex" number, its "real" or its "imaginary" part.

    Raises:
        ValueError: If the shapes are incompatible.

    Example:
        >>> printed = Spectrum(torch.pi * torch.arange(4) / 4, part="real")    # the paper's "DCT-II": no half sample
        >>> printed.basis(4).shape, printed.shift
        (torch.Size([4, 4]), 0.0)
    """

    angles: Float[Tensor, "_frequencies"]
    weights: Inexact[Tensor, "_points"] | None = None
    scale: Float[Tensor, "_frequencies"] | None = None
    shift: int | float = 0.0
    part: Part = "complex"

    def __post_init__(self) -> None:
        require_tensor(self.angles, "angles", "(K,)")
        if self.angles.ndim != 1 or not self.angles.numel() or not self.angles.is_floating_point():
            raise ValueError(f"angles are {self.angles.dtype} {tuple(self.angles.shape)}: give real numbers, (K,)")
        if self.scale is not None and self.scale.shape != self.angles.shape:
            raise ValueError(f"scale has shape {tuple(self.scale.shape)}: give one per angle, {len(self.angles)}")
        if self.weights is not None and (self.weights.ndim != 1 or not self.weights.numel()):
            raise ValueError(f"weights have shape {tuple(self.weights.shape)}: give one per point, (n,)")
        if self.part not in ("complex", "real", "imaginary"):
            raise ValueError(f"part {self.part!r} is unknown: use 'complex', 'real' or 'imaginary'")

    def weights_of(self, n: int) -> Inexact[Tensor, "n"]:
        """The weights w of an axis.

        Args:
            n: Number of points of the axis.

        Returns:
            The weights, ``(n,)``.

        Raises:
            ValueError: If the spectrum has weights for another number of points.

        Example:
            >>> Spectrum(torch.zeros(1)).weights_of(2).tolist()
            [1.0, 1.0]
        """
        if self.weights is None:
            return torch.ones(n, dtype=torch.float64, device=self.angles.device)
        if len(self.weights) != n:
            raise ValueError(f"the axis has {n} points: this spectrum needs {len(self.weights)}")
        return self.weights

    def basis(self, n: int) -> Inexact[Tensor, "n _frequencies"]:
        """The matrix B with y = x B, differentiable in the angles.

        Args:
            n: Number of points of the axis.

        Returns:
            ``(n, K)``, float64, or complex128 if the part is complex.

        Example:
            >>> spectrum("dct2", 2).basis(2).round(decimals=4) + 0
            tensor([[ 2.0000,  1.4142],
                    [ 2.0000, -1.4142]], dtype=torch.float64)
        """
        at = torch.arange(n, dtype=torch.float64, device=self.angles.device) + self.shift
        phases = at[:, None] * self.angles.double()
        weights = self.weights_of(n)[:, None]
        if self.scale is not None:
            weights = weights * self.scale
        if self.part == "complex" or weights.is_complex():
            rotated = weights * torch.complex(phases.cos(), phases.sin())
            return rotated if self.part == "complex" else rotated.real if self.part == "real" else rotated.imag
        return weights * (phases.cos() if self.part == "real" else phases.sin())

    def lowest(self, outputs: int) -> Spectrum:
        """The same axis with the first frequencies only.

        Args:
            outputs: Number of frequencies to keep.

        Returns:
            A new spectrum.

        Raises:
            ValueError: If the axis has fewer frequencies.

        Example:
            >>> spectrum("dct2", 8).lowest(3).angles.shape
            torch.Size([3])
        """
        if not 1 <= outputs <= len(self.angles):
            raise ValueError(f"outputs is {outputs}: this axis has 1 to {len(self.angles)} frequencies to keep")
        scale = None if self.scale is None else self.scale[:outputs]
        return replace(self, angles=self.angles[:outputs], scale=scale)


def spectrum(kind: str, n: int, *, norm: str | None = None, device: torch.device | None = None) -> Spectrum:
    """One axis of a named transform, float64, with numpy's sign and scipy's normalisation.

    Args:
        kind: "dft", "idft", "dct1" … "dct4", "dst1" … "dst4", or "hadamard", whose axes have two points each.
        n: Number of points of the axis.
        norm: None, "backward", "ortho" or "forward".
        device: Device of its tensors.

    Returns:
        The spectrum.

    Raises:
        ValueError: If `kind` or `norm` is unknown, or the axis is too short.

    Example:
        >>> spectrum("dst1", 3).angles / torch.pi
        tensor([0.2500, 0.5000, 0.7500], dtype=torch.float64)
    """
    require_norm(norm)
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: use one of {', '.join(KINDS)}")
    require_length(kind, n)
    k = torch.arange(n, dtype=torch.float64, device=device)
    one = torch.ones_like(k)
    if kind == "hadamard":
        if n != 2:
            raise ValueError(f"length {n} is not one Hadamard axis: the transform has log₂ n axes of 2 points each")
        factor = {"ortho": math.sqrt(0.5), "forward": 0.5}.get(str(norm), 1.0)
        return Spectrum(k * math.pi, torch.complex(one, one), one * factor, part="real")
    if kind in ("dft", "idft"):
        sign, full = (-1, "forward") if kind == "dft" else (1, "backward")
        power = 0.5 if norm == "ortho" else float((norm or "backward") == full)
        return Spectrum(sign * 2 * math.pi / n * k, one, one * n**-power)
    return _trigonometric(kind[:3], int(kind[3]), k, norm)


def require_length(kind: str, n: int) -> None:
    """Raises ValueError if an axis is too short for the transform.

    >>> require_length("dct1", 1)
    Traceback (most recent call last):
    ValueError: length 1 is too short for dct1: it needs 2 or more
    """
    if not isinstance(n, int):
        raise ValueError(f"length {n!r} is not whole: give the number of points")
    if n < (least := 2 if kind == "dct1" else 1):
        raise ValueError(f"length {n} is too short for {kind}: it needs {least} or more")


def _trigonometric(family: str, number: int, k: Tensor, norm: str | None) -> Spectrum:
    n, sine = len(k), family == "dst"
    whole = n + (1 if sine else -1) if number == 1 else n
    raised = 0.5 if number in (3, 4) else float(sine)
    shift = 0.5 if number in (2, 4) else float(sine)
    # The points (or frequencies) where the squared norm of the basis is doubled: orthogonality halves it.
    ends = {("dct", 1): [0, -1], ("dct", 2): [0], ("dct", 3): [0], ("dst", 2): [-1], ("dst", 3): [-1]}
    at = ends.get((family, number), [])
    weights, scale = torch.full_like(k, 2.0), torch.ones_like(k)
    if number in (1, 3):
        weights[at] = 1.0
    if norm == "forward":
        scale /= 2 * whole
    elif norm == "ortho":
        weights = torch.full_like(k, math.sqrt(2 / whole))
        if number in (1, 3):
            weights[at] *= math.sqrt(0.5)
        if number in (1, 2):
            scale[at] *= math.sqrt(0.5)
    return Spectrum(math.pi / whole * (k + raised), weights, scale, shift, "imaginary" if sine else "real")
