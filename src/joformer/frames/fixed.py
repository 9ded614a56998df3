"""JoFormer-fixed: θ_t = ω·t with a given spectrum. RoPE's angles, for scores and values alike. Also no frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.frames.base import (
    FramesModule,
    Split,
    check_layout_and_heads,
    coordinates,
    linear_angles,
    place,
    planes_of,
)
from joformer.frequencies import NTK, Linear, Scaling, YaRN, per_axis
from joformer.kernels import Layout
from joformer.values import FlatFrames


class FixedFrames(FramesModule):
    """θ_t = ω·t, frequencies given: (1, tokens, 1, planes) from positions (tokens, axes).

    `base` is a number (10000 for text, 100 for axial vision) or a literal table of frequencies, one per plane
    (per plane of an axis where axial); `scaling` one of `joformer.frequencies.Linear`, `NTK`, `YaRN`;
    `planes` fewer than head_dim / 2 rotates only the first 2·planes entries of each head. `split` says how
    several axes share the planes, see `joformer.frequencies.per_axis`. There is nothing to save or to move:
    frequencies are made from the arguments, on the device of the positions.

    >>> from joformer import positions
    >>> FixedFrames(64)(positions.sequence(16)).angles.shape
    torch.Size([1, 16, 1, 32])
    >>> FixedFrames(64, axes=2, base=100.0)(positions.grid(14, 14, prefix=1)).angles.shape
    torch.Size([1, 197, 1, 32])
    """

    _ready: dict[torch.device, Tensor]

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 1,
        base: float | Sequence[float] | Tensor = 10000.0,
        split: Split = "axial",
        scaling: Scaling | None = None,
        planes: int | None = None,
        layout: Layout = "interleaved",
    ) -> None:
        super().__init__()
        check_layout_and_heads(layout, 1)
        self.head_dim, self.axes, self.heads, self.split, self.layout = head_dim, axes, 1, split, layout
        self.planes = planes_of(head_dim, planes, axes, split)
        if isinstance(base, str) or (scaling is not None and not hasattr(scaling, "apply")):
            raise ValueError(
                "base is a number or a table of frequencies, scaling one of joformer.frequencies.Linear, NTK, YaRN; "
                f"got base={base!r}, scaling={scaling!r}"
            )
        self.base = base if isinstance(base, (int, float)) else tuple(float(f) for f in base)
        self.scaling = scaling
        self.frequencies()  # bad arguments fail here rather than at the first forward

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """The spectrum in use, float64 (axes, planes of an axis)."""
        return per_axis(self.planes, self.axes, self.split, self.base, self.scaling, device=device)

    def _steps(self, device: torch.device) -> Float[Tensor, "1 axes each"]:
        if torch.compiler.is_compiling():
            return self.frequencies(device).unsqueeze(0)
        if device not in self._ready:
            steps = self.frequencies(device).unsqueeze(0)
            if type(steps) is not Tensor or steps.is_inference():  # what must not outlive its mode
                return steps
            if not isinstance(self.scaling, (Linear, NTK, YaRN, type(None))):  # which may change by itself
                return steps
            self._ready[device] = steps
        return self._ready[device]

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("base", "scaling", "split", "axes", "planes"):
            self.__dict__["_ready"] = {}  # made with what was set before

    def angles(self, positions: Tensor, x: Tensor | None = None) -> Float[Tensor, "batch tokens 1 planes"]:
        """θ = ω·t, float64."""
        known = coordinates(positions, self.axes, x)
        return place(linear_angles(known, self._steps(known.device), self.split), x)

    def forward(self, positions: Tensor, x: Tensor | None = None) -> FlatFrames:
        return FlatFrames.of(self.angles(positions, x), layout=self.layout)

    def extra_repr(self) -> str:
        return f"{self.head_dim}, axes={self.axes}, base={self.base}, split={self.split!r}, planes={self.planes}"


class NoFrames(FramesModule):
    """A = I for every token: no positions at all (NoPE). Rotating with it returns its argument.

    >>> from joformer import positions
    >>> NoFrames()(positions.sequence(16)).planes
    0
    """

    def __init__(self, axes: int | None = None) -> None:
        super().__init__()
        self.head_dim, self.heads = 0, 1
        self.axes = 1 if axes is None else axes

    def forward(self, positions: Tensor, x: Tensor | None = None) -> FlatFrames:
        device = positions.device if x is None else x.device
        return FlatFrames.of(torch.zeros(1, positions.shape[-2], 1, 0, dtype=torch.float32, device=device))
