"""What all frames modules share: `frames = module(positions, x)`, and angles that are never downcast.

    θ_t = Σ_k ω_k n_tk      (linear in the coordinates n of the token)

Angles are float64 reduced modulo 2π before anything is rounded to float32: a shift of a million positions then
changes scores by no more than float32 rounding. Paper: "Architecture Variants"; CLAIMS.md, convention 7.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.kernels import Layout, check_layout, traced
from joformer.positions import check_precision
from joformer.values import Frames

if TYPE_CHECKING:
    from typing_extensions import Self

Split = Literal["axial", "combined", "diagonal"]


class KeepsPrecision(nn.Module):
    """A module that `.to(bfloat16)` moves but does not round: frequencies in bfloat16 are other frequencies.

    >>> class Angles(KeepsPrecision):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.angles = nn.Parameter(torch.zeros(3))
    >>> Angles().to(torch.bfloat16).angles.dtype, Angles().double().angles.dtype
    (torch.float32, torch.float64)
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(t: Tensor) -> Tensor:
            out = fn(t)
            lowered = out.is_floating_point() and torch.finfo(out.dtype).bits < 32
            return t.to(device=out.device) if lowered else out

        return super()._apply(keep_precision, recurse)


def precise() -> torch.dtype:
    """The default dtype, or float32 where that is shorter: what angles are made in.

    >>> precise()
    torch.float32
    """
    return torch.promote_types(torch.get_default_dtype(), torch.float32)


class FramesModule(KeepsPrecision):
    """Base of all frames modules. A subclass sets the attributes below and defines `forward(positions, x)`.

    `positions` are (tokens, axes) or (batch, tokens, axes); `x` is (batch, tokens, dim), needed only where
    `content` is True; the result is a frames value broadcastable to (batch, tokens, heads, planes), on x's
    device where x is given, on the positions' otherwise.
    """

    content: ClassVar[bool] = False
    """Whether frames depend on the tokens' content."""
    shift_invariant: ClassVar[bool] = True
    """Whether moving all positions by the same displacement leaves every journey as it was."""

    head_dim: int
    heads: int
    axes: int

    def forward(self, positions: Tensor, x: Tensor | None = None) -> Frames:
        raise NotImplementedError(f"{type(self).__name__} must define forward(positions, x)")


def planes_of(head_dim: int, planes: int | None, axes: int, split: str) -> int:
    """How many planes are rotated: all of head_dim / 2 by default, a multiple of the axes where axial."""
    if head_dim < 2 or head_dim % 2:
        raise ValueError(f"head_dim must be even, since planes are pairs of entries; got {head_dim}")
    if axes < 1:
        raise ValueError(f"axes must be 1 or more, got {axes}")
    if split not in ("axial", "combined", "diagonal"):
        raise ValueError(f"split must be 'axial', 'combined' or 'diagonal', got {split!r}")
    most = head_dim // 2
    planes = most if planes is None else planes
    if not 0 < planes <= most:
        raise ValueError(f"planes must be between 1 and head_dim / 2 = {most}, got {planes}")
    if split == "axial":
        if planes < axes:
            raise ValueError(
                f"an axial split gives each of {axes} axes planes of its own, but there are only {planes}: "
                "use a wider head or split='combined'"
            )
        planes -= planes % axes
    return planes


def coordinates(positions: Tensor, axes: int, x: Tensor | None = None) -> Float[Tensor, "batch tokens axes"]:
    """Positions as float64 (batch or 1, tokens, axes); tokens without coordinates get 0, whose angle is 0.

    Raises ValueError for a wrong shape, half precision and, in eager mode on the CPU, infinite coordinates; elsewhere
    reading them would wait for the device or break a graph, and they give NaN.
    """
    if not isinstance(positions, Tensor) or positions.dim() not in (2, 3) or positions.shape[-1] != axes:
        shape = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
        raise ValueError(
            f"positions must be (tokens, {axes}) or (batch, tokens, {axes}), got {shape}; see joformer.positions, "
            "or add the axis dimension with position_ids.unsqueeze(-1)"
        )
    if x is not None and (
        x.dim() != 3
        or x.shape[1] != positions.shape[-2]
        or (positions.dim() == 3 and positions.shape[0] not in (1, x.shape[0]))
    ):
        raise ValueError(
            f"x must be (batch, {positions.shape[-2]} tokens, dim), one row per position, got {tuple(x.shape)} "
            f"for positions {tuple(positions.shape)}"
        )
    check_precision(positions, "positions are")
    if positions.device.type == "mps":
        positions = positions.cpu()
    known = positions.to(torch.float64).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    # A sum, finite only if all are, is the cheapest look at them: 3 µs.
    if not traced() and type(known) is Tensor and known.device.type == "cpu" and not isfinite(known.sum().item()):
        raise ValueError("positions are infinite: give finite coordinates, or NaN on every axis to a token without any")
    return known if known.dim() == 3 else known.unsqueeze(0)


def linear_angles(
    known: Float[Tensor, "batch tokens axes"], steps: Float[Tensor, "heads axes each"], split: str
) -> Float[Tensor, "batch tokens heads planes"]:
    """θ = ω·n: planes side by side axis by axis where axial, summed over the axes otherwise.

    Left unreduced: cos and sin of a float64 angle are exact at any size, and `wrap` goes before any rounding.
    """
    if split == "axial":
        return (known[:, :, None, :, None] * steps).flatten(-2)
    return torch.einsum("btk,hkp->bthp", known, steps)


def wrap(angles: Tensor) -> Tensor:
    """The same angles in [−π, π]; the gradient passes through."""
    turn = 6.283185307179586  # 2π, written out: the compiler takes a global float for an input that may change
    return angles - turn * (angles / turn).round()


def place(angles: Tensor, x: Tensor | None) -> Tensor:
    """Angles on x's device."""
    if x is None or angles.device == x.device:
        return angles
    return wrap(angles).float().to(x.device) if x.device.type == "mps" else angles.to(x.device)


def check_layout_and_heads(layout: Layout, heads: int) -> None:
    check_layout(layout)
    if heads < 1:
        raise ValueError(f"heads must be 1 (shared by all heads) or the number of key/value heads, got {heads}")
