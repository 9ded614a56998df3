"""Spectra: the angle ω_b by which each plane is rotated per step, and their scalings for longer contexts.

    geometric   ω_b = base^(−b / planes),  b = 0 … planes − 1      (RoPE)
    linear      ω_b / factor                                       (position interpolation)
    NTK         base · factor^(planes / (planes − 1))              (the lowest frequency is divided by factor)
    YaRN        ω_b kept, interpolated or blended, by the revolutions of plane b within the original length

All are float64 tensors (planes,). A scaling is a small frozen object; tables of your own go to
`FixedFrames`. "JoFormer-fixed" in the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


def geometric(planes: int, base: float = 10000.0, *, device: torch.device | None = None) -> Float[Tensor, "planes"]:
    """``ω_b = base^(−b/planes)``, b = 0 … planes − 1: the spectrum of RoPE.

    Args:
        planes: How many planes there are.
        base: 10000 is usual for text, 100 for images.
        device: Of the result.

    Returns:
        Radians per step, ``(planes,)``, float64.

    Raises:
        ValueError: If there are fewer than 0 planes, or the base is not a positive number.

    Example:
        >>> geometric(2, base=100.0).tolist()
        [1.0, 0.1]
    """
    if planes < 0:
        raise ValueError(f"planes must be 0 or more, got {planes}")
    if not isinstance(base, (int, float)) or not 0 < base < math.inf:
        raise ValueError(f"base must be a positive number, got {base}; 10000 is usual for text, 100 for images")
    return base ** (-torch.arange(planes, dtype=torch.float64, device=device) / max(planes, 1))


@runtime_checkable
class Scaling(Protocol):
    """What `scaling=` takes: it maps a spectrum made with `base` to the one to use."""

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        ...


@dataclass(frozen=True)
class _ByFactor:
    factor: float

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be how many times longer the context gets, 1 or more, got {self.factor}")


class Linear(_ByFactor):
    """Position interpolation: ``ω_b / factor``.

    Args:
        factor: How many times longer the context gets, 1 or more.

    Example:
        >>> Linear(2.0).apply(geometric(2, 100.0), 100.0).tolist()
        [0.5, 0.05]
    """

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        return frequencies / self.factor


class NTK(_ByFactor):
    """A larger base, ``base · factor^(planes / (planes − 1))``: the lowest frequency is divided by `factor`.

    The highest frequency stays.

    Args:
        factor: How many times longer the context gets, 1 or more.

    Example:
        >>> NTK(2.0).apply(geometric(2, 100.0), 100.0).tolist()
        [1.0, 0.05]
    """

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        planes = frequencies.shape[-1]
        if planes < 2:
            return frequencies / self.factor
        step = torch.arange(planes, dtype=frequencies.dtype, device=frequencies.device) / (planes - 1)
        return frequencies * self.factor**-step


@dataclass(frozen=True)
class YaRN(_ByFactor):
    """Fast planes keep ``ω_b``, slow ones get ``ω_b / factor``, those between are blended by their index.

    YaRN also sharpens the scores by a temperature; it belongs on the score scale, not in the frames, which must stay
    orthogonal for the values: pass ``scale=YaRN(...).score_scale(head_dim)`` to attention.

    Args:
        factor: How many times longer the context gets, 1 or more.
        original_length: How many tokens the model was trained with.
        fast: Planes with more revolutions than this within `original_length` are fast.
        slow: Planes with fewer are slow.

    Raises:
        ValueError: If these are not positive, or `fast` is not above `slow`.

    Example:
        >>> yarn = YaRN(factor=4.0, original_length=2048)
        >>> scaled = yarn.apply(geometric(32), 10000.0)
        >>> (scaled[0] / geometric(32)[0]).item(), (scaled[-1] / geometric(32)[-1]).item()
        (1.0, 0.25)
    """

    original_length: int
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.original_length < 1 or not self.fast > self.slow > 0:
            raise ValueError(f"YaRN needs original_length ≥ 1 and fast > slow > 0 revolutions, got {self}")

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        planes = frequencies.shape[-1]

        def plane_with(revolutions: float) -> float:
            return planes * math.log(self.original_length / (revolutions * 2 * math.pi)) / math.log(base)

        low = max(math.floor(plane_with(self.fast)), 0)
        high = min(math.ceil(plane_with(self.slow)), 2 * planes - 1)
        index = torch.arange(planes, dtype=frequencies.dtype, device=frequencies.device)
        interpolated = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequencies * (1 - interpolated + interpolated / self.factor)

    def score_scale(self, head_dim: int) -> float:
        """``(0.1 ln factor + 1)² / √head_dim``: the scale of the scores under this scaling.

        Args:
            head_dim: Width of a head.

        Returns:
            What attention takes as `scale`.
        """
        return (0.1 * math.log(self.factor) + 1.0) ** 2 / math.sqrt(head_dim)


def spectrum(
    planes: int, base: float = 10000.0, scaling: Scaling | None = None, *, device: torch.device | None = None
) -> Float[Tensor, "planes"]:
    """``ω_b = base^(−b/planes)`` with its scaling.

    Args:
        planes: How many planes there are.
        base: Of the geometric spectrum.
        scaling: One of `Linear`, `NTK`, `YaRN`, or any object with their `apply`.
        device: Of the result.

    Returns:
        Radians per step, ``(planes,)``, float64.

    Example:
        >>> spectrum(2, base=100.0, scaling=Linear(2.0)).tolist()
        [0.5, 0.05]
    """
    frequencies = geometric(planes, base, device=device)
    return frequencies if scaling is None else scaling.apply(frequencies, float(base))


def per_axis(
    planes: int,
    axes: int,
    split: str,
    base: float,
    scaling: Scaling | None = None,
    *,
    device: torch.device | None = None,
) -> Float[Tensor, "axes each"]:
    """Frequencies of each axis, ``(axes, planes of an axis)``.

        axial      each axis has planes of its own: (axes, planes // axes), the same spectrum on each
        combined   every axis rotates every plane: (axes, planes); axis k is slowed by base^(−k / (axes·planes)) and
                   its sign alternates with bit k − 1 of the plane's index, so that no displacement is invisible
        diagonal   the paper's literal combined split, the same frequencies on all axes: (1, −1) is invisible

    Args:
        planes: How many planes a head has.
        axes: How many coordinates a token has.
        split: "axial", "combined" or "diagonal".
        base: Of the geometric spectrum.
        scaling: One of `Linear`, `NTK`, `YaRN`, or any object with their `apply`.
        device: Of the result.

    Returns:
        Radians per step, float64.

    Example:
        >>> per_axis(4, 2, "axial", 100.0).tolist()
        [[1.0, 0.1], [1.0, 0.1]]
    """
    if split == "axial":
        return spectrum(planes // axes, base, scaling, device=device).expand(axes, -1)
    whole = spectrum(planes, base, scaling, device=device)
    if split == "diagonal":
        return whole.expand(axes, -1)
    axis = torch.arange(axes, device=device).unsqueeze(-1)
    plane = torch.arange(planes, device=device)
    slower = float(base) ** (-axis.to(torch.float64) / (axes * max(planes, 1)))
    bit = torch.bitwise_and(torch.bitwise_right_shift(plane, (axis - 1).clamp(min=0)), 1) * (axis > 0)
    return whole * slower * (1 - 2 * bit)
