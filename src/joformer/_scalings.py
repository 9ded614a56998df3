"""Scalings of a spectrum ω_b for contexts longer than a model was trained with, as small frozen objects.

    Linear       ω_b / s                                             Chen et al. 2023, position interpolation
    NTK          base · s^(planes / (planes − 1))                    bloc97 2023: the lowest frequency is divided by s
    DynamicNTK   NTK with s = factor · length / original − factor + 1 emozilla 2023
    YaRN         ω_b kept, divided or blended by the plane's index   Peng et al. 2023
    Llama3       ω_b kept, divided or blended by its revolutions     Llama 3.1, 2024
    LongRoPE     ω_b / λ_b with a searched factor for each plane     Ding et al. 2024

Elsewhere, YaRN and LongRoPE also multiply cos and sin by a factor m. A scaled rotation is not a rotation, and frames
transport values too: here the factor is m² on the scores, `score_scale`, which attention takes as `scale`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class Scaling(Protocol):
    """The interface that `scaling=` accepts: maps a spectrum made with `base` to the one to use."""

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
        >>> from joformer.frequencies import geometric
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
        >>> from joformer.frequencies import geometric
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
class DynamicNTK(_ByFactor):
    """`NTK` with a factor that grows with the sequence: ``factor · length / original_length − factor + 1``, at least 1.

    Frames for another `length` are different frames: cached keys and values remain rotated by the old ones.

    Args:
        factor: How much the factor grows each time the sequence grows by the original length, 1 or more.
        original_length: Number of tokens the model was trained with.
        length: Number of tokens of the sequence.

    Raises:
        ValueError: If these are not positive.

    Example:
        >>> from joformer.frequencies import geometric
        >>> DynamicNTK(2.0, original_length=100, length=150).apply(geometric(2, 100.0), 100.0).tolist()
        [1.0, 0.05]
    """

    original_length: int
    length: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.original_length < 1 or self.length < 1:
            raise ValueError(f"DynamicNTK needs original_length ≥ 1 and length ≥ 1, got {self}")

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        beyond = self.factor * (self.length / self.original_length - 1)
        return NTK(1 + max(beyond, 0.0)).apply(frequencies, base)


@dataclass(frozen=True)
class _ByRevolutions(_ByFactor):
    original_length: int
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.original_length < 1 or not self.fast > self.slow > 0:
            name = type(self).__name__
            raise ValueError(f"{name} needs original_length ≥ 1 and fast > slow > 0 revolutions, got {self}")


@dataclass(frozen=True)
class YaRN(_ByRevolutions):
    """Fast planes keep ``ω_b``, slow ones get ``ω_b / factor``, those in between are blended by their index.

    YaRN also sharpens the scores by a temperature. It belongs in the score scale, not in the frames, which must stay
    orthogonal for the values: pass ``scale=YaRN(...).score_scale(head_dim)`` to attention.

    Args:
        factor: How many times longer the context gets, 1 or more.
        original_length: Number of tokens the model was trained with.
        fast: Planes with more revolutions than this within `original_length` are fast.
        slow: Planes with fewer are slow.

    Raises:
        ValueError: If these are not positive, or `fast` is not above `slow`.

    Example:
        >>> from joformer.frequencies import geometric
        >>> yarn = YaRN(factor=4.0, original_length=2048)
        >>> scaled = yarn.apply(geometric(32), 10000.0)
        >>> (scaled[0] / geometric(32)[0]).item(), (scaled[-1] / geometric(32)[-1]).item()
        (1.0, 0.25)
    """

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


@dataclass(frozen=True)
class Llama3(_ByRevolutions):
    """Fast planes keep ``ω_b``, slow ones get ``ω_b / factor``, those in between are blended by their revolutions.

    Args:
        factor: How many times longer the context gets, 1 or more; 8 in Llama 3.1.
        original_length: Number of tokens the model was trained with; 8192 in Llama 3.1.
        fast: Planes with more revolutions than this within `original_length` are fast (`high_freq_factor`).
        slow: Planes with fewer are slow (`low_freq_factor`).

    Raises:
        ValueError: If these are not positive, or `fast` is not above `slow`.

    Example:
        >>> from joformer.frequencies import geometric
        >>> scaled = Llama3(factor=8.0, original_length=8192).apply(geometric(64, 500000.0), 500000.0)
        >>> (scaled[0] / geometric(64, 500000.0)[0]).item(), (scaled[-1] / geometric(64, 500000.0)[-1]).item()
        (1.0, 0.125)
    """

    fast: float = 4.0

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        revolutions = self.original_length * frequencies / (2 * math.pi)
        kept = ((revolutions - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@dataclass(frozen=True)
class LongRoPE(_ByFactor):
    """``ω_b / λ_b``, one factor per plane: `long` if the sequence is longer than the original length, else `short`.

    LongRoPE also sharpens the scores: pass ``scale=LongRoPE(...).score_scale(head_dim)`` to attention. `short` and
    `long` give different frames: cached keys and values remain rotated by those they were cached with.

    Args:
        factor: How many times longer the context gets, 1 or more.
        original_length: Number of tokens the model was trained with, 2 or more.
        short: λ of each plane up to `original_length`.
        long: λ of each plane beyond it.
        length: Number of tokens of the sequence; by default that of the longer context.

    Raises:
        ValueError: If a λ is not positive, or `short` and `long` differ in length.

    Example:
        >>> from joformer.frequencies import geometric
        >>> LongRoPE(4.0, 1024, short=(1.0, 1.0), long=(1.0, 4.0)).apply(geometric(2, 100.0), 100.0).tolist()
        [1.0, 0.025]
    """

    original_length: int
    short: tuple[float, ...]
    long: tuple[float, ...]
    length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.original_length < 2 or (self.length is not None and self.length < 1):
            raise ValueError(f"LongRoPE needs original_length ≥ 2 and length ≥ 1, got {self}")
        if len(self.short) != len(self.long) or not all(0 < each < math.inf for each in (*self.short, *self.long)):
            raise ValueError(f"LongRoPE needs positive factors for as many planes in short as in long, got {self}")

    def apply(self, frequencies: Float[Tensor, "planes"], base: float) -> Float[Tensor, "planes"]:
        """The scaled spectrum, of the same shape."""
        if frequencies.shape[-1] != len(self.long):
            raise ValueError(f"LongRoPE has factors for {len(self.long)} planes, not for {frequencies.shape[-1]}")
        within = self.length is not None and self.length <= self.original_length
        return frequencies / torch.tensor(
            self.short if within else self.long, dtype=frequencies.dtype, device=frequencies.device
        )

    def score_scale(self, head_dim: int) -> float:
        """``(1 + ln factor / ln original_length) / √head_dim``: the scale of the scores under this scaling.

        Args:
            head_dim: Width of a head.

        Returns:
            What attention takes as `scale`.
        """
        return (1 + math.log(self.factor) / math.log(self.original_length)) / math.sqrt(head_dim)
