"""Where the rotation has a kernel of ours, and how it is called."""

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
"""How many tensors one launch rotates: Triton has no lists, so that each has arguments of its own."""


def has_kernels(x: Tensor) -> bool:
    """Whether a kernel rotates tensors like x: on GPUs where Triton is installed, unless they are float64.

    JOFORMER_KERNELS=eager turns kernels off; JOFORMER_KERNELS=triton takes them on any device, for tests with
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
    *,
    rotated: Sequence[bool] = (True,),
    results: Sequence[Tensor] = (),
    inverse: bool = False,
) -> Tensor | None:
    """Rotates parts into `out`, up to three per launch.

    Args:
        parts: ``(batch, tokens, heads, head_dim)`` each.
        out: Where they go; a part may be its own `out`.
        unit: ``(cos θ, sin θ)``, ``(batch or 1, tokens, frame heads, planes, 2)``, float32.
        layout: The plane layout.
        rotated: Which parts are rotated; the others are copied.
        results: What the forward rotation wrote, where `parts` are its gradients and that of the angles is wanted.
        inverse: Rotate by −θ.

    Returns:
        The gradient of the angles per row of the batch, ``(batch, tokens, frame heads, planes)``, if there are results.
    """
    from joformer.rotation import _ops

    total = unit.new_zeros(*parts[0].shape[:2], *unit.shape[2:4]) if results else None
    if not parts[0].numel():
        return total
    # The kernel reads along a head; tensors that are strided there go through a copy.
    read = [part if part.stride(-1) == 1 else part.contiguous() for part in parts]
    written = [
        one if one.stride(-1) == 1 else torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in out
    ]
    for start in range(0, len(parts), PARTS):
        some = slice(start, start + PARTS)
        angles = None if total is None else torch.empty_like(total)
        _ops.rotate_parts(
            read[some], written[some], unit, list(rotated[some]), layout == "half", inverse, list(results[some]), angles
        )
        total = angles if not start or total is None or angles is None else total + angles
    for one, its in zip(out, written, strict=True):
        if one is not its:
            one.copy_(its)
    return total
