"""Rotating planes of tensors: the arithmetic under `rotate`, which knows angles but not frames.

    y = R(θ) x plane by plane:   y₁ = x₁ cos θ − x₂ sin θ,   y₂ = x₁ sin θ + x₂ cos θ

In eager mode one complex product per tensor, in place where the tensor is ours; under the compiler and under
`torch.func` the same in real arithmetic, which they see through. Everywhere `unit` is (cos θ, ± sin θ) with
shape (batch or 1, tokens, heads or 1, planes, 2), and x is (batch, tokens, heads, head_dim).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Layout = Literal["interleaved", "half"]
Turn = tuple[Tensor, Tensor, Layout]
"""What rotates a tensor: the unit of the rotation, the unit of its inverse, the plane layout."""


def traced() -> bool:
    """Whether a compiler or a `torch.func` transform is watching: then only plain operations will do."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def cos_sin(angles: Tensor, dtype: torch.dtype, layout: Layout) -> Tensor:
    """(…, planes) angles as (…, planes, 2), evaluated in the angles' own precision before rounding."""
    wide = angles if angles.dtype == torch.float64 else angles.to(dtype)
    return _join(wide.cos().to(dtype), wide.sin().to(dtype), layout)


def undone(unit: Tensor, layout: Layout) -> Tensor:
    """The unit of the inverse rotation."""
    cos, sin = unit.unbind(-1)
    return _join(cos, -sin, layout)


def _join(cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    # Same logical shape either way; the memory order is the one the layout's kernel reads contiguously.
    return torch.stack((cos, sin), -1) if layout == "interleaved" else torch.stack((cos, sin)).movedim(0, -1)


def cut_heads(packed: Tensor, widths: Sequence[tuple[int, int]]) -> list[Tensor]:
    """(batch, tokens, width) as views (batch, tokens, heads, head_dim), one for each (heads, head_dim)."""
    cuts = packed.split([heads * dim for heads, dim in widths], -1)
    return [cut.unflatten(-1, pair) for cut, pair in zip(cuts, widths, strict=True)]


def turn_real(x: Tensor, unit: Tensor, layout: Layout, inverse: bool) -> Tensor:
    """The rotation in plain real arithmetic, which the compiler fuses and autograd differentiates."""
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
    turned = pieces[0] if len(pieces) == 1 else torch.cat(pieces, -1)
    return turned.flatten(2, 3) if heads != 1 else turned


def turn(x: Tensor, unit: Tensor, layout: Layout, out: Tensor) -> None:
    """Write the rotated x into out, which may be x itself."""
    heads, planes = unit.shape[2], unit.shape[3]
    whole = 2 * planes == x.shape[-1]
    if not whole:
        if out is not x:
            out[..., 2 * planes :] = x[..., 2 * planes :]
        x, out = x[..., : 2 * planes], out[..., : 2 * planes]
    if heads not in (1, x.shape[2]):
        x, out, unit = _grouped(x, heads), _grouped(out, heads), unit.unsqueeze(3)
    if x.dtype != unit.dtype or (layout == "interleaved" and not _pairs_up(x)):
        wide = x.to(unit.dtype, memory_format=torch.contiguous_format, copy=True)
        _turn_wide(wide, unit, layout, wide)
        out.copy_(wide)
    elif layout == "interleaved" and not _pairs_up(out):
        wide = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _turn_wide(x, unit, layout, wide)
        out.copy_(wide)
    else:
        _turn_wide(x, unit, layout, out)


def _turn_wide(x: Tensor, unit: Tensor, layout: Layout, out: Tensor) -> None:
    if layout == "interleaved":
        # A complex product is the rotation of a pair in one pass over memory.
        turned = _as_complex(out)
        torch.mul(_as_complex(x), torch.view_as_complex(unit), out=turned)
        return
    cos, sin = unit.unbind(-1)
    (a, b), (out_a, out_b) = x.chunk(2, -1), out.chunk(2, -1)
    if out_a.data_ptr() == a.data_ptr():
        a = a.clone()
    torch.mul(a, cos, out=out_a)
    out_a.addcmul_(b, sin, value=-1)
    if out_b.data_ptr() == b.data_ptr():
        out_b.mul_(cos)
    else:
        torch.mul(b, cos, out=out_b)
    out_b.addcmul_(a, sin)


def _pairs_up(x: Tensor) -> bool:
    """Whether neighbouring entries can be viewed as complex numbers without a copy."""
    return x.stride(-1) == 1 and x.storage_offset() % 2 == 0 and all(s % 2 == 0 for s in x.stride()[:-1])


def _as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


def _halves(x: Tensor, planes: int, layout: Layout) -> tuple[Tensor, Tensor]:
    """First and second entry of every rotated plane, each (…, planes)."""
    x = x[..., : 2 * planes]
    if layout == "half":
        return x[..., :planes], x[..., planes:]
    return x[..., 0::2], x[..., 1::2]


def _grouped(x: Tensor, frames_heads: int) -> Tensor:
    """(…, heads, n) as (…, frames_heads, group, n): consecutive heads share a frame."""
    return x.unflatten(2, (frames_heads, -1))


def _angle_gradient(grad: Tensor, turned: Tensor, angles: Tensor, layout: Layout, inverse: bool) -> Tensor:
    """∂L/∂θ = ± Σ g·J y, summed over whatever shares the angle."""
    heads, planes = angles.shape[2:]
    (g1, g2), (y1, y2) = (_halves(t, planes, layout) for t in (grad, turned))
    each = torch.addcmul(g2.to(angles.dtype) * y1, g1.to(angles.dtype), y2, value=-1)
    total = _grouped(each, heads).sum(3).sum_to_size(angles.shape)
    return -total if inverse else total


class Rotate(torch.autograd.Function):
    """Eager rotation. Differentiable twice, since its backward is written with itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor, turns: Turn, inverse: bool) -> Tensor:
        unit, _, layout = turns
        dense = x.is_contiguous() or x.transpose(1, 2).is_contiguous()
        out = torch.empty_like(x) if dense else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        turn(x, unit, layout, out)
        ctx.turns, ctx.inverse = turns, inverse
        ctx.save_for_backward(angles, out if angles.requires_grad else None)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        angles, turned = ctx.saved_tensors
        unit, back, layout = ctx.turns
        to_x = to_angles = None
        if ctx.needs_input_grad[0]:
            to_x = Rotate.apply(grad, angles, (back, unit, layout), not ctx.inverse)
        if ctx.needs_input_grad[1]:
            to_angles = _angle_gradient(grad, turned, angles, layout, ctx.inverse)
        return to_x, to_angles, None, None


class RotatePacked(torch.autograd.Function):
    """In place forward, and backward into one gradient for the whole projection."""

    @staticmethod
    def forward(
        ctx: Any, packed: Tensor, widths: Any, turns: Sequence[Turn | None], *angles: Tensor | None
    ) -> tuple[Tensor, ...]:
        packed = packed.detach()
        parts = cut_heads(packed, widths)
        for x, (unit, _, layout) in _runs(packed, widths, turns):
            turn(x, unit, layout, x)
        ctx.widths, ctx.turns = widths, turns
        wants = [a is not None and a.requires_grad for a in angles]
        ctx.save_for_backward(*angles, *(p if want else None for p, want in zip(parts, wants, strict=True)))
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        n = len(ctx.widths)
        angles, turned = ctx.saved_tensors[:n], ctx.saved_tensors[n:]
        to_angles = [
            None if y is None else _angle_gradient(g, y, a, turns[2], inverse=False)
            for g, y, a, turns in zip(grads, turned, angles, ctx.turns, strict=True)
        ]
        if torch.is_grad_enabled():  # create_graph: every step must itself be differentiable
            parts = [
                g if turns is None else Rotate.apply(g, a, (turns[1], turns[0], turns[2]), True)
                for g, a, turns in zip(grads, angles, ctx.turns, strict=True)
            ]
            return torch.cat([part.flatten(2) for part in parts], -1), None, None, *to_angles
        packed = grads[0].new_empty(*grads[0].shape[:2], sum(heads * dim for heads, dim in ctx.widths))
        for out, g, turns in zip(cut_heads(packed, ctx.widths), grads, ctx.turns, strict=True):
            if turns is None:
                out.copy_(g)
            else:
                turn(g, turns[1], turns[2], out)
        return packed, None, None, *to_angles


class UnrotateLinear(torch.autograd.Function):
    """W A⁻¹ o + b: the end of an attention layer, which keeps o alone for its backward.

    Attention keeps o too, so that undoing the frames adds no memory; A⁻¹ o is made again when W's gradient needs it.
    """

    @staticmethod
    def forward(ctx: Any, o: Tensor, angles: Tensor, turns: Turn, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.turns, ctx.biased = turns, bias is not None
        ctx.save_for_backward(o, angles, weight)
        return F.linear(_fresh_turn(o, turns).flatten(2), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        o, angles, weight = ctx.saved_tensors
        unit, back, layout = ctx.turns
        again = torch.is_grad_enabled()  # create_graph: every step must itself be differentiable
        to_o = to_angles = to_weight = to_bias = None
        undone = Rotate.apply(o, angles, ctx.turns, True) if again else _fresh_turn(o, ctx.turns)
        if ctx.needs_input_grad[3]:
            to_weight = grad.flatten(0, 1).T @ undone.flatten(2).flatten(0, 1)
        if ctx.biased and ctx.needs_input_grad[4]:
            to_bias = grad.sum((0, 1))
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            inner = (grad @ weight).unflatten(-1, o.shape[2:])
            if ctx.needs_input_grad[1]:
                to_angles = _angle_gradient(inner, undone, angles, layout, inverse=True)
            if again:
                to_o = Rotate.apply(inner, angles, (back, unit, layout), False)
            else:
                turn(inner, back, layout, inner)
                to_o = inner
        return to_o, to_angles, None, to_weight, to_bias


def _fresh_turn(x: Tensor, turns: Turn) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    turn(x, turns[0], turns[2], out)
    return out


def _runs(packed: Tensor, widths: Any, turns: Sequence[Turn | None]) -> list[tuple[Tensor, Turn]]:
    """The parts to rotate, neighbours joined where one call does both: same unit, one angle for all heads."""
    runs: list[tuple[int, int, int, Turn]] = []
    start = 0
    for its, (heads, dim) in zip(turns, widths, strict=True):
        stop = start + heads * dim
        if its is not None:
            before = runs[-1] if runs else None
            if before and before[1] == start and before[2] == dim and before[3] is its and its[0].shape[2] == 1:
                runs[-1] = (before[0], stop, dim, its)
            else:
                runs.append((start, stop, dim, its))
        start = stop
    return [(packed[..., a:b].unflatten(-1, (-1, dim)), its) for a, b, dim, its in runs]
