"""RandAugment's operations on uint8 images (batch, channels, h, w), each sample with its own operation and strength.

    levels     x ↦ table[x], 256 entries per sample and channel: all that looks at one value at a time
    geometry   out(p) = in(⌊M (p − c) + c + t⌋), p the pixel's centre, 0 where that is outside
    blend      d + f (x − d), d the grey image (Color) or the smoothed one (Sharpness)

ℓ = magnitude / 30, ± is a coin; the fourteen of torchvision and of the RandAugment paper, then two more of timm's:

    Identity   AutoContrast   Equalize           Posterize   8 − round(4 ℓ) bits     Solarize   from 256 (1 − ℓ)
    Brightness, Contrast, Color, Sharpness       f = 1 ± 0.9 ℓ                       Rotate     ± 30° ℓ
    ShearX, ShearY  ± 0.3 ℓ, the corner stays    TranslateX, TranslateY   ± 150/331 ℓ of the side, in whole pixels
    Invert                                       SolarizeAdd   110 ℓ added below 128

Rounding is Pillow's, and so is every result, bit for bit; geometry takes the nearest pixel, and only where a source
point lies between two within fp32 rounding may the choice differ. As timm has it (`bicubic`), geometry is Pillow's
bicubic interpolation in fp32, within one level of Pillow's. Everything here is integers or correctly rounded
floating point, so that a sample's result does not depend on its neighbours in the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from joformer._precision import readable
from joformer.algebra._checks import in_float64
from joformer.training.transfer import to_device

Images = UInt8[Tensor, "batch channels h w"]
Strengths = Float[Tensor, " batch"]


class Operation(NamedTuple):
    """strength = rest + slope ℓ, with ± before the slope where `signed`.

    >>> OPERATIONS["Rotate"]
    Operation(rest=0.0, slope=30.0, signed=True)
    """

    rest: float = 0.0
    slope: float = 0.0
    signed: bool = False


# All operations; a plan speaks of them by their place in this table.
OPERATIONS = {
    "Identity": Operation(),
    "AutoContrast": Operation(),
    "Equalize": Operation(),
    "Posterize": Operation(8.0, -4.0),
    "Solarize": Operation(256.0, -256.0),
    "Brightness": Operation(1.0, 0.9, signed=True),
    "Contrast": Operation(1.0, 0.9, signed=True),
    "Color": Operation(1.0, 0.9, signed=True),
    "Sharpness": Operation(1.0, 0.9, signed=True),
    "Rotate": Operation(0.0, 30.0, signed=True),
    "ShearX": Operation(0.0, 0.3, signed=True),
    "ShearY": Operation(0.0, 0.3, signed=True),
    "TranslateX": Operation(0.0, 150 / 331, signed=True),
    "TranslateY": Operation(0.0, 150 / 331, signed=True),
    "Invert": Operation(),
    "SolarizeAdd": Operation(0.0, 110.0),
}
TIMM = {
    "Posterize": Operation(4.0, -4.0),
    "TranslateX": Operation(0.0, 0.45, signed=True),
    "TranslateY": Operation(0.0, 0.45, signed=True),
}
"""Where timm's increasing severity ("inc1") differs."""
CODES = {name: code for code, name in enumerate(OPERATIONS)}


def blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    """base + factor (x − base), cut off at 0 and 255 and rounded down, as uint8.

    >>> blend(torch.tensor(100), torch.tensor([90, 100, 200]), torch.tensor(1.5))
    tensor([ 85, 100, 250], dtype=torch.uint8)
    """
    return ((x - base) * factor + base).clamp_(0, 255).to(torch.uint8)


def grey(x: Images) -> Int[Tensor, "batch 1 h w"]:
    """(19595 R + 38470 G + 7471 B + ½) / 2¹⁶: ITU-R 601 in 16 bits; one channel is grey already.

    >>> grey(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1)).item()
    76
    """
    x = x.int()
    if x.shape[1] == 1:
        return x
    red, green, blue = x.unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).unsqueeze(1)


def _auto_contrast(x: Tensor, _: Tensor, levels: Tensor) -> Tensor:
    low, high = (in_float64(bound) for bound in x.flatten(2).aminmax(dim=-1, keepdim=True))
    scale = torch.full_like(low, 255.0) / (high - low).clamp(min=1)  # a number over a tensor would round twice
    levels = levels.to(low.device)
    table = (levels * scale - low * scale).clamp(0, 255)
    return torch.where(high > low, table, levels.double()).to(torch.uint8).to(x.device)


def _equalize(x: Tensor, _: Tensor, levels: Tensor) -> Tensor:
    batch, channels, h, w = x.shape
    flat = x.flatten(2)
    rows = 256 * torch.arange(batch * channels, device=x.device).view(batch, channels, 1)
    counts = _counted((flat + rows).flatten(), 256 * batch * channels).view(batch, channels, 256)
    # The brightest level present has nothing above it to be told apart from.
    step = (h * w - counts.gather(-1, flat.amax(-1, keepdim=True).long())) // 255
    table = (step // 2 + counts.cumsum(-1) - counts) // step.clamp(min=1)
    return torch.where(step > 0, table.clamp(max=255), levels)


def _counted(x: Tensor, size: int) -> Tensor:
    """How often each of 0 … size − 1 is in `x`; elsewhere than on the CPU `bincount` waits to learn the largest."""
    if readable(x):
        return torch.bincount(x, minlength=size)
    return x.new_zeros(size).scatter_add_(0, x, x.new_ones(()).expand_as(x))


def _contrast(x: Tensor, factor: Tensor, levels: Tensor) -> Tensor:
    size = x.shape[2] * x.shape[3]
    mean = (2 * grey(x).flatten(2).sum(-1, keepdim=True) + size) // (2 * size)
    return blend(mean, levels, factor)


# x (batch, channels, h, w), strength (batch, 1, 1), the levels 0 … 255 → table (batch, channels or 1, 256).
TABLES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
    "Posterize": lambda _, bits, levels: levels & -(1 << (8 - bits.int())),
    "Solarize": lambda _, threshold, levels: torch.where(levels < threshold, levels, 255 - levels),
    "Brightness": lambda _, factor, levels: blend(torch.zeros_like(levels), levels, factor),
    "Contrast": _contrast,
    "Invert": lambda _, __, levels: 255 - levels,
    "SolarizeAdd": lambda _, added, levels: torch.where(levels < 128, (levels + added.int()).clamp(max=255), levels),
}
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def color(x: Images, factor: Strengths) -> Images:
    """d + f (x − d), d the grey image.

    >>> color(torch.tensor([255, 0, 0], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([0.5])).flatten()
    tensor([165,  38,  38], dtype=torch.uint8)
    """
    return blend(grey(x), x.int(), factor.view(-1, 1, 1, 1))


def sharpness(x: Images, factor: Strengths) -> Images:
    """d + f (x − d), d the mean over 3 × 3 with the centre five times; the border stays as it is.

    >>> x = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    >>> x[..., 1, 1] = 130
    >>> sharpness(x, torch.tensor([0.0]))[..., 1, 1].item()
    50
    """
    out, wide = x.clone(), x.int()
    rows = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    inner = wide[..., 1:-1, 1:-1]
    total = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :] + 4 * inner
    out[..., 1:-1, 1:-1] = blend((2 * total + 13) // 26, inner, factor.view(-1, 1, 1, 1))
    return out


def pixels(x: Images, at: Int[Tensor, "batch h w"]) -> Images:
    """out(p) = in(at(p)), where `at` counts pixels row by row.

    >>> pixels(torch.tensor([[[[5, 6]]]], dtype=torch.uint8), torch.tensor([[[1, 1]]]))
    tensor([[[[6, 6]]]], dtype=torch.uint8)
    """
    return x.flatten(2).gather(2, at.flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)).view_as(x)


def turns(codes: Int[Tensor, "*n"], strengths: Float[Tensor, "*n"]) -> Float[Tensor, "*n 2 2"]:
    """M of each operation, which takes a point (x, y) of the result to where it comes from; the identity for most.

    >>> turns(torch.tensor([CODES["ShearX"]]), torch.tensor([0.25]))
    tensor([[[1.0000, 0.2500],
             [0.0000, 1.0000]]])
    """
    zero = torch.zeros_like(strengths)
    angle = torch.where(codes == CODES["Rotate"], strengths.deg2rad(), zero)
    cos, sin = angle.cos(), angle.sin()
    x_of_y = torch.where(codes == CODES["ShearX"], strengths, zero - sin)
    y_of_x = torch.where(codes == CODES["ShearY"], strengths, sin)
    return torch.stack((cos, x_of_y, y_of_x, cos), -1).unflatten(-1, (2, 2))


def resample(x: Images, codes: Tensor, strengths: Strengths, turn: Float[Tensor, "batch 2 2"]) -> Images:
    """out(p) = in(⌊M (p − c) + c + t⌋), 0 outside; c is the middle for a rotation, the corner for a shear.

    >>> x = torch.tensor([[[[1, 2, 3, 4]]]], dtype=torch.uint8)
    >>> resample(x, torch.tensor([CODES["TranslateX"]]), torch.tensor([0.25]), torch.eye(2)[None])
    tensor([[[[2, 3, 4, 0]]]], dtype=torch.uint8)
    """
    h, w = x.shape[-2:]
    column, row = (axis.floor_().int() for axis in _sources(x, codes, strengths, turn, whole=True))
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    return pixels(x, ((row * w + column) * inside).long()).mul_(inside[:, None])


def bicubic(
    x: Images, codes: Tensor, strengths: Strengths, turn: Float[Tensor, "batch 2 2"], fill: tuple[int, ...]
) -> Images:
    """out(p) = Σ_kl w_k w_l in(⌊s⌋ + (k, l)), s = M (p − c) + c + t − ½, by Keys' cubic; `fill` where s is outside.

    >>> x = torch.tensor([[[[0, 100, 200]]]], dtype=torch.uint8)
    >>> bicubic(x, torch.tensor([CODES["TranslateX"]]), torch.tensor([0.5 / 3]), torch.eye(2)[None], (7,))
    tensor([[[[ 37, 162,   7]]]], dtype=torch.uint8)
    """
    h, w = x.shape[-2:]
    column, row = _sources(x, codes, strengths, turn, whole=False)
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    left, top = (column - 0.5).floor(), (row - 0.5).floor()
    dx, dy = ((at - 0.5 - first).unsqueeze(1) for at, first in ((column, left), (row, top)))
    columns, rows = ([(first.int() + k).clamp_(0, n - 1) for k in (-1, 0, 1, 2)] for first, n in ((left, w), (top, h)))
    lines = [_cubic([pixels(x, (r * w + c).long()).float() for c in columns], dx) for r in rows]
    colour = to_device(torch.tensor(fill, dtype=torch.uint8), x.device).view(-1, 1, 1)
    return torch.where(inside[:, None], _cubic(lines, dy).clamp_(0, 255).to(torch.uint8), colour)


def _cubic(v: list[Tensor], d: Tensor) -> Tensor:
    """Pillow's: exact where all four are the same, so that what is flat stays so."""
    first, second, third = v[2] - v[0], 2 * (v[0] - v[1]) + v[2] - v[3], v[1] - v[0] - v[2] + v[3]
    return ((third * d + second) * d + first) * d + v[1]


def _sources(x: Tensor, codes: Tensor, strengths: Tensor, turn: Tensor, *, whole: bool) -> tuple[Tensor, Tensor]:
    """M (p − c) + c + t for the centre p of every pixel, (column, row), each (batch, h, w)."""
    h, w = x.shape[-2:]
    sides = to_device(torch.tensor((w, h), dtype=torch.float32), x.device)
    moved = to_device(torch.tensor((CODES["TranslateX"], CODES["TranslateY"])), x.device)
    middle = sides / 2 * (codes == CODES["Rotate"])[:, None]
    by = sides * strengths[:, None] * (codes[:, None] == moved)
    home = middle + (by.trunc_() if whole else by)
    across = torch.arange(w, device=x.device) + 0.5 - middle[:, :1]
    down = torch.arange(h, device=x.device) + 0.5 - middle[:, 1:]

    def source(axis: int) -> Tensor:
        along = turn[:, axis, :1] * across + home[:, axis, None]
        return along[:, None, :] + (turn[:, axis, 1:] * down)[:, :, None]

    return source(0), source(1)


def look_up(x: Images, codes: Tensor, strengths: Strengths) -> Images:
    """out(p) = table[in(p)], the table of each sample's own operation; `codes` are on the CPU.

    >>> look_up(torch.tensor([[[[1, 200]]]], dtype=torch.uint8), torch.tensor([CODES["Invert"]]), torch.zeros(1))
    tensor([[[[254,  55]]]], dtype=torch.uint8)
    """
    tables = torch.empty(*x.shape[:2], 256, dtype=torch.uint8, device=x.device)
    levels = torch.arange(256, dtype=torch.int32, device=x.device)
    for name, table in TABLES.items():
        rows = to_device((codes == CODES[name]).nonzero()[:, 0], x.device)
        if len(rows):
            made = table(x.index_select(0, rows), strengths.index_select(0, rows).view(-1, 1, 1), levels)
            tables.index_copy_(0, rows, made.to(torch.uint8).expand(len(rows), x.shape[1], 256))
    return tables.gather(2, x.flatten(2).long()).view_as(x)


_LEVELS, _GEOMETRY = (torch.tensor([name in names for name in OPERATIONS]) for names in (TABLES, GEOMETRY))


def operate_(x: Images, codes: Tensor, strengths: Tensor, turn: Tensor, fill: tuple[int, ...] | None = None) -> None:
    """One operation per sample, in place. `codes` (batch,), `strengths` (batch,), `turn` (batch, 2, 2) are on the CPU.

    With `fill`, a colour, geometry is bicubic on it; else it takes the nearest pixel, on black.

    >>> x = torch.tensor([[[[1, 200]]], [[[1, 200]]]], dtype=torch.uint8)
    >>> operate_(x, torch.tensor([CODES["Invert"], CODES["Identity"]]), torch.zeros(2), torch.eye(2).expand(2, 2, 2))
    >>> x.flatten(1)
    tensor([[254,  55],
            [  1, 200]], dtype=torch.uint8)
    """

    def there(t: Tensor) -> Tensor:
        return to_device(t, x.device)

    def moved(part: Tensor, code: Tensor, strength: Tensor, m: Tensor) -> Tensor:
        code, m = there(code), there(m)
        return resample(part, code, strength, m) if fill is None else bicubic(part, code, strength, m, fill)

    families: tuple[tuple[Tensor, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]], ...] = (
        (_LEVELS[codes], lambda part, code, strength, _: look_up(part, code, strength)),
        (_GEOMETRY[codes], moved),
        (codes == CODES["Color"], lambda part, _, strength, __: color(part, strength)),
        (codes == CODES["Sharpness"], lambda part, _, strength, __: sharpness(part, strength)),
    )
    for chosen, result in families:
        rows = chosen.nonzero()[:, 0]
        if len(rows):
            at = there(rows)
            part = x.index_select(0, at)
            x.index_copy_(0, at, result(part, codes[rows], there(strengths[rows]), turn[rows]))
