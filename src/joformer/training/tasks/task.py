"""What the loop needs of a task: what a batch is, its loss, and what is measured on held-out data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from joformer._parallel import ContextParallel
from joformer.training.processes import Processes


class Task(ABC):
    """A training task: implement four methods; the others have defaults that you can override.

    A batch must be a function of its arguments alone: then a killed run loses no position in the data and resumes to
    the same bits. Use `generator(seed, "batch", step)` for the randomness of a step.

    Example:
        >>> class Copying(Task):
        ...     def describe(self):
        ...         return {"task": "copying", "batch": 8}
        ...     def batch(self, seed, step, part, parts):
        ...         x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        ...         return x.chunk(parts)[part].to(self.device)
        ...     def loss(self, model, batch):
        ...         return (model(batch) - batch).square().mean()
        ...     def evaluate(self, model, processes):
        ...         return {"error": self.loss(model, self.batch(0, -1, 0, 1)).item()}
        >>> Copying().evaluate(nn.Identity(), Processes())
        {'error': 0.0}
    """

    device = torch.device("cpu")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON: settings, and a checksum of the data."""

    @abstractmethod
    def batch(self, seed: int, step: int, part: int, parts: int) -> Any:
        """Part `part` of `parts` of this step's batch, on the device; all parts have the same size."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The mean loss of the batch, a scalar."""

    @abstractmethod
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """Metrics on held-out data, the same in every process (`processes.total` sums over them)."""

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if model and data do not fit, or a batch is not divisible into this many parts.

        Args:
            config: The configuration of one of joformer's models, or any other module itself.
            mine: The parts of every step that this process will request, in this order.
            parts: The number of parts per step.
        """

    def divide(self, parallel: ContextParallel | None) -> None:
        """Called first; tells the task whether `batch` must return only a share of each sample's tokens.

        Args:
            parallel: The processes that share the tokens of every sample; `batch` gives this one's (`parallel.share`),
                `loss` calls the model with ``parallel=parallel``, and `evaluate` does both.

        Raises:
            ValueError: If samples are not divisible sequences, which is the default.
        """
        if parallel is not None:
            raise ValueError(f"{type(self).__name__} has no sequences to divide: leave out --context-parallel")

    def to(self, device: torch.device) -> None:
        """Moves resident data to the device; batches belong on `self.device`."""
        self.device = device

    def prepare(self, model: nn.Module, step: int) -> None:
        """Called with the unwrapped model before each step, counted from 0, and before each evaluation."""

    def keep(self, folder: Path) -> None:
        """Writes files next to the model that are needed to use it: a tokenizer, the class names."""

    def close(self) -> None:
        """Called when the run ends for any reason: stop background workers here."""
