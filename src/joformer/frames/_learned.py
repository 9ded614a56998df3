"""JoFormer-learned: θ_t = ω·t with ω trained, shared by all layers or one set for each."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from joformer.frames._base import (
    FramesModule,
    Split,
    check_layout_and_heads,
    coordinates,
    linear_angles,
    place,
    planes_of,
)
from joformer.frames._types import FlatFrames, Layout
from joformer.frequencies import per_axis


class LearnedFrames(FramesModule):
    """θ_t = ω·t with ω a parameter (axes, layers, heads, planes), started from the fixed spectrum of `base`.

    Where axial each axis has planes of its own, so the last dimension is planes // axes and there are
    heads·planes parameters a layer; combined has axes times as many (docs/claims.md row 55). `layers` > 1 holds one
    set for each layer, chosen by `layer` in the call.

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
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout_and_heads(layout, heads)
        if layers < 1:
            raise ValueError(f"layers must be 1 (shared by all layers) or the number of layers, got {layers}")
        self.head_dim, self.axes, self.heads, self.layers = head_dim, axes, heads, layers
        self.split, self.base, self.layout = split, base, layout
        self.planes = planes_of(head_dim, planes, axes, split)
        each = self.planes // axes if split == "axial" else self.planes
        self.frequencies = nn.Parameter(torch.empty(axes, layers, heads, each, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        device = self.frequencies.device
        start = per_axis(self.planes, self.axes, self.split, self.base, device=device)
        self.frequencies.copy_(start[:, None, None, :].expand_as(self.frequencies))

    def angles(
        self, positions: Tensor, x: Tensor | None = None, *, layer: int = 0
    ) -> Float[Tensor, "batch tokens heads planes"]:
        """θ = ω·t, float64."""
        if not 0 <= layer < self.layers:
            raise ValueError(f"layer must be 0 … {self.layers - 1} of these frames, got {layer}")
        known = coordinates(positions, self.axes, x)
        steps = self.frequencies[:, layer].movedim(0, 1).to(device=known.device, dtype=known.dtype)
        return place(linear_angles(known, steps, self.split), x)

    def forward(
        self,
        positions: Tensor,
        x: Tensor | None = None,
        *,
        layer: int = 0,
        grid: tuple[int, ...] | None = None,
        state: Tensor | None = None,
    ) -> FlatFrames:
        return FlatFrames.of(self.angles(positions, x, layer=layer), layout=self.layout)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, axes={self.axes}, heads={self.heads}, layers={self.layers}, split={self.split!r}"
