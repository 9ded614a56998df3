"""Input checks of all transforms, and the loop over the axes of the real ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from joformer._precision import arithmetic_dtype, without_autocast

NORMS = (None, "backward", "ortho", "forward")


def require_norm(norm: object) -> None:
    """Raises ValueError for a norm that numpy and scipy do not have.

    >>> require_norm("unit")
    Traceback (most recent call last):
    ValueError: norm 'unit' is unknown: use None (the same as 'backward'), 'ortho' or 'forward'
    """
    if not isinstance(norm, (str, type(None))) or norm not in NORMS:
        raise ValueError(f"norm {norm!r} is unknown: use None (the same as 'backward'), 'ortho' or 'forward'")


def transform_axes(x: object, dim: Any, norm: object) -> tuple[int, ...]:
    """The axes to transform, counted from the end, of x (...): `dim` is one integer or several different ones.

    >>> transform_axes(torch.zeros(2, 3, 4), (0, -1), "ortho")
    (-3, -1)
    """
    if not isinstance(x, Tensor):
        raise ValueError(f"input is a {type(x).__name__}: give a tensor, such as torch.as_tensor(x)")
    if not x.ndim:
        raise ValueError("input is a single number: give a tensor with an axis to transform, (..., n)")
    try:
        dims = tuple(index(d) for d in (dim if isinstance(dim, Sequence) else (dim,)))
    except TypeError:
        raise ValueError(f"dim {dim!r} is not whole: give one integer or several, such as -1 or (-2, -1)") from None
    for d in dims:
        if not -x.ndim <= d < x.ndim:
            raise ValueError(f"dim {d} is not an axis of {tuple(x.shape)}: use one from {-x.ndim} to {x.ndim - 1}")
    axes = tuple(d if d < 0 else d - x.ndim for d in dims)
    if not axes or len(set(axes)) < len(axes):
        raise ValueError(f"dim {dim} must name at least one axis, and none twice: the shape is {tuple(x.shape)}")
    if not min(x.shape[axis] for axis in axes):
        raise ValueError(f"input of shape {tuple(x.shape)} is empty along dim {dim}: it needs at least one point")
    require_norm(norm)
    return axes


def along_axes(
    x: Tensor, axes: Sequence[int], name: str, require: Callable[[int], object], transform: Callable[[Tensor], Tensor]
) -> Tensor:
    """A real transform of the last axis, applied along each of the axes; lengths are first checked by `require`.

    >>> along_axes(torch.ones(2, 3), (-2,), "sum", bool, lambda y: y.cumsum(-1))
    tensor([[1., 1., 1.],
            [2., 2., 2.]])
    """
    y = real_input(x, name)
    for axis in axes:
        require(x.shape[axis])
    if not x.numel():
        return given_dtype(y, x).clone()
    with without_autocast(x.device):
        for axis in axes:
            y = transform(y) if axis == -1 else transform(y.movedim(axis, -1)).movedim(-1, axis)
    return given_dtype(y, x)


def real_input(x: Tensor, name: str) -> Tensor:
    """The input x (...) in the dtype to compute in; raises ValueError if complex. Integers become the default dtype.

    >>> real_input(torch.arange(2), "dct").dtype, real_input(torch.ones(2).bfloat16(), "dct").dtype
    (torch.float32, torch.float32)
    """
    if x.is_complex():
        raise ValueError(f"input is {x.dtype}: the {name} needs real numbers, transform x.real and x.imag separately")
    return x.to(arithmetic_dtype(x.dtype if x.is_floating_point() else torch.get_default_dtype()))


def given_dtype(y: Tensor, x: Tensor) -> Tensor:
    """The real result y (...) in the dtype of the input x, if that is floating point.

    >>> given_dtype(torch.ones(2), torch.ones(2).half()).dtype, given_dtype(torch.ones(2), torch.arange(2)).dtype
    (torch.float16, torch.float32)
    """
    return y.to(x.dtype) if x.is_floating_point() else y


def power_of_two(n: int) -> int:
    """The m of n = 2^m; raises ValueError if there is none.

    >>> power_of_two(8)
    3
    """
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"length {n} must be a whole number, a power of two")
    if n & (n - 1):
        raise ValueError(f"length {n} is not a power of two: pad to {1 << n.bit_length()} or use dft")
    return n.bit_length() - 1
