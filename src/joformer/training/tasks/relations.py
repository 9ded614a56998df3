"""Knowledge graphs: which entity completes a triple.

    loss  −log σ(score) − Σ p log σ(−score of a wrong one)      MRR  mean of 1 / rank      hits@k  share of ranks ≤ k

Ranks are filtered: another answer that is known to hold, in whatever split, is no error; heads and tails count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from joformer._io import write_json
from joformer._seeding import generator
from joformer.models._relations import ranks, wrong_entities
from joformer.training.data import Graph
from joformer.training.processes import Processes
from joformer.training.tasks.parts import divides, epoch_order, rounds, share
from joformer.training.tasks.task import Task


class RelationsTask(Task):
    """Triples of graph.train against wrong ones; evaluated on graph.valid.

    `negatives` wrong heads and as many wrong tails are drawn for each triple; `temperature` sets how much the hardest
    ones count.

    >>> facts = torch.tensor([[hour, 0, (hour + 1) % 24] for hour in range(24)])
    >>> names = tuple(map(str, range(24)))
    >>> task = RelationsTask(Graph(names, ("next",), facts, facts[:2], facts[:2], "hours"), batch=8, negatives=4)
    >>> [part.shape for part in task.batch(seed=0, step=0, part=0, parts=2)]
    [torch.Size([4, 3]), torch.Size([2, 4, 4])]
    """

    def __init__(self, graph: Graph, *, batch: int = 512, negatives: int = 64, temperature: int | float = 1.0) -> None:
        if batch < 1 or negatives < 1 or temperature < 0:
            given = f"{batch}, {negatives} and {temperature}"
            raise ValueError(f"batch and negatives must be 1 or more, temperature 0 or more, got {given}")
        self.graph, self.size, self.negatives, self.temperature = graph, batch, negatives, float(temperature)
        self.parts = 1

    def describe(self) -> dict[str, Any]:
        """Everything that determines the batches, as JSON."""
        settings = {"batch": self.size, "negatives": self.negatives, "temperature": self.temperature}
        return {"graph": self.graph.fingerprint, **settings}

    def check(self, config: Any, mine: Sequence[int], parts: int) -> None:
        """Raises ValueError if the model does not fit the graph, or the batch cannot be divided."""
        divides(self.size, parts)
        self.parts = parts
        for name in ("entities", "relations"):
            count, known = len(getattr(self.graph, name)), getattr(config, name, 0)
            if not isinstance(config, nn.Module) and known < count:
                raise ValueError(f"the graph has {count} {name}, the model has {known or 'none'}: set {name}={count}")

    def batch(self, seed: int, step: int, part: int, parts: int) -> tuple[Tensor, Tensor]:
        """This part of the step's triples, and wrong entities for them, on the device."""
        mine = share(self.size, part, parts)
        triples = self.graph.train[epoch_order(len(self.graph.train), self.size, seed, step)]
        wrong = wrong_entities(triples, self.negatives, len(self.graph.entities), generator(seed, "batch", step))
        return triples[mine].to(self.device), wrong[:, mine].to(self.device)

    def loss(self, model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        """The mean loss of the batch."""
        triples, wrong = batch
        return model(*triples.unbind(-1), wrong=wrong, temperature=self.temperature)

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, processes: Processes, *, split: Literal["train", "valid", "test"] = "valid"
    ) -> dict[str, float]:
        """Filtered MRR and hits@1, 3 and 10, in percent, over the split."""
        triples, known = getattr(self.graph, split), self.graph.known.to(self.device)
        sums = torch.zeros(5, dtype=torch.float64, device=self.device)
        width = next(p for p in model.parameters() if p.dim() == 2).shape[-1]
        for some, weight in rounds(triples, 1024, processes):
            found = ranks(model, some.to(self.device), len(self.graph.entities), known=known, width=width).double()
            hits = [(found <= k).sum() for k in (1, 3, 10)]
            sums += weight * torch.stack([(1 / found).sum(), *hits, found.new_tensor(found.numel())])
        mrr, *hits, n = processes.total(sums).tolist()
        shares = {f"hits_{k}": 100 * hit / n for k, hit in zip((1, 3, 10), hits, strict=True)}
        return {"mrr": 100 * mrr / n, **shares}

    def keep(self, folder: Path) -> None:
        """Writes the names of entities and relations next to the model."""
        names = {"entities": list(self.graph.entities), "relations": list(self.graph.relations)}
        write_json(folder / "graph.json", names)
