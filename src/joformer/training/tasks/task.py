"""What the loop asks of a task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from joformer.training.processes import Processes


@runtime_checkable
class Task(Protocol):
    """What is learned: the data and what a step makes of it."""

    def describe(self) -> dict[str, Any]:
        """Everything that decides the batches, as JSON: settings, and the checksum of the data."""

    def to(self, device: torch.device) -> None:
        """Bring what is resident to the device."""

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Refuse a model that does not fit the data, or a batch that cannot be divided in so many parts.

        This process will ask for the parts `mine` of every step, in this order.
        """

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, ...]:
        """This part of the step's batch, on the device."""

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of the batch, a scalar."""

    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """What counts in the end, on what was held out."""

    def close(self) -> None:
        """The run is over: stop what works ahead."""

    def keep(self, folder: Path) -> None:
        """Write beside the model what is needed to use it: a tokenizer, the names of classes."""
