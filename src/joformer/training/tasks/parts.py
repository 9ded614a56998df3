"""A batch in equal parts, what was held out in equal rounds, and the order of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from joformer._seeding import generator
from joformer.training.processes import Processes


def divides(size: int, parts: int) -> None:
    """Raises ValueError if a batch cannot be divided into so many parts."""
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


def epoch_order(count: int, size: int, seed: int, step: int) -> Tensor:
    """Which of `count` items the step takes, where every epoch goes through all in an order of its own.

    >>> steps = torch.cat([epoch_order(10, 4, 0, step) for step in range(5)])
    >>> sorted(steps[:10].tolist()) == sorted(steps[10:].tolist()) == list(range(10))
    True
    """
    places = torch.arange(step * size, (step + 1) * size)
    epochs = range(int(places[0]) // count, int(places[-1]) // count + 1)
    return torch.cat([_order(count, seed, epoch)[places[places // count == epoch] % count] for epoch in epochs])


@lru_cache(maxsize=2)
def _order(count: int, seed: int, epoch: int) -> Tensor:
    """The order of an epoch: drawn once, not at each of its steps."""
    return torch.randperm(count, generator=generator(seed, "epoch", epoch))
