"""Spectra: how fast each plane turns per step, ω_b, and their scalings for longer contexts.

    geometric   ω_b = base^(−b / planes),  b = 0 … planes − 1      (RoPE)
    linear      ω_b / factor                                       (position interpolation)
    NTK         base · factor^(planes / (planes − 1))              (the lowest frequency is divided by factor)
    YaRN        ω_b kept, interpolated or blended, by how often plane b turns within the original length

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
    """ω_b = base^(−b/planes), b = 0 … planes − 1.

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

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]: ...


@dataclass(frozen=True)
class Linear:
    """Position interpolation: all frequencies divided by `factor`.

    >>> Linear(2.0).apply(geometric(2, 100.0), 100.0).tolist()
    [0.5, 0.05]
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        return frequencies / self.factor


@dataclass(frozen=True)
class NTK:
    """A larger base, such that the lowest frequency is divided by `factor` and the highest stays.

    >>> NTK(2.0).apply(geometric(2, 100.0), 100.0).tolist()
    [1.0, 0.05]
    """

    factor: float

    def __post_init__(self) -> None:
        _check_factor(self.factor)

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        planes = frequencies.shape[-1]
        if planes < 2:
            return frequencies / self.factor
        step = torch.arange(planes, dtype=frequencies.dtype, device=frequencies.device) / (planes - 1)
        return frequencies * self.factor**-step


@dataclass(frozen=True)
class YaRN:
    """Planes that turn often within `original_length` keep their frequency, slow ones are interpolated.

    Between `fast` and `slow` turns the two are blended linearly in the plane's index. YaRN also sharpens the
    scores by a temperature; it belongs on the score scale, not in the frames, which must stay orthogonal for
    the values: pass `scale=YaRN(...).score_scale(head_dim)` to attention.

    >>> yarn = YaRN(factor=4.0, original_length=2048)
    >>> scaled = yarn.apply(geometric(32), 10000.0)
    >>> (scaled[0] / geometric(32)[0]).item(), (scaled[-1] / geometric(32)[-1]).item()
    (1.0, 0.25)
    """

    factor: float
    original_length: int
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        _check_factor(self.factor)
        if self.original_length < 1 or not self.fast > self.slow > 0:
            raise ValueError(
                f"YaRN needs original_length ≥ 1 and fast > slow > 0 turns, got original_length="
                f"{self.original_length}, fast={self.fast}, slow={self.slow}"
            )

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        planes = frequencies.shape[-1]

        def plane_turning(times: float) -> float:
            return planes * math.log(self.original_length / (times * 2 * math.pi)) / math.log(base)

        low = max(math.floor(plane_turning(self.fast)), 0)
        high = min(math.ceil(plane_turning(self.slow)), 2 * planes - 1)
        index = torch.arange(planes, dtype=frequencies.dtype, device=frequencies.device)
        interpolated = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
        return frequencies * (1 - interpolated + interpolated / self.factor)

    def score_scale(self, head_dim: int) -> float:
        """(0.1 ln factor + 1)² / √head_dim: the scale of the scores under this scaling."""
        return (0.1 * math.log(self.factor) + 1.0) ** 2 / math.sqrt(head_dim)


def spectrum(
    planes: int, base: float = 10000.0, scaling: Scaling | None = None, *, device: torch.device | None = None
) -> Float[Tensor, "planes"]:
    """A geometric spectrum with its scaling.

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
    """Frequencies of each axis.

    axial      each axis has planes of its own: (axes, planes // axes), the same spectrum on each
    combined   every axis turns every plane: (axes, planes); axis k is slowed by base^(−k / (axes·planes)) and
               its sign alternates with bit k − 1 of the plane's index, so that no displacement is invisible
    diagonal   the paper's literal combined split, the same frequencies on all axes: (1, −1) is invisible

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


def _check_factor(factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor must be how many times longer the context gets, 1 or more, got {factor}")
