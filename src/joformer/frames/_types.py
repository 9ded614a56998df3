"""Frames values: the operator A_t of each token, and the tensors derived from it once and shared.

    FlatFrames     A_t = diag(R(θ_t1), …, R(θ_tP))   one angle per plane; all frames commute
    CurvedFrames   A_t a block-diagonal matrix       frames need not commute; orthogonal, or given with its inverse
    JointFrames    A_t = diag(A_t¹, A_t², …)         both kinds side by side in a head

A value is computed by a frames module, is used for q, k, v and o of every layer that shares it, and lives for one
forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._precision import Device, has_float64, readable, widest
from joformer.frames._curved import CurvedFrames
from joformer.frames._tensors import register, select

if TYPE_CHECKING:
    from typing_extensions import TypeIs

# Which entries of a head form a plane; see `joformer.rotation`.
Layout = Literal["interleaved", "half"]
# Which entries of a head wider than its planes are rotated: the first or the last.
At = Literal["front", "end"]


def check_planes(layout: str, at: str = "front") -> None:
    """Raises ValueError for an unknown `layout` or `at`."""
    if layout not in ("interleaved", "half"):
        raise ValueError(f"layout must be 'interleaved' or 'half', got {layout!r}")
    if at not in ("front", "end"):
        raise ValueError(f"at must be 'front' (the first entries of a head are rotated) or 'end', got {at!r}")


def cos_sin(angles: Tensor, dtype: torch.dtype, layout: Layout) -> Float[Tensor, "... planes 2"]:
    """cos and sin of angles (…, planes) as (…, planes, 2), evaluated in the angles' own precision before rounding.

    The memory order is the one that the kernel of this layout reads contiguously; the logical shape is the same.
    """
    wide = angles if angles.dtype == torch.float64 else angles.to(dtype)
    both = wide.cos(), wide.sin()
    unit = torch.stack(both, -1) if layout == "interleaved" else torch.stack(both).movedim(0, -1)
    return unit.to(dtype)


@dataclass(frozen=True, eq=False)
class FlatFrames:
    """Commuting frames, one per token: ``A_t = diag(R(θ_t1), …, R(θ_tP))``. Build them with `FlatFrames.of(angles)`.

    Args:
        angles: ``(batch or 1, tokens, heads or 1, planes)``, float32 or float64. Zero planes are the identity.
        cos_sin: ``(…, planes, 2)``, float32, computed once and shared by q, k, v, o and by every layer that uses the
            same frames.
        layout: Which entries of a head form a plane; see `joformer.rotation`.
        content: Whether the angles depend on the content of the tokens.
        end: The angle one step after the last token, ``(batch, 1, heads, planes)``, or after each token: the state from
            which cumulative frames continue.
        at: Which entries of a head wider than 2·planes are rotated, the first ("front") or the last ("end"); the
            others are left unchanged (partial rotation).
        head_dim: Width of the heads these frames are made for, checked by attention; None for any that is wide enough.

    Example:
        >>> frames = FlatFrames.of(torch.zeros(1, 5, 1, 4))
        >>> frames.tokens, frames.heads, frames.planes
        (5, 1, 4)
    """

    angles: Float[Tensor, "batch tokens heads planes"]
    cos_sin: Float[Tensor, "batch tokens heads planes 2"]
    layout: Layout = "interleaved"
    content: bool = False
    end: Float[Tensor, "batch _ends heads planes"] | None = None
    at: At = "front"
    head_dim: int | None = None
    _prepared: Any = field(default=None, repr=False)  # what `joformer.rotation` prepares once per value

    @classmethod
    def of(
        cls,
        angles: Tensor,
        *,
        layout: Layout = "interleaved",
        at: At = "front",
        content: bool = False,
        end: Tensor | None = None,
        head_dim: int | None = None,
    ) -> FlatFrames:
        """Frames ``A_t = diag(R(θ_t1), …, R(θ_tP))`` from angles θ in radians.

        Args:
            angles: ``(batch or 1, tokens, heads or 1, planes)``, float32 or float64.
            layout: Which entries of a head form a plane: "interleaved" or "half" (GPT-NeoX, Hugging Face).
            at: Which entries of a wider head are rotated: the first ("front") or the last ("end").
            content: Whether the angles depend on the content of the tokens.
            end: The angles one step after the last token, from which cumulative frames continue.
            head_dim: Width of the heads that they are for, as frames modules say it: attention with others raises. By
                default any that is wide enough.

        Returns:
            Frames with cos and sin computed in the angles' precision.

        Raises:
            ValueError: If the shape, the precision or an option is invalid.

        Example:
            >>> FlatFrames.of(torch.zeros(1, 5, 1, 4), at="end")
            FlatFrames(batch=1, tokens=5, heads=1, planes=4, layout='interleaved', at='end')
        """
        if angles.dim() != 4:
            raise ValueError(
                f"angles must be (batch or 1, tokens, heads or 1, planes), got {tuple(angles.shape)}; "
                "add the missing dimensions with angles[None, :, None]"
            )
        check_planes(layout, at)
        if not angles.is_floating_point() or angles.dtype.itemsize < 4:
            raise ValueError(f"angles must be float32 or float64 to be exact, got {angles.dtype}")
        return cls(angles, cos_sin(angles, torch.float32, layout), layout, content, end, at, head_dim)

    @classmethod
    def from_cos_sin(cls, cos: Tensor, sin: Tensor, *, layout: Layout = "half", at: At = "front") -> FlatFrames:
        """Frames from existing tables of cosines and sines: ``θ = atan2(sin, cos)``.

        Args:
            cos: One cosine per plane, ``(tokens, planes)``, ``(batch, tokens, planes)`` or ``(batch, tokens, heads,
                planes)``, float32 or float64. If the tables hold every plane twice (like Hugging Face's, which are as
                wide as a head), pass one half: ``cos[..., : head_dim // 2]``.
            sin: The sines, of the same shape.
            layout: Which entries of a head form a plane: "half" (GPT-NeoX, Hugging Face) or "interleaved".
            at: Which entries of a wider head are rotated: the first ("front") or the last ("end").

        Returns:
            Frames that rotate by these tables.

        Raises:
            ValueError: If the shapes are wrong, the precision is too low or, in eager mode on the CPU, the tables are
                scaled: ``cos² + sin² ≠ 1``.

        Example:
            >>> angles = torch.arange(5.0)[:, None] * torch.tensor([1.0, 0.1])
            >>> FlatFrames.from_cos_sin(angles.cos(), angles.sin())
            FlatFrames(batch=1, tokens=5, heads=1, planes=2, layout='half')
        """
        if cos.shape != sin.shape or cos.dim() not in (2, 3, 4):
            raise ValueError(
                "cos and sin must be (tokens, planes), (batch, tokens, planes) or (batch, tokens, heads, planes), got "
                f"{tuple(cos.shape)} and {tuple(sin.shape)}"
            )
        if any(not t.is_floating_point() or t.dtype.itemsize < 4 for t in (cos, sin)):
            raise ValueError(f"cos and sin must be float32 or float64 to be exact, got {cos.dtype} and {sin.dtype}")
        if cos.dim() < 4:
            cos, sin = (t.unsqueeze(-2) if t.dim() == 3 else t[None, :, None] for t in (cos, sin))
        if readable(cos) and not torch.allclose(cos**2 + sin**2, torch.ones_like(cos), atol=1e-4):
            raise ValueError(
                "cos and sin are scaled (cos² + sin² is not 1), as YaRN's tables may be: divide both by the factor "
                "and pass scale= to attention instead, since values must be rotated, not stretched"
            )
        angles = torch.atan2(sin.to(widest(sin.device)), cos.to(widest(cos.device)))
        return cls.of(angles, layout=layout, at=at)

    def __repr__(self) -> str:
        batch, tokens, heads, planes = self.angles.shape
        rest = ", at='end'" * (self.at == "end") + ", content=True" * self.content
        return f"FlatFrames({batch=}, {tokens=}, {heads=}, {planes=}, layout={self.layout!r}{rest})"

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.angles.shape[1]

    @property
    def heads(self) -> int:
        """Number of heads that have their own frames; 1 means that all heads share them."""
        return self.angles.shape[2]

    @property
    def planes(self) -> int:
        """Number of planes of a head that are rotated."""
        return self.angles.shape[3]

    @property
    def width(self) -> int:
        """Number of entries of a head that are rotated."""
        return 2 * self.angles.shape[3]

    @property
    def is_identity(self) -> bool:
        """Whether rotating with these frames returns its argument, because there are no planes."""
        return self.angles.shape[3] == 0

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the frames at both ends of a journey must have in common."""
        return self.layout, self.planes, self.at

    @property
    def dual(self) -> FlatFrames:
        """``A_t⁻ᵀ``, by which queries are multiplied; rotations are their own dual."""
        return self

    def select(self, tokens: slice | Sequence[int] | Tensor) -> FlatFrames:
        """The frames of some tokens.

        Args:
            tokens: A slice, indices ``(kept,)``, or indices per batch row ``(batch, kept)``.

        Returns:
            Frames of these tokens, without `end`.

        Raises:
            ValueError: If `tokens` is a mask or has more dimensions.

        Example:
            >>> FlatFrames.of(torch.rand(1, 5, 1, 4)).select(slice(-1, None)).tokens
            1
        """
        angles, cos_sin = (select(t, tokens) for t in (self.angles, self.cos_sin))
        return replace(self, angles=angles, cos_sin=cos_sin, end=None, _prepared=None)

    def shift(self, by: Float[Tensor, "*#shape planes"]) -> FlatFrames:
        """Frames with the angles ``θ_t + by``: the frames change, but no journey does (gauge).

        Args:
            by: Angles broadcastable to ``(batch, tokens, heads, planes)``, the same for all tokens.

        Returns:
            Frames with these angles.

        Example:
            >>> from joformer import rotate
            >>> frames, x = FlatFrames.of(torch.rand(1, 5, 1, 4)), torch.rand(1, 5, 2, 8)
            >>> shifted = frames.shift(torch.ones(4))
            >>> torch.allclose(rotate(rotate(x, shifted), shifted, inverse=True), x, atol=1e-6)
            True
        """
        end = None if self.end is None else self.end + by
        return FlatFrames.of(
            self.angles + by, layout=self.layout, at=self.at, content=self.content, end=end, head_dim=self.head_dim
        )

    def to(self, device: Device) -> FlatFrames:
        """The same frames on another device (`self` if already there, or for None); precision never changes."""
        if device is None or torch.device(device) == self.angles.device:
            return self
        angles = self.angles
        if not has_float64(device) and angles.dtype == torch.float64:
            angles = angles.remainder(2 * torch.pi).float()
        end = None if self.end is None else self.end.to(device)
        return replace(self, angles=angles.to(device), cos_sin=self.cos_sin.to(device), end=end, _prepared=None)


@dataclass(frozen=True, eq=False)
class JointFrames:
    """``A_t = diag(A_t¹, A_t², …)``: several frames side by side in a head, each on its own entries, in order.

    Args:
        parts: Flat and curved frames of the same tokens, e.g. camera blocks and rotary planes. Entries of a head after
            the last part are left unchanged.

    Raises:
        ValueError: If there are no parts, the parts differ in their tokens, or one has a state to continue (cumulative
            frames), which this value does not carry.

    Example:
        >>> planes = FlatFrames.of(torch.zeros(1, 5, 1, 4))
        >>> JointFrames((CurvedFrames(torch.eye(4).expand(1, 5, 1, 2, 4, 4)), planes)).width
        16
    """

    parts: tuple[FlatFrames | CurvedFrames, ...]

    is_identity: ClassVar[bool] = False
    end: ClassVar[None] = None

    def __post_init__(self) -> None:
        if not self.parts or any(part.tokens != self.parts[0].tokens for part in self.parts):
            raise ValueError(f"parts must be frames of the same tokens, got {self.parts}")
        if any(part.end is not None for part in self.parts):
            raise ValueError("cumulative frames cannot be part of joint frames, which do not carry their state")

    @property
    def kind(self) -> tuple[Any, ...]:
        """What the frames at both ends of a journey must have in common."""
        return tuple(part.kind for part in self.parts)

    @property
    def content(self) -> bool:
        """Whether a part depends on the tokens' content."""
        return any(part.content for part in self.parts)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.parts[0].tokens

    @property
    def heads(self) -> int:
        """Number of heads that have their own frames; 1 means that all heads share them."""
        return math.lcm(*(part.heads for part in self.parts))

    @property
    def width(self) -> int:
        """Number of entries of a head that are rotated."""
        return sum(part.width for part in self.parts)

    @property
    def dual(self) -> JointFrames:
        """``A_t⁻ᵀ``, by which queries are multiplied."""
        return JointFrames(tuple(part.dual for part in self.parts))

    def select(self, tokens: slice | Sequence[int] | Tensor) -> JointFrames:
        """The frames of some tokens: a slice, indices (kept,), or indices per batch row (batch, kept)."""
        return JointFrames(tuple(part.select(tokens) for part in self.parts))

    def shift(self, *by: Tensor) -> JointFrames:
        """Frames shifted part by part, each by its own `shift`: no journey changes (gauge)."""
        return JointFrames(tuple(part.shift(its) for part, its in zip(self.parts, by, strict=True)))

    def to(self, device: Device) -> JointFrames:
        """The same frames on another device; precision never changes."""
        return JointFrames(tuple(part.to(device) for part in self.parts))


Frames = FlatFrames | CurvedFrames | JointFrames


def is_flat(frames: Frames) -> TypeIs[FlatFrames]:
    """Whether frames are angles, which commute, rather than matrices.

    Example:
        >>> is_flat(FlatFrames.of(torch.zeros(1, 5, 1, 4)))
        True
    """
    return isinstance(frames, FlatFrames)


def is_joint(frames: Frames) -> TypeIs[JointFrames]:
    """Whether frames have parts, each on its own entries."""
    return isinstance(frames, JointFrames)


def check_is_frames(frames: object) -> None:
    """Raises ValueError unless `frames` is a frames value."""
    if not isinstance(frames, (FlatFrames, CurvedFrames, JointFrames)):
        raise ValueError(
            f"frames must be what a frames module returns, got {type(frames).__name__}: "
            "call the module first, frames = module(positions, x)"
        )


def check_fits(x: Tensor, frames: Frames) -> None:
    """Raises ValueError for what cannot be rotated; checks shapes only."""
    if x.dim() != 4:
        raise ValueError(f"x must be (batch, tokens, heads, head_dim), got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"x must be floating point to be rotated, got {x.dtype}")
    batch, tokens, heads, head_dim = x.shape
    check_shapes(batch, tokens, heads, head_dim, x.device, frames)


def check_shapes(batch: int, tokens: int, heads: int, head_dim: int, device: torch.device, frames: Frames) -> None:
    """Raises ValueError if frames do not fit a tensor (batch, tokens, heads, head_dim)."""
    check_is_frames(frames)
    if isinstance(frames, JointFrames):
        for part in frames.parts:
            check_shapes(batch, tokens, heads, head_dim, device, part)
        _check_width(frames.width, head_dim)
        return
    its = frames.angles if isinstance(frames, FlatFrames) else frames.matrices
    rows, its_tokens, its_heads = its.shape[:3]
    if its.dtype.itemsize < 4:  # something may have cast the inputs of a module
        raise ValueError(
            f"frames are {its.dtype}, which changes the rotations: keep float32 or float64; under FSDP use "
            "MixedPrecisionPolicy(cast_forward_inputs=False)"
        )
    if tokens != its_tokens:
        if heads == its_tokens:
            raise ValueError(
                f"x {(batch, tokens, heads, head_dim)} looks heads-first: frames have {its_tokens} tokens; "
                "pass format='bhtd', or use x.transpose(1, 2) to get (batch, tokens, heads, head_dim)"
            )
        raise ValueError(f"x has {tokens} tokens but the frames have {its_tokens}: each token needs one frame")
    if heads % its_heads:
        raise ValueError(
            f"x has {heads} heads but the frames have {its_heads}: frames need 1 head, or a divisor of x's"
        )
    if rows not in (1, batch):
        raise ValueError(f"x has batch {batch} but the frames have batch {rows}: it must be 1 or {batch}")
    _check_width(frames.width, head_dim)
    if its.device != device:
        raise ValueError(f"frames are on {its.device} but x is on {device}: use frames.to({str(device)!r})")


def _check_width(width: int, head_dim: int) -> None:
    if width > head_dim:
        raise ValueError(
            f"frames rotate {width} entries of a head but head_dim is {head_dim}: "
            f"build the frames with head_dim={head_dim} or fewer planes"
        )


register(FlatFrames, ("angles", "cos_sin", "end"), ("layout", "content", "at", "head_dim"))
register(JointFrames, ("parts",), ())
