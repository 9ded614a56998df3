"""What all frames modules share: ``frames = module(positions, x)``, and angles that are never downcast.

    θ_t = Σ_k ω_k n_tk      (linear in the coordinates n of the token)

Angles are float64 reduced modulo 2π before anything is rounded to float32: a shift of a million positions then
changes scores by no more than float32 rounding. Paper: "Architecture Variants"; docs/conventions.md, convention 7.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from joformer._parallel import ContextParallel
from joformer._precision import KeepsPrecision, exact_device, has_float64, readable
from joformer.frames._types import At, FlatFrames, Frames, Layout, check_planes
from joformer.positions import check_precision

Split = Literal["axial", "combined", "diagonal"]


class Inputs(NamedTuple):
    """What a frames module was called with; `FramesModule.forward` documents each."""

    positions: Tensor
    x: Tensor | None
    layer: int
    grid: tuple[int, ...] | None
    state: Tensor | None
    every: bool
    parallel: ContextParallel | None = None


class FramesModule(KeepsPrecision):
    """Base of all frames modules: a subclass sets the attributes and defines `make`, or `forward` itself.

    Attributes:
        content: Whether frames depend on the tokens' content.
        stateful: Whether a sequence that is continued must be given the `state` in which it stopped.
        shift_invariant: Whether the same displacement of all positions leaves every journey as it was.
        head_dim: Width of a head.
        heads: How many heads have frames of their own.
        axes: Number of coordinates per token.
        layers: How many sets of angles there are, chosen by `layer`; one set serves all layers.

    Example:
        >>> class Alternating(FramesModule):
        ...     head_dim, heads, axes = 8, 1, 1
        ...
        ...     def make(self, given):
        ...         return FlatFrames.of(torch.pi * given.positions[None, :, None].expand(1, -1, 1, 4))
        >>> Alternating()(torch.arange(5.0)[:, None])
        FlatFrames(batch=1, tokens=5, heads=1, planes=4, layout='interleaved')
    """

    content: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    shift_invariant: bool = True

    head_dim: int
    heads: int
    axes: int
    layers: int = 1

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
        every: bool = False,
        parallel: ContextParallel | None = None,
    ) -> Frames:
        """The frame ``A_t`` of each token. Every module takes all arguments and ignores what it does not need.

        Args:
            positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``, see `joformer.positions`.
            x: The tokens' content, ``(batch, tokens, dim)``; needed only where `content` is True.
            layer: The index of the calling layer; read by modules that hold one set of angles per layer.
            grid: The shape that the last tokens form; read by cumulative frames on several axes.
            state: Where the sequence stopped, the `end` of the frames before; read where `stateful` is True.
            every: Return the `end` after each token rather than after the last; read where `stateful` is True.
            parallel: The processes that share the sequence, of which positions and x are this one's tokens; read where
                `stateful` is True.

        Returns:
            A frames value broadcastable to ``(batch, tokens, heads, planes)``, on x's device where x is given, on the
            positions' otherwise.

        Raises:
            ValueError: If positions or x have another shape, or positions are infinite or in half precision.
        """
        return self.make(Inputs(positions, x, layer, grid, state, every, parallel))

    def make(self, given: Inputs) -> Frames:
        """The frames for one call."""
        raise NotImplementedError(f"{type(self).__name__} must define make(given) or forward(positions, x)")

    @property
    def ground(self) -> FramesModule | None:
        """The frames that content is added to; these themselves where it is not, None where it is added to nothing."""
        return None if self.content else self

    def spectra(self) -> tuple[Tensor, Tensor] | None:
        """Frequencies at the start of training and now, (axes, layers, heads, planes of an axis) each, float64.

        None where frames have no frequencies.
        """
        return None


class FlatModule(FramesModule):
    """Frames that are angles: the planes of a head that all of them have in common."""

    def __init__(
        self, head_dim: int, *, axes: int, heads: int, split: Split, planes: int | None, at: At, layout: Layout
    ) -> None:
        super().__init__()
        check_planes(layout, at)
        check_heads(heads)
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
        if split == "axial" and planes < axes:
            raise ValueError(
                f"an axial split gives each of {axes} axes planes of its own, but there are only {planes}: "
                "use a wider head or split='combined'"
            )
        self.head_dim, self.axes, self.heads, self.split = head_dim, axes, heads, split
        self.planes, self.at, self.layout = planes - planes % axes if split == "axial" else planes, at, layout

    def flat(self, angles: Tensor, **more: Any) -> FlatFrames:
        """Angles as frames on the planes of this module."""
        return FlatFrames.of(angles, layout=self.layout, at=self.at, head_dim=self.head_dim, **more)


def check_heads(heads: int) -> None:
    """Raises ValueError unless there is a head."""
    if heads < 1:
        raise ValueError(f"heads must be 1 (shared by all heads) or the number of key/value heads, got {heads}")


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
    rows = positions.shape[0] if positions.dim() == 3 else 1
    if x is not None and (x.dim() != 3 or x.shape[1] != positions.shape[-2] or rows not in (1, x.shape[0])):
        raise ValueError(
            f"x must be (batch, {positions.shape[-2]} tokens, dim), one row per position, got {tuple(x.shape)} "
            f"for positions {tuple(positions.shape)}"
        )
    check_precision(positions, "positions are")
    known = positions.to(exact_device(positions.device), torch.float64)
    known = known.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    # A sum, finite only if all are, is the cheapest look at them: 3 µs.
    if readable(known) and not isfinite(known.sum().item()):
        raise ValueError("positions are infinite: give finite coordinates, or NaN on every axis to a token without any")
    return known if known.dim() == 3 else known.unsqueeze(0)


def linear_angles(
    known: Float[Tensor, "batch tokens axes"], steps: Float[Tensor, "heads axes each"], split: Split, x: Tensor | None
) -> Float[Tensor, "batch tokens heads planes"]:
    """θ = ω·n on x's device: planes side by side axis by axis where axial, summed over the axes otherwise.

    Left unreduced: cos and sin of a float64 angle are exact at any size, and `wrap` goes before any rounding.
    """
    if split == "axial":
        return place((known[:, :, None, :, None] * steps).flatten(-2), x)
    return place(torch.einsum("btk,hkp->bthp", known, steps), x)


def wrap(angles: Tensor) -> Tensor:
    """The same angles in [−π, π]; the gradient passes through."""
    circle = 6.283185307179586  # 2π, written out: the compiler takes a global float for an input that may change
    return angles - circle * (angles / circle).round()


def place(angles: Tensor, x: Tensor | None) -> Tensor:
    """Angles on x's device."""
    if x is None or angles.device == x.device:
        return angles
    return angles.to(x.device) if has_float64(x.device) else wrap(angles).float().to(x.device)
