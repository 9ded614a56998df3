"""Frames as values: what each token carries, A_t, and what is derived from it once and shared.

    FlatFrames     A_t = diag(R(θ_t1), …, R(θ_tP))          one angle per plane; all frames commute
    CurvedFrames   A_t a block-diagonal orthogonal matrix   in general they do not

A value is made by a frames module, serves q, k, v and o of every layer that shares it, and is then forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from jaxtyping import Float
from torch import Tensor

from joformer.kernels import Layout, Plan, Turn, check_layout, cos_sin, for_kernel, undone


@dataclass(frozen=True, eq=False)
class FlatFrames:
    """A commuting frame per token: one angle per plane. Build it with `FlatFrames.of(angles)`.

    Shapes: `angles` (batch or 1, tokens, heads or 1, planes), fp32 or fp64; `cos_sin` (…, planes, 2), fp32,
    computed once and shared by q, k, v, o and by every layer that uses the same frames. A head may be wider
    than 2·planes: what is beyond is left as it is (partial rotation); zero planes is the identity.

    `content` says that the angles depend on the tokens' content. `end`, where given, is the angle one step
    after the last token (batch, 1, heads, planes), or after each one: the state from which cumulative frames go on.

    >>> frames = FlatFrames.of(torch.zeros(1, 5, 1, 4))
    >>> frames.tokens, frames.heads, frames.planes
    (5, 1, 4)
    """

    angles: Float[Tensor, "batch tokens heads planes"]
    cos_sin: Float[Tensor, "batch tokens heads planes 2"]
    layout: Layout = "interleaved"
    content: bool = False
    end: Float[Tensor, "batch _ends heads planes"] | None = None
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
        check_layout(layout)
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
        >>> from joformer import rotate
        >>> there_and_back = rotate(rotate(x, moved), moved, inverse=True)
        >>> torch.allclose(there_and_back, x, atol=1e-6)
        True
        """
        end = None if self.end is None else self.end + by
        return FlatFrames.of(self.angles + by, layout=self.layout, content=self.content, end=end)

    def to(self, device: torch.device | str | int | None) -> FlatFrames:
        """The same frames on another device, or themselves where that is theirs or None; precision is never changed."""
        if device is None or torch.device(device) == self.angles.device:
            return self
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
            turns = [
                None if forward_only or not move else self.turns(dtype, heads, inverse=False)
                for (heads, _), move in zip(widths, moved, strict=True)
            ]
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

    def to(self, device: torch.device | str | int | None) -> CurvedFrames:
        """The same frames on another device, or themselves where that is theirs or None; precision is never changed."""
        if device is None or torch.device(device) == self.matrices.device:
            return self
        matrices = self.matrices
        if torch.device(device).type == "mps" and matrices.dtype == torch.float64:
            matrices = matrices.float()
        return replace(self, matrices=matrices.to(device))


Frames = FlatFrames | CurvedFrames


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
    if not flat and not isinstance(frames, CurvedFrames):
        raise ValueError(
            f"frames must be what a frames module returns, got {type(frames).__name__}: "
            "call the module first, frames = module(positions, x)"
        )
    check_precise(frames)
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


def check_precise(frames: Frames) -> None:
    """Raises where frames have been rounded to half precision, as whatever casts a module's inputs may do."""
    dtype = frames.angles.dtype if isinstance(frames, FlatFrames) else frames.matrices.dtype
    if dtype.itemsize < 4:
        raise ValueError(
            f"frames are {dtype}, which makes other rotations of them: keep float32 or float64, and under FSDP "
            "MixedPrecisionPolicy(cast_forward_inputs=False)"
        )


def _select(t: Tensor, tokens: slice | Sequence[int] | Tensor) -> Tensor:
    if isinstance(tokens, slice):
        return t[:, tokens]
    index = torch.as_tensor(tokens, device=t.device)
    if index.dtype == torch.bool:
        raise ValueError("tokens to select are given by their indices: use mask.nonzero().flatten()")
    if index.dim() == 1:
        return t.index_select(1, index)
    if index.dim() != 2:
        raise ValueError(f"tokens must be a slice, (kept,) or (batch, kept) indices, got {tuple(index.shape)}")
    if t.shape[0] == 1:
        return t[0][index]
    return t[torch.arange(t.shape[0], device=t.device)[:, None], index]


def _register(cls: type, tensors: tuple[str, ...], rest: tuple[str, ...]) -> None:
    """Frames are pytrees, so that vmap, export and checkpointing see the tensors inside."""

    def flatten(value: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(value, name) for name in tensors], tuple(getattr(value, name) for name in rest)

    def unflatten(leaves: Any, context: Any) -> Any:
        return cls(**dict(zip(tensors, leaves, strict=True)), **dict(zip(rest, context, strict=True)))

    pytree.register_pytree_node(cls, flatten, unflatten, serialized_type_name=f"joformer.{cls.__name__}")


_register(FlatFrames, ("angles", "cos_sin", "end"), ("layout", "content"))
_register(CurvedFrames, ("matrices",), ("content",))
