"""Clips augmented on their three axes: reversed rows, columns or time, and shifted in space.

A plan is drawn on the CPU for the whole batch (`plan`), so that parts of a batch are those of the whole. A reversed
clip may show another class: what each becomes is in `Clips.mirrored`, and an axis that is not there is not reversed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

ClipAugmentation = Literal["none", "flip", "shift", "flip+shift"]


@dataclass(frozen=True)
class ClipAugment:
    """Augmentation of clips in training.

    Attributes:
        flip: Probability of reversing each axis: rows, columns and time.
        shift: Maximum shift along rows and columns, as a share of the side; padded with black.

    Example:
        >>> augment = ClipAugment(flip=0.5, shift=0.1)
        >>> plan = augment.plan(4, torch.Generator().manual_seed(0))
        >>> clips, labels = torch.zeros(4, 1, 8, 8, 3, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64)
        >>> augment(clips, labels, plan)[0].shape
        torch.Size([4, 1, 8, 8, 3])
    """

    flip: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.flip <= 1 or not 0 <= self.shift < 1:
            raise ValueError(f"flip must be a probability and shift a share below 1, got {self.flip} and {self.shift}")

    @classmethod
    def named(cls, name: ClipAugmentation) -> ClipAugment | None:
        """The augmentation of this name; None for none of it.

        >>> ClipAugment.named("flip"), ClipAugment.named("none")
        (ClipAugment(flip=0.5, shift=0.0), None)
        """
        if name not in get_args(ClipAugmentation):
            raise ValueError(f"augment must be one of {', '.join(get_args(ClipAugmentation))}, got {name!r}")
        return None if name == "none" else cls(0.5 * ("flip" in name), 0.125 * ("shift" in name))

    def describe(self) -> dict[str, Any]:
        """The settings, as JSON."""
        return asdict(self)

    def plan(self, count: int, random: torch.Generator) -> Float32[Tensor, "count 5"]:
        """The random numbers for each clip: five in 0 … 1, for reversing three axes and shifting two."""
        return torch.rand(count, 5, generator=random)

    def __call__(
        self,
        clips: UInt8[Tensor, "n channels rows columns time"],
        labels: Int64[Tensor, " n"],
        plan: Float32[Tensor, "n 5"],
        mirrored: Sequence[Sequence[int]] | None = None,
    ) -> tuple[UInt8[Tensor, "n channels rows columns time"], Int64[Tensor, " n"]]:
        """The clips as the plan has them, and their classes.

        Args:
            clips: Clips of a batch, or of a part of it.
            labels: Their classes.
            plan: Their rows of `plan`.
            mirrored: For each axis what every class becomes, empty where it may not be reversed; None where classes do
                not matter.

        Returns:
            Both, changed.
        """
        plan = plan.to(clips.device)
        for axis in range(3):
            table = None if mirrored is None else mirrored[axis] if mirrored else ()
            if table is None or table:
                reverse = plan[:, axis] < self.flip
                clips = torch.where(reverse[:, None, None, None, None], clips.flip(axis + 2), clips)
                if table is not None:
                    labels = torch.where(reverse, torch.tensor(table, device=labels.device)[labels], labels)
        for axis, side in enumerate(clips.shape[2:4]):
            most = int(self.shift * side)
            by = (plan[:, 3 + axis] * (2 * most + 1)).long().clamp_max(2 * most) - most
            source = torch.arange(side, device=clips.device) - by[:, None]
            inside = (source >= 0) & (source < side)
            shape = [len(clips), 1, 1, 1, 1]
            shape[axis + 2] = side
            index = source.clamp(0, side - 1).view(shape).expand_as(clips)
            clips = clips.gather(axis + 2, index) * inside.view(shape)
        return clips, labels
