"""The journeys of tokens in a model that is not ours: rotations of its values by its own rotary angles.

    v'_j = R(s θ_j) v_j        o_i = R(s θ_i)⁻¹ o'_i

θ are the angles whose cosines the model's rotary embedding takes, whatever scaling they have; s is the strength.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from joformer.frames import FlatFrames, Layout
from joformer.rotation import rotate

Repeat = Literal["half", "interleaved", "once"]  # θ₁θ₂…θ₁θ₂… or θ₁θ₁θ₂θ₂… as the layouts do, or θ₁θ₂…


class Strength:
    """s, shared by all patched modules of one model; a tensor too, which a compiled model reads without recompiling."""

    def __init__(self, value: float) -> None:
        self.set(value)

    def set(self, value: float) -> None:
        """Change s everywhere at once."""
        self.value, self.on, self.full = value, value != 0, value == 1
        self.tensor = torch.tensor(value, dtype=torch.float32, device="cpu")  # float64 is a constant to compilers


@dataclass(frozen=True)
class Heads:
    """Where the values are in the output of a projection: entry d of head h is channel start + h·stride + d."""

    heads: int
    dim: int
    start: int
    stride: int


def repeat_of(angles: Tensor) -> Repeat:
    """How a table (…, width) repeats the angle of each plane.

    >>> repeat_of(torch.tensor([1.0, 2.0, 1.0, 2.0])), repeat_of(torch.tensor([1.0, 1.0, 2.0, 2.0]))
    ('half', 'interleaved')
    """
    if angles.shape[-1] % 2:
        return "once"
    if torch.equal(*angles.chunk(2, -1)):
        return "half"
    return "interleaved" if torch.equal(angles[..., 0::2], angles[..., 1::2]) else "once"


def planes_of(angles: Tensor, repeat: Repeat) -> Tensor:
    """The angle of each plane, (…, planes), from a table of angles (…, width)."""
    if repeat == "half":
        return angles[..., : angles.shape[-1] // 2]
    return angles[..., ::2] if repeat == "interleaved" else angles


@dataclass(frozen=True)
class Selection:
    """Which angle each entry of a table is of, where several kinds of positions share a head (M-RoPE).

    Attributes:
        rows: The kind of positions of each entry: time, height, width.
        columns: Its place among the angles of that kind.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def of(self, angles: Tensor) -> Tensor:
        """The table (batch, tokens, width) of angles (kinds, batch, tokens, planes).

        >>> Selection((0, 1), (0, 1)).of(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 1, 1, 2))
        tensor([[[1., 4.]]])
        """
        rows, columns = (torch.tensor(each, device=angles.device) for each in (self.rows, self.columns))
        return angles[rows, :, :, columns].movedim(0, -1)


def frames_of(angles: Tensor, repeat: Repeat, layout: Layout, strength: Tensor | float = 1.0) -> FlatFrames:
    """Frames from a model's table of angles, (tokens, width) or (batch or 1, tokens, width)."""
    angles = planes_of(angles, repeat)
    wide = angles if angles.dtype == torch.float64 else angles.float()
    while wide.dim() < 3:
        wide = wide.unsqueeze(0)
    return FlatFrames.of(wide.unsqueeze(2) * strength, layout=layout)


class Journey:
    """Rotates values by the frames of their tokens."""

    def __init__(self, frames: FlatFrames) -> None:
        self.frames = frames
        self.padded: dict[int, FlatFrames] = {}

    def to(self, device: torch.device | str, **_: Any) -> Journey:
        """The same on another device: accelerate calls this where a model is spread over devices."""
        return Journey(self.frames.to(device))

    def rotate(self, x: Tensor, inverse: bool = False) -> Tensor:
        """R(s θ) x, or its inverse, of x (batch, tokens, heads, dim); leading tokens without a position stay."""
        frames = self.frames
        if frames.tokens != x.shape[1]:
            frames = self._padded(x.shape[1])
        return rotate(x, frames, inverse)

    def _padded(self, tokens: int) -> FlatFrames:
        """Frames for `tokens` tokens of which the leading ones (classes, registers) have no position."""
        ready = self.padded.get(tokens)
        if ready is None:
            angles = nn.functional.pad(self.frames.angles, (0, 0, 0, 0, tokens - self.frames.tokens, 0))
            ready = self.padded[tokens] = FlatFrames.of(angles, layout=self.frames.layout)
        return ready

    def rotate_values(self, y: Tensor, heads: Heads) -> Tensor:
        """The output y (batch, tokens, width) of a projection with the values in it rotated."""
        if heads.stride == heads.dim:
            stop = heads.start + heads.heads * heads.dim
            whole = stop - heads.start == y.shape[2]
            inside = y if whole else y[..., heads.start : stop]
            rotated = self.rotate(inside.unflatten(2, (heads.heads, heads.dim))).flatten(2)
            return rotated if whole else torch.cat((y[..., : heads.start], rotated, y[..., stop:]), -1)
        groups, stop = y.unflatten(2, (-1, heads.stride)), heads.start + heads.dim
        rotated = self.rotate(groups[..., heads.start : stop])
        return torch.cat((groups[..., : heads.start], rotated, groups[..., stop:]), -1).flatten(2)

    def rotate_output(self, o: Tensor, dim: int) -> Tensor:
        """The inverse rotation of o (batch, tokens, heads · dim), or (batch, tokens, heads, dim)."""
        return self.rotate(o.reshape(*o.shape[:2], -1, dim), inverse=True).view(o.shape)


@cache
def quarter_rotation(planes: int, dim: int, layout: Layout, device: torch.device) -> tuple[Tensor, Tensor]:
    """I and J (dim, dim): x (I cos θ + J sin θ) rotates every plane of the row x by θ and leaves other entries.

    >>> rows = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> (rows @ quarter_rotation(2, 5, "half", torch.device("cpu"))[1]).tolist()
    [-3.0, -4.0, 1.0, 2.0, 0.0]
    """
    with torch.inference_mode(False):
        identity = torch.eye(dim, device=device, dtype=torch.float32)
        rotated = identity[: 2 * planes]
        first, second = rotated.chunk(2) if layout == "half" else (rotated[0::2], rotated[1::2])
        return identity, first.T @ second - second.T @ first


class Step(Journey):
    """The journey of a single token per row: one small matrix, which costs a decoded token least.

    It is float32, and so is its product with values of lower precision: rounded once, as those of many tokens are.
    """

    def __init__(self, cos: Tensor, sin: Tensor, planes: int, layout: Layout) -> None:
        """From the cosine and sine of each entry's angle, (rows, 1, dim): 1 and 0 where it is not rotated."""
        identity, quarter = quarter_rotation(planes, cos.shape[-1], layout, cos.device)
        self.matrix = torch.addcmul(identity * cos, quarter, sin).squeeze(0)
        self.inverse = self.matrix.mT

    @classmethod
    def of(cls, angles: Tensor, layout: Layout, dim: int) -> Step:
        """From the angle of each plane, (rows, 1, planes)."""
        planes = angles.shape[-1]
        angles = torch.cat((angles, angles), -1) if layout == "half" else angles.repeat_interleave(2, -1)
        if 2 * planes != dim:
            angles = nn.functional.pad(angles, (0, dim - 2 * planes))
        return cls(angles.cos(), angles.sin(), planes, layout)

    def to(self, device: torch.device | str, **_: Any) -> Journey:
        """A copy on another device."""
        copied = Step.__new__(Step)
        copied.matrix, copied.inverse = self.matrix.to(device), self.inverse.to(device)
        return copied

    def rotate(self, x: Tensor, inverse: bool = False) -> Tensor:
        """R(s θ) x, or its inverse, of x (rows, 1, heads, dim)."""
        return self._product(x, self.inverse if inverse else self.matrix, x.shape[3])

    def rotate_values(self, y: Tensor, heads: Heads) -> Tensor:
        """The output y (rows, 1, width) of a projection with the values in it rotated."""
        if heads.heads * heads.dim == y.shape[2]:
            return self._product(y, self.matrix, heads.dim)
        return super().rotate_values(y, heads)

    def rotate_output(self, o: Tensor, dim: int) -> Tensor:
        """The inverse rotation of o (rows, 1, heads · dim), or (rows, 1, heads, dim)."""
        return self._product(o, self.inverse, dim)

    def _product(self, x: Tensor, matrix: Tensor, dim: int) -> Tensor:
        shape = (-1, dim) if matrix.dim() == 2 else (matrix.shape[0], -1, dim)
        multiply = torch.mm if matrix.dim() == 2 else torch.bmm
        if x.dtype == torch.float32:
            return multiply(x.reshape(shape), matrix).view_as(x)  # cheaper than building a shape in Python
        return multiply(x.reshape(shape).float(), matrix).type_as(x).view_as(x)
