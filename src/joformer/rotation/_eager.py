"""Rotating planes of tensors in eager PyTorch: the arithmetic behind `rotate`, in terms of angles instead of frames.

    y = R(θ) x plane by plane:   y₁ = x₁ cos θ − x₂ sin θ,   y₂ = x₁ sin θ + x₂ cos θ

In eager mode this is one complex product per tensor, in place if the tensor may be overwritten; on GPUs one kernel
(`_kernels`); under the compiler and `torch.func` real arithmetic, which they can trace. Throughout, `unit` is
(cos θ, ± sin θ) with shape (batch or 1, tokens, heads or 1, planes, 2), or the same as complex numbers if the entries
of a plane are neighbours; x is (batch, tokens, heads, head_dim).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from joformer._precision import arithmetic_dtype
from joformer.frames import Layout
from joformer.rotation._kernels import has_kernels, rotate_parts


class Rotation(NamedTuple):
    """The rotation of tensors of some dtype and number of heads, in one direction.

    Attributes:
        unit: (cos θ, ± sin θ) as returned by `for_kernel`. Our kernel applies the sign itself: there it is always +.
        layout: The plane layout.
        inverse: Whether the rotation is by −θ.
    """

    unit: Tensor
    layout: Layout
    inverse: bool = False


# A rotation and its inverse.
Pair = tuple[Rotation, Rotation]

BLOCK = 1 << 20
"""Entries per thread that the CPU rotates at a time if it takes more than one operation."""
_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def inverse_of(rotation: Rotation) -> Rotation:
    """The inverse rotation."""
    unit, layout, inverse = rotation
    if not has_kernels(unit):
        unit = (
            unit.conj_physical()
            if unit.is_complex()
            else unit * torch.tensor([1.0, -1.0], dtype=unit.dtype, device=unit.device)
        )
    return Rotation(unit, layout, not inverse)


def for_kernel(unit: Tensor, layout: Layout, heads: int) -> Tensor:
    """The unit as `rotate_into` takes it: complex if pairs are neighbours, expanded over the heads that share it.

    Expanding costs a little memory once and lets the product of narrow heads run over longer ranges (measured: a fifth
    faster at 16 planes, a tenth slower at 32). It is skipped if the unit differs between rows, where the memory would
    grow with the batch.
    """
    if has_kernels(unit):  # kernels read the unit once for all heads that share it
        return unit
    if layout == "interleaved":
        unit = torch.view_as_complex(unit)
    if heads > 1 and unit.shape[3] < 32 and unit.shape[:3].numel() == unit.shape[1] > 1:
        unit = unit.expand(1, -1, heads, *unit.shape[3:]).contiguous()
    return unit


def cut_heads(packed: Tensor, widths: Sequence[tuple[int, int]]) -> Sequence[Tensor]:
    """(batch, tokens, width) as views (batch, tokens, heads, head_dim), one per (heads, head_dim)."""
    if widths.count(widths[0]) == len(widths):
        return packed.view(packed.shape[0], packed.shape[1], len(widths), *widths[0]).unbind(2)
    cuts = packed.split([heads * dim for heads, dim in widths], -1)
    return [cut.unflatten(-1, pair) for cut, pair in zip(cuts, widths, strict=True)]


def rotate_real(x: Tensor, unit: Tensor, layout: Layout, inverse: bool) -> Tensor:
    """The rotation in real arithmetic, which the compiler fuses and autograd differentiates."""
    heads, planes, dtype = unit.shape[2], unit.shape[3], x.dtype
    cos, sin = unit.unbind(-1)
    sin = -sin if inverse else sin
    if heads != 1:
        x, cos, sin = _grouped(x, heads), cos.unsqueeze(3), sin.unsqueeze(3)
    a, b = (half.to(unit.dtype) for half in _halves(x, planes, layout))
    first, second = (a * cos - b * sin).to(dtype), (a * sin + b * cos).to(dtype)
    pieces = [first, second] if layout == "half" else [torch.stack((first, second), -1).flatten(-2)]
    if 2 * planes < x.shape[-1]:
        pieces.append(x[..., 2 * planes :])
    rotated = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
    return rotated.flatten(2, 3) if heads != 1 else rotated


def new_like(x: Tensor) -> Tensor:
    """An empty tensor for a rotated x, in the memory order of x if that has no gaps."""
    dense = x.is_contiguous() or x.transpose(1, 2).is_contiguous()
    return torch.empty_like(x) if dense else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def rotate_into(x: Tensor, rotation: Rotation, out: Tensor) -> None:
    """Writes the rotated x into out, which may be x itself."""
    unit, layout, _ = rotation
    if has_kernels(x):
        rotate_parts([x], [out], *rotation)
        return
    if unit.dtype is _COMPLEX.get(x.dtype):
        _, _, heads, planes = unit.shape
        if 2 * planes == x.shape[3] and heads in (1, x.shape[2]):
            # A complex product rotates a pair in one pass over memory.
            pairs = _pairs(x)
            to = pairs if out is x else _pairs(out)
            if pairs is not None and to is not None:
                torch.mul(pairs, unit, out=to)
                return
    elif layout == "half" and unit.dtype == x.dtype and out is not x and unit.shape[2] in (1, x.shape[2]):
        planes = unit.shape[3]
        if 2 * planes < x.shape[3]:
            out[..., 2 * planes :] = x[..., 2 * planes :]
            x, out = x[..., : 2 * planes], out[..., : 2 * planes]
        for block in _blocks(x, unit, out):
            _rotate_halves(*block)
        return
    _rotate_any(x, unit, layout, out)


def _rotate_any(x: Tensor, unit: Tensor, layout: Layout, out: Tensor) -> None:
    """The same for partial heads, grouped heads, other precisions, the half layout and any memory order."""
    heads, planes = unit.shape[2:4]
    if out is not x and 2 * planes < x.shape[3]:
        out[..., 2 * planes :] = x[..., 2 * planes :]
    x, out = _grouped(x[..., : 2 * planes], heads), _grouped(out[..., : 2 * planes], heads)
    dtype, wide = arithmetic_dtype(unit.dtype.to_real()), None
    for some, its, to in _blocks(x, unit.unsqueeze(3), out):
        if wide is None or wide.shape != some.shape:  # one for all blocks except the last
            wide = torch.empty(some.shape, dtype=dtype, device=x.device)
        wide.copy_(some)
        if layout == "interleaved":
            torch.view_as_complex(wide.unflatten(-1, (-1, 2))).mul_(its)
            to.copy_(wide)
        else:
            _rotate_halves(wide, its, to)


def _rotate_halves(x: Tensor, unit: Tensor, out: Tensor) -> None:
    cos, sin = unit.unbind(-1)
    a, b = x.chunk(2, -1)
    out_a, out_b = out.chunk(2, -1)
    if x.dtype == out.dtype:
        torch.mul(a, cos, out=out_a).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=out_b).addcmul_(a, sin)
    else:
        out_a.copy_((a * cos).addcmul_(b, sin, value=-1))
        out_b.copy_(b.mul(cos).addcmul_(a, sin))


def _blocks(x: Tensor, unit: Tensor, out: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Blocks of rows, then of tokens, small enough that what one operation writes is still cached for the next."""
    if x.numel() <= BLOCK or x.device.type != "cpu":
        return ((x, unit, out),)
    return _cut(x, unit, out, BLOCK * torch.get_num_threads())


def _cut(x: Tensor, unit: Tensor, out: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    batch, tokens = x.shape[:2]
    rows = max(1, most * batch // x.numel())
    step = max(1, min(tokens, most * batch * tokens // x.numel()))
    for row in range(0, batch, rows):
        its = unit if unit.shape[0] == 1 else unit[row : row + rows]
        for t in range(0, tokens, step):
            yield x[row : row + rows, t : t + step], its[:, t : t + step], out[row : row + rows, t : t + step]


def _pairs(x: Tensor) -> Tensor | None:
    """Neighbouring entries as complex numbers, or None if that needs a copy."""
    batch, tokens, heads, dim = x.shape
    try:
        return torch.view_as_complex(x.view(batch, tokens, heads, dim // 2, 2))
    except RuntimeError:
        return None


def _halves(x: Tensor, planes: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """First and second entry of every rotated plane, each (…, planes)."""
    x = x[..., : 2 * planes]
    if layout == "half":
        return x[..., :planes], x[..., planes:]
    return x[..., 0::2], x[..., 1::2]


def _grouped(x: Tensor, frames_heads: int) -> Tensor:
    """(…, heads, n) as (…, frames_heads, group, n): consecutive heads share a frame."""
    return x.unflatten(2, (frames_heads, -1))


def _angle_gradient(grad: Tensor, rotated: Tensor, angles: Tensor, rotation: Rotation) -> Tensor:
    """∂L/∂θ = ± Σ g·J y, summed over everything that shares the angle."""
    heads, planes = angles.shape[2:]
    (g1, g2), (y1, y2) = (_halves(t, planes, rotation.layout) for t in (grad, rotated))
    each = torch.addcmul(g2.to(angles.dtype) * y1, g1.to(angles.dtype), y2, value=-1)
    total = _grouped(each, heads).sum(3).sum_to_size(angles.shape)
    return -total if rotation.inverse else total


def _summed(total: Tensor | None, angles: Tensor | None) -> Tensor | None:
    """The kernel's sum over heads, also summed over the rows that share the angles."""
    return None if total is None or angles is None else total.sum_to_size(angles.shape).to(angles.dtype)


class Rotate(torch.autograd.Function):
    """Eager rotation. Differentiable twice, because its backward uses itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor | None, pair: Pair) -> Tensor:
        out = new_like(x)
        rotate_into(x, pair[0], out)
        ctx.pair = pair
        ctx.save_for_backward(angles, out if angles is not None and angles.requires_grad else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        angles, rotated = ctx.saved_tensors
        there, back = ctx.pair
        to_x = to_angles = None
        if has_kernels(grad) and not torch.is_grad_enabled():
            to_x = new_like(grad)
            wanted = rotated is not None
            total = rotate_parts([grad], [to_x], *back, results=[rotated] * wanted, angles=wanted)
            return to_x, _summed(total, angles), None
        if ctx.needs_input_grad[0]:
            to_x = Rotate.apply(grad, angles, (back, there))
        if rotated is not None:
            to_angles = _angle_gradient(grad, rotated, angles, there)
        return to_x, to_angles, None


@dataclass(frozen=True)
class Plan:
    """How a packed projection is rotated: computed once per frames value, used by every layer.

    Attributes:
        widths: (heads, head_dim) of each part.
        runs: The ranges that one call rotates: start, stop, head_dim, rotation.
        rotated: Which parts are rotated.
        pairs: The rotations of each part and of its gradient, if a backward may follow.
    """

    widths: tuple[tuple[int, int], ...]
    runs: tuple[tuple[int, int, int, Rotation], ...]
    rotated: tuple[bool, ...]
    pairs: tuple[Pair | None, ...]


def rotate_packed_into_parts(packed: Tensor, plan: Plan) -> Sequence[Tensor]:
    """Rotates (batch, tokens, width) in place and splits it into its parts."""
    batch, tokens, width = packed.shape
    if has_kernels(packed):
        parts = cut_heads(packed, plan.widths)
        rotate_parts(parts, parts, *plan.runs[0][3], rotated=plan.rotated)
        return parts
    for start, stop, dim, rotation in plan.runs:
        stretch = packed if stop - start == width else packed[..., start:stop]
        x = stretch.view(batch, tokens, (stop - start) // dim, dim)
        rotate_into(x, rotation, x)
    return cut_heads(packed, plan.widths)


class RotatePacked(torch.autograd.Function):
    """In-place forward, and backward into one gradient for the whole projection."""

    @staticmethod
    def forward(ctx: Any, packed: Tensor, plan: Plan, *angles: Tensor | None) -> tuple[Tensor, ...]:
        """`angles` are those of each part if any needs a gradient, otherwise empty."""
        parts = rotate_packed_into_parts(packed.detach(), plan)
        ctx.plan = plan
        ctx.save_for_backward(*angles, *(parts if angles else ()))
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        plan, saved = ctx.plan, ctx.saved_tensors  # read once: checkpointing returns each tensor only once
        n = len(saved) // 2
        angles, rotated = saved[:n] or (None,) * len(grads), saved[n:]
        if has_kernels(grads[0]) and not torch.is_grad_enabled():
            packed = grads[0].new_empty(*grads[0].shape[:2], sum(heads * dim for heads, dim in plan.widths))
            (unit, layout, _), parts = plan.runs[0][3], cut_heads(packed, plan.widths)
            total = rotate_parts(
                grads, parts, unit, layout, True, rotated=plan.rotated, results=rotated, angles=bool(rotated)
            )
            return packed, None, *([_summed(total, angles[0])] + [None] * (n - 1))[:n]
        to_angles = [
            _angle_gradient(g, y, a, pair[0]) if pair and a.requires_grad else None
            for g, y, a, pair in zip(grads, rotated, angles, plan.pairs, strict=False)
        ]
        if torch.is_grad_enabled():  # create_graph: every step must itself be differentiable
            parts = [
                Rotate.apply(g, a, (pair[1], pair[0])) if pair else g
                for g, a, pair in zip(grads, angles, plan.pairs, strict=True)
            ]
            return torch.cat([part.flatten(2) for part in parts], -1), None, *to_angles
        packed = grads[0].new_empty(*grads[0].shape[:2], sum(heads * dim for heads, dim in plan.widths))
        for out, g, pair in zip(cut_heads(packed, plan.widths), grads, plan.pairs, strict=True):
            if pair is None:
                out.copy_(g)
            else:
                rotate_into(g, pair[1], out)
        return packed, None, *to_angles


class UnrotateLinear(torch.autograd.Function):
    """W A⁻¹ o + b: the end of an attention layer, which saves only o for its backward.

    Attention saves o too, so the inverse rotation adds no memory. A⁻¹ o is recomputed when the gradient of W needs it,
    which costs 0.4 % of a training step and saves a sixteenth of a block's activations.
    """

    @staticmethod
    def forward(ctx: Any, o: Tensor, angles: Tensor | None, pair: Pair, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.pair = pair
        ctx.save_for_backward(o, angles, weight)
        return F.linear(_rotated(o, pair[0]).flatten(2), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        o, angles, weight = ctx.saved_tensors
        there, back = ctx.pair
        to_o, to_angles, _, to_weight, to_bias = ctx.needs_input_grad
        results: list[Tensor | None] = [None] * 5
        again = torch.is_grad_enabled()  # create_graph: every step must itself be differentiable
        inner = (grad @ weight).view(o.shape) if to_o or to_angles else None
        if has_kernels(o) and not again and inner is not None:
            home = torch.empty(o.shape, dtype=o.dtype, device=o.device)
            total = rotate_parts([inner], [inner], *back, results=[o], angles=to_angles, home=home)
            results[:2] = inner, _summed(total, angles)
            inner = None
        else:
            home = Rotate.apply(o, angles, ctx.pair) if again else _rotated(o, there)
        if to_weight:
            results[3] = grad.flatten(0, 1).T @ home.flatten(2).flatten(0, 1)
        if to_bias:
            results[4] = grad.sum((0, 1))
        if inner is not None:
            if to_angles:
                results[1] = _angle_gradient(inner, home, angles, there)
            if again:
                results[0] = Rotate.apply(inner, angles, (back, there))
            else:
                rotate_into(inner, back, inner)
                results[0] = inner
        return tuple(results)


def _rotated(x: Tensor, rotation: Rotation) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rotate_into(x, rotation, out)
    return out
