"""Rotation on GPUs: one kernel that reads each entry once, rotates it in registers and writes it once.

    y = R(±θ) x          for up to three parts in one launch (q, k and v of a packed projection)
    ∂θ = ± Σ y ∧ g       in the same launch, where g is the gradient of y: summed over the heads that share an angle
    R(∓θ) o              in the same launch, if the backward of the last rotation of a layer needs its result again

A program holds the cosines and sines of some tokens in registers and loops over all heads that share them. Arithmetic
is float32 for every dtype of x. The sum over heads has a fixed order and no atomics, so that runs are bit-identical.
The same kernel computes the rotation, its inverse and its backward.

Imported on first use: Triton comes with torch for GPUs, and `import joformer` does not need it. TRITON_INTERPRET=1
runs the kernel on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from joformer.rotation._kernels import PARTS

TILE = 1024
"""Planes that a program holds at a time: tokens times planes, 8 of each thread at four warps."""
PROGRAMS = 512
"""With fewer programs than this, as in decoding, the heads are divided among more programs."""


@triton.jit
def _load(at, columns, count, ok, step: tl.constexpr, INTERLEAVED: tl.constexpr, PADDED: tl.constexpr):
    """First and second entry of every plane, (tokens, planes) each, in float32."""
    if INTERLEAVED:
        both = tl.arange(0, 2 * PADDED)[None, :]
        x = tl.load(at + both, mask=ok & (both < 2 * count), other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(x, (x.shape[0], PADDED, 2)))
    else:
        a = tl.load(at + columns, mask=ok & (columns < count), other=0.0).to(tl.float32)
        b = tl.load(at + columns + step, mask=ok & (columns < count), other=0.0).to(tl.float32)
    return a, b


@triton.jit
def _store(at, columns, count, ok, a, b, step: tl.constexpr, INTERLEAVED: tl.constexpr, PADDED: tl.constexpr):
    dtype = at.dtype.element_ty
    if INTERLEAVED:
        both = tl.arange(0, 2 * PADDED)[None, :]
        x = tl.reshape(tl.join(a, b), (a.shape[0], 2 * PADDED))
        tl.store(at + both, x.to(dtype), mask=ok & (both < 2 * count))
    else:
        tl.store(at + columns, a.to(dtype), mask=ok & (columns < count))
        tl.store(at + columns + step, b.to(dtype), mask=ok & (columns < count))


@triton.jit
def _copy(x, y, some):
    tl.store(y, tl.load(x, mask=some, other=0.0), mask=some)


@triton.jit
def _rotate_part(
    x, y, result, home, x_row, x_token, x_head, y_row, y_token, y_head, result_row, result_token, result_head,
    row, t, ok, columns, cos, sin, total, first, last, home_token,
    DIM: tl.constexpr, ROTATED: tl.constexpr, COPIED: tl.constexpr, HOME: tl.constexpr,
    INTERLEAVED: tl.constexpr, ANGLES: tl.constexpr, PLANES: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Heads `first` to `last` of one part: y = R x, or a copy of x; adds result ∧ x to `total`.

    With HOME the result is in the frame of y, and is written in the frame of x to `home`.
    """
    x_at = x + row * x_row + t * x_token
    y_at = y + row * y_row + t * y_token
    result_at = result + row * result_row + t * result_token
    home_at = home + t * home_token
    for head in range(first, last):
        if ROTATED:
            a, b = _load(x_at + head * x_head, columns, PLANES, ok, PLANES, INTERLEAVED, PADDED)
            rotated_a, rotated_b = a * cos - b * sin, a * sin + b * cos
            if ANGLES or HOME:
                c, d = _load(result_at + head * result_head, columns, PLANES, ok, PLANES, INTERLEAVED, PADDED)
                if HOME:
                    home_a, home_b = c * cos + d * sin, d * cos - c * sin
                    _store(home_at + head * DIM, columns, PLANES, ok, home_a, home_b, PLANES, INTERLEAVED, PADDED)
                    total += c * rotated_b - d * rotated_a
                else:
                    total += c * b - d * a
            _store(y_at + head * y_head, columns, PLANES, ok, rotated_a, rotated_b, PLANES, INTERLEAVED, PADDED)
        # The entries outside the planes; all of them if the part is not rotated.
        begin: tl.constexpr = 2 * PLANES if ROTATED else 0
        rest = tl.arange(0, WIDE)[None, :]
        some = ok & (rest < DIM - begin)
        if COPIED:
            _copy(x_at + head * x_head + begin + rest, y_at + head * y_head + begin + rest, some)
        if HOME and begin < DIM:
            _copy(result_at + head * result_head + begin + rest, home_at + head * DIM + begin + rest, some)
    return total


@triton.jit
def rotate_kernel(
    x0, x1, x2, y0, y1, y2, result0, result1, result2, unit, angles, home,
    x0_row, x0_token, x0_head, y0_row, y0_token, y0_head, result0_row, result0_token, result0_head, group0,
    x1_row, x1_token, x1_head, y1_row, y1_token, y1_head, result1_row, result1_token, result1_head, group1,
    x2_row, x2_token, x2_head, y2_row, y2_token, y2_head, result2_row, result2_token, result2_head, group2,
    unit_row, unit_token, unit_head, tokens, blocks, chunks, per_chunk, UNIT_PLANE: tl.constexpr,
    UNIT_SIDE: tl.constexpr,
    DIM0: tl.constexpr, DIM1: tl.constexpr, DIM2: tl.constexpr,
    ROTATED0: tl.constexpr, ROTATED1: tl.constexpr, ROTATED2: tl.constexpr,
    COPIED0: tl.constexpr, COPIED1: tl.constexpr, COPIED2: tl.constexpr,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr, ANGLES: tl.constexpr,
    HOME: tl.constexpr, PLANES: tl.constexpr, PADDED: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rotates some tokens of one row: all heads that use frame head ``program_id(1) // chunks``."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    frame, chunk = tl.program_id(1) // chunks, tl.program_id(1) % chunks
    t = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK))[:, None].to(tl.int64)
    ok = t < tokens
    columns = tl.arange(0, PADDED)[None, :]
    at = unit + row * unit_row + t * unit_token + frame * unit_head + columns * UNIT_PLANE
    cos = tl.load(at, mask=ok & (columns < PLANES), other=1.0)
    sin = tl.load(at + UNIT_SIDE, mask=ok & (columns < PLANES), other=0.0)
    if INVERSE:
        sin = -sin
    total = tl.full((BLOCK, PADDED), 0.0, tl.float32)
    frame_heads = tl.num_programs(1) // chunks
    home += row * tokens * frame_heads * group0 * DIM0
    home_token = frame_heads * group0 * DIM0
    if DIM0 > 0:
        first = frame * group0 + chunk * per_chunk
        total = _rotate_part(
            x0, y0, result0, home, x0_row, x0_token, x0_head, y0_row, y0_token, y0_head, result0_row, result0_token,
            result0_head,
            row, t, ok, columns, cos, sin, total, first, tl.minimum(first + per_chunk, (frame + 1) * group0),
            home_token, DIM0, ROTATED0, COPIED0, HOME, INTERLEAVED, ANGLES, PLANES, PADDED, WIDE,
        )  # fmt: skip
    if DIM1 > 0:
        first = frame * group1 + chunk * per_chunk
        total = _rotate_part(
            x1, y1, result1, home, x1_row, x1_token, x1_head, y1_row, y1_token, y1_head, result1_row, result1_token,
            result1_head,
            row, t, ok, columns, cos, sin, total, first, tl.minimum(first + per_chunk, (frame + 1) * group1),
            home_token, DIM1, ROTATED1, COPIED1, False, INTERLEAVED, ANGLES, PLANES, PADDED, WIDE,
        )  # fmt: skip
    if DIM2 > 0:
        first = frame * group2 + chunk * per_chunk
        total = _rotate_part(
            x2, y2, result2, home, x2_row, x2_token, x2_head, y2_row, y2_token, y2_head, result2_row, result2_token,
            result2_head,
            row, t, ok, columns, cos, sin, total, first, tl.minimum(first + per_chunk, (frame + 1) * group2),
            home_token, DIM2, ROTATED2, COPIED2, False, INTERLEAVED, ANGLES, PLANES, PADDED, WIDE,
        )  # fmt: skip
    if ANGLES:
        place = angles + ((row * tokens + t) * frame_heads + frame) * PLANES + columns
        tl.store(place, total if INVERSE else -total, mask=ok & (columns < PLANES))


def launch(
    parts: Sequence[Tensor], out: Sequence[Tensor], unit: Tensor, rotated: Sequence[bool], half: bool,
    inverse: bool, results: Sequence[Tensor], angles: Tensor | None, home: Tensor | None,
) -> None:  # fmt: skip
    """Launches the kernel; the arguments are those of `joformer.rotation._ops.rotate_parts`."""
    batch, tokens = parts[0].shape[:2]
    frame_heads, planes = unit.shape[2:4]
    padded = triton.next_power_of_2(planes)
    block = max(1, min(TILE // padded, triton.next_power_of_2(tokens)))
    tensors: list[list[Tensor]] = [[], [], []]
    numbers: list[int] = []
    constants: dict[str, Any] = {}
    widest, groups = 1, 1
    for at in range(PARTS):
        there = at < len(parts)
        x, y = (parts[at], out[at]) if there else (parts[0], out[0])
        z = results[at] if at < len(results) else x
        for held, tensor in zip(tensors, (x, y, z), strict=True):
            held.append(tensor)
            numbers += tensor.stride()[:3]
        dim, group = (x.shape[3], x.shape[2] // frame_heads) if there else (0, 1)
        numbers.append(group)
        rotates = there and rotated[at]
        rest = dim - 2 * planes if rotates else dim
        copied = there and rest > 0 and y.data_ptr() != x.data_ptr()
        widest, groups = max(widest, rest if copied or home is not None else 1), max(groups, group)
        constants |= {
            f"DIM{at}": dim if rotates or copied else 0,
            f"ROTATED{at}": rotates,
            f"COPIED{at}": copied,
        }
    blocks = triton.cdiv(tokens, block)
    programs = blocks * batch * frame_heads
    chunks = 1 if angles is not None else min(groups, triton.cdiv(PROGRAMS, programs))
    per_chunk = triton.cdiv(groups, chunks)
    chunks = triton.cdiv(groups, per_chunk)
    strides = [0 if unit.shape[0] == 1 else unit.stride(0), *unit.stride()[1:]]
    rotate_kernel[blocks * batch, frame_heads * chunks](
        *(tensor for held in tensors for tensor in held), unit, unit if angles is None else angles,
        parts[0] if home is None else home,
        *numbers, *strides[:3], tokens, blocks, chunks, per_chunk, UNIT_PLANE=strides[3], UNIT_SIDE=strides[4],
        **constants,
        INTERLEAVED=not half, INVERSE=inverse, ANGLES=angles is not None, HOME=home is not None, PLANES=planes,
        PADDED=padded, WIDE=triton.next_power_of_2(widest), BLOCK=block,
    )  # fmt: skip
