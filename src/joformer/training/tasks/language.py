"""Language: the next token.

    loss  mean −log p(next token)      perplexity  exp(loss)      bits per byte  Σ −log₂ p / Σ bytes

Bits per byte compare vocabularies; perplexity does not. Lengths of context are compared on the same tokens, with more
or less before them (`LanguageTask.by_length`).
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

    `held_out` is the number of windows; None for all, without gaps.

    >>> import numpy as np
    >>> from joformer.training import Tokenizer
    >>> ids = np.frombuffer(b"to be or not to be " * 100, np.uint8)
    >>> task = LanguageTask(Text(ids, ids, ids, Tokenizer.of_bytes(), "an example"), context=8, batch=4)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=0, parts=2)]
    [torch.Size([2, 8]), torch.Size([2, 8])]
    """

    def __init__(self, text: Text, *, context: int = 512, batch: int = 32, held_out: int | None = 200) -> None:
        if context < 1 or batch < 1 or (held_out is not None and held_out < 1):
            raise ValueError(f"context, batch and held_out must be 1 or more, got {context}, {batch} and {held_out}")
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
        """Everything that determines the batches, as JSON."""
        return {"text": self.text.fingerprint, "context": self.context, "batch": self.size, "held_out": self.held_out}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        vocab, known = self.text.tokenizer.vocab, getattr(config, "vocab", 0)
        if not isinstance(config, nn.Module) and known < vocab:
            raise ValueError(f"the text has {vocab} tokens, the model has {known or 'none'}: set vocab={vocab}")
        own = isinstance(config, nn.Module) and "parallel" not in inspect.signature(config.forward).parameters
        if self.parallel is not None and own:
            raise ValueError(f"{type(config).__name__}.forward has no parallel=: add it, or drop --context-parallel")

    def divide(self, parallel: ContextParallel | None) -> None:
        """Divides windows into heads and tails; raises ValueError if the context is not divisible."""
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
        """Loss, perplexity and bits per byte over `held_out` windows, at this context or the trained one.

        Windows of another context cover other text: use `by_length` to compare contexts.
        """
        tokens, context = getattr(self.text, split), context or self.context
        self.fits(split, context)
        last = len(tokens) - context - 1
        starts = self._spread(0, last, context)
        lengths = self.text.tokenizer.bytes_per_token
        sums = torch.zeros(3, dtype=torch.float64)
        # A batch is as many tokens as in training: a longer context must not need more memory.
        for mine, weight in rounds(starts, max(1, self.size // self.parts * self.context // context), processes):
            inputs, targets = self._windows(tokens, mine, context)
            nats, n = float(model(inputs, targets=targets, **self._across())) * targets.numel(), targets.numel()
            sums += weight * torch.tensor([nats, n, float(lengths[targets.cpu()].sum())], dtype=torch.float64)
        nats, n, size = processes.total(sums.to(self.device)).tolist()
        return _measured(nats, n, size)

    @torch.no_grad()
    def by_length(
        self,
        model: nn.Module,
        processes: Processes,
        lengths: Sequence[int],
        *,
        split: Literal["train", "valid", "test"] = "valid",
        targets: int | None = None,
        longest: int | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Loss, perplexity and bits per byte of the same tokens, with increasingly more preceding text.

            length n    tokens s + T − n … s + T − 1 are read, s + 1 … s + T are scored

        Args:
            model: Called as ``model(tokens, targets=…, reduction="none")``; targets that do not count are −100.
            processes: Who shares the work.
            lengths: How many tokens are read.
            split: Which part of the text.
            targets: T, how many at the end of each are scored; the shortest length by default.
            longest: For which length there must be text before all of them; the longest of `lengths` by default.

        Returns:
            For each length what `evaluate` gives, and `by_position`: the mean loss of up to 16 stretches of the T, from
            the first to the last. The same stretch of another length is of the same tokens.

        Raises:
            ValueError: If a length is shorter than the targets, or too long for the split.

        Example:
            >>> import numpy as np
            >>> from joformer.models import LMConfig, initialise
            >>> from joformer.training import Processes, Tokenizer
            >>> ids = np.frombuffer(b"to be or not to be " * 100, np.uint8)
            >>> task = LanguageTask(Text(ids, ids, ids, Tokenizer.of_bytes(), "an example"), context=8, batch=4)
            >>> task.to(torch.device("cpu"))
            >>> model = initialise(LMConfig(vocab=256, dim=16, layers=1, heads=2).build(), 0).eval()
            >>> found = task.by_length(model, Processes(), (8, 16))
            >>> [(length, len(one["by_position"])) for length, one in found.items()]
            [(8, 8), (16, 8)]
        """
        count, longest = targets or min(lengths), longest or max(lengths)
        if not 0 < count <= min(lengths) or max(lengths) > longest:
            raise ValueError(
                f"{count} targets at lengths {tuple(lengths)} up to {longest}: none may be shorter or longer"
            )
        if self.parallel is not None:
            raise ValueError("lengths are compared on whole sequences: leave out --context-parallel")
        self.fits(split, longest)
        tokens, found = getattr(self.text, split), {}
        starts = self._spread(longest - count, len(tokens) - count - 1, count)
        size = self.text.tokenizer.bytes_per_token[windows(tokens, starts + 1, count)].sum().item()
        for length in lengths:
            # All losses are kept and added up in one order, however they were divided into batches and processes.
            losses = torch.zeros(len(starts), count, dtype=torch.float64, device=self.device)
            batch = max(1, self.size // self.parts * self.context // length)
            for mine, weight in rounds(torch.arange(len(starts)), batch, processes):
                inputs, wanted = self._windows(tokens, starts[mine] + count - length, length)
                wanted = wanted.clone()
                wanted[:, : length - count] = -100
                each = model(inputs, targets=wanted, reduction="none")[:, length - count :]
                losses[mine.to(self.device)] += weight * each
            losses = processes.total(losses).cpu()
            parts = losses.mean(0).view(math.gcd(count, 16), -1).mean(-1)
            found[length] = {**_measured(losses.sum().item(), losses.numel(), size), "by_position": parts.tolist()}
        return found

    def keep(self, folder: Path) -> None:
        """Writes the files next to the model that are needed to use it."""
        self.text.tokenizer.save(folder / "tokenizer.json")

    def _spread(self, first: int, last: int, apart: int) -> Tensor:
        """Where windows begin: side by side where there are no more, else spread evenly; never the same one twice."""
        count = (last - first) // apart + 1
        count = count if self.held_out is None else min(self.held_out, count)
        return torch.linspace(first, last, count, dtype=torch.float64).long()

    def _windows(self, tokens: Any, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
        both = to_device(windows(tokens, starts, context + 1), self.device)
        inputs, targets = both[:, :-1], both[:, 1:]
        if self.parallel is not None:
            inputs, targets = self.parallel.share(inputs), self.parallel.share(targets)
        return inputs, targets

    def _across(self) -> dict[str, Any]:
        """What the model is called with where processes share the tokens."""
        return {} if self.parallel is None else {"parallel": self.parallel}


def _measured(nats: float, count: int | float, size: int | float) -> dict[str, float]:
    """What is reported of so many nats over so many tokens of so many bytes."""
    loss = nats / count
    return {"loss": loss, "perplexity": math.exp(min(loss, 700)), "bits_per_byte": nats / math.log(2) / size}
