"""The base of all frames modules: ``frames = module(positions, x)``, with angles that are never downcast.

    θ_t = Σ_k ω_k n_tk      (linear in the coordinates n of the token)

Angles are float64 and are reduced modulo 2π before anything is rounded to float32: a shift by a million positions then
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
    """The arguments of a call to a frames module; see `FramesModule.forward` for each."""

    positions: Tensor
    x: Tensor | None
    layer: int
    grid: tuple[int, ...] | None
    state: Tensor | None
    every: bool
    parallel: ContextParallel | None = None


class FramesModule(KeepsPrecision):
    """Base class of all frames modules: a subclass sets the attributes and defines `make`, or overrides `forward`.

    Attributes:
        content: Whether frames depend on the content of the tokens.
        stateful: Whether continuing a sequence requires the `state` in which it stopped.
        shift_invariant: Whether displacing all positions by the same amount leaves every journey unchanged.
        head_dim: Width of a head.
        heads: Number of heads that have their own frames.
        axes: Number of coordinates per token.
        layers: Number of sets of angles, selected by `layer`; a single set is shared by all layers.

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
        """The frame ``A_t`` of each token. All modules accept all arguments and ignore those they do not need.

        Args:
            positions: ``(tokens, axes)`` or ``(batch, tokens, axes)``; see `joformer.positions`.
            x: The content of the tokens, ``(batch, tokens, dim)``; required only if `content` is True.
            layer: The index of the calling layer; used by modules that hold one set of angles per layer.
            grid: The shape of the grid that the last tokens form; used by cumulative frames on several axes.
            state: Where the sequence stopped, the `end` of the previous frames; used if `stateful` is True.
            every: Return the `end` after each token instead of after the last only; used if `stateful` is True.
            parallel: The processes that share the sequence; positions and x are then those of this process's tokens.
                Used if `stateful` is True.

        Returns:
            A frames value broadcastable to ``(batch, tokens, heads, planes)``, on the device of x if given, otherwise
            on that of the positions.

        Raises:
            ValueError: If positions or x have the wrong shape, or positions are infinite or in half precision.
        """
        return self.make(Inputs(positions, x, layer, grid, state, every, parallel))

    def make(self, given: Inputs) -> Frames:
        """The frames for one call."""
        raise NotImplementedError(f"{type(self).__name__} must define make(given) or forward(positions, x)")

    @property
    def ground(self) -> FramesModule | None:
        """The frames that content is added to: `self` without content, None if content is added to nothing."""
        return None if self.content else self

    def spectra(self) -> tuple[Tensor, Tensor] | None:
        """Frequencies at the start of training and now, each (axes, layers, heads, planes of an axis), float64.

        None if the frames have no frequencies.
        """
        return None


class FlatModule(FramesModule):
    """Base class of frames that are angles on the planes of a head."""

    def __init__(
        self, head_dim: int, *, axes: int, heads: int, split: Split, planes: int | None, at: At, layout: Layout
    ) -> None:
        super().__init__()
        check_planes(layout, at)
        check_heads(heads)
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim must be even, because planes are pairs of entries, got {head_dim}")
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
                f"an axial split gives each of {axes} axes its own planes, but there are only {planes} planes: "
                "use a wider head or split='combined'"
            )
        self.head_dim, self.axes, self.heads, self.split = head_dim, axes, heads, split
        self.planes, self.at, self.layout = planes - planes % axes if split == "axial" else planes, at, layout

    def flat(self, angles: Tensor, **more: Any) -> FlatFrames:
        """Frames with these angles, on the planes of this module."""
        return FlatFrames.of(angles, layout=self.layout, at=self.at, head_dim=self.head_dim, **more)


def check_heads(heads: int) -> None:
    """Raises ValueError unless there is at least one head."""
    if heads < 1:
        raise ValueError(f"heads must be 1 (shared by all heads) or the number of key/value heads, got {heads}")


def coordinates(positions: Tensor, axes: int, x: Tensor | None = None) -> Float[Tensor, "batch tokens axes"]:
    """Positions as float64 (batch or 1, tokens, axes); tokens without coordinates get 0, whose angle is 0.

    Raises ValueError for a wrong shape, half precision and, in eager mode on the CPU, infinite coordinates. Elsewhere
    reading values would wait for the device or break the graph; infinite coordinates then give NaN.
    """
    if not isinstance(positions, Tensor) or positions.dim() not in (2, 3) or positions.shape[-1] != axes:
        shape = tuple(positions.shape) if isinstance(positions, Tensor) else type(positions).__name__
        raise ValueError(
            f"positions must be (tokens, {axes}) or (batch, tokens, {axes}), got {shape}: see joformer.positions, "
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
    # A sum, which is finite only if all entries are, is the cheapest check: 3 µs.
    if readable(known) and not isfinite(known.sum().item()):
        raise ValueError("positions are infinite: use finite coordinates, or NaN on every axis for tokens without any")
    return known if known.dim() == 3 else known.unsqueeze(0)


def linear_angles(
    known: Float[Tensor, "batch tokens axes"], steps: Float[Tensor, "heads axes each"], split: Split, x: Tensor | None
) -> Float[Tensor, "batch tokens heads planes"]:
    """θ = ω·n on x's device: axis after axis on separate planes if axial, otherwise summed over the axes.

    Not reduced: cos and sin of a float64 angle are exact at any size, and `wrap` is called before any rounding.
    """
    if split == "axial":
        return place((known[:, :, None, :, None] * steps).flatten(-2), x)
    return place(torch.einsum("btk,hkp->bthp", known, steps), x)


def wrap(angles: Tensor) -> Tensor:
    """The same angles in [−π, π]; the gradient passes through."""
    circle = 6.283185307179586  # 2π, a literal: the compiler treats a global float as an input that may change
    return angles - circle * (angles / circle).round()


def place(angles: Tensor, x: Tensor | None) -> Tensor:
    """Angles on x's device."""
    if x is None or angles.device == x.device:
        return angles
    return angles.to(x.device) if has_float64(x.device) else wrap(angles).float().to(x.device)
