"""Tolerances, and the input validation that several modules share: one line, what is wrong and what would be right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

from joformer._precision import exact_device


def tolerance(dtype: torch.dtype) -> float:
    """The distance below which two operators count as equal: √ε of the dtype.

    >>> tolerance(torch.float64) < 2e-8 < tolerance(torch.float32) < 4e-4
    True
    """
    return math.sqrt(torch.finfo(dtype).eps)


def in_float64(a: Tensor) -> Tensor:
    """The tensor (...) in float64, on the CPU where its device has none.

    >>> in_float64(torch.ones(1)).dtype
    torch.float64
    """
    return a.to(exact_device(a.device), torch.float64)


def require_tensor(a: object, name: str, shape: str) -> None:
    """Raises ValueError unless `a` is a tensor; `shape` is the shape named in the message.

    >>> require_tensor([1.0], "content", "(..., d)")
    Traceback (most recent call last):
    ValueError: content is a list: give a tensor (..., d), e.g. torch.as_tensor(content)
    """
    if not isinstance(a, Tensor):
        raise ValueError(f"{name} is a {type(a).__name__}: give a tensor {shape}, e.g. torch.as_tensor({name})")


def require_finite(a: Tensor, name: str) -> None:
    """Raises ValueError if `a` (...) holds integers, NaN or infinity.

    >>> require_finite(torch.tensor([0.0, float("nan")]), "content")
    Traceback (most recent call last):
    ValueError: content holds NaN or infinity: every entry must be a finite number
    """
    if not a.is_floating_point():
        raise ValueError(f"{name} has dtype {a.dtype}: it must be floating point, float32 or float64")
    # One fast sum nearly always decides; only a sum that overflows needs the slow check of every entry.
    if not a.detach().sum().isfinite() and not a.detach().isfinite().all():
        raise ValueError(f"{name} holds NaN or infinity: every entry must be a finite number")


def whole_numbers(values: int | Sequence[int] | Tensor, axes: int, name: str) -> tuple[int, ...]:
    """One integer per axis as a tuple; for one axis a bare integer is enough.

    >>> whole_numbers(3, 1, "position"), whole_numbers([0, 2], 2, "position")
    ((3,), (0, 2))
    """
    listed = values.tolist() if isinstance(values, Tensor) else values
    try:
        numbers = tuple(index(v) for v in (listed if isinstance(listed, Sequence) else [listed]))
    except TypeError:
        raise ValueError(f"{name} {listed} is not whole: give one integer per axis") from None
    if len(numbers) != axes:
        raise ValueError(f"{name} {numbers} has {len(numbers)} entries: the generators have {axes} axes, give one each")
    return numbers
