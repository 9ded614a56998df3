"""The performance-critical operation: rotation by the frames, or by their inverse.

    R(φ) = [[cos φ, −sin φ],      A_t = diag(R(θ_t1), …, R(θ_tP))      y_t = A_t x_t   or   A_t⁻¹ x_t
            [sin φ,  cos φ]]

This is where the sign is defined. Which entry of a head belongs to which plane:

    interleaved   x0 x1 x2 x3 x4 x5        half   x0 x1 x2 x3 x4 x5
    plane          0  0  1  1  2  2                0  1  2  0  1  2      (GPT-NeoX, Hugging Face)

If a head is wider than its planes, its first entries are rotated or, with frames built with ``at="end"``, its last.
Paper: "Journey Operator and Score/Value Attention"; docs/conventions.md, conventions 1–3 and 7. The backward of a
rotation is the inverse rotation, and the gradient of an angle follows from the rotated output
(∂y/∂θ = J y with J = R(π/2)), so a rotation saves nothing that attention does not save anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import module as _everywhere

from joformer._precision import arithmetic_dtype, is_traced, without_autocast
from joformer.frames import At, CurvedFrames, FlatFrames, Frames, JointFrames, Layout, is_flat
from joformer.frames._types import check_fits, check_planes, cos_sin, is_joint
from joformer.rotation._eager import (
    Rotate,
    RotatePacked,
    UnrotateLinear,
    cut_heads,
    new_like,
    rotate_into,
    rotate_packed_into_parts,
    rotate_real,
)
from joformer.rotation._prepared import packed_plan, pair_of, rotation_for

_FORWARD, _PLAIN = nn.Linear.forward, (nn.Parameter, Tensor)

# The order of dimensions: (batch, tokens, heads, head_dim) or (batch, heads, tokens, head_dim).
Format = Literal["bthd", "bhtd"]


def rotate(
    x: Float[Tensor, "batch tokens heads head_dim"], frames: Frames, inverse: bool = False, *, format: Format = "bthd"
) -> Float[Tensor, "batch tokens heads head_dim"]:
    """Rotates each token by its frame: ``y_t = A_t x_t`` (``A_t⁻¹ x_t`` if `inverse`).

    For frames that are not orthogonal (cameras), use ``frames.dual`` for queries and ``frames`` for keys and values.

    Args:
        x: Queries, keys or values, ``(batch, tokens, heads, head_dim)``, any float dtype.
        frames: The frames of these tokens, as returned by a frames module. If they have fewer heads than `x`, groups of
            consecutive heads share them (grouped queries).
        inverse: Apply the inverse rotation instead.
        format: "bthd", or "bhtd" if `x` is ``(batch, heads, tokens, head_dim)``.

    Returns:
        A tensor like `x`. The arithmetic is float32 (float64 for float64 `x`).

    Raises:
        ValueError: If `frames` does not fit `x`: another number of tokens, heads that do not divide, heads too narrow.

    Example:
        >>> from joformer import FlatFrames
        >>> frames = FlatFrames.of(torch.full((1, 1, 1, 1), torch.pi / 2))
        >>> rotate(torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), frames).flatten().round(decimals=3).tolist()
        [-0.0, 1.0]
    """
    if format != "bthd":
        check_format(format)
        return rotate(x.transpose(1, 2), frames, inverse).transpose(1, 2)
    if not is_flat(frames) or (frames.at == "end" and frames.width < x.shape[-1]):
        check_fits(x, frames)
        return _rotate_end(x, frames, inverse) if is_flat(frames) else _rotate_other(x, frames, inverse)
    if frames.is_identity or is_traced():
        check_fits(x, frames)
        if frames.is_identity:
            return x
        unit = frames.cos_sin if x.dtype != torch.float64 else cos_sin(frames.angles, x.dtype, frames.layout)
        return rotate_real(x, unit, frames.layout, inverse)
    rotation = rotation_for(frames, x, inverse)
    if not torch.is_grad_enabled() or not (x.requires_grad or frames.angles.requires_grad):
        out = new_like(x)
        rotate_into(x, rotation, out)
        return out
    return Rotate.apply(x, frames.angles, pair_of(frames, x.dtype, x.shape[2], inverse))


def check_format(format: str) -> bool:
    """Whether heads come before tokens; raises ValueError for an unknown format.

    >>> check_format("bthd"), check_format("bhtd")
    (False, True)
    """
    if format not in ("bthd", "bhtd"):
        order = "'bthd' (batch, tokens, heads, head_dim) or 'bhtd' (batch, heads, tokens, head_dim)"
        raise ValueError(f"format must be {order}, got {format!r}")
    return format == "bhtd"


def rotate_packed_(
    packed: Float[Tensor, "batch tokens width"], widths: Sequence[tuple[int, int]], frames: Sequence[Frames | None]
) -> tuple[Tensor, ...]:
    """Splits a projection into heads and rotates each part **in place**: ``y_t = A_t x_t`` for q, k and v at once.

    The backward writes the rotated gradients directly into one packed gradient.

    Args:
        packed: The parts side by side, ``(batch, tokens, Σ heads · head_dim)``, as returned by a linear layer. It is
            overwritten: pass a tensor that nothing else reads.
        widths: ``(heads, head_dim)`` of each part.
        frames: The frames of each part, or None for a part that is not rotated.

    Returns:
        The parts, ``(batch, tokens, heads, head_dim)``, views of `packed`.

    Raises:
        ValueError: If frames do not fit their parts.

    Example:
        >>> from joformer import FlatFrames
        >>> qkv = torch.rand(1, 3, 24)
        >>> q, k, v = rotate_packed_(qkv, [(2, 4)] * 3, [FlatFrames.of(torch.rand(1, 3, 1, 2))] * 2 + [None])
        >>> v.shape
        torch.Size([1, 3, 2, 4])
    """
    first, one = None, True
    for its in frames:
        if its is not None:
            first, one = its if first is None else first, one and (first is None or its is first)
    if is_traced() or not one or first is None or not is_flat(first) or first.is_identity or first.at == "end":
        parts = cut_heads(packed, widths)
        return tuple(p if its is None else rotate(p, its) for p, its in zip(parts, frames, strict=True))
    plan = packed_plan(first, packed, tuple(widths), tuple([its is not None for its in frames]))
    if not torch.is_grad_enabled():
        return tuple(rotate_packed_into_parts(packed, plan))
    angles = (first.angles,) * len(widths) if first.angles.requires_grad else ()
    return RotatePacked.apply(packed, plan, *angles)


def unrotate_linear(
    o: Float[Tensor, "batch tokens heads head_dim"], frames: Frames, linear: nn.Module
) -> Float[Tensor, "batch tokens out"]:
    """``W (A_t⁻¹ o_t) + b``, heads side by side: the inverse rotation followed by the output projection.

    Args:
        o: The output of attention, ``(batch, tokens, heads, head_dim)``. It may be overwritten: without gradients it
            is rotated in place.
        frames: The frames of its tokens.
        linear: The output projection, with ``heads · head_dim`` inputs.

    Returns:
        ``(batch, tokens, out)``.

    Raises:
        ValueError: If `frames` does not fit `o`.

    Example:
        >>> from joformer import FlatFrames
        >>> frames = FlatFrames.of(torch.rand(1, 3, 1, 2))
        >>> o, linear = torch.rand(1, 3, 2, 4), nn.Linear(8, 5)
        >>> expected = linear(rotate(o, frames, inverse=True).flatten(2))
        >>> torch.allclose(unrotate_linear(o, frames, linear), expected)
        True
    """
    if is_traced() or not is_flat(frames) or frames.is_identity or frames.at == "end":
        return linear(rotate(o, frames, inverse=True).flatten(2))
    rotation = rotation_for(frames, o, inverse=True)
    if not torch.is_grad_enabled():
        rotate_into(o, rotation, o)
        return linear(o.flatten(2))
    pair = pair_of(frames, o.dtype, o.shape[2], inverse=True)
    cast = not o.is_meta and torch.is_autocast_enabled(o.device.type)
    if is_plain(linear) and not cast and o.dtype == linear.weight.dtype:
        return UnrotateLinear.apply(o, frames.angles, pair, linear.weight, linear.bias)
    return linear(Rotate.apply(o, frames.angles, pair).flatten(2))


def is_plain(linear: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether calling a module is just `F.linear` with its weights, so that it may be fused or reordered.

    A module is not plain if it has hooks of any kind, a replaced `forward`, another class (adapters, parametrizations,
    sharding), a weight of another tensor class (quantised, distributed) or a compiled call.

    Args:
        linear: Any module.

    Returns:
        True for a plain `nn.Linear`.

    Example:
        >>> is_plain(nn.Linear(2, 2)), is_plain(nn.Sequential(nn.Linear(2, 2)))
        (True, False)
    """
    if type(linear) is not nn.Linear or nn.Linear.forward is not _FORWARD or "forward" in linear.__dict__:
        return False
    hooks = (
        linear._forward_hooks
        or linear._forward_pre_hooks
        or linear._backward_hooks
        or linear._backward_pre_hooks
        or _everywhere._global_forward_hooks
        or _everywhere._global_forward_pre_hooks
        or _everywhere._global_backward_hooks
        or _everywhere._global_backward_pre_hooks
    )
    return not hooks and linear._compiled_call_impl is None and type(linear.weight) in _PLAIN


def own_projection(linear: nn.Module, x: Tensor) -> Tensor:
    """``W x + b`` as a tensor that may be overwritten; modules that are not plain might keep their output.

    Args:
        linear: The projection.
        x: ``(…, in)``.

    Returns:
        ``(…, out)``, a copy if `linear` is not plain.

    Example:
        >>> own_projection(nn.Linear(2, 3), torch.ones(4, 2)).shape
        torch.Size([4, 3])
    """
    out = linear(x)
    return out if is_plain(linear) else out.clone()


def convert_layout(
    x: Float[Tensor, "*shape"], *, head_dim: int, to: Layout, dim: int = -1, planes: int | None = None, at: At = "front"
) -> Float[Tensor, "*shape"]:
    """Reorders the entries of each head from one plane layout to the other; exact, and inverted by converting back.

    Rotating converted entries with frames of the other layout gives the converted result. Converting the rows of W_q
    and W_k (and the rows of W_v and columns of W_o) therefore moves a model from one layout to the other without
    changing what it computes.

    Args:
        x: The rows of a projection, a bias or an activation.
        head_dim: Width of a head.
        to: The layout of the result.
        dim: The dimension with heads·head_dim entries.
        planes: Number of planes that are rotated; by default all head_dim / 2.
        at: Which entries of a wider head are rotated: the first ("front") or the last ("end").

    Returns:
        A tensor like `x`.

    Raises:
        ValueError: If the dimension is not a multiple of `head_dim`, or a head is too narrow for its planes.

    Example:
        >>> convert_layout(torch.arange(6), head_dim=6, to="half").tolist()
        [0, 2, 4, 1, 3, 5]
    """
    check_planes(to, at)
    planes = head_dim // 2 if planes is None else planes
    if 2 * planes > head_dim or x.shape[dim] % head_dim:
        raise ValueError(
            f"dimension {dim} has {x.shape[dim]} entries: it must be a multiple of head_dim={head_dim}, "
            f"and head_dim at least 2·planes={2 * planes}"
        )
    order = torch.arange(head_dim, device=x.device)
    start = head_dim - 2 * planes if at == "end" else 0
    pairs = order[start : start + 2 * planes]
    pairs.copy_((pairs.view(planes, 2).T if to == "half" else pairs.view(2, planes).T).flatten())
    heads = torch.arange(0, x.shape[dim], head_dim, device=x.device)
    return x.index_select(dim, (heads[:, None] + order).flatten())


def _rotate_end(x: Tensor, frames: FlatFrames, inverse: bool) -> Tensor:
    front, end = x.split((x.shape[-1] - frames.width, frames.width), -1)
    return torch.cat((front, rotate(end, frames, inverse)), -1)


def _rotate_other(x: Tensor, frames: CurvedFrames | JointFrames, inverse: bool) -> Tensor:
    """Rotates by matrices, or part by part."""
    if is_joint(frames):
        widths = [part.width for part in frames.parts]
        *pieces, rest = x.split((*widths, x.shape[-1] - frames.width), -1)
        return torch.cat([*(rotate(p, its, inverse) for p, its in zip(pieces, frames.parts, strict=True)), rest], -1)
    blocks, block = frames.matrices.shape[-3:-1]
    head, rest = x[..., : frames.width], x[..., frames.width :]
    wide = arithmetic_dtype(x.dtype)
    pieces = head.unflatten(-1, (frames.repeat, blocks, block)).unflatten(2, (frames.heads, -1)).flatten(3, 4)
    transposed = inverse and frames.inverses is None
    matrices = frames.inverses if inverse and frames.inverses is not None else frames.matrices
    with without_autocast(x.device):
        formula = "bthnij,bthgni->bthgnj" if transposed else "bthnij,bthgnj->bthgni"
        rotated = torch.einsum(formula, matrices.to(wide), pieces.to(wide))
    rotated = rotated.unflatten(3, (-1, frames.repeat)).flatten(-3).flatten(2, 3).to(x.dtype)
    return torch.cat((rotated, rest), -1) if rest.shape[-1] else rotated
