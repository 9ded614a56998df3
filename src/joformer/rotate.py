"""Frames as values, and the one hot operation that acts with them or undoes them.

    R(φ) = [[cos φ, −sin φ],      A_t = diag(R(θ_t1), …, R(θ_tP))      y_t = A_t x_t   or   A_t⁻¹ x_t
            [sin φ,  cos φ]]

The sign is stated here once. Which element of a head belongs to which plane:

    interleaved   x0 x1 x2 x3 x4 x5        half   x0 x1 x2 x3 x4 x5
    plane          0  0  1  1  2  2                0  1  2  0  1  2      (GPT-NeoX, Hugging Face)

Paper: "Journey Operator and Score/Value Attention"; CLAIMS.md, conventions 1–3 and 7. The backward of a
rotation is the inverse rotation, and the gradient of an angle is read off the rotated output
(∂y/∂θ = J y with J = R(π/2)), so that a rotation saves nothing that attention does not save anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from jaxtyping import Float
from torch import Tensor, nn

from joformer.kernels import (
    Layout,
    Plan,
    Rotate,
    RotatePacked,
    Turn,
    UnrotateLinear,
    cos_sin,
    cut_heads,
    for_kernel,
    traced,
    turn,
    turn_packed,
    turn_real,
    undone,
)


@dataclass(frozen=True, eq=False)
class FlatFrames:
    """A commuting frame per token: one angle per plane. Build it with `FlatFrames.of(angles)`.

    Shapes: `angles` (batch or 1, tokens, heads or 1, planes), fp32 or fp64; `cos_sin` (…, planes, 2), fp32,
    computed once and shared by q, k, v, o and by every layer that uses the same frames. A head may be wider
    than 2·planes: what is beyond is left as it is (partial rotation); zero planes is the identity.

    `content` says that the angles depend on the tokens' content. `end`, where given, is the angle one step
    after the last token (batch, 1, heads, planes): the state from which cumulative frames go on.

    >>> frames = FlatFrames.of(torch.zeros(1, 5, 1, 4))
    >>> frames.tokens, frames.heads, frames.planes
    (5, 1, 4)
    """

    angles: Float[Tensor, "batch tokens heads planes"]
    cos_sin: Float[Tensor, "batch tokens heads planes 2"]
    layout: Layout = "interleaved"
    content: bool = False
    end: Float[Tensor, "batch 1 heads planes"] | None = None
    _ready: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        angles: Tensor,
        *,
        layout: Layout = "interleaved",
        content: bool = False,
        end: Tensor | None = None,
    ) -> FlatFrames:
        """Frames from angles in radians, (batch or 1, tokens, heads or 1, planes)."""
        if angles.dim() != 4:
            raise ValueError(
                f"angles must be (batch or 1, tokens, heads or 1, planes), got {tuple(angles.shape)}; "
                "add the missing dimensions with angles[None, :, None]"
            )
        _check_layout(layout)
        if not angles.is_floating_point() or angles.dtype in (torch.float16, torch.bfloat16):
            raise ValueError(f"angles must be float32 or float64 to be exact, got {angles.dtype}")
        return cls(angles, cos_sin(angles, torch.float32, layout), layout, content, end)

    @property
    def tokens(self) -> int:
        return self.angles.shape[1]

    @property
    def heads(self) -> int:
        return self.angles.shape[2]

    @property
    def planes(self) -> int:
        return self.angles.shape[3]

    def select(self, tokens: slice | Sequence[int] | Tensor) -> FlatFrames:
        """The frames of some tokens: a slice, indices (kept,), or indices per batch row (batch, kept).

        >>> FlatFrames.of(torch.rand(1, 5, 1, 4)).select(slice(-1, None)).tokens
        1
        """
        angles, cos_sin = (_select(t, tokens) for t in (self.angles, self.cos_sin))
        return replace(self, angles=angles, cos_sin=cos_sin, end=None, _ready={})

    def shift(self, by: Float[Tensor, "*#shape planes"]) -> FlatFrames:
        """Every frame moved by the same angles, θ_t + by: the frames change, no journey does (gauge).

        >>> frames = FlatFrames.of(torch.rand(1, 5, 1, 4))
        >>> x = torch.rand(1, 5, 2, 8)
        >>> moved = frames.shift(torch.ones(4))
        >>> there_and_back = rotate(rotate(x, moved), moved, inverse=True)
        >>> torch.allclose(there_and_back, x, atol=1e-6)
        True
        """
        end = None if self.end is None else self.end + by
        return FlatFrames.of(self.angles + by, layout=self.layout, content=self.content, end=end)

    def to(self, device: torch.device | str) -> FlatFrames:
        """The same frames on another device; precision is never changed."""
        angles = self.angles
        if torch.device(device).type == "mps" and angles.dtype == torch.float64:
            angles = angles.remainder(2 * torch.pi).float()
        end = None if self.end is None else self.end.to(device)
        return replace(self, angles=angles.to(device), cos_sin=self.cos_sin.to(device), end=end, _ready={})

    def unit(self, dtype: torch.dtype, heads: int, inverse: bool) -> Tensor:
        """(cos, ± sin) as the kernel takes it for a tensor of `dtype` and `heads`: made once per frames value."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        key = (wide, heads, inverse)
        unit = self._ready.get(key)
        if unit is None:
            with torch.no_grad():
                if inverse:
                    unit = undone(self.unit(dtype, heads, inverse=False))
                else:
                    unit = self.cos_sin if wide == torch.float32 else cos_sin(self.angles, wide, self.layout)
                    unit = for_kernel(unit.detach(), self.layout, heads)
            self._ready[key] = unit
        return unit

    def unit_for(self, x: Tensor, inverse: bool) -> Tensor:
        """The unit that rotates x, which is checked to fit; decoding asks for the same one layer after layer."""
        key = (x.shape, x.dtype, x.device, inverse)
        unit = self._ready.get(key)
        if unit is None:
            check_fits(x, self)
            unit = self._ready[key] = self.unit(x.dtype, x.shape[2], inverse)
        return unit

    def turns(self, dtype: torch.dtype, heads: int, inverse: bool) -> Turn:
        """What rotates a tensor of `dtype` and `heads`, and what rotates its gradient."""
        return self.unit(dtype, heads, inverse), self.unit(dtype, heads, not inverse), self.layout

    def plan(self, packed: Tensor, widths: tuple[tuple[int, int], ...], moved: tuple[bool, ...]) -> Plan:
        """How a packed projection is rotated in place: made once per frames value, then shared by all layers."""
        shape, dtype, device = packed.shape, packed.dtype, packed.device
        forward_only = not torch.is_grad_enabled()
        key = (shape, dtype, device, widths, moved, forward_only)
        plan = self._ready.get(key)
        if plan is None:
            turns = [
                None if forward_only or not move else self.turns(dtype, heads, inverse=False)
                for (heads, _), move in zip(widths, moved, strict=True)
            ]
            joined: list[tuple[int, int, int]] = []
            start = 0
            for (heads, dim), move in zip(widths, moved, strict=True):
                stop = start + heads * dim
                if move:
                    check_shapes(shape[0], shape[1], heads, dim, device, self)
                    # Neighbours go in one call where all heads share their angles.
                    if joined and joined[-1][1:] == (start, dim) and self.heads == 1:
                        joined[-1] = (joined[-1][0], stop, dim)
                    else:
                        joined.append((start, stop, dim))
                start = stop
            runs = [(a, b, dim, self.unit(dtype, (b - a) // dim, inverse=False), self.layout) for a, b, dim in joined]
            plan = self._ready[key] = Plan(widths, tuple(runs), tuple(turns))
        return plan


@dataclass(frozen=True, eq=False)
class CurvedFrames:
    """A frame per token that need not commute with the others: an orthogonal matrix, block by block.

    Shapes: `matrices` (batch or 1, tokens, heads or 1, blocks, block, block), acting on the first
    blocks·block entries of each head. One block is LieRE; one block per axis is axial-dense.

    >>> CurvedFrames(torch.eye(8).expand(1, 5, 1, 1, 8, 8)).tokens
    5
    """

    matrices: Float[Tensor, "batch tokens heads blocks block block"]
    content: bool = False

    @property
    def tokens(self) -> int:
        return self.matrices.shape[1]

    @property
    def heads(self) -> int:
        return self.matrices.shape[2]

    @property
    def width(self) -> int:
        """How many entries of a head the frames act on."""
        return self.matrices.shape[3] * self.matrices.shape[4]

    def select(self, tokens: slice | Sequence[int] | Tensor) -> CurvedFrames:
        """The frames of some tokens: a slice, indices (kept,), or indices per batch row (batch, kept)."""
        return replace(self, matrices=_select(self.matrices, tokens))

    def shift(self, by: Float[Tensor, "*#shape block block"]) -> CurvedFrames:
        """Every frame moved by the same operator, S·A_t: the frames change, no journey does (gauge)."""
        return replace(self, matrices=by @ self.matrices)

    def to(self, device: torch.device | str) -> CurvedFrames:
        """The same frames on another device; precision is never changed."""
        matrices = self.matrices
        if torch.device(device).type == "mps" and matrices.dtype == torch.float64:
            matrices = matrices.float()
        return replace(self, matrices=matrices.to(device))


Frames = FlatFrames | CurvedFrames


def rotate(
    x: Float[Tensor, "batch tokens heads head_dim"], frames: Frames, inverse: bool = False
) -> Float[Tensor, "batch tokens heads head_dim"]:
    """Act on every token with its frame, y_t = A_t x_t, or undo it, y_t = A_t⁻¹ x_t.

    x is (batch, tokens, heads, head_dim), the layout of flash-attention. Frames with fewer heads than x are
    shared by groups of consecutive heads (grouped queries). The arithmetic is fp32 (fp64 for fp64 x); the
    result has x's dtype.

    >>> frames = FlatFrames.of(torch.full((1, 1, 1, 1), torch.pi / 2))
    >>> rotate(torch.tensor([1.0, 0.0]).view(1, 1, 1, 2), frames).flatten().round(decimals=3).tolist()
    [-0.0, 1.0]
    """
    check_fits(x, frames)
    if isinstance(frames, CurvedFrames):
        return _rotate_curved(x, frames, inverse)
    if frames.planes == 0:
        return x
    if traced():
        unit = frames.cos_sin if x.dtype != torch.float64 else cos_sin(frames.angles, x.dtype, frames.layout)
        return turn_real(x, unit, frames.layout, inverse)
    return Rotate.apply(x, frames.angles, frames.turns(x.dtype, x.shape[2], inverse), inverse)


def rotate_packed_(
    packed: Float[Tensor, "batch tokens width"],
    widths: Sequence[tuple[int, int]],
    frames: Sequence[Frames | None],
) -> tuple[Tensor, ...]:
    """Cut a fresh projection into its heads and rotate each part **in place**: what a module's qkv needs.

    `widths` gives (heads, head_dim) of each part, `frames` its frames or None; returns the parts as
    (batch, tokens, heads, head_dim) views of `packed`. `packed` must be a tensor nobody else will read, such
    as the output of a linear layer. Backward writes the rotated gradients straight into one packed gradient.

    >>> qkv = torch.rand(1, 3, 24)
    >>> q, k, v = rotate_packed_(qkv, [(2, 4)] * 3, [FlatFrames.of(torch.rand(1, 3, 1, 2))] * 2 + [None])
    >>> v.shape
    torch.Size([1, 3, 2, 4])
    """
    first, one = None, True
    for its in frames:
        if its is not None:
            first, one = its if first is None else first, one and (first is None or its is first)
    if traced() or not one or not isinstance(first, FlatFrames) or first.planes == 0:
        parts = cut_heads(packed, widths)
        return tuple(p if its is None else rotate(p, its) for p, its in zip(parts, frames, strict=True))
    plan = first.plan(packed, tuple(widths), tuple([its is not None for its in frames]))
    if not torch.is_grad_enabled():
        return tuple(turn_packed(packed, plan))
    angles = (first.angles,) * len(widths) if first.angles.requires_grad else ()
    return RotatePacked.apply(packed, plan, *angles)


def unrotate_linear(
    o: Float[Tensor, "batch tokens heads head_dim"], frames: Frames, linear: nn.Linear
) -> Float[Tensor, "batch tokens out"]:
    """W (A_t⁻¹ o_t) + b, heads side by side: undo the frames and project.

    `o` must be a tensor nobody else will read, such as the output of attention: without gradients it is turned in
    place.

    >>> frames = FlatFrames.of(torch.rand(1, 3, 1, 2))
    >>> o, linear = torch.rand(1, 3, 2, 4), nn.Linear(8, 5)
    >>> expected = linear(rotate(o, frames, inverse=True).flatten(2))
    >>> torch.allclose(unrotate_linear(o, frames, linear), expected)
    True
    """
    if traced() or isinstance(frames, CurvedFrames) or frames.planes == 0:
        return linear(rotate(o, frames, inverse=True).flatten(2))
    unit = frames.unit_for(o, inverse=True)
    if not torch.is_grad_enabled():
        turn(o, unit, frames.layout, o)
        return linear(o.flatten(2))
    turns = frames.turns(o.dtype, o.shape[2], inverse=True)
    # Whatever listens to the module, or replaces it, must be heard: adapters, hooks, sharding, autocast.
    plain = (
        type(linear) is nn.Linear
        and not (linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks)
        and not torch.is_autocast_enabled(o.device.type)
        and o.dtype == linear.weight.dtype
    )
    if plain:
        return UnrotateLinear.apply(o, frames.angles, turns, linear.weight, linear.bias)
    return linear(Rotate.apply(o, frames.angles, turns, True).flatten(2))


def convert_layout(
    x: Float[Tensor, "*shape"], *, head_dim: int, to: Layout, dim: int = -1, planes: int | None = None
) -> Float[Tensor, "*shape"]:
    """Reorder the entries of each head from one plane layout to the other; exact, and its own inverse pair.

    `dim` runs over heads·head_dim entries (a projection's rows, a bias, an activation); `planes` is how many
    planes are rotated (default all of head_dim / 2). Rotating converted entries with the other layout's
    frames gives the converted result, so converting the rows of W_q and W_k (and of W_v, with the columns of
    W_o) carries a model from one layout to the other without changing what it computes.

    >>> convert_layout(torch.arange(6), head_dim=6, to="half").tolist()
    [0, 2, 4, 1, 3, 5]
    """
    _check_layout(to)
    planes = head_dim // 2 if planes is None else planes
    if 2 * planes > head_dim or x.shape[dim] % head_dim:
        raise ValueError(
            f"dimension {dim} has {x.shape[dim]} entries: it must be a multiple of head_dim={head_dim}, "
            f"and head_dim at least 2·planes={2 * planes}"
        )
    pairs = torch.arange(2 * planes, device=x.device)
    order = pairs.view(planes, 2).T.flatten() if to == "half" else pairs.view(2, planes).T.flatten()
    order = torch.cat((order, torch.arange(2 * planes, head_dim, device=x.device)))
    heads = torch.arange(0, x.shape[dim], head_dim, device=x.device)
    return x.index_select(dim, (heads[:, None] + order).flatten())


def check_fits(x: Tensor, frames: Frames) -> None:
    """One-line errors for what cannot be rotated; looks at shapes only."""
    if x.dim() != 4:
        raise ValueError(f"x must be (batch, tokens, heads, head_dim), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point to be rotated, got {x.dtype}")
    batch, tokens, heads, head_dim = x.shape
    check_shapes(batch, tokens, heads, head_dim, x.device, frames)


def check_shapes(batch: int, tokens: int, heads: int, head_dim: int, device: torch.device, frames: Frames) -> None:
    """One-line errors where frames do not fit a tensor (batch, tokens, heads, head_dim)."""
    flat = isinstance(frames, FlatFrames)
    its = frames.angles if isinstance(frames, FlatFrames) else frames.matrices
    rows, its_tokens, its_heads, last = its.shape[:4]
    if tokens != its_tokens:
        if heads == its_tokens:
            raise ValueError(
                f"x {(batch, tokens, heads, head_dim)} looks heads-first: frames have {its_tokens} tokens; "
                "use x.transpose(1, 2) to get (batch, tokens, heads, head_dim)"
            )
        raise ValueError(f"x has {tokens} tokens but the frames have {its_tokens}: give each token one frame")
    if heads % its_heads:
        raise ValueError(
            f"x has {heads} heads but the frames have {its_heads}: frames need 1 head, or a divisor of x's"
        )
    if rows not in (1, batch):
        raise ValueError(f"x has batch {batch} but the frames have batch {rows}: it must be 1 or {batch}")
    width = 2 * last if flat else last * its.shape[4]
    if width > head_dim:
        raise ValueError(
            f"frames act on {width} entries of a head but head_dim is {head_dim}: "
            f"build the frames with head_dim={head_dim} or fewer planes"
        )
    if its.device != device:
        raise ValueError(f"frames are on {its.device} but x is on {device}: use frames.to({str(device)!r})")


def _check_layout(layout: str) -> None:
    if layout not in ("interleaved", "half"):
        raise ValueError(f"layout must be 'interleaved' or 'half', got {layout!r}")


def _select(t: Tensor, tokens: slice | Sequence[int] | Tensor) -> Tensor:
    if isinstance(tokens, slice):
        return t[:, tokens]
    index = torch.as_tensor(tokens, device=t.device)
    if index.dim() == 1:
        return t.index_select(1, index)
    if index.dim() != 2:
        raise ValueError(f"tokens must be a slice, (kept,) or (batch, kept) indices, got {tuple(index.shape)}")
    if t.shape[0] == 1:
        return t[0][index]
    return t[torch.arange(t.shape[0], device=t.device)[:, None], index]


def _rotate_curved(x: Tensor, frames: CurvedFrames, inverse: bool) -> Tensor:
    blocks, block = frames.matrices.shape[-3:-1]
    head, rest = x[..., : frames.width], x[..., frames.width :]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    pieces = head.unflatten(-1, (blocks, block)).unflatten(2, (frames.heads, -1))
    matrices = frames.matrices.to(wide)
    with torch.autocast(x.device.type, enabled=False):
        formula = "bthnij,bthgni->bthgnj" if inverse else "bthnij,bthgnj->bthgni"
        turned = torch.einsum(formula, matrices, pieces.to(wide))
    turned = turned.flatten(-2).flatten(2, 3).to(x.dtype)
    return torch.cat((turned, rest), -1) if rest.shape[-1] else turned


def _register(cls: type, tensors: tuple[str, ...], rest: tuple[str, ...]) -> None:
    """Frames are pytrees, so that vmap, export and checkpointing see the tensors inside."""

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, name) for name in tensors], tuple(getattr(value, name) for name in rest)

    def unflatten(leaves: Any, context: Any) -> Any:
        return cls(**dict(zip(tensors, leaves, strict=True)), **dict(zip(rest, context, strict=True)))

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"joformer.{cls.__name__}")


_register(FlatFrames, ("angles", "cos_sin", "end"), ("layout", "content"))
_register(CurvedFrames, ("matrices",), ("content",))
