"""Trees: which kind a hidden node has, and which use of a variable is wrong.

    masked    the kinds and names of some nodes are hidden            predict their kinds
    misuse    in half of the trees one use of a variable is replaced   point at it, or at the root where all are right
              by another variable of the same tree

Losses are means over all that is asked in a step, however it is divided into parts. Trees of similar size go into one
step, so that little is padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

from joformer._io import write_json
from joformer._seeding import generator
from joformer.models._losses import IGNORED
from joformer.training.data.syntax import USE
from joformer.training.data.trees import Forest, Rows, Split, Trees
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, epoch_order, rounds, share
from joformer.training.tasks.task import Task

Question = Literal["masked", "misuse"]
READS: dict[str, Literal["kinds", "nodes"]] = {"masked": "kinds", "misuse": "nodes"}
"""What a model must read from the nodes."""
TOGETHER = 8
"""Steps whose trees are drawn together and shared out by size."""
WRONG = 0.5
"""How many of the trees have a wrong use."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Trees as a model gets them, and the answers.

    Attributes:
        rows: The trees, changed.
        answers: The kinds of nodes that are hidden, ``(trees, nodes)``, −100 elsewhere; or the node to point at,
            ``(trees,)``.
        among: The nodes that may be pointed at, ``(trees, nodes)``; None where kinds are asked.
        scale: By which the sum of losses is multiplied.
    """

    rows: Rows
    answers: Tensor
    among: Tensor | None = None
    scale: float = 1.0


def hide(rows: Rows, chance: Float[Tensor, "trees nodes"], share: float, hidden: int) -> Asked:
    """Hides kinds and names of nodes whose number in `chance` is below `share`.

    Args:
        rows: The trees.
        chance: A number in [0, 1) for each node.
        share: Share of nodes that are hidden.
        hidden: The number that stands for a kind that is hidden.

    Returns:
        The trees and the kinds that were hidden.

    Example:
        >>> one = torch.tensor([[3, 4]])
        >>> rows = Rows(one, one, torch.zeros(1, 2, 1).double(), one > 0, one)
        >>> asked = hide(rows, torch.tensor([[0.9, 0.1]]), 0.15, hidden=7)
        >>> asked.rows.kinds.tolist(), asked.rows.names.tolist(), asked.answers.tolist()
        ([[3, 7]], [[3, 0]], [[-100, 4]])
    """
    gone = (chance < share) & rows.real
    answers = torch.where(gone, rows.kinds, IGNORED)
    kinds, names = rows.kinds.masked_fill(gone, hidden), rows.names.masked_fill(gone, 0)
    return Asked(replace(rows, kinds=kinds, names=names), answers)


def misuse(rows: Rows, chance: Float[Tensor, "trees _chances"], uses: Bool[Tensor, "trees nodes"]) -> Asked:
    """Replaces one use of a variable by another variable of the tree, in those whose first chance is below a half.

    Args:
        rows: The trees, each with a use and two variables or more.
        chance: Numbers in [0, 1), the first three of each row are used: whether, which use, by which variable.
        uses: The nodes that use a variable.

    Returns:
        The trees, and the node that is wrong, or 0, the root.

    Example:
        >>> kinds, variables = torch.tensor([[9, 1, 1, 2, 2]]), torch.tensor([[-1, 0, 1, 0, 1]])
        >>> rows = Rows(kinds, 50 + variables, torch.zeros(1, 5, 1).double(), kinds > 0, variables)
        >>> asked = misuse(rows, torch.tensor([[0.1, 0.9, 0.0, 0.0, 0.0]]), kinds == 2)
        >>> asked.rows.names.tolist(), asked.answers.tolist()
        ([[49, 50, 51, 50, 50]], [4])
    """
    wrong, which, by = chance[:, 0] < WRONG, chance[:, 1], chance[:, 2]
    number = (which * uses.sum(1)).long() + 1
    at = ((uses.cumsum(1) == number[:, None]) & uses).long().argmax(1)
    own = rows.variables.gather(1, at[:, None])[:, 0]
    count = rows.variables.amax(1) + 1
    other = (own + 1 + (by * (count - 1)).long()) % count
    stands = (rows.variables == other[:, None]).long().argmax(1)
    given = torch.where(wrong, stands, at)
    names = rows.names.scatter(1, at[:, None], rows.names.gather(1, given[:, None]))
    among = uses.clone()
    among[:, 0] = True
    return Asked(replace(rows, names=names), torch.where(wrong, at, 0), among)


class TreeTask(Task):
    """Questions about trees.train; evaluated on trees.valid, always with the same question per tree.

    Args:
        trees: The trees.
        question: "masked" or "misuse".
        batch: Trees per step.
        share: Share of nodes that are hidden.

    Raises:
        ValueError: If there are no such trees, or a number is out of range.
    """

    def __init__(self, trees: Trees, *, question: Question = "masked", batch: int = 32, share: float = 0.15) -> None:
        if question not in READS:
            raise ValueError(f"question must be one of {', '.join(READS)}, got {question!r}")
        if batch < 1 or not 0 < share < 1:
            raise ValueError(f"batch must be 1 or more and share between 0 and 1, got {batch} and {share}")
        self.trees, self.question, self.size, self.share = trees, question, batch, share
        self.use = trees.kinds.index(USE) if USE in trees.kinds else -1
        self.asked = {split: self._fit(getattr(trees, split)) for split in ("train", "valid", "test")}
        if empty := [split for split, found in self.asked.items() if not len(found)]:
            remedy = "give Python, or more of it" if question == "misuse" else "give more files"
            raise ValueError(f"no tree in {empty[0]} has two variables and a use: {remedy}")

    def _fit(self, forest: Forest) -> Int64[Tensor, " asked"]:
        """The trees that can be asked about: for misuse those with a use and two variables."""
        every = torch.arange(len(forest))
        if self.question == "masked":
            return every
        owner = every.repeat_interleave(forest.counts)
        used = torch.zeros(len(forest), dtype=torch.int64)
        used.scatter_add_(0, owner, ((forest.variables >= 0) & (forest.kinds == self.use)).long())
        most = torch.full((len(forest),), -1).scatter_reduce(0, owner, forest.variables, "amax")
        return every[(used > 0) & (most > 0)]

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        return {"trees": self.trees.fingerprint, "question": self.question, "batch": self.size, "share": self.share}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the trees, or the batch cannot be divided."""
        divides(self.size, parts)
        if isinstance(config, nn.Module):
            return
        for name in ("kinds", "depth", "branches"):
            held = getattr(self.trees, name)
            count, known = len(held) if isinstance(held, tuple) else held, getattr(config, name, 0)
            if known < count:
                raise ValueError(f"the trees have {count} {name}, the model has {known or 'none'}: set {name}={count}")
        if config.reads != READS[self.question]:
            raise ValueError(f"{self.question} is read from {READS[self.question]}: set reads={READS[self.question]!r}")

    def batch(self, seed: int, step: int, part: int, parts: int) -> Asked:
        """This part of the step's trees, on the device."""
        known = self.asked["train"]
        # Of the trees of several steps those of similar size go together; which step gets which is drawn.
        group, turn = divmod(step, TOGETHER)
        drawn = known[epoch_order(len(known), self.size * TOGETHER, seed, group)]
        drawn = drawn[self.trees.train.counts[drawn].argsort(stable=True)].view(TOGETHER, self.size)
        turns = torch.randperm(TOGETHER, generator=generator(seed, "group", group))
        trees = drawn[turns[turn]]
        longest = int(self.trees.train.counts[trees].max())
        chance = torch.rand(self.size, max(longest, 3), generator=generator(seed, "batch", step))
        asked = self._ask(self.trees.train.rows(trees), chance)
        count = int((asked.answers != IGNORED).sum())
        return self._part(asked, share(self.size, part, parts), parts / max(count, 1))

    def loss(self, model: nn.Module, batch: Asked) -> Tensor:
        """The mean loss of the batch."""
        return self._losses(model, batch)[0].sum() * batch.scale

    @torch.no_grad()
    def evaluate(self, model: nn.Module, processes: Processes, *, split: Split = "valid") -> dict[str, float]:
        """Loss and accuracy in percent, over the split; for misuse also the share of wrong uses that are found."""
        forest: Forest = getattr(self.trees, split)
        trees = self.asked[split]
        chance = torch.rand(len(forest), int(forest.counts.max()) + 3, generator=generator("trees", split))
        sums = torch.zeros(5, dtype=torch.float64, device=self.device)
        for some, weight in rounds(trees[forest.counts[trees].argsort(stable=True)], 128, processes):
            asked = self._part(self._ask(forest.rows(some), chance[some]), slice(None), 1.0)
            losses, right = self._losses(model, asked)
            wrong = asked.answers > 0
            held = [losses.double().sum(), right.sum(), asked.answers.ne(IGNORED).sum()]
            sums += weight * torch.stack([*held, right[wrong].sum(), wrong.sum()]).double()
        loss, right, count, found, wrong = processes.total(sums).tolist()
        made = {"loss": loss / count, "accuracy": 100 * right / count}
        return made if self.question == "masked" else {**made, "localised": 100 * found / max(wrong, 1)}

    def keep(self, folder: Path) -> None:
        """Writes the node kinds next to the model."""
        write_json(folder / "trees.json", {"kinds": list(self.trees.kinds), "question": self.question})

    def _ask(self, rows: Rows, chance: Tensor) -> Asked:
        if self.question == "masked":
            return hide(rows, chance[:, : rows.kinds.shape[1]], self.share, len(self.trees.kinds))
        return misuse(rows, chance, (rows.variables >= 0) & (rows.kinds == self.use))

    def _part(self, asked: Asked, mine: slice, scale: float) -> Asked:
        rows = Rows(*(getattr(asked.rows, name)[mine].to(self.device) for name in Rows.__annotations__))
        among = None if asked.among is None else asked.among[mine].to(self.device)
        return Asked(rows, asked.answers[mine].to(self.device), among, scale)

    def _losses(self, model: nn.Module, asked: Asked) -> tuple[Tensor, Tensor]:
        """The loss of each question, 0 where there is none, and whether it is answered right."""
        rows = asked.rows
        read = model(rows.kinds, rows.names, rows.where, real=rows.real)
        read = read.to(torch.promote_types(read.dtype, torch.float32))
        if asked.among is not None:
            read = read.masked_fill(~asked.among, -torch.inf)
        losses = F.cross_entropy(read.flatten(0, -2), asked.answers.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.view(asked.answers.shape), (read.argmax(-1) == asked.answers) & (asked.answers != IGNORED)
