"""JoFormer-learned: θ_t = ω·t with trained ω, shared by all layers or one set per layer."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.frames._base import FlatModule, Inputs, Split, coordinates, linear_angles
from joformer.frames._types import At, FlatFrames, Layout
from joformer.frequencies import per_axis


class LearnedFrames(FlatModule):
    """``θ_tp = Σ_k ω_kp n_tk`` where ω is a parameter that starts from the fixed spectrum of `base`.

    The parameter `frequencies` is ``(axes, layers, heads, planes)``. With an axial split each axis has its own planes,
    so that the last dimension is planes // axes and a layer has heads·planes parameters; a combined split has axes
    times as many (docs/claims.md row 55).

    Args:
        head_dim: Width of a head; must be even.
        axes: Number of coordinates per token.
        heads: 1 (shared by all heads) or the number of key/value heads.
        layers: 1 (shared by all layers) or the number of layers, selected by `layer` in the call.
        split: How several axes share the planes; see `joformer.frequencies.per_axis`.
        base: Base of the initial spectrum.
        planes: Number of planes; fewer than head_dim / 2 rotate only 2·planes entries of each head.
        at: Which entries of a head are rotated: the first ("front") or the last ("end").
        layout: Which entries of a head form a plane; see `joformer.rotation`.

    Raises:
        ValueError: If widths, axes, planes, heads or layers are incompatible.

    Example:
        >>> from joformer import positions
        >>> module = LearnedFrames(64, axes=2, heads=6)
        >>> module(positions.grid(14, 14, prefix=1)).angles.shape, module.frequencies.shape
        (torch.Size([1, 197, 6, 32]), torch.Size([2, 1, 6, 16]))
    """

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 1,
        heads: int = 1,
        layers: int = 1,
        split: Split = "axial",
        base: float = 10000.0,
        planes: int | None = None,
        at: At = "front",
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__(head_dim, axes=axes, heads=heads, split=split, planes=planes, at=at, layout=layout)
        if layers < 1:
            raise ValueError(f"layers must be 1 (shared by all layers) or the number of layers, got {layers}")
        self.layers, self.base = layers, base
        each = self.planes // axes if split == "axial" else self.planes
        self.frequencies = nn.Parameter(torch.empty(axes, layers, heads, each, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Sets all frequencies to the fixed spectrum."""
        self.frequencies.copy_(self._start())

    def _start(self) -> Tensor:
        """The fixed spectrum, in the shape of the parameter."""
        start = per_axis(self.planes, self.axes, self.split, self.base, device=self.frequencies.device)
        return start[:, None, None, :].expand_as(self.frequencies)

    def spectra(self) -> tuple[Tensor, Tensor]:
        """Frequencies at the start, rounded like the parameter, and now: (axes, layers, heads, planes of an axis)."""
        now = self.frequencies.detach()
        return self._start().to(now.dtype).double(), now.double()

    def angles(
        self, positions: Tensor, x: Tensor | None = None, *, layer: int = 0
    ) -> Float[Tensor, "batch tokens heads planes"]:
        """θ = ω·t, float64."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer must be 0 … {self.layers - 1} for these frames, got {layer}")
        known = coordinates(positions, self.axes, x)
        steps = self.frequencies[:, layer].movedim(0, 1).to(device=known.device, dtype=known.dtype)
        return linear_angles(known, steps, self.split, x)

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        return self.flat(self.angles(given.positions, given.x, layer=given.layer))

    def extra_repr(self) -> str:
        """The arguments that determine the parameters."""
        return f"{self.head_dim}, axes={self.axes}, heads={self.heads}, layers={self.layers}, split={self.split!r}"
