"""What precision arithmetic is done in: dtypes that a device has, autocast kept out, parameters that are not rounded.

One floor of the house, imported by all rooms; it knows torch and nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self

Device = torch.device | str | int | None


def has_float64(device: Device) -> bool:
    """Whether the device computes in float64; Apple's GPUs do not.

    >>> has_float64("cpu"), has_float64("mps")
    (True, False)
    """
    return device is None or torch.device(device).type != "mps"


def widest(device: Device, otherwise: torch.dtype = torch.float32) -> torch.dtype:
    """float64, or `otherwise` on a device without it.

    >>> widest("cpu"), widest("mps")
    (torch.float64, torch.float32)
    """
    return torch.float64 if has_float64(device) else otherwise


def exact_device(device: Device) -> Device:
    """The device itself where it has float64, the CPU otherwise.

    >>> exact_device("mps"), exact_device(None)
    ('cpu', None)
    """
    return device if has_float64(device) else "cpu"


def arithmetic_dtype(dtype: torch.dtype) -> torch.dtype:
    """What tensors of `dtype` are computed with: float64 for float64, float32 for all others.

    >>> arithmetic_dtype(torch.bfloat16), arithmetic_dtype(torch.float64)
    (torch.float32, torch.float64)
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def default_dtype() -> torch.dtype:
    """The default dtype, or float32 where that is shorter: what angles are made in.

    >>> default_dtype()
    torch.float32
    """
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast rounds nothing, on devices that have it.

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast(torch.device("cpu")):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.float32
    """
    # The compiler of torch 2.6 does not know `is_autocast_available`; on devices it compiles for there is autocast.
    known = torch.compiler.is_compiling() or torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


def is_traced() -> bool:
    """Whether a compiler or a `torch.func` transform records the operations: it sees through plain ones only.

    >>> is_traced()
    False
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def readable(t: Tensor) -> bool:
    """Whether looking at the numbers is free: no device to wait for, no graph, no stand-in for a tensor.

    >>> readable(torch.ones(2)), readable(torch.ones(2, device="meta"))
    (True, False)
    """
    return type(t) is Tensor and t.device.type == "cpu" and not is_traced()


class KeepsPrecision(nn.Module):
    """A module that `.to(bfloat16)` moves but does not round: frequencies in bfloat16 are other frequencies.

    >>> class Angles(KeepsPrecision):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.angles = nn.Parameter(torch.zeros(3))
    >>> Angles().to(torch.bfloat16).angles.dtype, Angles().double().angles.dtype
    (torch.float32, torch.float64)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(t: Tensor) -> Tensor:
            out = fn(t)
            lowered = out.is_floating_point() and torch.finfo(out.dtype).bits < 32
            return t.to(device=out.device) if lowered else out

        return super()._apply(keep_precision, recurse)
