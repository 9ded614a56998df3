"""Tensors and plans for rotating, prepared once per frames value and shared by q, k, v, o and all layers that use it.

    rotation    (cos θ, ± sin θ) in the dtype, memory order and number of heads that the arithmetic reads
    plan        which ranges of a packed projection are rotated by which rotation

They are stored on the frames value and freed with it: there is no cache keyed on a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from joformer._precision import arithmetic_dtype
from joformer.frames import FlatFrames
from joformer.frames._types import check_fits, check_shapes, cos_sin
from joformer.rotation._eager import Pair, Plan, Rotation, for_kernel, inverse_of

# (heads, head_dim) of each part of a packed projection.
Widths = tuple[tuple[int, int], ...]


@dataclass
class Prepared:
    """Rotations and plans prepared so far, each keyed on what determines it.

    Attributes:
        rotations: Keyed on (dtype of the arithmetic, heads, inverse).
        fitting: Keyed on the shape, dtype and device that were checked: decoding needs the same one layer after layer.
        plans: Keyed on the packed tensor, its parts, which of them are rotated, and whether a backward may follow.
    """

    rotations: dict[tuple[torch.dtype, int, bool], Rotation] = field(default_factory=dict)
    fitting: dict[tuple[torch.Size, torch.dtype, torch.device, bool], Rotation] = field(default_factory=dict)
    plans: dict[tuple[Any, ...], Plan] = field(default_factory=dict)


def _prepared(frames: FlatFrames) -> Prepared:
    if frames._prepared is None:
        object.__setattr__(frames, "_prepared", Prepared())
    return frames._prepared


def rotation_of(frames: FlatFrames, dtype: torch.dtype, heads: int, inverse: bool) -> Rotation:
    """The rotation of tensors of `dtype` with `heads` heads."""
    rotations, key = _prepared(frames).rotations, (arithmetic_dtype(dtype), heads, inverse)
    made = rotations.get(key)
    if made is None:
        with torch.no_grad():
            if inverse:
                made = inverse_of(rotation_of(frames, dtype, heads, inverse=False))
            else:
                wide = key[0]
                unit = frames.cos_sin if wide == torch.float32 else cos_sin(frames.angles, wide, frames.layout)
                made = Rotation(for_kernel(unit.detach(), frames.layout, heads), frames.layout)
        rotations[key] = made
    return made


def rotation_for(frames: FlatFrames, x: Tensor, inverse: bool) -> Rotation:
    """The rotation of tensors like x, which is checked to fit."""
    fitting, key = _prepared(frames).fitting, (x.shape, x.dtype, x.device, inverse)
    made = fitting.get(key)
    if made is None:
        check_fits(x, frames)
        made = fitting[key] = rotation_of(frames, x.dtype, x.shape[2], inverse)
    return made


def pair_of(frames: FlatFrames, dtype: torch.dtype, heads: int, inverse: bool) -> Pair:
    """The rotations of tensors of `dtype` with `heads` heads, and of their gradients."""
    return rotation_of(frames, dtype, heads, inverse), rotation_of(frames, dtype, heads, not inverse)


def packed_plan(frames: FlatFrames, packed: Tensor, widths: Widths, rotated: tuple[bool, ...]) -> Plan:
    """How a packed projection is rotated in place."""
    shape, dtype, device = packed.shape, packed.dtype, packed.device
    forward_only = not torch.is_grad_enabled()
    plans, key = _prepared(frames).plans, (shape, dtype, device, widths, rotated, forward_only)
    plan = plans.get(key)
    if plan is None:
        stretches = _stretches(frames, shape, device, widths, rotated)
        pairs = [
            None if forward_only or not its else pair_of(frames, dtype, heads, inverse=False)
            for (heads, _), its in zip(widths, rotated, strict=True)
        ]
        runs = [
            (start, stop, dim, rotation_of(frames, dtype, (stop - start) // dim, inverse=False))
            for start, stop, dim in stretches
        ]
        plan = plans[key] = Plan(widths, tuple(runs), rotated, tuple(pairs))
    return plan


def _stretches(
    frames: FlatFrames, shape: Sequence[int], device: torch.device, widths: Widths, rotated: tuple[bool, ...]
) -> list[tuple[int, int, int]]:
    """(start, stop, head_dim) of the range each call rotates; neighbours are merged if all heads share their angles."""
    found: list[tuple[int, int, int]] = []
    start = 0
    for (heads, dim), its in zip(widths, rotated, strict=True):
        stop = start + heads * dim
        if its:
            check_shapes(shape[0], shape[1], heads, dim, device, frames)
            if found and found[-1][1:] == (start, dim) and frames.heads == 1:
                found[-1] = (found[-1][0], stop, dim)
            else:
                found.append((start, stop, dim))
        start = stop
    return found
