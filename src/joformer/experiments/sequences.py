"""Short sequences whose answer needs to know where tokens are; the last token is asked.

    displacement         A C M B A D      how far back is M                      1 … 8
    displacement-alone  M     M          how far apart are the two
    order                . A . . B .      which of the two kinds comes first     of 8 kinds
    before               A D B E C F      what stands 3 before the last          of 8 kinds
    window               . M . M|M . .    how many M among the last 8            0 … 7
    window-alone        M   M M|M   M    how many others within the last 8
    presence             . . A . . .      which kind is there (a control)        of 8 kinds

Where other kinds stand between, an answer may hide in how attention is shared out among kinds. Alone there is one kind
only and nothing between: tokens differ in their positions and in nothing else. docs/separation.md says which of these
a layer can answer at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._seeding import generator
from joformer.models._losses import IGNORED
from joformer.training import Processes, Task
from joformer.training.tasks.parts import divides, share

KINDS = 9
"""Kinds of tokens: 0 is what fills a place and is asked (.), 1 … 8 are the others; 1 is the mark (M)."""
PLACES = 8
"""Places that may be asked for, and answers."""
BACK = 3


@dataclass(frozen=True)
class Sequences:
    """Tokens, where they are, and the answer of each sequence.

    >>> drawn = draw("displacement", 2, torch.Generator().manual_seed(0))
    >>> drawn.tokens.shape, drawn.where.shape, drawn.answers.shape
    (torch.Size([2, 9]), torch.Size([2, 9, 1]), torch.Size([2]))
    """

    tokens: Int[Tensor, "batch tokens"]
    where: Float[Tensor, "batch tokens 1"]
    answers: Int[Tensor, " batch"]

    def __getitem__(self, rows: slice) -> Sequences:
        return Sequences(self.tokens[rows], self.where[rows], self.answers[rows])

    def to(self, device: torch.device) -> Sequences:
        """A copy on another device."""
        return Sequences(self.tokens.to(device), self.where.to(device), self.answers.to(device))


def draw(question: str, count: int, random: torch.Generator) -> Sequences:
    """So many sequences of a question; distances, counts and the kind that is there take turns.

    So there are as many of each, and a model that cannot tell them apart is right in exactly one of eight.

    Args:
        question: One of `QUESTIONS`.
        count: How many.
        random: What to draw from.

    Returns:
        The sequences with their answers.

    Raises:
        ValueError: If there is no such question.

    Example:
        >>> alone = draw("window-alone", 1, torch.Generator().manual_seed(0))
        >>> where, last = alone.where[0, :-1, 0], alone.where[0, -1, 0]
        >>> int((last - where <= 8).sum()) == alone.answers.item()
        True
    """
    if question not in QUESTIONS:
        raise ValueError(f"there is no question {question!r}: choose from {'; '.join(QUESTIONS)}")
    return QUESTIONS[question](count, random)


class SequenceTask(Task):
    """The answer of a question, at the last token; accuracy in per cent on sequences that are the same for all.

    >>> task = SequenceTask("order", batch=4)
    >>> task.batch(seed=0, step=0, part=1, parts=2).tokens.shape
    torch.Size([2, 9])
    """

    def __init__(self, question: str, *, batch: int = 64, held_out: int = 1024) -> None:
        if batch < 1 or held_out < 1:
            raise ValueError(f"batch and held_out must be 1 or more, got {batch} and {held_out}")
        self.question, self.size = question, batch
        self.held_out = draw(question, held_out, generator(question, "held out"))

    @property
    def fingerprint(self) -> str:
        """A checksum of the held-out sequences: another way to draw them is other data."""
        drawn = self.held_out.to(torch.device("cpu"))
        parts = (drawn.tokens, drawn.where.long(), drawn.answers)
        return hashlib.sha256(b"".join(part.numpy().astype("<i8").tobytes() for part in parts)).hexdigest()

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        size = {"batch": self.size, "held_out": len(self.held_out.answers)}
        return {"question": self.question, "sequences": self.fingerprint, **size}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        known = getattr(config, "vocab", 0)
        if not isinstance(config, nn.Module) and known < KINDS:
            raise ValueError(f"there are {KINDS} kinds of tokens, the model has {known or 'none'}: set vocab={KINDS}")

    def to(self, device: torch.device) -> None:
        """Moves the held-out sequences to the device."""
        super().to(device)
        self.held_out = self.held_out.to(device)

    def batch(self, seed: int, step: int, part: int, parts: int) -> Sequences:
        """This part of the step's batch, on the device."""
        drawn = draw(self.question, self.size, generator(seed, "batch", step))
        return drawn[share(self.size, part, parts)].to(self.device)

    def loss(self, model: nn.Module, batch: Sequences) -> Tensor:
        """The mean loss of the answers."""
        targets = torch.full_like(batch.tokens, IGNORED)
        targets[:, -1] = batch.answers
        return model(batch.tokens, batch.where, targets=targets)

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """Loss and accuracy on all held-out sequences, in every process."""
        logits = model(self.held_out.tokens, self.held_out.where)[:, -1].double()
        right = logits.argmax(-1) == self.held_out.answers
        return {
            "loss": F.cross_entropy(logits, self.held_out.answers).item(),
            "accuracy": 100 * right.double().mean().item(),
        }


# -- the questions -----------------------------------------------------------------------------------------------------


def _dense(tokens: Tensor, answers: Tensor) -> Sequences:
    """Tokens at 0, 1, …: nothing is left out."""
    count, length = tokens.shape
    where = torch.arange(length, dtype=torch.float64).expand(count, length)
    return Sequences(tokens, where.unsqueeze(-1), answers)


def _alone(marked: Tensor, answers: Tensor) -> Sequences:
    """The marked places and the last one, all of one kind; (count, places) with as many marks in every row."""
    count, places = marked.shape
    at = marked.nonzero()[:, 1].view(count, -1)
    where = torch.cat((at, torch.full((count, 1), places)), 1).to(torch.float64)
    return Sequences(torch.ones_like(where, dtype=torch.int64), where.unsqueeze(-1), answers)


def _among(kinds: Tensor, answers: Tensor) -> Sequences:
    """The kinds of all places, and a token to be asked after them."""
    return _dense(F.pad(kinds, (0, 1)), answers)


def _shuffled(count: int, size: int, random: torch.Generator) -> Tensor:
    """A random order of 0 … size − 1 in every row."""
    return torch.rand(count, size, generator=random).argsort(-1)


def _far(count: int) -> tuple[Tensor, Tensor]:
    """One mark in every row, so far from the end as the answer says."""
    answers = torch.arange(count) % PLACES
    return torch.arange(PLACES - 1, -1, -1) == answers[:, None], answers


def _displacement(count: int, random: torch.Generator) -> Sequences:
    marked, answers = _far(count)
    others = torch.randint(2, KINDS, marked.shape, generator=random)
    return _among(torch.where(marked, 1, others), answers)


def _displacement_alone(count: int, random: torch.Generator) -> Sequences:
    return _alone(*_far(count))


def _order(count: int, random: torch.Generator) -> Sequences:
    places = _shuffled(count, PLACES, random)[:, :2].sort(-1).values
    kinds = 1 + _shuffled(count, KINDS - 1, random)[:, :2]
    return _among(torch.zeros(count, PLACES, dtype=torch.int64).scatter(1, places, kinds), kinds[:, 0] - 1)


def _before(count: int, random: torch.Generator) -> Sequences:
    kinds = 1 + _shuffled(count, KINDS - 1, random)  # each kind once: which are there says nothing
    return _dense(kinds, kinds[:, -1 - BACK] - 1)


def _near(count: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Seven marks in every row, as many of them in its last eight places as the answer says."""
    answers = torch.arange(count) % PLACES
    within = _shuffled(count, PLACES, random) < answers[:, None]
    beyond = _shuffled(count, PLACES, random) < PLACES - 1 - answers[:, None]
    return torch.cat((beyond, within), 1), answers


def _window(count: int, random: torch.Generator) -> Sequences:
    marked, answers = _near(count, random)
    return _among(marked.long(), answers)


def _window_alone(count: int, random: torch.Generator) -> Sequences:
    return _alone(*_near(count, random))


def _presence(count: int, random: torch.Generator) -> Sequences:
    places = torch.randint(PLACES, (count, 1), generator=random)
    kinds = 1 + torch.arange(count)[:, None] % (KINDS - 1)
    return _among(torch.zeros(count, PLACES, dtype=torch.int64).scatter(1, places, kinds), kinds[:, 0] - 1)


QUESTIONS: dict[str, Callable[[int, torch.Generator], Sequences]] = {
    "displacement": _displacement,
    "displacement-alone": _displacement_alone,
    "order": _order,
    "before": _before,
    "window": _window,
    "window-alone": _window_alone,
    "presence": _presence,
}
"""The questions by name."""
