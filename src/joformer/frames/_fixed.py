"""JoFormer-fixed: θ_t = ω·t with a given spectrum, the angles of RoPE, for scores and values. Also `NoFrames`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from joformer.frames._base import FlatModule, FramesModule, Inputs, Split, coordinates, linear_angles
from joformer.frames._types import At, FlatFrames, Layout
from joformer.frequencies import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Scaling, YaRN, per_axis

# Scalings that return the same frequencies at every call.
_UNCHANGING = (Linear, NTK, DynamicNTK, YaRN, Llama3, LongRoPE, type(None))


class FixedFrames(FlatModule):
    """``θ_tp = Σ_k ω_kp n_tk`` with given frequencies ω: angles (1, tokens, 1, planes) from positions (tokens, axes).

    There are no parameters or buffers: frequencies are computed from the arguments, on the device of the positions.

    Args:
        head_dim: Width of a head; must be even.
        axes: Number of coordinates per token.
        base: Base of the geometric spectrum: 10000 for text, 100 for axial vision.
        split: How several axes share the planes; see `joformer.frequencies.per_axis`.
        scaling: One of `joformer.frequencies.Linear`, `NTK`, `DynamicNTK`, `YaRN`, `Llama3`, `LongRoPE`.
        planes: Number of planes; fewer than head_dim / 2 rotate only 2·planes entries of each head (partial rotation).
        at: Which entries of a head are rotated: the first ("front") or the last ("end", as in DeepSeek's keys).
        layout: Which entries of a head form a plane; see `joformer.rotation`.
        frequencies: A custom table that replaces `base`, `split` and `planes`: ``(axes, planes)``, or ``(heads, axes,
            planes)`` if heads differ. A zero means that an axis does not rotate a plane. Tables can therefore express
            sections (M-RoPE, `joformer.frequencies.mrope`), uneven splits and different axes per head.

    Raises:
        ValueError: If widths, axes, planes or the table are incompatible.

    Example:
        >>> from joformer import positions
        >>> FixedFrames(64)(positions.sequence(16)).angles.shape
        torch.Size([1, 16, 1, 32])
        >>> FixedFrames(64, axes=2, base=100.0)(positions.grid(14, 14, prefix=1)).angles.shape
        torch.Size([1, 197, 1, 32])
        >>> rows_only_in_the_first = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.1]])
        >>> FixedFrames(8, axes=2, frequencies=rows_only_in_the_first)(positions.grid(2, 2)).angles[0, :, 0].tolist()[1]
        [0.0, 1.0, 0.10000000149011612]
    """

    _ready: dict[torch.device, Tensor]

    def __init__(
        self,
        head_dim: int,
        *,
        axes: int = 1,
        base: float = 10000.0,
        split: Split = "axial",
        scaling: Scaling | None = None,
        planes: int | None = None,
        at: At = "front",
        layout: Layout = "interleaved",
        frequencies: Sequence[Any] | Tensor | None = None,
    ) -> None:
        if not isinstance(base, (int, float)) or (scaling is not None and not hasattr(scaling, "apply")):
            raise ValueError(
                "base must be a number, scaling one of those in joformer.frequencies; pass a table of frequencies as "
                f"frequencies=; got base={base!r}, scaling={scaling!r}"
            )
        heads, table = 1, None
        if frequencies is not None:
            table = _checked_table(frequencies, head_dim, axes, planes, scaling)
            heads, planes, split = table.shape[0], table.shape[2], "combined"
        super().__init__(head_dim, axes=axes, heads=heads, split=split, planes=planes, at=at, layout=layout)
        self.base, self.scaling, self.table = base, scaling, table
        self.frequencies()  # bad arguments fail here rather than at the first forward

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """The spectrum in use, float64: (axes, planes of an axis), or the table as (heads, axes, planes)."""
        if self.table is None:
            return per_axis(self.planes, self.axes, self.split, self.base, self.scaling, device=device)
        table = self.table.to(device)
        return table if self.scaling is None else self.scaling.apply(table, self.base)

    def spectra(self) -> tuple[Tensor, Tensor]:
        """The spectrum twice, (axes, 1, heads, planes of an axis): it is not trained."""
        steps = self._steps(torch.device("cpu")).transpose(0, 1).unsqueeze(1)
        return steps, steps

    def _steps(self, device: torch.device) -> Float[Tensor, "heads axes each"]:
        traced = torch.compiler.is_compiling()
        if not traced and device in self._ready:
            return self._ready[device]
        steps = self.frequencies(device)
        steps = steps if steps.dim() == 3 else steps.unsqueeze(0)
        # Cached, unless it must not outlive its mode, or a custom scaling may change.
        if not traced and type(steps) is Tensor and not steps.is_inference() and isinstance(self.scaling, _UNCHANGING):
            self._ready[device] = steps
        return steps

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("base", "scaling", "split", "axes", "planes", "table"):
            self.__dict__["_ready"] = {}  # cached values depend on these

    def angles(self, positions: Tensor, x: Tensor | None = None) -> Float[Tensor, "batch tokens heads planes"]:
        """θ = ω·t, float64."""
        known = coordinates(positions, self.axes, x)
        return linear_angles(known, self._steps(known.device), self.split, x)

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        return self.flat(self.angles(given.positions, given.x))

    def extra_repr(self) -> str:
        """The arguments that determine the angles."""
        made = f"base={self.base}, split={self.split!r}" if self.table is None else f"table, heads={self.heads}"
        return f"{self.head_dim}, axes={self.axes}, {made}, planes={self.planes}"


def _checked_table(
    given: Sequence[Any] | Tensor, head_dim: int, axes: int, planes: int | None, scaling: Scaling | None
) -> Float[Tensor, "heads axes planes"]:
    """The table in float64 on the CPU; raises ValueError if it does not fit."""
    table = torch.as_tensor(given, dtype=torch.float64, device="cpu")
    table = table.unsqueeze(0) if table.dim() == 2 else table
    if table.dim() != 3 or table.shape[1] != axes or not 1 <= table.shape[2] <= head_dim // 2 or not len(table):
        raise ValueError(
            f"frequencies must be (axes, planes) or (heads, axes, planes) with axes={axes} and at most {head_dim // 2} "
            f"planes, got {tuple(torch.as_tensor(given).shape)}"
        )
    if planes not in (None, table.shape[2]):
        raise ValueError(f"the table of frequencies has {table.shape[2]} planes, not {planes}: leave out planes=")
    if not table.isfinite().all():
        raise ValueError("frequencies must be finite: use 0 where an axis does not rotate a plane")
    if scaling is not None and not isinstance(scaling, Linear):
        raise ValueError("scalings other than Linear need a base: pass base=10000.0, or scale the table yourself")
    return table


class NoFrames(FramesModule):
    """``A_t = I`` for every token: no positions at all (NoPE). Rotating with these frames returns its argument.

    Args:
        axes: Number of coordinates per token; calls accept any number.

    Example:
        >>> from joformer import positions
        >>> NoFrames()(positions.sequence(16)).planes
        0
    """

    def __init__(self, axes: int | None = None) -> None:
        super().__init__()
        self.head_dim, self.heads, self.axes = 0, 1, 1 if axes is None else axes

    def make(self, given: Inputs) -> FlatFrames:
        """The frames for one call."""
        device = given.positions.device if given.x is None else given.x.device
        return FlatFrames.of(torch.zeros(1, given.positions.shape[-2], 1, 0, dtype=torch.float32, device=device))
