"""Fine-tuning a causal language model while its values come to be transported: its text, and the task of the loop.

step   0 ────────────▸ steps ─────────▸ steps + settle
s      start  (Anneal)   end    settle    end
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from joformer._io import one_line
from joformer._log import logger
from joformer._seeding import generator
from joformer.integrations._annealing import Anneal
from joformer.integrations._transport import transport_values
from joformer.training import Processes, Task, Text
from joformer.training.data import windows
from joformer.training.data.tokenizer import threads
from joformer.training.tasks.parts import divides, share

HELD_OUT = 200
"""Windows that the loss is measured on."""
PIECE = 1 << 16
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def tokenizer_of(folder: Path, config: Any) -> Any:
    """The folder's own tokenizer, or None where it has none."""
    if not any(found for name in TOKENIZERS for found in folder.glob(name)):
        logger.warning(f"{folder} has no tokenizer: using the bytes of the text as tokens")
        return None
    from transformers import AutoTokenizer

    try:
        # With the configuration: transformers raises for that of a transported folder.
        return AutoTokenizer.from_pretrained(str(folder), config=config, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"the tokenizer in {folder} cannot be loaded: {one_line(error)}") from None


def tokens_of(data: Any, tokenizer: Any, enough: int) -> Any:
    """The tokens of text given as bytes (a 1-D array of uint8); of long text, of pieces of it until there are enough.

    >>> import numpy as np
    >>> tokens_of(np.frombuffer(b"to be", np.uint8), None, enough=100).tolist()
    [116, 111, 32, 98, 101]
    """
    import numpy as np

    if tokenizer is None:
        return data
    found: dict[int, Any] = {}
    total = 0
    for at in torch.randperm(-(-len(data) // PIECE), generator=generator(0, "pieces")).tolist():
        start, end = (_boundary(data, edge * PIECE) for edge in (at, at + 1))
        with threads():
            ids = tokenizer(bytes(data[start:end]).decode(), add_special_tokens=False, verbose=False)["input_ids"]
        found[at] = np.array(ids, np.int64)
        total += len(ids)
        if total >= enough:
            break
    return np.concatenate([found[at] for at in sorted(found)])


def _boundary(data: Any, at: int) -> int:
    """The first place from `at` on where a character begins."""
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return min(at, len(data))


@dataclass(frozen=True)
class Tokens:
    """The text as tokens of one model: what it is trained on, and what is held out."""

    train: Any
    valid: Any
    context: int
    tokenizer: Any = None

    @classmethod
    def of(cls, text: Text, model: Any, folder: Path, context: int | None, wanted: int) -> Tokens:
        """The text as tokens of the folder's model, for `wanted` windows of training; ValueError if they do not fit."""
        tokenizer = tokenizer_of(folder, model.config)
        vocab = model.get_input_embeddings().num_embeddings
        if tokenizer is None and vocab < 256:
            raise ValueError(
                f"the folder has no tokenizer, and {vocab} tokens are too few to use bytes: put its tokenizer there"
            )
        positions = getattr(model.config, "max_position_embeddings", None) or 512
        if context is not None and context > positions:
            raise ValueError(f"a context of {context} tokens is more than the {positions} positions of the model")
        context = context or min(512, positions)
        train = tokens_of(text.train, tokenizer, wanted * context)
        valid = tokens_of(text.valid, tokenizer, HELD_OUT * context)
        for name, ids in (("train on", train), ("hold out", valid)):
            if len(ids) < context:
                raise ValueError(
                    f"the text gives {len(ids)} tokens to {name}, fewer than one context of {context}: give more text, "
                    "or a shorter context"
                )
            if int(ids.max()) >= vocab:
                raise ValueError(
                    f"the tokenizer gives token {int(ids.max())}, the model has {vocab}: put its own tokenizer there"
                )
        return cls(train, valid, context, tokenizer)


@torch.no_grad()
def held_out_loss(model: Any, tokens: Tokens, batch: int) -> float:
    """Mean −log p(next token), in nats, on windows spread evenly over the text that is held out."""
    last = len(tokens.valid) - tokens.context
    count = min(HELD_OUT, last // tokens.context + 1)
    starts = torch.linspace(0, last, count, dtype=torch.float64).long()
    was, total, device = model.training, 0.0, next(model.parameters()).device
    model.eval()
    for mine in starts.split(batch):
        ids = windows(tokens.valid, mine, tokens.context).to(device)
        total += len(mine) * float(model(input_ids=ids, labels=ids, use_cache=False).loss)
    model.train(was)
    return total / count


@dataclass(eq=False)
class AnnealingTask(Task):
    """The next token, on windows at random places of the text, at the strength that belongs to the step.

    Attributes:
        tokens: The text.
        size: Windows in a step.
        anneal: The strength of every step.
        settings: All that decides the conversion.
    """

    tokens: Tokens
    size: int
    anneal: Anneal
    settings: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        return self.settings

    def check(self, config: Any, mine: Any, parts: int) -> None:
        """Raises ValueError if the batch cannot be divided."""
        divides(self.size, parts)

    def prepare(self, model: Any, step: int) -> None:
        """Sets the strength of the step."""
        transport_values(model, self.anneal(step))

    def batch(self, seed: int, step: int, part: int, parts: int) -> Tensor:
        """Tokens, (batch, context)."""
        last = len(self.tokens.train) - self.tokens.context
        starts = torch.randint(last + 1, (self.size,), generator=generator(seed, "windows", step))
        return windows(self.tokens.train, starts[share(self.size, part, parts)], self.tokens.context).to(self.device)

    def loss(self, model: Any, batch: Tensor) -> Tensor:
        """The mean loss of the batch."""
        return model(input_ids=batch, labels=batch, use_cache=False).loss

    def evaluate(self, model: Any, processes: Processes) -> dict[str, float]:
        """The loss on held-out text."""
        return {"loss": held_out_loss(model, self.tokens, self.size)}
