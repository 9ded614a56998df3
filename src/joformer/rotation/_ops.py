"""The rotation as a custom torch operator: opaque to `torch.compile` and `torch.export`, and safe to run in place.

    joformer::rotate_parts      y = R(±θ) x for up to three tensors at once, with the gradient of θ

Imported when a kernel is first needed (`joformer.rotation._kernels`), because registering an operator takes time.
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
        out: The outputs, of the same shapes.
        unit: ``(cos θ, sin θ)``, ``(batch or 1, tokens, frame heads, planes, 2)``, float32.
        rotated: Which parts are rotated; the others are copied, or skipped if they are their own `out`.
        half: Whether the plane layout is "half".
        inverse: Rotate by −θ.
        results: The outputs of the forward rotation if `parts` are its gradients, or with `home` its inputs; otherwise
            empty.
        angles: Output for the gradient of θ, ``(batch, tokens, frame heads, planes)``, float32, or None.
        home: Contiguous output for ``R(∓θ) results[0]``, if there is a single part, or None.
    """
    from joformer.rotation import _triton

    _triton.launch(parts, out, unit, rotated, half, inverse, results, angles, home)


@rotate_parts.register_fake
def _(*_: Any) -> None:
    """Returns nothing: all outputs are written in place."""
