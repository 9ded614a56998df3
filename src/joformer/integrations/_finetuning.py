"""Training a causal language model on while its values come to be transported: text, loss, the steps.

    step   0 ────────────▸ steps ─────────▸ steps + settle
    s      start  (Anneal)   end    settle    end

Windows begin at random places of the text, and dropout is random too: both follow from the seed and the step, so that
weights, moments and the step are all that a checkpoint (training/checkpoints.py) has to hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from joformer._io import one_line
from joformer._log import Progress
from joformer._seeding import generator, reseed
from joformer.integrations._annealing import Anneal
from joformer.integrations._transport import transport_values
from joformer.training import Processes, Recipe, Stopped, Text, checkpoints
from joformer.training.data import windows
from joformer.training.data.tokenizer import threads
from joformer.training.determinism import only_one, signals
from joformer.training.state import State

HELD_OUT = 200
"""Windows that the loss is measured on."""
PIECE = 1 << 16
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "*.model", "*.tiktoken")


def tokenizer_of(folder: Path, config: Any) -> Any:
    """The folder's own tokenizer, or None where it has none."""
    if not any(found for name in TOKENIZERS for found in folder.glob(name)):
        return None
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
    """Text for one model: what it is trained on, and what is held out."""

    train: Any
    valid: Any
    context: int

    @classmethod
    def of(cls, text: Text, model: Any, tokenizer: Any, context: int | None, wanted: int) -> Tokens:
        """The text's bytes as tokens of the model, for `wanted` windows of training; ValueError if they do not fit."""
        vocab = model.get_input_embeddings().num_embeddings
        if tokenizer is None and vocab < 256:
            raise ValueError(
                f"the folder has no tokenizer, and {vocab} tokens are too few to take bytes: put its tokenizer there"
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
        return cls(train, valid, context)


@torch.no_grad()
def held_out_loss(model: Any, tokens: Tokens, batch: int) -> float:
    """Mean −log p(next token), in nats, on windows spread evenly over the text that is held out."""
    last = len(tokens.valid) - tokens.context
    count = min(HELD_OUT, last // tokens.context + 1)
    starts = torch.linspace(0, last, count, dtype=torch.float64).long()
    was, total = model.training, 0.0
    model.eval()
    for mine in starts.split(batch):
        ids = windows(tokens.valid, mine, tokens.context).to(model.device)
        total += len(mine) * float(model(input_ids=ids, labels=ids, use_cache=False).loss)
    model.train(was)
    return total / count


@dataclass(frozen=True)
class Course:
    """How a model is trained on."""

    anneal: Anneal
    settle: int
    batch: int
    lr: float
    seed: int
    save_every: int

    @property
    def steps(self) -> int:
        return self.anneal.steps + self.settle

    def rate(self, step: int) -> float:
        """The learning rate at a step, counted from 0: a warm-up from 0 over a twentieth, then a cosine down to 0."""
        warmup = self.steps // 20
        if step < warmup:
            return self.lr * step / warmup
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, self.steps - warmup)))


def train_on(
    model: Any,
    tokens: Tokens,
    course: Course,
    folder: Path,
    before: checkpoints.Checkpoint | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Train the model, whose values are transported, along the course; checkpoints come into `folder`.

    Args:
        model: A causal language model of transformers, in float32.
        tokens: What it is trained on.
        course: For how long, and how.
        folder: Where its checkpoints are; their names are the steps taken.
        before: One of them to resume from: the end is then bit-identical to that of an uninterrupted run.
        settings: What every checkpoint keeps of the conversion it belongs to.

    Raises:
        Stopped: If SIGINT or SIGTERM came; a checkpoint of the step it came in was saved.
    """
    recipe = Recipe(steps=course.steps, lr=course.lr, weight_decay=0.0, betas=(0.9, 0.999))
    state, step = State(model, recipe, Processes()), 0
    if before is not None:
        state.restore(before)
        step = before.step
    checkpoints.sweep(folder)
    if step < course.steps:
        checkpoints.require_room(folder, state.size)
    starts = window_starts(tokens, course)
    model.train()
    with only_one(), signals() as asked, Progress("annealing", course.steps, done=step) as progress:
        progress.update(step, strength=course.anneal(step))
        while step < course.steps:
            transport_values(model, course.anneal(step))
            ids = windows(tokens.train, starts[step], tokens.context).to(model.device)
            reseed(course.seed, "convert", step)
            state.model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
            state.norm()
            state.update(course.rate(step))
            step += 1
            progress.update(step, strength=course.anneal(step))
            stop = asked()
            if step % course.save_every == 0 or step == course.steps or stop:
                if not state.finite():
                    raise ValueError(f"the weights are not finite after step {step}: take a lower lr, another folder")
                kept = {"settings": settings or {}, "strength": course.anneal(step)}
                described = {"conversion": type(model).__name__}
                checkpoints.save(folder, step, state.tensors(), kept, described, keep=2)
            if stop and step < course.steps:
                raise Stopped(f"saved {folder.parent} at step {step}; the same command continues it", 128 + stop)
    transport_values(model, course.anneal(step))


def window_starts(tokens: Tokens, course: Course) -> Tensor:
    """Where the windows of every step begin, (steps, batch)."""
    last = len(tokens.train) - tokens.context
    chosen = torch.randint(last + 1, (course.steps * course.batch,), generator=generator(course.seed, "windows"))
    return chosen.view(course.steps, course.batch)
