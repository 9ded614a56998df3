"""A batch in equal parts, and what was held out in equal rounds."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from joformer.training.processes import Processes


def divides(size: int, parts: int) -> None:
    """Raises ValueError where a batch cannot be divided into so many parts."""
    if size % parts:
        many = f"{parts} parts (processes × accumulate)"
        raise ValueError(f"a batch of {size} does not divide into {many}: choose another")


def share(size: int, part: int, parts: int) -> slice:
    """The part of a batch that one process has."""
    return slice(part * size // parts, (part + 1) * size // parts)


def rounds(items: Tensor, size: int, processes: Processes) -> Iterator[tuple[Tensor, int]]:
    """Batches of this team and whether they count; all processes get as many, since sharded models work together."""
    pieces = items.split(size)
    for at in range(0, len(pieces), processes.teams):
        mine = at + processes.team
        yield pieces[min(mine, len(pieces) - 1)], int(mine < len(pieces))
