"""Language: the next token.

    loss  mean −log p(next token)      perplexity  exp(loss)      bits per byte  Σ −log₂ p / Σ bytes

Bits per byte compare vocabularies; perplexity does not.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from joformer._parallel import ContextParallel
from joformer._seeding import generator
from joformer.training.data import Text, windows
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, rounds, share
from joformer.training.tasks.task import Task
from joformer.training.transfer import to_device


class LanguageTask(Task):
    """Windows of `context` tokens at random places of text.train; evaluated on windows spread evenly over text.valid.

    >>> import numpy as np
    >>> from joformer.training import Tokenizer
    >>> ids = np.frombuffer(b"to be or not to be " * 100, np.uint8)
    >>> task = LanguageTask(Text(ids, ids, ids, Tokenizer.of_bytes(), "an example"), context=8, batch=4)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=0, parts=2)]
    [torch.Size([2, 8]), torch.Size([2, 8])]
    """

    def __init__(self, text: Text, *, context: int = 512, batch: int = 32, held_out: int = 200) -> None:
        if context < 1 or batch < 1 or held_out < 1:
            raise ValueError(f"context, batch and held_out are 1 or more, got {context}, {batch} and {held_out}")
        self.text, self.context, self.size, self.held_out = text, context, batch, held_out
        self.parts = 1
        self.parallel: ContextParallel | None = None
        for split in ("train", "valid"):
            self.fits(split, context)

    def fits(self, split: str, context: int) -> None:
        """Raises ValueError if the split has no window of this context."""
        tokens = len(getattr(self.text, split))
        if not 0 < context < tokens:
            allowed = f"a context is from 1 to {tokens - 1}"
            raise ValueError(f"the {split} split has {tokens} tokens: {allowed}, got {context}")

    def describe(self) -> dict[str, Any]:
        """Everything that decides the batches, as JSON."""
        return {"text": self.text.fingerprint, "context": self.context, "batch": self.size, "held_out": self.held_out}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError where the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        vocab, known = self.text.tokenizer.vocab, getattr(config, "vocab", 0)
        if not isinstance(config, nn.Module) and known < vocab:
            raise ValueError(f"the text has {vocab} tokens, the model {known or 'none'}: say vocab={vocab}")
        own = isinstance(config, nn.Module) and "parallel" not in inspect.signature(config.forward).parameters
        if self.parallel is not None and own:
            raise ValueError(f"{type(config).__name__}.forward has no parallel=: give it one, or no --context-parallel")

    def divide(self, parallel: ContextParallel | None) -> None:
        """Windows are divided into heads and tails; raises ValueError where the context does not divide."""
        if parallel is not None:
            parallel.check(self.context)
        self.parallel = parallel

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """This part of the step's batch, on the device."""
        last = len(self.text.train) - self.context
        starts = torch.randint(last, (self.size,), generator=generator(seed, "batch", step))
        return self._windows(self.text.train, starts[share(self.size, part, parts)], self.context)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of the batch."""
        tokens, targets = batch
        return model(tokens, targets=targets, **self._across())

    @torch.no_grad()
    def evaluate(
        self,
        model: nn.Module,
        processes: Processes,
        *,
        split: Literal["train", "valid", "test"] = "valid",
        context: int | None = None,
    ) -> dict[str, float]:
        """Loss, perplexity and bits per byte over `held_out` windows, at this context or the trained one."""
        tokens, context = getattr(self.text, split), context or self.context
        self.fits(split, context)
        last = len(tokens) - context - 1
        # Side by side where the split has no more, else as far apart as it allows; never the same window twice.
        count = min(self.held_out, last // context + 1)
        starts = torch.linspace(0, last, count, dtype=torch.float64).long()
        lengths = self.text.tokenizer.bytes_per_token
        sums = torch.zeros(3, dtype=torch.float64)
        # A batch is as many tokens as in training: a longer context must not need more memory.
        for mine, weight in rounds(starts, max(1, self.size // self.parts * self.context // context), processes):
            inputs, targets = self._windows(tokens, mine, context)
            nats, n = float(model(inputs, targets=targets, **self._across())) * targets.numel(), targets.numel()
            sums += weight * torch.tensor([nats, n, float(lengths[targets.cpu()].sum())], dtype=torch.float64)
        nats, n, size = processes.total(sums.to(self.device)).tolist()
        loss = nats / n
        return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "bits_per_byte": nats / math.log(2) / size}

    def keep(self, folder: Path) -> None:
        """Writes beside the model what is needed to use it."""
        self.text.tokenizer.save(folder / "tokenizer.json")

    def _windows(self, tokens: Any, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
        both = to_device(windows(tokens, starts, context + 1), self.device)
        inputs, targets = both[:, :-1], both[:, 1:]
        if self.parallel is not None:
            inputs, targets = self.parallel.share(inputs), self.parallel.share(targets)
        return inputs, targets

    def _across(self) -> dict[str, Any]:
        """What the model is called with where processes share the tokens."""
        return {} if self.parallel is None else {"parallel": self.parallel}
