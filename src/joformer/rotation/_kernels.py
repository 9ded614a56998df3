"""Where the rotation uses our own kernel, and how the kernel is called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from joformer.frames import Layout

_WANTED = os.environ.get("JOFORMER_KERNELS", "")
PARTS = 3
"""Number of tensors that one launch rotates: Triton has no lists, so each tensor has its own arguments."""


def has_kernels(x: Tensor) -> bool:
    """Whether a kernel rotates tensors like x: on GPUs if Triton is installed, except float64 tensors.

    JOFORMER_KERNELS=eager disables kernels; JOFORMER_KERNELS=triton uses them on any device, for tests with
    TRITON_INTERPRET=1.
    """
    here = x.is_cuda or x.device.type == "xpu" or _WANTED == "triton"
    return here and x.dtype != torch.float64 and _triton_is_here()


@cache
def _triton_is_here() -> bool:
    return _WANTED != "eager" and find_spec("triton") is not None


def rotate_parts(
    parts: Sequence[Tensor],
    out: Sequence[Tensor],
    unit: Tensor,
    layout: Layout,
    inverse: bool = False,
    *,
    rotated: Sequence[bool] = (True,),
    results: Sequence[Tensor] = (),
    angles: bool = False,
    home: Tensor | None = None,
) -> Tensor | None:
    """Rotates parts into `out`, up to three per launch.

    Args:
        parts: ``(batch, tokens, heads, head_dim)`` each.
        out: The outputs; a part may be its own `out`.
        unit: ``(cos θ, sin θ)``, ``(batch or 1, tokens, frame heads, planes, 2)``, float32.
        layout: The plane layout.
        inverse: Rotate by −θ.
        rotated: Which parts are rotated; the others are copied.
        results: The outputs of the forward rotation if `parts` are its gradients; with `home`, its inputs.
        angles: Whether to compute the gradient of the angles.
        home: A contiguous output for the single result rotated in the opposite direction: it recomputes the output of
            the forward rotation in the same pass as its backward.

    Returns:
        The gradient of the angles per row of the batch, ``(batch, tokens, frame heads, planes)``, if requested.
    """
    from joformer.rotation import _ops

    shape = *parts[0].shape[:2], *unit.shape[2:4]
    if not parts[0].numel():
        return unit.new_zeros(shape) if angles else None
    # The kernel reads along a head; tensors that are strided there are copied first.
    read, results = ([one if one.stride(-1) == 1 else one.contiguous() for one in some] for some in (parts, results))
    written = [
        one if one.stride(-1) == 1 else torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in out
    ]
    total = None
    for start in range(0, len(parts), PARTS):
        some = slice(start, start + PARTS)
        each = unit.new_empty(shape) if angles else None
        _ops.rotate_parts(
            read[some], written[some], unit, list(rotated[some]), layout == "half", inverse, results[some], each, home
        )
        total = each if total is None or each is None else total + each
    for one, its in zip(out, written, strict=True):
        if one is not its:
            one.copy_(its)
    return total
