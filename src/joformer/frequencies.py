"""Spectra: the angle ω_b by which each plane rotates per step, how several axes share them, and their scalings.

    geometric   ω_b = base^(−b / planes),  b = 0 … planes − 1                            (RoPE)
    per_axis    separate planes for each axis, or every axis on every plane
    mrope       one spectrum whose planes are divided among the axes in sections          (Qwen2-VL and later)
    scalings    `Linear`, `NTK`, `DynamicNTK`, `YaRN`, `Llama3`, `LongRoPE` for longer contexts

All are float64 tensors. A scaling is a small frozen object. To use your own table of frequencies, pass it to
`FixedFrames`. "JoFormer-fixed" in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._scalings import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Scaling, YaRN

__all__ = [
    "NTK",
    "DynamicNTK",
    "Linear",
    "Llama3",
    "LongRoPE",
    "Scaling",
    "YaRN",
    "geometric",
    "mrope",
    "per_axis",
    "spectrum",
]


def geometric(planes: int, base: float = 10000.0, *, device: torch.device | None = None) -> Float[Tensor, "planes"]:
    """``ω_b = base^(−b/planes)``, b = 0 … planes − 1: the spectrum of RoPE.

    Args:
        planes: Number of planes.
        base: Base of the powers; usually 10000 for text and 100 for images.
        device: Device of the result.

    Returns:
        Radians per step, ``(planes,)``, float64.

    Raises:
        ValueError: If `planes` is negative, or the base is not a positive number.

    Example:
        >>> geometric(2, base=100.0).tolist()
        [1.0, 0.1]
    """
    if planes < 0:
        raise ValueError(f"planes must be 0 or more, got {planes}")
    if not isinstance(base, (int, float)) or not 0 < base < math.inf:
        raise ValueError(f"base must be a positive number, got {base}; 10000 is usual for text, 100 for images")
    return base ** (-torch.arange(planes, dtype=torch.float64, device=device) / max(planes, 1))


def spectrum(
    planes: int, base: float = 10000.0, scaling: Scaling | None = None, *, device: torch.device | None = None
) -> Float[Tensor, "planes"]:
    """``ω_b = base^(−b/planes)``, scaled by `scaling`.

    Args:
        planes: Number of planes.
        base: Base of the geometric spectrum.
        scaling: One of the scalings in this module, or any object with the same `apply` method.
        device: Device of the result.

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

        axial      each axis has its own planes: (axes, planes // axes), with the same spectrum on each axis
        combined   every axis rotates every plane: (axes, planes); axis k is slowed by base^(−k / (axes·planes)) and
                   its sign alternates with bit k − 1 of the plane's index, so that no displacement is invisible
        diagonal   the paper's combined split, taken literally: the same frequencies on all axes; (1, −1) is invisible

    Args:
        planes: Number of planes per head.
        axes: Number of coordinates per token.
        split: "axial", "combined" or "diagonal".
        base: Base of the geometric spectrum.
        scaling: One of the scalings in this module, or any object with the same `apply` method.
        device: Device of the result.

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


def mrope(
    sections: Sequence[int] = (16, 24, 24),
    base: float = 1_000_000.0,
    *,
    interleaved: bool = False,
    scaling: Scaling | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, "axes planes"]:
    """One spectrum ``ω_b`` in which each plane belongs to one axis (M-RoPE): a table for `FixedFrames(frequencies=)`.

        chunked       the first planes to time, the next to height, the last to width            (Qwen2-VL, Qwen2.5-VL)
        interleaved   time, height, width, time, height, width, … and the rest to time           (Qwen3-VL)

    Tokens with the same coordinate on all axes, such as text, are rotated as in RoPE: see `joformer.positions.mrope`.
    These models use the layout "half".

    Args:
        sections: Number of planes per axis; the default is that of Qwen2-VL for heads of 128 entries.
        base: Base of the spectrum.
        interleaved: Whether the axes alternate; the first axis must then have at least as many planes as any other.
        scaling: One of the scalings in this module, or any object with the same `apply` method.
        device: Device of the result; the CPU by default.

    Returns:
        Radians per step, float64; 0 where an axis does not rotate a plane.

    Raises:
        ValueError: If sections are negative or empty, or cannot be interleaved.

    Example:
        >>> mrope((1, 1, 1), base=8.0).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.25]]
        >>> (mrope((24, 20, 20), 5_000_000.0, interleaved=True) > 0)[:, :4].int().tolist()
        [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
    """
    axes, planes = len(sections), sum(sections)
    if not planes or min(sections) < 0:
        raise ValueError(f"sections must be the number of planes of each axis, e.g. (16, 24, 24), got {sections}")
    owner = [axis for axis, count in enumerate(sections) for _ in range(count)]
    if interleaved:
        owner = [b % axes if b < axes * sections[b % axes] else 0 for b in range(planes)]
        if [owner.count(axis) for axis in range(axes)] != list(sections):
            raise ValueError(f"sections {tuple(sections)} cannot alternate: the first axis must have the most planes")
    # Unlike a spectrum, a table is data: it stays on the CPU even if the model is built on the meta device.
    device = torch.device("cpu") if device is None else device
    belongs = torch.tensor(owner, device=device) == torch.arange(axes, device=device).unsqueeze(-1)
    return spectrum(planes, base, scaling, device=device) * belongs
