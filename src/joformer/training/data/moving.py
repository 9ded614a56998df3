"""Clips made from still images: two of them move on a black field.

    side of a digit  7/16 of the field's      L = size − side, the way there is      place  p(t) = fold(p₀ + v t)

question    who moves                                            |v|
next        both, in any direction, and bounce off the walls     0.1 L                       Moving MNIST
class       one crosses, in one of 8 directions; the other       0.8 L/(T − 1)               where a picture lies says
            stands still                                         ± 15° around the direction  nothing about the direction

fold(p) = |((p + L) mod 2L) − L| is a walk between 0 and L. 64 × 64 and 20 pictures are the usual Moving MNIST
(Srivastava et al. 2015: steps of a tenth of the way, brighter pixels on top). The place half-way of a clip with classes
is uniform whatever the direction, and the way back shows the same pictures: a model that knows rows and columns but not
when can find the axis of the motion and never its sense.
"""

from __future__ import annotations

from math import pi
from typing import Literal

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

Question = Literal["next", "class"]
DIRECTIONS = ("up", "up-right", "right", "down-right", "down", "down-left", "left", "up-left")
"""The classes, clockwise."""
MIRRORED = ((4, 3, 2, 1, 0, 7, 6, 5), (0, 7, 6, 5, 4, 3, 2, 1), (4, 5, 6, 7, 0, 1, 2, 3))
"""What each direction becomes where rows, columns or time are reversed."""
BLOCK = 64  # clips made at a time: the indices of all would fill the memory


def moving(
    images: UInt8[Tensor, "n channels height width"],
    count: int,
    question: Question,
    *,
    size: int,
    length: int,
    draws: torch.Generator,
) -> tuple[UInt8[Tensor, "count channels size size length"], Int64[Tensor, " count"]]:
    """`count` clips of two images each, and their classes in `DIRECTIONS`; all 0 where the next picture is asked for.

    >>> digits = torch.full((3, 1, 8, 8), 255, dtype=torch.uint8)
    >>> clips, labels = moving(digits, 8, "class", size=16, length=5, draws=torch.Generator().manual_seed(0))
    >>> clips.shape, sorted(labels.tolist())
    (torch.Size([8, 1, 16, 16, 5]), [0, 1, 2, 3, 4, 5, 6, 7])
    """
    side = 7 * size // 16
    if side < 2 or length < 2 or count < 1:
        raise ValueError(f"{count} clips of {length} pictures, {size} × {size}: give 1, 2 and 5 or more")
    way = size - side
    chosen = torch.randint(len(images), (count, 2), generator=draws)
    labels = torch.zeros(count, dtype=torch.int64)
    place = torch.rand(count, 2, 1, 2, generator=draws, dtype=torch.float64)
    turn = torch.rand(count, 2, 1, generator=draws, dtype=torch.float64)
    when = torch.arange(length, dtype=torch.float64)[:, None]
    if question == "next":
        walk = _along(2 * pi * turn) * (0.1 * way) * when + place * way
    else:
        labels = torch.randperm(count, generator=draws) % len(DIRECTIONS)
        step, half = 0.8 * way / (length - 1), 0.4 * way
        angle = (labels[:, None, None] + (2 * turn - 1) / 3) * (pi / 4)
        walk = _along(angle) * step * (when - (length - 1) / 2) + half + place * (way - 2 * half)
        walk[:, 1] = place[:, 1] * way  # it stands still
    corner = (((walk + way) % (2 * way)) - way).abs().round().long()
    small = _scaled(images, side)
    clips = torch.zeros(count, images.shape[1], size, size, length, dtype=torch.uint8)
    for start in range(0, count, BLOCK):
        block = slice(start, start + BLOCK)
        for which in range(2):
            _draw(clips[block], small[chosen[block, which]], corner[block, which])
    return clips, labels


def _along(angle: Tensor) -> Tensor:
    """(row, column) of a step of length 1: up at 0, then clockwise."""
    return torch.stack((-torch.cos(angle), torch.sin(angle)), -1)


def _scaled(images: Tensor, side: int) -> Tensor:
    if images.shape[-2:] == (side, side):
        return images
    scaled = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).to(torch.uint8)


def _draw(clips: Tensor, images: Tensor, corner: Int64[Tensor, "n length 2"]) -> None:
    """Each image at its corners into its clip, in place; where something is already, the brighter one stays."""
    within = torch.arange(images.shape[-1])
    rows, columns = corner[..., 0, None, None] + within[:, None], corner[..., 1, None, None] + within
    clip, when = torch.arange(len(clips))[:, None, None, None], torch.arange(clips.shape[-1])[:, None, None]
    for channel in range(clips.shape[1]):
        one = clips[:, channel]
        one[clip, rows, columns, when] = torch.maximum(one[clip, rows, columns, when], images[:, None, channel])
