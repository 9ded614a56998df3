"""The rotation as an operator of torch: opaque to `torch.compile` and `torch.export`, and safe to run in place.

    joformer::rotate_parts      y = R(±θ) x for up to three tensors at once, and the gradient of θ beside it

Imported when a kernel is first needed (`joformer.rotation._kernels`): to register an operator takes time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("joformer::rotate_parts", mutates_args=("out", "angles", "home"))
def rotate_parts(
    parts: Sequence[Tensor], out: Sequence[Tensor], unit: Tensor, rotated: Sequence[bool], half: bool,
    inverse: bool, results: Sequence[Tensor], angles: Tensor | None, home: Tensor | None,
) -> None:  # fmt: skip
    """Writes ``R(±θ) part`` for up to three parts, in one launch.

    Args:
        parts: ``(batch, tokens, heads, head_dim)`` each, head_dim contiguous; each may be its own `out`.
        out: Where each goes, of the same shapes.
        unit: ``(cos θ, sin θ)``, ``(batch or 1, tokens, frame heads, planes, 2)``, float32.
        rotated: Which parts are rotated; the others are copied, or left where they are their own `out`.
        half: The plane layout.
        inverse: Rotate by −θ.
        results: What the forward rotation wrote for each part, where `parts` are its gradients, or with `home` what
            it read; else empty.
        angles: Where the gradient of θ is written, ``(batch, tokens, frame heads, planes)``, float32; else None.
        home: Where ``R(∓θ) results[0]`` is written, contiguous, beside the one part; else None.
    """
    from joformer.rotation import _triton

    _triton.launch(parts, out, unit, rotated, half, inverse, results, angles, home)


@rotate_parts.register_fake
def _(*_: Any) -> None:
    """Nothing is returned: everything is written in place."""
