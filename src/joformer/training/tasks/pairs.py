"""Images with text: which caption belongs to which image, and which words are hidden.

    contrastive   −log softmax_j(s cos(v_image_i, v_text_j))[i], and the same of texts; s is learned
    masked        −log p(token | the other tokens, the image), the mean over the hidden tokens of each pair

    recall@k      share of images (texts) with a text (image) that fits among the k nearest
    masked        share of hidden tokens that are given right

Pairs of one group fit each other (data/pairs.py): in the loss they are no negatives, in recall they are right.
Negatives are the other pairs of the same part of a batch: with more parts (processes × accumulate) there are fewer, so
that the number of parts belongs to a run's settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._seeding import generator
from joformer.training.data import Captioned, Pairs
from joformer.training.data.pairs import PADDING
from joformer.training.processes import Processes
from joformer.training.runs import TOKENIZER
from joformer.training.tasks.parts import divides, epoch_order, rounds, share
from joformer.training.tasks.task import Task
from joformer.training.transfer import to_device

RECALLS, HELD_OUT = (1, 5, 10), 1000
"""How many of the nearest count, and among how many pairs."""


class PairsBatch(NamedTuple):
    """Images in normal form, their captions, which tokens are hidden, and which pairs fit each other."""

    images: Float[Tensor, "n channels height width"]
    tokens: Int[Tensor, "n longest"]
    masked: Bool[Tensor, "n longest"]
    groups: Int[Tensor, "n kinds"]


class PairsTask(Task):
    """Images and their captions; evaluated on `held_out` pairs spread evenly over pairs.test.

    `contrastive` and `masked` are the weights of the two losses, `hide` the probability that a token is hidden;
    at least one token per caption is hidden.

    >>> from joformer.training import load_pairs
    >>> task = PairsTask(load_pairs("captions", vocab=400), batch=8)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=0, parts=2)][:2]
    [torch.Size([4, 1, 16, 24]), torch.Size([4, 6])]
    """

    def __init__(
        self,
        pairs: Pairs,
        *,
        batch: int = 128,
        contrastive: int | float = 1.0,
        masked: int | float = 1.0,
        hide: int | float = 0.5,
        held_out: int = HELD_OUT,
    ) -> None:
        if batch < 1 or held_out < 2 or min(contrastive, masked) < 0 or contrastive + masked == 0:
            given = f"{batch}, {held_out}, {contrastive} and {masked}"
            raise ValueError(f"batch must be 1 or more, held_out 2, the weights 0 or more and not both 0, got {given}")
        if not 0 < hide <= 1:
            raise ValueError(f"hide must be a probability above 0 and up to 1, got {hide}")
        self.pairs, self.size, self.hide, self.held_out = pairs, batch, float(hide), held_out
        self.contrastive, self.masked, self.parts = float(contrastive), float(masked), 1
        self._mean, self._scale = (part.float().view(-1, 1, 1) for part in pairs.moments)
        self._scale = self._scale.clamp(min=1 / 255)  # a channel may be the same everywhere

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        settings = {"batch": self.size, "contrastive": self.contrastive, "masked": self.masked, "hide": self.hide}
        return {"pairs": self.pairs.fingerprint, **settings, "held_out": self.held_out, "parts": self.parts}

    def to(self, device: torch.device) -> None:
        """Moves resident data to the device."""
        self.pairs, self.device = self.pairs.to(device), device
        self._mean, self._scale = self._mean.to(device), self._scale.to(device)

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the data, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        if self.contrastive and self.size // parts < 2:
            raise ValueError(f"a part of {self.size} / {parts} pairs has nothing to compare with: use a larger batch")
        if isinstance(config, nn.Module):
            return
        vocab, channels = self.pairs.tokenizer.vocab, self.pairs.train.images.shape[1]
        if (known := getattr(config, "vocab", 0)) < vocab:
            raise ValueError(f"the captions have {vocab} tokens, the model has {known or 'none'}: set vocab={vocab}")
        if (reads := getattr(config, "channels", 0)) != channels:
            raise ValueError(f"the images have {channels} channels, the model reads {reads}: set channels={channels}")

    def batch(self, seed: int, step: int, part: int, parts: int) -> PairsBatch:
        """This part of the step's pairs, on the device."""
        train = self.pairs.train
        chosen = epoch_order(len(train), self.size, seed, step)
        drawn = torch.rand(self.size, train.tokens.shape[1], generator=generator(seed, "masked", step))
        mine = share(self.size, part, parts)
        return self._of(train, to_device(chosen[mine], self.device), to_device(drawn[mine], self.device))

    def loss(self, model: nn.Module, batch: PairsBatch) -> Tensor:
        """The weighted sum of both losses."""
        images, tokens, masked, groups = batch
        found = model(images, tokens, masked)
        hidden = (cross_entropies(found.words, tokens, masked).sum(1) / masked.sum(1)).mean()
        if not self.contrastive:
            return self.masked * hidden
        similar = found.scale.float() * found.image.float() @ found.text.float().T
        return self.contrastive * contrast(similar, groups) + self.masked * hidden

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes) -> dict[str, float]:
        """Recall at 1, 5 and 10 in both directions, and the share of hidden tokens predicted correctly, in percent."""
        test = self.pairs.test
        count = min(self.held_out, len(test))
        rows = (torch.arange(count, dtype=torch.float64) * len(test) / count).long()
        drawn = torch.rand(count, test.tokens.shape[1], generator=generator("masked", "held out"))
        vectors: list[Tensor] = []
        hits = torch.zeros(2, dtype=torch.float64, device=self.device)
        for places, weight in rounds(torch.arange(count), 256, processes):
            some = self._of(test, rows[places].to(self.device), drawn[places].to(self.device))
            found = model(some.images, some.tokens, some.masked)
            # Every pair once, wherever it was encoded: all others are 0 here.
            vectors = vectors or [hits.new_zeros(count, found.image.shape[1]) for _ in range(2)]
            for every, one in zip(vectors, (found.image, found.text), strict=True):
                every[places] += weight * one.double()
            right = (found.words.argmax(-1) == some.tokens) & some.masked
            hits += weight * torch.stack((right.sum(), some.masked.sum())).double()
        (image, text), (right_, all_) = map(processes.total, vectors), processes.total(hits).tolist()
        groups = test.groups[rows.to(self.device)]
        made: dict[str, float] = {}
        for name, similar in (("to_text", image @ text.T), ("to_image", text @ image.T)):
            place = first_right(similar, groups)
            made |= {f"{name}_{k}": 100 * (place <= k).double().mean().item() for k in RECALLS}
        recall = {f"recall_{k}": (made[f"to_text_{k}"] + made[f"to_image_{k}"]) / 2 for k in RECALLS}
        return {"masked_accuracy": 100 * right_ / all_, **recall, **made}

    def keep(self, folder: Path) -> None:
        """Writes the tokenizer next to the model."""
        self.pairs.tokenizer.save(folder / TOKENIZER)

    def normal(self, images: UInt8[Tensor, "n channels height width"]) -> Float[Tensor, "n channels height width"]:
        """Images as the model reads them: each channel with mean 0 and standard deviation 1 over the training split."""
        return (images.float() / 255 - self._mean) / self._scale

    def _of(self, split: Captioned, rows: Tensor, drawn: Tensor) -> PairsBatch:
        """These pairs, with the tokens hidden whose draw is below `hide`; the lowest of a caption always."""
        tokens, images = split.tokens[rows], self.normal(split.images[rows])
        drawn = drawn.masked_fill(tokens == PADDING, 2.0)
        masked = (drawn < self.hide) | (drawn == drawn.amin(1, keepdim=True))
        return PairsBatch(images, tokens, masked & (tokens != PADDING), split.groups[rows])


def cross_entropies(
    logits: Float[Tensor, "n longest vocab"], tokens: Int[Tensor, "n longest"], masked: Bool[Tensor, "n longest"]
) -> Float[Tensor, "n longest"]:
    """−log softmax(logits)[token] of each hidden token, 0 elsewhere.

    >>> cross_entropies(torch.zeros(1, 2, 4), torch.tensor([[3, -1]]), torch.tensor([[True, False]])).exp()
    tensor([[4., 1.]])
    """
    return F.cross_entropy(logits.float().mT, tokens.masked_fill(~masked, -100), reduction="none")


def contrast(similar: Float[Tensor, "n n"], groups: Int[Tensor, "n kinds"]) -> Float[Tensor, ""]:
    """Mean of −log softmax over rows and over columns, at the diagonal; other pairs that fit are left out.

    Args:
        similar: How alike image i and text j are.
        groups: Numbers of each pair: of its caption, of its picture. Pairs that share one of them fit each other.

    Returns:
        A scalar.

    Example:
        >>> contrast(torch.zeros(3, 3), torch.tensor([[0], [0], [1]])).exp()
        tensor(2.2894)
    """
    own = torch.eye(len(groups), dtype=torch.bool, device=groups.device)
    similar = similar.masked_fill(_fits(groups) & ~own, -torch.inf)
    rows = torch.arange(len(groups), device=groups.device)
    return (F.cross_entropy(similar, rows) + F.cross_entropy(similar.T, rows)) / 2


def first_right(similar: Float[Tensor, "n n"], groups: Int[Tensor, "n kinds"]) -> Int[Tensor, " n"]:
    """Of every row, the place of the first candidate that fits; 1 is best, ties count against.

    >>> first_right(torch.tensor([[0.3, 0.5], [0.1, 0.1]]), torch.tensor([[0], [1]])).tolist()
    [2, 2]
    """
    fits = _fits(groups)
    best = similar.masked_fill(~fits, -torch.inf).amax(1, keepdim=True)
    return 1 + ((similar >= best) & ~fits).sum(1)


def _fits(groups: Int[Tensor, "n kinds"]) -> Bool[Tensor, "n n"]:
    return (groups[:, None] == groups).any(-1)
