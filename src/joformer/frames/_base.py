"""What all frames modules share: `frames = module(positions, x)`, and angles that are never downcast.

    θ_t = Σ_k ω_k n_tk      (linear in the coordinates n of the token)

Angles are float64 reduced modulo 2π before anything is rounded to float32: a shift of a million positions then
changes scores by no more than float32 rounding. Paper: "Architecture Variants"; docs/conventions.md, convention 7.
"""

from __future__ import annotations

from math import isfinite
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._precision import KeepsPrecision, exact_device, has_float64, is_traced
from joformer.frames._types import Frames, Layout, check_layout
from joformer.positions import check_precision

Split = Literal["axial", "combined", "diagonal"]


class FramesModule(KeepsPrecision):
    """Base of all frames modules. A subclass sets the attributes below and defines `forward`.

    Every module is called the same way, ``frames = module(positions, x, layer=…, grid=…, state=…)``, and ignores what
    it does not need:

    Args of the call:
        positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``.
        x: The tokens' content, ``(batch, tokens, dim)``; needed only where `content` is True.
        layer: Which layer asks; read by modules that hold one set of angles per layer.
        grid: The shape that the last tokens form; read by cumulative frames on several axes.
        state: Where a sequence stopped, the `end` of the frames before; read where `stateful` is True.

    The result is a frames value broadcastable to ``(batch, tokens, heads, planes)``, on x's device where x is given, on
    the positions' otherwise.
    """

    content: ClassVar[bool] = False
    """Whether frames depend on the tokens' content."""
    stateful: ClassVar[bool] = False
    """Whether a sequence that is continued must be given the `state` in which it stopped."""
    shift_invariant: ClassVar[bool] = True
    """Whether moving all positions by the same displacement leaves every journey as it was."""

    head_dim: int
    heads: int
    axes: int
    layers: int = 1
    """How many sets of angles there are, chosen by `layer`; one set serves all layers."""

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
    ) -> Frames:
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
    known = positions.to(exact_device(positions.device), torch.float64).nan_to_num(
        nan=0.0, posinf=torch.inf, neginf=-torch.inf
    )
    # A sum, finite only if all are, is the cheapest look at them: 3 µs.
    if not is_traced() and type(known) is Tensor and known.device.type == "cpu" and not isfinite(known.sum().item()):
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
    return angles.to(x.device) if has_float64(x.device) else wrap(angles).float().to(x.device)


def check_layout_and_heads(layout: Layout, heads: int) -> None:
    check_layout(layout)
    if heads < 1:
        raise ValueError(f"heads must be 1 (shared by all heads) or the number of key/value heads, got {heads}")
